"""Layers that neither draw random numbers nor take the number format that the calling program prefers."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import torch
from torch import nn

from poise.nets.drawing import OwnDraws

#: The format of all weights and statistics, whatever `torch.get_default_dtype` says.
FULL: Final = torch.float32

L = TypeVar("L", bound=nn.Module)


def make_layer(kind: type[L], *sizes: Any, **options: Any) -> L:  # noqa: ANN401 - whatever the layer takes
    """A layer in float32. Its first values, the same each time, are to be overwritten: nobody drew them."""
    with OwnDraws(torch.Generator().manual_seed(0)):  # torch would take them from its global generator
        return kind(*sizes, **options, dtype=FULL)
