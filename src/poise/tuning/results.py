"""What came of trials: the result and reward of one, and the history of all that is tried, decided and judged.

The history is the state of every tuner: typed, to JSON and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from poise.actions import Action
from poise.errors import Damaged
from poise.nets import Model
from poise.policies import Decided, Outcome, Trial, Tried

CLASSIFIERS = ("fc", "ncm")
Hits = Mapping[str, int]  # of each classifier
HitsPerClass = Mapping[str, list[int]]  # of every class in B, by classifier

#: Looks at a temporary model, its class means and the labels of its rows; its word is recorded beside the reward.
Witness = Callable[[Model, Tensor, Sequence[Any]], Any]


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: for the policy an outcome, for the record what was seen at its end.

    Classes are rows of the head, ascending within each environment that was used; images and hits belong to them.
    There are no hits where it diverged.
    """

    outcome: Outcome
    classes: list[int]
    images: list[int]
    epochs: int
    hits: HitsPerClass
    split: Mapping[str, Any]
    witnessed: Any = None

    def totals(self) -> dict[str, int]:
        """All hits of each classifier; none if it diverged."""
        return {name: sum(self.hits.get(name, [])) for name in CLASSIFIERS}

    def as_json(self) -> dict[str, Any]:
        """The record of the trial."""
        return {
            "classes": self.classes,
            "images": self.images,
            "split": dict(self.split),
            "hits": {str(self.epochs): dict(self.hits)} if self.hits else {},
        }


class Reward:
    """The reward that a policy is told of a trial: the accuracy on the local validation part.

    A study may hand in another one, with a witness that looks at the temporary models; a learner has no other.
    """

    witness: Witness | None = None

    def told(self, result: TrialResult, classifier: str) -> tuple[Outcome, dict[str, Any]]:
        """What the policy is told, and what is written down."""
        return result.outcome, result.as_json()


def count_hits(rows: Tensor, labels: Tensor) -> list[int]:
    """The number of images of each label that were guessed right, by ascending label."""
    classes, places = torch.unique(labels, return_inverse=True)
    right: list[int] = torch.bincount(places[rows == labels], minlength=len(classes)).tolist()
    return right


# The history ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Hits of both classifiers on images that the judged model had not been trained on.

    They add up over the phases, and decide what `auto` becomes.
    """

    phase: int
    hits: Hits


@dataclass(frozen=True)
class HyperStep:
    """One outer round of hypergradients.

    Attributes:
        action: what the round made of the action; after a loss or gradient that is not a number, the last action whose
            loss and gradient were finite (the first one, if none was).
        loss: the validation loss before the update.
        gradient: its derivative with respect to every tuned hyperparameter, before the update, by axis.
    """

    phase: int
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


Experienced = tuple[tuple[float, ...], int, float]  # the state of a pseudo phase, the arm taken, the reward


@dataclass(frozen=True)
class Episode:
    """One pseudo stream, played before phase 0: the phases after its first, in order.

    The last of them has reward 0 if it diverged. An episode without steps taught nothing: its first pseudo phase
    diverged already.
    """

    phase: ClassVar[int] = 0

    number: int
    steps: tuple[Experienced, ...]

    def as_json(self) -> dict[str, Any]:
        """The episode as plain values."""
        return {"number": self.number, "steps": [[list(state), arm, reward] for state, arm, reward in self.steps]}


Entry = Tried | Decided | Judged | HyperStep | Episode
History = Sequence[Entry]


# To JSON and back -----------------------------------------------------------------------------------------------------


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    match entry:
        case Tried(phase, outcome, hits):
            told = {**asdict(outcome), "per_class": list(outcome.per_class)}
            return {"tried": told, "phase": phase, "totals": dict(hits)}
        case Decided(phase, arm):
            return {"decided": arm, "phase": phase}
        case Judged(phase, hits):
            return {"judged": dict(hits), "phase": phase}
        case HyperStep():
            return {"stepped": entry.as_json(), "phase": entry.phase}
        case Episode():
            return {"played": entry.as_json(), "phase": entry.phase}


def entry_from_json(value: Mapping[str, Any]) -> Entry:
    """The entry that `entry_as_json` wrote, to the last bit."""
    match value:
        case {"tried": told, "phase": int(phase), "totals": hits}:
            outcome = Outcome(Trial(**told["trial"]), told["reward"], tuple(told["per_class"]), told["diverged"])
            return Tried(phase, outcome, dict(hits))
        case {"decided": int(arm), "phase": int(phase)}:
            return Decided(phase, arm)
        case {"judged": hits, "phase": int(phase)}:
            return Judged(phase, dict(hits))
        case {"stepped": step, "phase": int(phase)}:
            loss = math.nan if step["loss"] is None else step["loss"]
            return HyperStep(phase, step["round"], Action(**step["action"]), loss, dict(step["gradient"] or {}))
        case {"played": {"number": int(number), "steps": steps}}:
            return Episode(number, tuple((tuple(state), arm, reward) for state, arm, reward in steps))
    raise Damaged(f"the history has an entry that nobody writes, with {', '.join(map(str, value)) or 'nothing'}")


# What it says ---------------------------------------------------------------------------------------------------------


def decided_trials(history: Iterable[Entry]) -> Iterator[Tried]:
    """For each decision the last trial of its arm in its phase, where there was one."""
    tried: dict[tuple[int, int], Tried] = {}
    for entry in history:
        if isinstance(entry, Tried):
            tried[entry.phase, entry.outcome.trial.arm] = entry
        elif isinstance(entry, Decided) and (entry.phase, entry.arm) in tried:
            yield tried[entry.phase, entry.arm]


def decided_rewards(history: Iterable[Entry]) -> dict[int, float]:
    """For each phase, the reward of the decided arm in its last trial there, where it was tried."""
    return {trial.phase: trial.outcome.reward for trial in decided_trials(history)}


def judged_hits(history: Iterable[Entry]) -> dict[str, int]:
    """All hits of each classifier in the judgements of this history."""
    found = [entry.hits for entry in history if isinstance(entry, Judged)]
    return {name: sum(hits[name] for hits in found) for name in CLASSIFIERS}
