"""What a phase is doing at this moment and how much is to come: read by what shows progress, and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Workload:
    """How much work a phase is expected to be, in images trained on.

    Attributes:
        phase: its number.
        trials: how many trials are expected (of a tuner that is not a policy: rounds or episodes).
        exact: whether it will be exactly so many; else it may be fewer.
        tuning: images of all trials.
        judging: images of the training that judges the classifiers.
        stages: images of each stage of the phase's own training, in order.
        preparing: images of the trainings that judge the augmentation, before all that.
    """

    phase: int
    trials: int = 0
    exact: bool = True
    tuning: float = 0.0
    judging: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    preparing: float = 0.0

    @property
    def choosing(self) -> float:
        """Images of everything before the phase's own training."""
        return self.tuning + self.judging

    @property
    def training(self) -> float:
        """Images of the phase's own training."""
        return sum(self.stages.values())


@dataclass(frozen=True)
class Trying:
    """Trials under way, one after the other or side by side.

    Attributes:
        purpose: `policy`, or `classifier` where they judge the classifiers.
        actions: what each of them tries, in words: where it differs from the default.
        shares: of the phase's work of that purpose, as planned: one share of each trial.
        before: how many trials of this phase were done before.
        spent: the share that was done before.
        finished: how many of these are done.
    """

    purpose: str
    actions: Sequence[str]
    shares: Sequence[float]
    before: int = 0
    spent: float = 0.0
    finished: int = 0

    @property
    def done(self) -> float:
        """The share that is done by now."""
        return self.spent + sum(self.shares[: self.finished])


@dataclass
class Outlook:
    """The phase under way: how much work it is, and what is being tried, if anything is."""

    work: Workload | None = None
    trying: Trying | None = None
