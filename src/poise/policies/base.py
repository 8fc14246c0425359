"""What a policy is: it asks for trials, is told their outcomes, and decides on an arm of an action space."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poise.actions import ActionSpace
from poise.errors import Damaged, UserError

Array = NDArray[np.float64]

#: The most of anything that a policy counts: trials, rounds, rungs. One of one's own may wait for a reward for ever.
MOST_TRIALS: Final = 10_000


@dataclass(frozen=True)
class Setup:
    """The arguments that every policy is made with.

    Attributes:
        space: the arms, with the default among them.
        short: M₁, the epochs of a trial.
        full: M₂, the epochs of a finalist (and of the phase itself).
    """

    space: ActionSpace
    short: int
    full: int
    seed: int


class Wish(NamedTuple):
    """A trial that a policy would like to run; equal wishes mean the same training."""

    arm: int
    epochs: int
    round: int = 0
    full: bool = False


@dataclass(frozen=True)
class Trial:
    """One temporary training of one arm on a local environment.

    Attributes:
        id: unique within the phase, counted from 0 in the order of asking.
        arm: index of the action in the space.
        epochs: train until this epoch of the short schedule M₁, or of the full one M₂ if `full`. A longer trial of the
            same arm and round goes on where a shorter one stopped: training is deterministic, so this only saves time.
        round: which split of the local environment; all trials of a round share it.
        full: whether it is a finalist, trained on the local training part with the full-length schedule.
    """

    id: int
    arm: int
    epochs: int
    round: int = 0
    full: bool = False

    @cached_property
    def wish(self) -> Wish:
        """The trial without its place in the phase."""
        return Wish(self.arm, self.epochs, self.round, self.full)


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Attributes:
        reward: accuracy on the validation part of the round, in [0, 1]; 0 if diverged.
        per_class: accuracy on each class, in the order of the head's rows; empty if diverged or unknown.
        diverged: whether the loss stopped being a number.
    """

    trial: Trial
    reward: float
    per_class: tuple[float, ...] = ()
    diverged: bool = False

    def __post_init__(self) -> None:
        if not all(0 <= value <= 1 for value in (self.reward, *self.per_class)):
            raise ValueError(f"rewards lie in [0, 1]: {self}")
        if self.diverged and self.reward != 0:
            raise ValueError(f"a diverged trial has reward 0: {self}")


@dataclass(frozen=True)
class Tried:
    """A trial of some phase, and its outcome.

    All that a policy knows are these entries and its own decisions, in the order in which they happened. The `hits` of
    each classifier mean nothing to it.
    """

    phase: int
    outcome: Outcome
    hits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Decided:
    """The decision that ends the trials of a phase."""

    phase: int
    arm: int


