"""What is changed in a learner between phases: classes removed, kept images listed and deleted. Nothing is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.data import ImageSet, Memory, PixelStore, chunks
from poise.errors import UserError, not_learned, suggestion
from poise.learner.inputs import Labels, plain_labels
from poise.learner.state import Knowledge, Label
from poise.training.evaluate import Evaluator


@dataclass(frozen=True)
class Exemplar:
    """One kept image.

    Attributes:
        id: a digest of its pixels, which stays the same as long as it is kept.
        index: its place among the kept images of its class, in the order of herding; those of the reserve come after.
        reserve: whether it serves for validation only.
        origin: its index in the data it came from, where that is known.
        image: uint8, [H, W] if grey, else [H, W, C].
    """

    id: str
    label: Label
    index: int
    reserve: bool
    origin: int | None
    image: NDArray[np.uint8] = field(repr=False, compare=False)


def without_classes(known: Knowledge, classes: Label | Labels) -> Knowledge:
    """Take classes out: their rows of the head, their means, and their kept images."""
    gone = {_row_of(label, known.classes) for label in _one_or_several(classes)}
    rows = [row for row in range(len(known.classes)) if row not in gone]
    if not rows:
        raise UserError("these are all the classes that the learner knows; make a new Learner instead")
    assert known.predictor is not None
    assert known.start is not None
    assert known.means is not None
    left = torch.tensor(rows)
    predictor = known.predictor.restricted_to(left)
    return replace(
        known,
        classes=tuple(known.classes[row] for row in rows),
        predictor=predictor,
        start=predictor if known.start is known.predictor else known.start.restricted_to(left),
        means=known.means[left.to(known.means.device)],
        mean_images=tuple(known.mean_images[row] for row in rows) if known.mean_images else (),
        memory=known.memory.of_classes(rows) if known.memory is not None else None,
        features=None,  # computed again by the next phase
        reject={},
        images_digests=(),
    )


def list_exemplars(known: Knowledge) -> list[Exemplar]:
    """All kept images, class by class; within a class those that are trained on first, in the order of herding."""
    memory, found, counts = _memory_of(known), list[Exemplar](), dict.fromkeys(known.classes, 0)
    for images, reserve in ((memory.exemplars, False), (memory.reserve, True)):
        for key, row, origin, pixels in zip(
            image_ids(images.store), images.labels.tolist(), images.origins.tolist(), images.pixels, strict=True
        ):
            label = known.classes[row]
            where = int(origin) if origin >= 0 else None
            image = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
            found.append(Exemplar(key, label, counts[label], reserve, where, image.cpu().numpy()))
            counts[label] += 1
    return sorted(found, key=lambda each: (known.classes.index(each.label), each.index))


def without_exemplars(known: Knowledge, ids: str | Iterable[str], evaluator: Evaluator) -> Knowledge:
    """Take kept images out of the memory by their ids; the means of their classes are computed anew."""
    memory, asked = _memory_of(known), {ids} if isinstance(ids, str) or not isinstance(ids, Iterable) else set(ids)
    if not asked:
        raise UserError("no id was given; exemplars() lists those of all kept images")
    parts, missing, rows = list[ImageSet](), set(asked), set[int]()
    for part in (memory.exemplars, memory.reserve):
        keys = image_ids(part.store)
        hit = torch.tensor([key in asked for key in keys], dtype=torch.bool)
        parts.append(part.select((~hit).nonzero().flatten()))
        rows.update(part.labels[hit].tolist())
        missing.difference_update(keys)
    if missing:
        raise UserError(f"no kept image has the id {min(map(repr, missing))}; exemplars() lists them")
    left, touched = Memory(*parts), sorted(rows)
    for row in touched:
        if row not in left.exemplars.labels:
            raise UserError(
                f"class {known.classes[row]!r} would have no image left to train on; remove({known.classes[row]!r}), "
                "or learn other images of it first with known='update'"
            )
    assert known.predictor is not None
    assert known.means is not None
    found = evaluator.class_means(known.predictor, left.exemplars.of_labels(touched), len(known.classes))
    means = known.means.clone()
    means[touched] = found[touched]
    counts = torch.bincount(left.exemplars.labels, minlength=len(known.classes)).tolist()
    images = tuple(counts[row] if row in rows else count for row, count in enumerate(known.mean_images))
    return replace(known, memory=left, features=None, means=means, mean_images=images, reject={})


def image_ids(store: PixelStore) -> list[str]:
    """A digest of the pixels of each image."""
    pieces = (store.part(start, stop).cpu().contiguous().numpy() for start, stop in chunks(store))
    return [hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() for piece in pieces for image in piece]


def _memory_of(known: Knowledge) -> Memory:
    if known.memory is not None:
        return known.memory
    if known.phases:
        raise UserError("this learner was saved without its memory: it keeps no images")
    raise not_learned()


def _row_of(label: Label, classes: Sequence[Label]) -> int:
    if label in classes:
        return classes.index(label)
    same = next((each for each in classes if str(each) == str(label)), None)
    if same is not None:
        kind = "strings" if isinstance(same, str) else "whole numbers"
        raise UserError(f"class {label!r} is not known, but {same!r} is: labels of this learner are {kind}")
    raise UserError(f"class {label!r} is not known; {suggestion(str(label), map(str, classes))}")


def _one_or_several(classes: Label | Labels) -> list[Label]:
    given: Any = classes.tolist() if isinstance(classes, np.ndarray | np.generic | Tensor) else classes
    several = isinstance(given, Iterable) and not isinstance(given, str)
    given = list(given) if isinstance(given, set | frozenset) else given
    found = plain_labels(given if several or hasattr(given, "to_numpy") else [given])
    if not found:
        raise UserError("no class was named; give a label, or a list of labels")
    return found
