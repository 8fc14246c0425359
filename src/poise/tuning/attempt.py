"""What a trial is made of, as plain values: how actions are tried, what on, and the single attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from poise.actions import Action
from poise.data import ImageSet, Memory
from poise.policies import Outcome, Trial
from poise.settings import TrialSettings
from poise.training import Situation, TrialDone


@dataclass(frozen=True)
class Attempt:
    """A trial with its action and the classifier that is rewarded. `short` is M₁, where the settings' is not meant."""

    trial: Trial
    action: Action
    classifier: str
    short: int | None = None

    def event(
        self,
        phase: int,
        outcome: Outcome,
        record: Mapping[str, Any],
        *,
        distribution: Sequence[float] | None = None,
        **more: str,
    ) -> TrialDone:
        """What is told of the attempt when it is done; `more` about its trial, where no policy asked for it."""
        trial, action = {**asdict(self.trial), **more}, dict(self.action)
        reward, diverged = outcome.reward, outcome.diverged
        return TrialDone(phase, trial, action, self.classifier, reward, diverged, record, distribution)


@dataclass(frozen=True)
class TrialInputs:
    """Everything that the trials of a phase depend on.

    Attributes:
        situation: what the phase starts from.
        memory: the kept images, exemplars and reserve.
        new: what arrived and may be trained on.
        reserve: what arrived and may not.
        quota: images of each class that may be kept to train on after the phase, by the plain rule.
        settings: how actions are tried.
        rho: the memory's allocation, where the action does not say it.
        first_rho: the same after the first phase.
        arrived: how many images arrived; None: those that a training has.
        stored_share: the share of them that was stored; the others are gone.
        classes: the labels of the rows of the head.
        planned: the epochs that the policy takes a phase to have, where this one has more or fewer.
    """

    situation: Situation
    memory: Memory
    new: ImageSet
    reserve: ImageSet
    quota: int
    settings: TrialSettings = field(default_factory=TrialSettings)
    rho: float = 0.0
    first_rho: float = 0.0
    arrived: int | None = None
    stored_share: float = 1.0
    classes: tuple[Any, ...] = ()
    planned: int | None = None

    def allocation(self, action: Action) -> float:
        """The ρ that the memory is stored with after a phase trained with this action."""
        return self.rho if action.allocation is None else action.allocation

    def pseudo_quota(self, action: Action) -> float:
        """The quota in a look-ahead.

        Where actions differ in their ρ it is as much smaller as the images that can arrive, so that ρ weighs exemplars
        against new images in the proportion of real phases; else all images that are there are put to use.
        """
        if action.allocation is None or self.stored_share == 1:
            return self.quota
        return max(1.0, self.quota * self.stored_share)

    @property
    def planned_epochs(self) -> int:
        """The length of a phase that a trial's own is meant relative to."""
        return self.planned or self.situation.schedule.epochs
