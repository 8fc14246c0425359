"""What a policy is: it asks for trials, is told their outcomes, and decides on an arm of an action space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from poise.actions import ActionSpace
from poise.errors import Damaged, UserError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setup:
    """What every policy is made with.

    Attributes:
        space: the arms, with the default among them.
        short: M₁, the epochs of a trial.
        full: M₂, the epochs of a finalist (and of the phase itself).
        seed: of the policy's own draws.
    """

    space: ActionSpace
    short: int
    full: int
    seed: int

    def __post_init__(self) -> None:
        if self.short < 1 or self.full < 1:
            raise UserError(f"a trial needs at least one epoch, not {self.short} (or {self.full} at full length)")


class Wish(NamedTuple):
    """A trial that a policy would like; two wishes that are equal are the same training."""

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
        continues: an earlier trial of the same arm and round, whose model may be trained on instead of starting
            again. It only saves time: training is deterministic, both ways end in the same model.
        round: which split of the local environment; all trials of a round share it.
        full: a finalist, trained with the schedule of the full length on the local training part.
    """

    id: int
    arm: int
    epochs: int
    continues: int | None = None
    round: int = 0
    full: bool = False

    @property
    def wish(self) -> Wish:
        """The trial without its place in the phase."""
        return Wish(self.arm, self.epochs, self.round, self.full)


@dataclass(frozen=True)
class Outcome:
    """What came of a trial.

    Attributes:
        trial: which one.
        reward: accuracy on the validation part of the round, in [0, 1]; 0 if diverged.
        per_class: the same for every class, in the order of the head's rows; empty if diverged or unknown.
        diverged: the loss stopped being a number.
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

    def as_json(self, phase: int) -> dict[str, Any]:
        """An entry of the trial history."""
        return {"phase": phase, **asdict(self), "per_class": list(self.per_class)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """The outcome that `as_json` wrote."""
        return cls(Trial(**entry["trial"]), entry["reward"], tuple(entry["per_class"]), entry["diverged"])


def decision_entry(phase: int, arm: int) -> dict[str, Any]:
    """The entry of the trial history that ends a phase."""
    return {"phase": phase, "decided": arm}


class Policy(ABC):
    """Asks for trials, is told their outcomes, decides.

    In each phase the learner calls `begin`, then `ask` and `tell` until `ask` returns nothing, then `decide`.
    A subclass says what it wishes (`propose`), what it makes of the outcomes (`learn`) and what it decides; ids,
    continuations and outcomes that come one by one or out of order are handled here. A policy has no state but what
    it was told: the same setup and the same outcomes give the same policy (see `replay`).
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.phase = 0
        self.told: dict[Wish, Outcome] = {}  # of this phase
        self._trials: list[Trial] = []  # of this phase
        self._batch: list[Trial] = []  # asked for together, not yet learned from

    def begin(self, phase: int) -> None:
        """A new phase; tuned phases count from 1. Beginning the same phase twice before asking does nothing."""
        if phase == self.phase and not self._trials:
            return
        if phase <= self.phase:
            raise ValueError(f"phase {phase} begins after phase {self.phase}; replay a fresh policy to go back")
        if self._batch:
            raise ValueError(f"phase {phase} begins while trials of phase {self.phase} are open")
        self.phase, self.told, self._trials = phase, {}, []
        self.start()

    def ask(self) -> list[Trial]:
        """The trials to run now, in any order or at the same time; empty when the policy has enough.

        Asking again before all of them are told gives those that are still open.
        """
        if not self._batch:
            self._batch = [self._numbered(wish) for wish in self.propose()]
        return [trial for trial in self._batch if trial.wish not in self.told]

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """What came of some of the open trials. The policy learns once all of them are told, in the order of ids."""
        for outcome in outcomes:
            if outcome.trial not in self._batch or outcome.trial.wish in self.told:
                raise ValueError(f"no open trial of phase {self.phase} is {outcome.trial}")
            self.told[outcome.trial.wish] = outcome
        if self._batch and all(trial.wish in self.told for trial in self._batch):
            batch, self._batch = self._batch, []
            self.learn([self.told[trial.wish] for trial in batch])

    def _numbered(self, wish: Wish) -> Trial:
        limit = self.setup.full if wish.full else self.setup.short
        known = {trial.wish for trial in self._trials}
        if not (0 <= wish.arm < len(self.setup.space) and 1 <= wish.epochs <= limit and wish not in known):
            raise ValueError(f"{type(self).__name__} wishes {wish}: out of range, or for the second time")
        earlier = [
            trial
            for trial in self._trials
            if (trial.arm, trial.round, trial.full) == (wish.arm, wish.round, wish.full)
            and trial.epochs < wish.epochs
            and trial.wish in self.told
            and not self.told[trial.wish].diverged
        ]
        last = max(earlier, key=lambda trial: trial.epochs).id if earlier else None
        trial = Trial(len(self._trials), wish.arm, wish.epochs, last, wish.round, wish.full)
        self._trials.append(trial)
        return trial

    # What a subclass says ---------------------------------------------------------------------------------------

    def start(self) -> None:  # noqa: B027 - a hook: most policies need nothing here
        """A new phase has begun."""

    @abstractmethod
    def propose(self) -> Sequence[Wish]:
        """The next trials; nothing when there are enough."""

    @abstractmethod
    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """The outcomes of everything that was proposed last."""

    @abstractmethod
    def decide(self) -> int:
        """The arm for this phase. Deciding changes nothing: asked again, the answer is the same."""

    def distribution(self) -> Array | None:
        """The probability of each arm, for policies that have one."""
        return None

    def resolved(self) -> dict[str, Any]:
        """What the policy turned out to be, as plain values for the record."""
        return {"name": type(self).__name__.lower()}


class Fixed(Policy):
    """The default action in every phase: the method's own, or the one the user set."""

    def propose(self) -> Sequence[Wish]:
        """Nothing."""
        return ()

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing was tried."""

    def decide(self) -> int:
        """The default."""
        return self.setup.space.default

    def resolved(self) -> dict[str, Any]:
        """The name and the action."""
        return {"name": "fixed", "action": dict(self.setup.space.actions[self.decide()])}


def replay(policy: Policy, history: Iterable[Mapping[str, Any]]) -> Policy:
    """Bring a fresh policy to where the history ends, by asking again; raises if it asks for something else.

    The history is a list of plain values in the order in which things happened: `Outcome.as_json(phase)` for each
    trial, `decision_entry(phase, arm)` at the end of each phase. If it ends in the middle of a phase, `ask` gives
    what is still to be run.
    """
    for entry in history:
        policy.begin(entry["phase"]) if entry["phase"] != policy.phase else None
        asked = policy.ask()
        if "decided" in entry:
            if asked or policy.decide() != entry["decided"]:
                raise Damaged(f"the recorded decision of phase {entry['phase']} is not what the policy decides")
            continue
        outcome = Outcome.from_json(entry)
        if outcome.trial not in asked:
            raise Damaged(f"phase {entry['phase']} records {outcome.trial}, which the policy does not ask for")
        policy.tell([outcome])
    return policy
