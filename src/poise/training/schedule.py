"""How long and how hard a phase trains."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from poise.actions import MOST_EPOCHS
from poise.errors import UserError, check_number, check_whole, shown, suggestion
from poise.methods import Method, Stage, ceiling

MAIN, BALANCE = Stage().name, Method.balancing.name
_LATER: Final = ("milestones", "balance_share", "balance_lr")
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
        milestones: after which shares of the main stage the learning rate is multiplied by its decay, in place of the
            method's own; a first phase that has another shape than the others (DER's) keeps it.
        balance_share: the length of the balanced fine-tuning as a share of `epochs`, in place of the method's own.
        balance_lr: its learning rate, in place of the method's own.
    """

    epochs: int = 160
    batch: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    optimiser: str = "sgd"
    decay: str = "steps"
    warmup: float = 0.0
    images: int | None = None
    milestones: tuple[float, ...] | None = None
    balance_share: float | None = None
    balance_lr: float | None = None

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs, 1, MOST_EPOCHS)
        check_whole("batch", self.batch, 2)  # one image has no batch statistics
        check_number("momentum", self.momentum, below=1)
        check_number("weight_decay", self.weight_decay)
        check_number("warmup", self.warmup, below=1)
        if self.images is not None:
            check_whole("images", self.images, 1)
        if self.milestones is not None:
            object.__setattr__(self, "milestones", _shares("milestones", self.milestones))
        for name in ("balance_share", "balance_lr"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), positive=True)
        for name, value, words in (("optimiser", self.optimiser, OPTIMISERS), ("decay", self.decay, DECAYS)):
            if value not in words:
                raise UserError(f"{name}={shown(value)}; {suggestion(value, words)}")

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

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the keys that once did not exist where they say nothing."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER or value is not None}

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
        shaped = replace(stage, milestones=(), cosine=True) if self.decay == "cosine" else self.apply_to(stage)
        rising = ceiling(self.warmup * epochs)
        return shaped.rate(epoch, epochs, start) * min(1.0, (epoch + 1) / (rising + 1))


def _shares(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Shares of a stage, in rising order."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"{name}={shown(values)} must be a list of shares of a phase, such as [0.5, 0.75]")
    found = tuple(values)
    for value in found:
        check_number(name, value, positive=True, below=1)
    if list(found) != sorted({*found}):
        raise UserError(f"{name}={list(found)} must rise")
    return found
