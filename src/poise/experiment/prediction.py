"""A learner's predictions for files: image by image, or as a score over class folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.data import decode_each
from poise.errors import UserError
from poise.learner import Label, Learner
from poise.places import labelled_files

#: How many images are held at a time.
CHUNK: Final = 256


@dataclass(frozen=True)
class Prediction:
    """What a learner says about one file.

    Attributes:
        path: of the file.
        ranked: the most probable classes with their probabilities, the most probable one first; empty if unread.
        unread: why the file could not be read; None if it was.
        rejected: whether it looks like none of the known classes.
    """

    path: Path
    ranked: tuple[tuple[Label, float], ...] = ()
    unread: UserError | None = None
    rejected: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        if self.unread is not None:
            return {"path": str(self.path), "error": str(self.unread)}
        ranked = [{"label": label, "probability": round(chance, 6)} for label, chance in self.ranked]
        if self.rejected:
            return {"path": str(self.path), "label": None, "rejected": True, "ranked": ranked}
        return {"path": str(self.path), **ranked[0], **({"ranked": ranked} if len(ranked) > 1 else {})}

    def as_text(self) -> str:
        """The path, then each class with its probability, separated by tabs; nothing known is `-`."""
        if self.rejected:
            return f"{self.path}\t-"
        return "\t".join([str(self.path), *(f"{label}\t{chance:.3f}" for label, chance in self.ranked)])


def predict_files(
    learner: Learner, paths: Sequence[Path], top: int = 1, *, reject: float | None = None
) -> Iterator[Prediction]:
    """The `top` most probable classes of each file, in the order of the paths; a few files are held at a time.

    With `reject`, files that look like no known class are rejected, by a threshold below which about this share of
    the images of known classes falls.
    """
    if learner.shape_ is None:
        raise UserError("this learner has learned nothing yet")
    if reject is not None:
        learner.calibrate_reject(reject)
    channels, *size = learner.shape_
    for start in range(0, len(paths), CHUNK):
        some = paths[start : start + CHUNK]
        decoded = decode_each(some, (size[0], size[1]), channels)
        images = [image for image in decoded if isinstance(image, Tensor)]
        rows = iter(learner.predict_proba(torch.stack(images)) if images else ())
        asked = reject is not None and images
        labels = iter(learner.predict(torch.stack(images), reject=True) if asked else [""] * len(images))
        for path, image in zip(some, decoded, strict=True):
            if isinstance(image, UserError):
                yield Prediction(path, unread=image)
            else:
                ranked, out = _ranked(next(rows), learner.classes_, top), next(labels) is None
                yield Prediction(path, ranked, rejected=out)


def _ranked(row: NDArray[np.float32], classes: Sequence[Label], top: int) -> tuple[tuple[Label, float], ...]:
    best = np.argsort(-row, kind="stable")[:top]
    return tuple((classes[index], float(row[index])) for index in best)


@dataclass(frozen=True)
class FolderScore:
    """How a learner does on class folders.

    Attributes:
        images: of each class that the learner knows, how many were read.
        right: how many of them it recognised.
        unknown: of each class that it does not know, how many files there are; they count nowhere.
        unread: the files that could not be read; they count nowhere.
    """

    images: dict[str, int]
    right: dict[str, int]
    unknown: dict[str, int]
    unread: tuple[Prediction, ...]

    @property
    def accuracy(self) -> float:
        """The share of images that were recognised, in percent."""
        return 100 * sum(self.right.values()) / sum(self.images.values())

    def rows(self) -> list[tuple[str, int, int, float]]:
        """Class, images, recognised images and accuracy in percent; the total is the last row."""
        each = [(name, count, self.right[name], 100 * self.right[name] / count) for name, count in self.images.items()]
        return [*each, ("all", sum(self.images.values()), sum(self.right.values()), self.accuracy)]

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        *each, (_, images, right, accuracy) = self.rows()
        return {
            "accuracy": round(accuracy, 4),
            "images": images,
            "right": right,
            "classes": [
                {"label": name, "images": count, "right": hits, "accuracy": round(share, 4)}
                for name, count, hits, share in each
            ],
            "unknown": self.unknown,
            "unread": [prediction.as_json() for prediction in self.unread],
        }


def score_folder(learner: Learner, folder: Path) -> FolderScore:
    """Predict every image in `folder/CLASS/*` whose class the learner knows; a folder's name is its label."""
    paths, names = labelled_files(folder)
    labels = {str(label) for label in learner.classes_}
    unknown = {name: names.count(name) for name in sorted(set(names)) if name not in labels}
    asked = [(path, name) for path, name in zip(paths, names, strict=True) if name not in unknown]
    if not asked:
        known = ", ".join(map(str, learner.classes_[:10])) + (", …" if len(learner.classes_) > 10 else "")
        raise UserError(f"{folder} has no class that this learner knows; it knows {known}")
    images, right = dict.fromkeys((name for _, name in asked), 0), dict.fromkeys((name for _, name in asked), 0)
    unread: list[Prediction] = []
    for (_, name), prediction in zip(asked, predict_files(learner, [path for path, _ in asked]), strict=True):
        if prediction.unread is not None:
            unread.append(prediction)
            continue
        images[name] += 1
        right[name] += str(prediction.ranked[0][0]) == name
    read = {name: count for name, count in images.items() if count}
    if not read:
        raise UserError(str(unread[0].unread))
    return FolderScore(read, {name: right[name] for name in read}, unknown, tuple(unread))
