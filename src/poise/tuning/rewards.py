"""What came of a trial: hits of both classifiers on the validation part, and the reward made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from poise.nets import Model
from poise.policies import Outcome
from poise.tuning.environment import Environment
from poise.tuning.history import CLASSIFIERS

HitsPerClass = Mapping[str, list[int]]  # of every class in B, by classifier

#: Looks at a temporary model, its class means and the labels of its rows; its word is recorded beside the reward.
Witness = Callable[[Model, Tensor, Sequence[Any]], Any]


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial: for the policy an outcome, for the record what was seen on the way.

    Classes are rows of the head, ascending within each environment that was used; images and hits belong to them.
    """

    outcome: Outcome
    classes: list[int]
    images: list[int]
    old: int
    hits: Mapping[int, HitsPerClass]
    split: Mapping[str, Any]
    earlier_rewards: tuple[float, ...] = ()  # of the trainings before the last one
    witnessed: Mapping[int, Any] = field(default_factory=dict)

    def totals(self) -> dict[str, int]:
        """All hits of each classifier at the end; none if it diverged."""
        last = self.hits[max(self.hits)] if self.hits and not self.outcome.diverged else {}
        return {name: sum(last.get(name, [])) for name in CLASSIFIERS}

    def as_json(self) -> dict[str, Any]:
        """The record of the trial."""
        return {
            "classes": self.classes,
            "images": self.images,
            "split": dict(self.split),
            "rewards": {str(epoch): self._old_and_new(hits) for epoch, hits in self.hits.items()},
            "hits": {str(epoch): dict(hits) for epoch, hits in self.hits.items()},
            **({"legs": list(self.earlier_rewards)} if self.earlier_rewards else {}),
        }

    def _old_and_new(self, hits: HitsPerClass) -> dict[str, dict[str, float | None]]:
        """The reward on old and on new classes apart, for both classifiers."""
        found: dict[str, dict[str, float | None]] = {}
        for name, counts in hits.items():
            shares = [right / images for right, images in zip(counts, self.images, strict=True)]
            parts = {
                part: [share for share, label in zip(shares, self.classes, strict=True) if (label < self.old) is is_old]
                for part, is_old in (("old", True), ("new", False))
            }
            found[name] = {part: sum(values) / len(values) if values else None for part, values in parts.items()}
        return found


class Reward:
    """What a policy is told of a trial: the accuracy on the local validation part.

    A study may hand in another one, with a witness that looks at the temporary models; a learner has no other.
    """

    witness: Witness | None = None

    def outcome(self, result: TrialResult, classifier: str) -> Outcome:
        """What the policy is told."""
        return result.outcome

    def record(self, result: TrialResult) -> dict[str, Any]:
        """What is written down."""
        return result.as_json()


def validated_classes(environment: Environment) -> tuple[list[int], list[int], list[int]]:
    """The real rows of the classes in B, their images, and in which order the rows ascend."""
    labels, counts = torch.unique(environment.valid.labels, return_counts=True)
    rows = [environment.rows[label] if environment.rows else label for label in labels.tolist()]
    return rows, counts.tolist(), sorted(range(len(rows)), key=rows.__getitem__)


def count_hits(rows: Tensor, labels: Tensor) -> list[int]:
    """The number of images of each label that were guessed right, by ascending label."""
    classes, places = torch.unique(labels, return_inverse=True)
    right: list[int] = torch.bincount(places[rows == labels], minlength=len(classes)).tolist()
    return right


def balanced_accuracy(rows: Tensor, labels: Tensor) -> float:
    """The share of right guesses, each label with the same weight."""
    right = (rows == labels).double()
    shares = [float(right[labels == label].mean()) for label in torch.unique(labels).tolist()]
    return sum(shares) / len(shares)


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean over the trainings that are rewarded, of the last one's trial."""
    if len(outcomes) == 1:
        return outcomes[0]
    per_class = [sum(values) / len(outcomes) for values in zip(*(each.per_class for each in outcomes), strict=True)]
    return Outcome(outcomes[-1].trial, sum(per_class) / len(per_class), tuple(per_class))


def join_results(parts: Sequence[TrialResult]) -> TrialResult:
    """The result over all environments of a round, in which every class of each of them has the same weight.

    So an environment counts by the classes that it can tell something about, however few images of each it has.
    """
    if len(parts) == 1:
        return parts[0]
    last = parts[-1].outcome
    shares = () if last.diverged else tuple(share for part in parts for share in part.outcome.per_class)
    return TrialResult(
        replace(last, reward=min(1.0, sum(shares) / len(shares)) if shares else 0.0, per_class=shares),
        [label for part in parts for label in part.classes],
        [count for part in parts for count in part.images],
        parts[0].old,
        _join_hits(parts),
        {"parts": [dict(part.split) for part in parts]},
        tuple(reward for part in parts for reward in part.earlier_rewards),
        {epoch: seen for part in parts for epoch, seen in part.witnessed.items()},
    )


def _join_hits(parts: Sequence[TrialResult]) -> dict[int, HitsPerClass]:
    """The hits at the epochs in which every environment was looked at."""
    epochs = [epoch for epoch in parts[0].hits if all(epoch in part.hits for part in parts)]
    return {
        epoch: {name: [count for part in parts for count in part.hits[epoch][name]] for name in CLASSIFIERS}
        for epoch in epochs
    }