class Policy(ABC):
    """Asks for trials, is told their outcomes, decides.

    In each phase the learner calls `begin`, then `ask` and `tell` until `ask` returns nothing, then `decide`.
    A subclass says which trials it wants (`propose`), what it learns from the outcomes (`learn`) and what it decides
    (`decide`). The base class handles ids, and outcomes in any order. A policy has no state beyond what it was told:
    the same setup and the same outcomes give the same policy (see `replay`).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.name = type(self).__name__.lower()
        self.phase = 0
        self.told: dict[Wish, Outcome] = {}  # of this phase
        self._asked: set[Wish] = set()
        self._batch: list[Trial] = []  # the trials asked for last
        self._open: dict[int, Trial] = {}  # those of the batch whose outcome is not known yet

    def begin(self, phase: int) -> None:
        """Begin a phase; tuned phases are numbered from 1."""
        if phase <= self.phase or self._open:
            raise ValueError(
                f"phase {phase} cannot begin in or before phase {self.phase}, nor while trials of that are open; "
                "replay a fresh policy to go back"
            )
        self.phase, self.told, self._asked = phase, {}, set()
        self.start()

    def ask(self) -> list[Trial]:
        """The trials to run now, in any order or at the same time; empty when the policy has enough.

        Asking again before all outcomes are told returns the trials that are still open.
        """
        if not self._open:
            self._batch = [self._make_trial(wish) for wish in self.propose()]
            self._open = {trial.id: trial for trial in self._batch}
        return list(self._open.values())

    def _make_trial(self, wish: Wish) -> Trial:
        arm, epochs, split = map(operator.index, wish[:3])  # numpy's whole numbers become plain ones
        wish = Wish(arm, epochs, split, bool(wish.full))
        arms, longest = len(self.setup.space), self.setup.full if wish.full else self.setup.short
        if wish in self._asked or not (0 <= arm < arms and 1 <= epochs <= longest and split >= 0):
            raise UserError(
                f"policy {self.name}: propose returned {wish}; name an arm below {arms}, 1 to {longest} epochs, and no "
                "wish twice in a phase"
            )
        trial = Trial(len(self._asked), *wish)
        self._asked.add(wish)
        return trial

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of some open trials. The policy learns once it has all of them, in the order of ids."""
        for outcome in outcomes:
            trial = outcome.trial
            if self._open.get(trial.id) != trial:
                raise ValueError(f"no open trial of phase {self.phase} is {trial}")
            del self._open[trial.id]
            self.told[trial.wish] = outcome
        if self._batch and not self._open:
            self.learn([self.told[trial.wish] for trial in self._batch])
            self._batch = []

    @property
    def epochs(self) -> int:
        """How many epochs the finished trials of this phase trained, those that a longer one went on from once."""
        longest: dict[Wish, int] = {}
        for wish in self.told:
            alike = wish._replace(epochs=0)
            longest[alike] = max(wish.epochs, longest.get(alike, 0))
        return sum(longest.values())

    def decide_checked(self) -> int:
        """The result of `decide` as a plain number; refused if the space has no such arm."""
        arm = operator.index(self.decide())
        if not 0 <= arm < len(self.setup.space):
            raise UserError(f"policy {self.name}: decide returned {arm}; name an arm below {len(self.setup.space)}")
        return arm

    # What a subclass defines ---------------------------------------------------------------------------------------

    def start(self) -> None:  # noqa: B027 - a hook: most policies need nothing here
        """A new phase has begun."""

    @abstractmethod
    def propose(self) -> Sequence[Wish]:
        """The next trials; empty when there were enough."""

    @abstractmethod
    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes of all trials proposed last."""

    @abstractmethod
    def decide(self) -> int:
        """The arm for this phase. Deciding changes nothing, so asking again gives the same answer."""

    def distribution(self) -> Array | None:
        """The probability of each arm, for policies that have one."""
        return None


def replay(policy: Policy, history: Iterable[Tried | Decided]) -> Policy:
    """Bring a fresh policy to the end of the history by asking it again; raises if it asks for something else.

    The history is in the order in which things happened. If it ends in the middle of a phase, `ask` returns the trials
    that are still to be run.
    """
    for entry in history:
        if entry.phase != policy.phase:
            policy.begin(entry.phase)
        asked = policy.ask()
        if isinstance(entry, Decided):
            if asked or policy.decide_checked() != entry.arm:
                raise Damaged(f"the recorded decision of phase {entry.phase} is not what the policy decides")
        elif entry.outcome.trial not in asked:
            raise Damaged(f"phase {entry.phase} records {entry.outcome.trial}, which the policy does not ask for")
        else:
            policy.tell([entry.outcome])
    return policy


# What it costs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """The expected cost of choosing the action of a phase.

    Attributes:
        trials: about how many there will be (of a tuner that is no policy: rounds or episodes).
        epochs: that they train, over the images of the phase.
        steps: of training that they take besides, of one batch each.
        full: whether one of them is as long as the phase.
    """

    trials: int = 0
    epochs: float = 0.0
    steps: int = 0
    full: bool = False


def plan_trials(policy: Policy, phase: int) -> Planned:
    """The trials that a new policy asks for in this phase, the first tuned one being 1: played, not trained.

    Every trial of the default action fails, and all others are equally good: a policy that draws its arms may ask for
    a few trials more or less.
    """
    for number in range(1, phase + 1):  # what is tried in one may depend on all before it
        policy.begin(number)
        while len(policy.told) < MOST_TRIALS and (asked := policy.ask()):
            rewards = [0.0 if trial.arm == policy.setup.space.default else 0.5 for trial in asked]
            policy.tell([Outcome(trial, each, (each, each)) for trial, each in zip(asked, rewards, strict=True)])
    return Planned(len(policy.told), policy.epochs, full=any(wish.full for wish in policy.told))
