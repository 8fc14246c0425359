"""What was tried, decided and judged: the state of every tuner. Typed, to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from poise.actions import Action
from poise.errors import Damaged
from poise.policies import Decided, Outcome, Trial, Tried

CLASSIFIERS = ("fc", "ncm")
Hits = Mapping[str, int]  # of each classifier


@dataclass(frozen=True)
class TriedWithHits(Tried):
    """A trial by which classifiers can be judged, with the hits of both."""

    totals: Hits


@dataclass(frozen=True)
class Judged:
    """Hits of both classifiers on images that the judged model had not been trained on.

    They add up over the phases, and decide what `auto` becomes.
    """

    phase: int
    hits: Hits


@dataclass(frozen=True)
class Chosen:
    """The action that a tuner without arms chose."""

    phase: int
    action: Action


@dataclass(frozen=True)
class HyperStep:
    """One outer round of hypergradients.

    Attributes:
        round: counted from 0.
        action: what the round made of the action; after a loss or gradient that is not a number, the last action whose
            loss and gradient were finite (the first one, if none was).
        loss: the validation loss before the update.
        gradient: its derivative with respect to every tuned hyperparameter, before the update, by axis.
    """

    round: int
    action: Action
    loss: float
    gradient: dict[str, float]

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are numbers; a round of which they are not is the last."""
        return all(map(math.isfinite, (self.loss, *self.gradient.values())))

    def as_json(self) -> dict[str, Any]:
        """The round as plain values; what is not a number is None."""
        known = {"loss": self.loss, "gradient": self.gradient} if self.finite else {"loss": None, "gradient": None}
        return {"round": self.round, "action": dict(self.action), **known}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The round that `as_json` wrote."""
        loss = math.nan if value["loss"] is None else value["loss"]
        return cls(value["round"], Action(**value["action"]), loss, dict(value["gradient"] or {}))


@dataclass(frozen=True)
class Stepped:
    """A round of hypergradients in some phase."""

    phase: int
    step: HyperStep


Experienced = tuple[tuple[float, ...], int, float]  # the state of a pseudo phase, the arm taken, the reward


@dataclass(frozen=True)
class Episode:
    """One pseudo stream: the phases after its first, in order. The last of them has reward 0 if it diverged.

    An episode without steps taught nothing: its first pseudo phase diverged already.
    """

    number: int
    steps: tuple[Experienced, ...]

    def as_json(self) -> dict[str, Any]:
        """The episode as plain values."""
        return {"number": self.number, "steps": [[list(state), arm, reward] for state, arm, reward in self.steps]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The episode that `as_json` wrote, to the last bit."""
        return cls(value["number"], tuple((tuple(state), arm, reward) for state, arm, reward in value["steps"]))


@dataclass(frozen=True)
class Played:
    """An episode that was played before the first phase was learned."""

    phase: int
    episode: Episode


Entry = Tried | Decided | Judged | Chosen | Stepped | Played
History = Sequence[Entry]


# To JSON and back -----------------------------------------------------------------------------------------------------


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    match entry:
        case Tried(phase, outcome):
            totals = {"totals": dict(entry.totals)} if isinstance(entry, TriedWithHits) else {}
            return {"tried": {**asdict(outcome), "per_class": list(outcome.per_class)}, "phase": phase, **totals}
        case Decided(phase, arm):
            return {"decided": arm, "phase": phase}
        case Judged(phase, hits):
            return {"judged": dict(hits), "phase": phase}
        case Chosen(phase, action):
            return {"chosen": dict(action), "phase": phase}
        case Stepped(phase, step):
            return {"stepped": step.as_json(), "phase": phase}
        case Played(phase, episode):
            return {"played": episode.as_json(), "phase": phase}


def entry_from_json(value: Mapping[str, Any]) -> Entry:
    """The entry that `entry_as_json` wrote."""
    found = [make for word, make in _MADE_OF.items() if word in value]
    if len(found) != 1 or not isinstance(value.get("phase"), int):
        raise Damaged(f"the history has an entry that nobody writes, with {', '.join(map(str, value)) or 'nothing'}")
    return found[0](value)


def _make_tried(value: Mapping[str, Any]) -> Tried:
    told = value["tried"]
    outcome = Outcome(Trial(**told["trial"]), told["reward"], tuple(told["per_class"]), told["diverged"])
    if "totals" in value:
        return TriedWithHits(value["phase"], outcome, dict(value["totals"]))
    return Tried(value["phase"], outcome)


_MADE_OF: Mapping[str, Callable[[Mapping[str, Any]], Entry]] = {
    "tried": _make_tried,
    "decided": lambda value: Decided(value["phase"], value["decided"]),
    "judged": lambda value: Judged(value["phase"], dict(value["judged"])),
    "chosen": lambda value: Chosen(value["phase"], Action.restored(value["chosen"])),
    "stepped": lambda value: Stepped(value["phase"], HyperStep.from_json(value["stepped"])),
    "played": lambda value: Played(value["phase"], Episode.from_json(value["played"])),
}


# What it says ---------------------------------------------------------------------------------------------------------


def told_to_policy(history: Iterable[Entry]) -> list[Tried | Decided]:
    """What a policy learns from: its trials and its decisions."""
    return [entry for entry in history if isinstance(entry, Tried | Decided)]


def decided_rewards(history: Iterable[Entry]) -> dict[int, float]:
    """For each phase, the reward of the decided arm in its last trial there, where it was tried."""
    rewards: dict[tuple[int, int], float] = {}
    found: dict[int, float] = {}
    for entry in history:
        if isinstance(entry, Tried):
            rewards[entry.phase, entry.outcome.trial.arm] = entry.outcome.reward
        elif isinstance(entry, Decided) and (entry.phase, entry.arm) in rewards:
            found[entry.phase] = rewards[entry.phase, entry.arm]
    return found


def decided_totals(history: Iterable[Entry]) -> Hits | None:
    """The hits of the decided arm in its last trial by which classifiers can be judged, if there was one."""
    totals: dict[int, Hits] = {}
    for entry in history:
        if isinstance(entry, TriedWithHits):
            totals[entry.outcome.trial.arm] = entry.totals
        elif isinstance(entry, Decided) and entry.arm in totals:
            return totals[entry.arm]
    return None


def judged_hits(history: Iterable[Entry]) -> dict[str, int]:
    """All hits of each classifier in the judgements of this history."""
    found = [entry.hits for entry in history if isinstance(entry, Judged)]
    return {name: sum(hits[name] for hits in found) for name in CLASSIFIERS}
