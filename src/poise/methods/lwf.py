"""LwF (Li and Hoiem, TPAMI 2018), with exemplars as in this line of work: iCaRL's training, FC classifier."""

from __future__ import annotations

from poise.methods.base import register
from poise.methods.icarl import ICaRL


@register
class LwF(ICaRL):
    """The same loss as iCaRL; it predicts with the fully-connected classifier."""

    name = "lwf"
    default_action = ICaRL.default_action.replace(classifier="fc")
