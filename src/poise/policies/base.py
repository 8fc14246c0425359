"""What a policy is: it asks for trials, is told their outcomes, and decides on an arm of an action space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poise.errors import Damaged, UserError, shown
from poise.spaces import ActionSpace

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setup:
    """What every policy is made with.

    Attributes:
        space: the arms, with the default among them.
        short: M₁, the epochs of a trial.
        full: M₂, the epochs of a finalist (and of the phase itself).
        seed: seed of the policy's own draws.
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
        epochs: train until this epoch of the short schedule M₁, or of the full one M₂ if `full`.
        continues: an earlier trial of the same arm and round whose model may be trained further instead of starting
            again. This only saves time: training is deterministic, so both ways end in the same model.
        round: which split of the local environment; all trials of a round share it.
        full: whether it is a finalist, trained on the local training part with the full-length schedule.
    """

    id: int
    arm: int
    epochs: int
    continues: int | None = None
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
        trial: the trial.
        reward: accuracy on the validation part of the round, in [0, 1]; 0 if diverged.
        per_class: accuracy on each class, in the order of the head's rows; empty if diverged or unknown.
        diverged: whether the loss stopped being a number.
    """

    trial: Trial
    reward: float
    per_class: tuple[float, ...] = ()
    diverged: bool = False

    def __post_init__(self) -> None:
        values = (self.reward, *self.per_class)
        if not (min(values) >= 0 and max(values) <= 1) or math.isnan(sum(values)):
            raise ValueError(f"rewards lie in [0, 1]: {self}")
        if self.diverged and self.reward != 0:
            raise ValueError(f"a diverged trial has reward 0: {self}")


@dataclass(frozen=True)
class Tried:
    """A trial of some phase, and its outcome.

    All that a policy knows are these entries and its own decisions, in the order in which they happened. `hits` of each
    classifier are noted where the trial may judge them; they mean nothing to a policy.
    """

    phase: int
    outcome: Outcome
    hits: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Decided:
    """The decision that ends the trials of a phase."""

    phase: int
    arm: int


class Policy(ABC):
    """Asks for trials, is told their outcomes, decides.

    In each phase the learner calls `begin`, then `ask` and `tell` until `ask` returns nothing, then `decide`.
    A subclass says which trials it wants (`propose`), what it learns from the outcomes (`learn`) and what it decides
    (`decide`). The base class handles ids, continuations, and outcomes in any order. A policy has
    no state beyond what it was told: the same setup and the same outcomes give the same policy (see `replay`).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.description: dict[str, Any] = {"name": type(self).__name__.lower()}  # name and options, for the record
        self.phase = 0
        self.told: dict[Wish, Outcome] = {}  # in this phase
        self._asked: dict[Wish, Trial] = {}  # in this phase
        self._longest: dict[tuple[int, int, bool], Trial] = {}  # by arm, round and `full`, in this phase
        self.epochs = 0  # that the finished trials of this phase trained, without those that they continued
        self._batch: list[Trial] = []  # the trials asked for last
        self._open: dict[int, Trial] = {}  # those of the batch whose outcome is not known yet

    def begin(self, phase: int) -> None:
        """Begin a phase; tuned phases are numbered from 1. Beginning a phase again before asking changes nothing."""
        if phase == self.phase and not self._asked:
            return
        if phase <= self.phase:
            raise ValueError(f"phase {phase} begins after phase {self.phase}; replay a fresh policy to go back")
        if self._open:
            raise ValueError(f"phase {phase} begins while trials of phase {self.phase} are open")
        self.phase, self.told, self._asked, self._longest, self.epochs = phase, {}, {}, {}, 0
        self.start()

    def ask(self) -> list[Trial]:
        """The trials to run now, in any order or at the same time; empty when the policy has enough.

        Asking again before all outcomes are told returns the trials that are still open.
        """
        if not self._open:
            self._batch = [self._make_trial(wish) for wish in self._read_proposal()]
            self._open = {trial.id: trial for trial in self._batch}
        return list(self._open.values())

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of some open trials. The policy learns once it has all of them, in the order of ids."""
        told = list(outcomes)
        for outcome in told:
            if self._open.get(outcome.trial.id) != outcome.trial:
                raise ValueError(f"no open trial of phase {self.phase} is {outcome.trial}")
            del self._open[outcome.trial.id]
            self.told[outcome.trial.wish] = outcome
            self._remember(outcome)
        if told and not self._open:
            self.learn([self.told[trial.wish] for trial in self._batch])

    def decide_checked(self) -> int:
        """What `decide` returns, as a plain number; refused if the space has no such arm."""
        return self._check("decide", "arm", self.decide(), 0, len(self.setup.space) - 1)

    def _read_proposal(self) -> list[Wish]:
        """What `propose` returns; a policy of one's own that returns something else is told so."""
        wishes: object = self.propose()
        if not isinstance(wishes, list | tuple) or not all(isinstance(wish, Wish) for wish in wishes):
            raise UserError(f"{self._name}: propose must return a list of Wish(arm, epochs), not {shown(wishes)}")
        return list(wishes)

    @property
    def _name(self) -> str:
        return f"policy {self.description['name']}"

    def _check(self, method: str, what: str, value: object, least: int, most: int | None) -> int:
        """The value as a plain whole number (numpy's are welcome), refused outside of its range."""
        if isinstance(value, Integral) and not isinstance(value, bool):
            number = int(value)
            if least <= number and (most is None or number <= most):
                return number
        wanted = f"a whole number from {least} " + ("on" if most is None else f"to {most}")
        raise UserError(f"{self._name}: {method} returned {what}={shown(value)}, not {wanted}")

    def _make_trial(self, wish: Wish) -> Trial:
        longest = self.setup.full if wish.full else self.setup.short
        wish = Wish(
            self._check("propose", "arm", wish.arm, 0, len(self.setup.space) - 1),
            self._check("propose", "epochs", wish.epochs, 1, longest),
            self._check("propose", "round", wish.round, 0, None),
            bool(wish.full),
        )
        if wish in self._asked:
            raise UserError(f"{self._name}: propose returned {wish} twice in a phase; use another round")
        earlier = self._longest.get((wish.arm, wish.round, wish.full))
        continues = earlier.id if earlier is not None and earlier.epochs < wish.epochs else None
        trial = Trial(len(self._asked), wish.arm, wish.epochs, continues, wish.round, wish.full)
        self._asked[wish] = trial
        return trial

    def _remember(self, outcome: Outcome) -> None:
        """Keep the longest finished trial of each arm and round; a diverged one cannot be continued."""
        trial = outcome.trial
        longest = self._longest.get((trial.arm, trial.round, trial.full))
        self.epochs += trial.epochs - (longest.epochs if longest is not None and trial.continues is not None else 0)
        if not outcome.diverged and (longest is None or longest.epochs < trial.epochs):
            self._longest[trial.arm, trial.round, trial.full] = trial

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

    def resolved(self) -> dict[str, Any]:
        """The policy with everything resolved, as plain values for the record."""
        return {**self.description, "space": self.setup.space.as_json()}


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
