"""MEMO (Zhou et al., ICLR 2023): DER that adds only a last level in every phase; the levels before are shared."""

from __future__ import annotations

from torch import nn

from poise.methods.base import Growth, register
from poise.methods.der import DER
from poise.nets import ResNet, Specialised


@register
class MEMO(DER):
    """L = CE + λ_a · CE of an auxiliary classifier, as DER's, on a network that grows by its last level alone.

    Shallow levels learn much the same in every phase, so one copy of them is shared and trained on. The last level is
    added anew in every phase, as a copy of the newest one; the others are frozen, in eval mode. The classifier sees the
    features of all last levels; it is drawn anew and balanced as DER's is. The options are DER's.
    """

    name = "memo"

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """One more last level, and those that were there before frozen."""
        return Specialised.expanding(backbone) if isinstance(backbone, ResNet | Specialised) else backbone
