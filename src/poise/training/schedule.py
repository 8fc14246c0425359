"""How long and how hard a phase trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from poise.errors import check_number, check_whole


@dataclass(frozen=True)
class Schedule:
    """How long and how hard a phase trains, whatever the action."""

    epochs: int = 160
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1)
        check_whole("batch", self.batch, 2)  # one image has no batch statistics
        check_number("momentum", self.momentum, below=1)
        check_number("weight_decay", self.weight_decay)

    def lasting(self, epochs: float | None) -> Schedule:
        """The schedule with another number of epochs, if one is given."""
        return self if epochs is None else replace(self, epochs=max(1, round(epochs)))


def ceiling(epochs: float) -> int:
    """The next whole number of epochs, safe from rounding: 0.07 · 100 is 7."""
    return math.ceil(round(epochs, 6))
