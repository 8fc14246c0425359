"""What a trial is made of, as plain values: how actions are tried, what on, and the single attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from poise.actions import Action
from poise.data import ImageSet, Memory
from poise.errors import UserError, check_flag, check_number, check_whole, suggestion
from poise.methods import ceiling
from poise.policies import Outcome, Trial
from poise.training import Situation, TrialDone
from poise.tuning.environment import VALIDATION

ENVIRONMENTS: Final = ("local", "lookahead", "both")
#: The largest horizon: each step of it is one more training.
MOST_REPEATED: Final = 100
CLASSIFIER_RULES: Final = ("full", "trials", "paper")


@dataclass(frozen=True)
class TrialSettings:
    """How actions are tried.

    Attributes:
        environment: `local` (the paper's); `lookahead` (two pseudo phases made of the new classes); or `both`, one
            after the other, in which every class of each has the same weight.
        horizon: the paper's n: how often a local training is repeated with its own result as teacher.
        validation: images of each class in B.
        even: whether B has as many images of each class as the scarcest one can spare; if not, as many as each can.
        length: M₁ as a share of M₂.
        longest: M₁ at most, in epochs.
        balance_length: the least length of the balanced fine-tuning of a trial, as a share of the phase's; None: it is
            shortened as much as the rest of the trial.
        classifier: what decides `auto` where there is no reserve: `full`, a training of the decided action at full
            length on the local training part; `trials`, the decided action's own trials, which costs nothing more; or
            `paper`, two short trainings in the first tuned phase.
    """

    environment: str = "local"
    horizon: int = 0
    validation: int = VALIDATION
    length: float = 0.1
    classifier: str = "full"
    longest: int | None = None
    even: bool = True
    balance_length: float | None = None

    def __post_init__(self) -> None:
        for key, known in (("environment", ENVIRONMENTS), ("classifier", CLASSIFIER_RULES)):
            if getattr(self, key) not in known:
                raise UserError(f"trials.{key}={getattr(self, key)!r}; {suggestion(str(getattr(self, key)), known)}")
        check_flag("trials.even", self.even)
        check_whole("trials.horizon", self.horizon, 0, MOST_REPEATED)
        check_whole("trials.validation", self.validation, 1)
        for key, whole in (("length", "epochs"), ("balance_length", "balanced fine-tuning")):
            if (value := getattr(self, key)) is not None:
                check_number(f"trials.{key}", value, positive=True)
                if value > 1:
                    raise UserError(f"trials.{key}={value} must be a share of the phase's {whole}, at most 1")
        if self.longest is not None:
            check_whole("trials.longest", self.longest, 1)
        if self.environment != "local" and self.horizon:
            raise UserError(
                "trials.horizon repeats the local environment, a look-ahead has two phases already; "
                "use it with trials.environment=local"
            )

    def tried_once(self, environment: str) -> TrialSettings:
        """The same in this environment, the only one that is possible, where a training cannot be repeated."""
        if self.horizon:
            raise UserError(
                f"trials.horizon={self.horizon} needs old images and a network that continues; leave it out"
            )
        return replace(self, environment=environment)

    def short(self, full: int) -> int:
        """M₁ for a phase of M₂ epochs."""
        return min(ceiling(self.length * full), full if self.longest is None else self.longest)

    def least_balancing(self, full: int) -> int:
        """How many epochs the balanced fine-tuning of a trial has at least, for one of so many in the phase."""
        return 0 if self.balance_length is None else ceiling(self.balance_length * full)

    def trainings(self, new_classes: int) -> int:
        """How many trainings over the images of a phase a trial is, where so many classes are new."""
        return 2 if self.environment == "both" and new_classes > 1 else 1 + self.horizon


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
