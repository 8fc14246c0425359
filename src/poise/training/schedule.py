"""How long and how hard a phase trains."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from poise.methods import Method, Stage
from poise.settings import ScheduleKeys, ceiling

MAIN, BALANCE = Stage().name, Method.balancing.name


class Schedule(ScheduleKeys):
    """How long and how hard a phase trains, whatever the action: the keys of `poise.settings`, and what they mean."""

    def __init__(self, *first: Any, **values: Any) -> None:  # noqa: ANN401 - by position too, for type checkers
        super().__init__(*first, **values)

    def apply_to(self, stage: Stage) -> Stage:
        """A stage of the method with what the schedule says of its length, its milestones and its learning rate.

        >>> Schedule(balance_share=2 / 9).apply_to(Stage("balance", share=1 / 8)).epochs(90)
        20
        """
        if stage.name == BALANCE:
            share = stage.share if self.balance_share is None else self.balance_share
            return replace(stage, share=share, lr=stage.lr if self.balance_lr is None else self.balance_lr)
        if stage.name == MAIN and self.milestones is not None and not stage.keeps_milestones:
            stage = replace(stage, milestones=self.milestones, cosine=False)
        return stage

    def lasting(self, epochs: float | None) -> Schedule:
        """The schedule with another number of epochs, if one is given."""
        return self if epochs is None else self.replace(epochs=max(1, round(epochs)))

    def paced(self, images: int) -> Schedule:
        """The schedule of a phase of so many images: with a quarter of them twice the epochs, and so half the steps.

        >>> Schedule(epochs=60, images=200).paced(800).epochs, Schedule(epochs=60).paced(800).epochs
        (30, 60)
        """
        if self.images is None:
            return self
        paced = min(2.0, math.sqrt(self.images / max(images, 1))) * self.epochs
        return self.lasting(max(paced, min(self.epochs, 30)))

    def rate(self, stage: Stage, epoch: int, epochs: int, lr: float) -> float:
        """The learning rate in `epoch` (from 0) of `epochs` of a stage, which starts at `lr` or at its own.

        >>> rates = Schedule(decay="cosine", warmup=0.2)
        >>> [round(rates.rate(Stage(), epoch, 10, 1.0), 2) for epoch in (0, 1, 2, 9)]
        [0.33, 0.65, 0.9, 0.02]
        """
        if self.decay == "cosine":
            stage = replace(stage, milestones=(), cosine=True)
        rising = ceiling(self.warmup * epochs)
        start = lr if stage.lr is None else stage.lr
        return stage.rate(epoch, epochs, start) * min(1.0, (epoch + 1) / (rising + 1))
