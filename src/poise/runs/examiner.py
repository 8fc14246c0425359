"""The examiner: the only holder of test images. It is handed the learner, never the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise import draws
from poise.data import ImageSet, Stream
from poise.data.images import all_but
from poise.data.sources import digest
from poise.errors import UserError
from poise.learner import Label, Learner
from poise.nets import Model
from poise.training.evaluate import Evaluator

DEV_IMAGES = 50  # training images per class set aside for the development exam
#: What a result says in one number: the keys of `figures`.
FIGURES = (
    *("average_accuracy", "average_accuracy_after_phase_0", "last_accuracy", "average_forgetting"),
    "backward_transfer",
)


@dataclass(frozen=True)
class Exam:
    """The result of a learner after a phase: hits per class of both classifiers, on all classes seen.

    `hits_of_start` are those of the model that the next phase starts from, by its name, where another one predicts.
    """

    phase: int
    classifier: str
    classes: list[int]
    images: list[int]
    hits_fc: list[int]
    hits_ncm: list[int]
    confusion: list[list[int]]  # by the classifier that counts: [true class, predicted class, count]
    hits_of_start: dict[str, list[int]] = field(default_factory=dict)

    def accuracy(self, classifier: str | None = None, among: frozenset[int] | None = None) -> float:
        """Percent of the images (of some classes) that a classifier gets right."""
        known = {"fc": self.hits_fc, "ncm": self.hits_ncm, **self.hits_of_start}
        hits = known[classifier or self.classifier]
        rows = [row for row, label in enumerate(self.classes) if among is None or label in among]
        return 100 * sum(hits[row] for row in rows) / max(1, sum(self.images[row] for row in rows))

    def as_json(self) -> dict[str, Any]:
        """The exam as one JSON object."""
        return {"event": "exam", **self.values(), "accuracy": self.accuracy()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Exam:
        """The exam that `as_json` wrote."""
        return cls(**{name: value for name, value in entry.items() if name not in ("event", "accuracy")})

    def values(self) -> dict[str, Any]:
        """Plain values that make it again; what is empty is left out, as it was before there was such a thing."""
        return {name: value for name, value in vars(self).items() if name != "hits_of_start" or value}


class Examiner:
    """Holds images that nobody trains on, and examines a learner after each phase."""

    def __init__(self, images: ImageSet, stream: Stream) -> None:
        there = set(images.labels.tolist())
        for phase, group in enumerate(stream.groups):
            if there.isdisjoint(group):
                raise UserError(f"the exam has no image of phase {phase}, class {group[0]}; add some, or use exam=dev")
        self._images = images
        self._stream = stream

    @property
    def fingerprint(self) -> str:
        """A stable id of the exam images, so that a resumed run is examined with the same ones."""
        return digest([self._images.store, self._images.labels])

    def examine(self, learner: Learner, phase: int) -> Exam:
        """Both classifiers on the images of all classes seen up to this phase."""
        classes = [label for group in self._stream.groups[: phase + 1] for label in group]
        images = self._images.of_labels(classes)
        truth = images.labels.cpu().numpy()
        predicted = learner.predictions(images.store)
        counted = predicted[learner.classifier_]
        pairs, counts = np.unique(np.stack([truth, counted]), axis=1, return_counts=True)
        return Exam(
            phase=phase,
            classifier=learner.classifier_,
            classes=classes,
            images=_per_class(truth, classes),
            hits_fc=_per_class(truth[predicted["fc"] == truth], classes),
            hits_ncm=_per_class(truth[predicted["ncm"] == truth], classes),
            confusion=[[int(a), int(b), int(n)] for a, b, n in zip(pairs[0], pairs[1], counts, strict=True)],
            hits_of_start={
                name: _per_class(truth[labels == truth], classes)
                for name, labels in learner.start_predictions(images.store).items()
            },
        )

    def counts(self, classes: Sequence[Label]) -> list[int]:
        """The number of exam images of each of these classes."""
        labels = [int(label) for label in classes]
        return _per_class(self._images.of_labels(labels).labels.cpu().numpy(), labels)

    def samples(self, classes: Sequence[int], count: int) -> ImageSet:
        """The first exam images of each of these classes, class by class, to be looked at; nobody selected them."""
        return ImageSet.joined([self._images.of_labels([label]).first_of_each_label(count) for label in classes])

    def score(
        self, model: Model, means: Tensor, classes: Sequence[Label], evaluator: Evaluator
    ) -> dict[str, list[int]]:
        """Hits of a temporary model on the exam images of its classes, by classifier, in the order of its rows.

        For studies of how far rewards are from the truth (`probe`) and for the leak audit; their results are labelled.
        An ordinary run does not use it. The work is queued on the caller's stream, on which the model was trained.
        """
        labels = [int(label) for label in classes]
        images = self._images.of_labels(labels)
        found = evaluator.guesses(model, means, images.store)
        truth, known = images.labels.cpu().numpy(), np.array(labels)
        return {name: _per_class(truth[known[rows.cpu().numpy()] == truth], labels) for name, rows in found.items()}


def split_for_development(train: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Training images without, and only, those of the development exam: 50 of each class, at most half of it.

    The draw depends only on the data, so that every run on the same data is examined with the same images.
    """
    aside = []
    for label in torch.unique(train.labels).tolist():
        members = (train.labels == label).nonzero().flatten()
        generator = draws.generator(1993, "development exam", label)
        picks = generator.choice(len(members), size=min(DEV_IMAGES, len(members) // 2), replace=False)
        aside.append(members[torch.from_numpy(np.sort(picks))])
    chosen = torch.cat(aside)
    return train.select(all_but(len(train), chosen)), train.select(chosen.sort().values)


def average_forgetting(exams: list[Exam], stream: Stream) -> float:
    """Mean over all phases but the last of (best accuracy in earlier exams − final accuracy) on its classes."""
    if len(exams) < 2:
        return 0.0
    lost = []
    for phase, group in enumerate(stream.groups[: len(exams) - 1]):
        among = frozenset(group)
        best = max(exam.accuracy(among=among) for exam in exams[phase:-1])
        lost.append(best - exams[-1].accuracy(among=among))
    return float(np.mean(lost))


def accuracy_matrix(exams: list[Exam], stream: Stream) -> list[list[float]]:
    """Row i: percent right in exam i on the classes of each phase up to i, by the classifier that counted there."""
    groups = [frozenset(group) for group in stream.groups]
    return [[exam.accuracy(among=group) for group in groups[: exam.phase + 1]] for exam in exams]


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over all phases but the last of (accuracy in the last exam − in the one after the phase) on their classes.

    `matrix` is a result's accuracy matrix: a row for each exam, a column for the classes of each phase up to there.

    >>> backward_transfer([[80.0], [60.0, 90.0], [50.0, 95.0, 70.0]])
    -12.5
    """
    moved = [last - matrix[phase][phase] for phase, last in enumerate(matrix[-1][:-1])]
    return sum(moved) / max(1, len(moved))


def matrix_in_percent(exams: list[Exam], stream: Stream) -> list[list[float]]:
    """The accuracy of every exam (rows) on the classes of every phase so far (columns), as a result has it."""
    return [[percent(accuracy) for accuracy in row] for row in accuracy_matrix(exams, stream)]


def figures(exams: list[Exam], stream: Stream) -> dict[str, float]:
    """The averages of a run, in percent, by the classifier that counted in each exam."""
    accuracies = [exam.accuracy() for exam in exams]
    later = accuracies[1:] or accuracies
    return {
        "average_accuracy": percent(sum(accuracies) / len(accuracies)),
        "average_accuracy_after_phase_0": percent(sum(later) / len(later)),
        "last_accuracy": percent(accuracies[-1]),
        "average_forgetting": percent(average_forgetting(exams, stream)),
        "backward_transfer": percent(backward_transfer(accuracy_matrix(exams, stream))),
    }


def percent(value: float) -> float:
    """A share as the percentage that results have."""
    return round(value, 4)


def _per_class(labels: NDArray[np.int64], classes: list[int]) -> list[int]:
    return [int((labels == label).sum()) for label in classes]
