"""How long and how hard a phase trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from poise.actions import MOST_EPOCHS
from poise.errors import UserError, check_number, check_whole, shown, suggestion
from poise.methods import Stage, ceiling

OPTIMISERS: Final = ("sgd", "adamw")
DECAYS: Final = ("steps", "cosine")


@dataclass(frozen=True)
class Schedule:
    """How long and how hard a phase trains, whatever the action.

    Attributes:
        epochs: of the main stage; the others scale with it.
        batch: images per step.
        momentum: of SGD; the first β of AdamW.
        weight_decay: added to the gradients by SGD, applied apart from them by AdamW.
        optimiser: `sgd` or `adamw`.
        decay: how the learning rate falls: as the method's stages say (`steps`), or along half a `cosine` in each.
        warmup: the share of a stage's epochs in which the learning rate rises to its start.
        images: for how many images `epochs` is meant, if phases of more or fewer are to be shorter or longer.
    """

    epochs: int = 160
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    optimiser: str = "sgd"
    decay: str = "steps"
    warmup: float = 0.0
    images: int | None = None

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1, MOST_EPOCHS)
        check_whole("batch", self.batch, 2)  # one image has no batch statistics
        check_number("momentum", self.momentum, below=1)
        check_number("weight_decay", self.weight_decay)
        check_number("warmup", self.warmup, below=1)
        if self.images is not None:
            check_whole("images", self.images, 1)
        for name, value, words in (("optimiser", self.optimiser, OPTIMISERS), ("decay", self.decay, DECAYS)):
            if value not in words:
                raise UserError(f"{name}={shown(value)}; {suggestion(value, words)}")

    def lasting(self, epochs: float | None) -> Schedule:
        """The schedule with another number of epochs, if one is given."""
        return self if epochs is None else replace(self, epochs=max(1, round(epochs)))

    def paced(self, images: int) -> Schedule:
        """The schedule of a phase of so many images: with a quarter of them twice the epochs, and so half the steps.

        >>> Schedule(epochs=60, images=200).paced(800).epochs, Schedule(epochs=60).paced(800).epochs
        (30, 60)
        """
        if self.images is None:
            return self
        paced = min(2.0, math.sqrt(self.images / max(images, 1))) * self.epochs
        return self.lasting(max(paced, min(self.epochs, 30)))

    def rate(self, stage: Stage, epoch: int, epochs: int, start: float) -> float:
        """The learning rate in `epoch` (from 0) of `epochs` of a stage that starts at `start`.

        >>> rates = Schedule(decay="cosine", warmup=0.2)
        >>> [round(rates.rate(Stage(), epoch, 10, 1.0), 2) for epoch in (0, 1, 2, 9)]
        [0.33, 0.65, 0.9, 0.02]
        """
        shaped = replace(stage, milestones=(), cosine=True) if self.decay == "cosine" else stage
        rising = ceiling(self.warmup * epochs)
        return shaped.rate(epoch, epochs, start) * min(1.0, (epoch + 1) / (rising + 1))
