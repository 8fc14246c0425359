"""Layers that neither draw random numbers nor take the number format that the calling program prefers."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import torch
from torch import nn

#: The format of all weights and statistics, whatever `torch.get_default_dtype` says.
FULL: Final = torch.float32

L = TypeVar("L", bound=nn.Module)


def blank_layer(kind: type[L], *sizes: Any, **options: Any) -> L:  # noqa: ANN401 - whatever the layer takes
    """A layer in float32 whose values are to be filled in: torch's own first ones come from its global generator."""
    made: L = nn.utils.skip_init(kind, *sizes, **options, dtype=FULL)  # type: ignore[no-untyped-call]
    return made
