"""What is changed in a learner between phases: classes removed, kept images listed and deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.data import ImageSet, Memory, PixelStore, chunks
from poise.errors import UserError, not_learned, suggestion
from poise.learner.arrival import Images, Labels, plain_labels, store_of
from poise.learner.labels import Label
from poise.learner.saving import Saving
from poise.learner.state import Knowledge
from poise.learner.turns import one_at_a_time
from poise.training import undisturbed


@dataclass(frozen=True)
class Exemplar:
    """One kept image.

    Attributes:
        id: a digest of its pixels, which stays the same as long as it is kept.
        label: its class.
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


class Upkeep(Saving):
    """What an owner of a learner changes in it. Nothing here trains the network."""

    @one_at_a_time
    @undisturbed()
    def remove(self, classes: Label | Labels) -> Self:
        """Take classes out: their rows of the head, their means, and their kept images.

        Other classes are predicted as before, by the largest of the scores that are left. The network itself has still
        been trained with the images of these classes. A class of the same name can be learned again later. The history
        of trials, in which no class is named, stays. A reject threshold has to be set again.
        """
        self._refuse_during_a_phase()
        known, gone = self.knowledge, {self._row(label) for label in _one_or_several(classes)}
        rows = [row for row in range(len(known.classes)) if row not in gone]
        if not rows:
            raise UserError("these are all the classes that the learner knows; make a new Learner instead")
        assert known.predictor is not None
        assert known.start is not None
        assert known.means is not None
        kept = torch.tensor(rows)
        predictor = known.predictor.restricted_to(kept)
        self.knowledge = replace(
            known,
            classes=tuple(known.classes[row] for row in rows),
            predictor=predictor,
            start=predictor if known.start is known.predictor else known.start.restricted_to(kept),
            means=known.means[kept.to(known.means.device)],
            mean_images=tuple(known.mean_images[row] for row in rows) if known.mean_images else (),
            memory=known.memory.of_classes(rows) if known.memory is not None else None,
            reject={},
            images_digests=(),
        )
        return self

    # Single images ----------------------------------------------------------------------------------------------

    def exemplars(self) -> list[Exemplar]:
        """All kept images, class by class; within a class those that are trained on first, in the order of herding."""
        known = self.knowledge  # another thread may change it before all images are listed
        memory, counts, found = self._kept_images(known), dict.fromkeys(known.classes, 0), list[Exemplar]()
        for images, reserve in ((memory.exemplars, False), (memory.reserve, True)):
            for key, row, origin, pixels in zip(
                _ids(images.store), images.labels.tolist(), images.origins.tolist(), images.pixels, strict=True
            ):
                label = known.classes[row]
                where = int(origin) if origin >= 0 else None
                found.append(Exemplar(key, label, counts[label], reserve, where, _plain_image(pixels)))
                counts[label] += 1
        return sorted(found, key=lambda each: (known.classes.index(each.label), each.index))

    @undisturbed()
    def image_ids(self, images: Images) -> list[str]:
        """The ids that these images have, or would have, among the kept ones: how to find one by its file.

        They are those of the pixels that the network sees: give images in the form in which they were learned (files
        as files), or they may be scaled another way and have other ids.
        """
        return _ids(store_of(images, self.settings, self.knowledge, held_out=False))

    @one_at_a_time
    @undisturbed()
    def delete_exemplars(self, ids: str | Iterable[str]) -> Self:
        """Delete kept images by their ids, every copy of them; the means of their classes are computed anew.

        The head keeps what it has learned from them: a trained one until the next phase, and sums over features
        (SimpleCIL, RanPAC, SLCA) for good. To be rid of that too, `remove` the class and learn it again.

        The next `save` writes a file without them. The last image of a class to train on is not deleted, for a class
        without any cannot be learned on: remove the class, or give it other images first (`known="update"`).
        """
        known, memory = self.knowledge, self._kept_images(self.knowledge)
        asked = _check_ids(ids)
        missing = sorted(asked - {each.id for each in self.exemplars()})
        if missing:
            raise UserError(f"no kept image has the id {missing[0]!r}; exemplars() lists them")
        hits = [_have_ids(images, asked) for images in (memory.exemplars, memory.reserve)]
        parts = zip((memory.exemplars, memory.reserve), hits, strict=True)
        left = Memory(*(images.select((~hit).nonzero().flatten()) for images, hit in parts))
        rows = sorted(set(memory.exemplars.labels[hits[0]].tolist()) | set(memory.reserve.labels[hits[1]].tolist()))
        empty = [row for row in rows if row not in left.exemplars.labels]
        if empty:
            label = known.classes[empty[0]]
            raise UserError(
                f"class {label!r} would have no image left to train on; remove({label!r}), or learn other images "
                "of it first with known='update'"
            )
        assert known.predictor is not None
        assert known.means is not None
        with self.backend.active():
            measured = left.exemplars.of_labels(rows)
            found = self.evaluator.class_means(known.predictor, measured, len(known.classes))
        means = known.means.clone()
        means[rows] = found[rows]
        counts = torch.bincount(left.exemplars.labels, minlength=len(known.classes)).tolist()
        images = tuple(counts[row] if row in rows else count for row, count in enumerate(known.mean_images))
        self.knowledge = replace(known, memory=left, means=means, mean_images=images, reject={})
        return self

    def _kept_images(self, known: Knowledge) -> Memory:
        self._refuse_during_a_phase()
        if known.memory is None:
            if known.phases:
                raise UserError("this learner was saved without its memory: it keeps no images")
            raise not_learned()
        return known.memory

    def _row(self, label: Label) -> int:
        (plain,) = plain_labels([label])
        if plain not in self.classes_:
            same = next((label for label in self.classes_ if str(label) == str(plain)), None)
            if same is not None:
                raise UserError(
                    f"class {plain!r} is not known, but {same!r} is: labels of this learner are {_kind(same)}"
                )
            raise UserError(f"class {plain!r} is not known; {suggestion(str(plain), map(str, self.classes_))}")
        return self.classes_.index(plain)

    def _refuse_during_a_phase(self) -> None:
        if self._phase is not None or self._pending is not None:
            raise UserError("this learner is in the middle of a phase; finish it first, with the same images")


def _one_or_several(classes: Label | Labels) -> list[Label]:
    given: Any = classes.tolist() if isinstance(classes, np.ndarray | np.generic | Tensor) else classes
    several = isinstance(given, Iterable) and not isinstance(given, str)
    given = list(given) if isinstance(given, set | frozenset) else given
    found = plain_labels(given if several or hasattr(given, "to_numpy") else [given])
    if not found:
        raise UserError("no class was named; give a label, or a list of labels")
    return found


def _kind(label: Label) -> str:
    return "strings" if isinstance(label, str) else "whole numbers"


def _check_ids(ids: str | Iterable[str]) -> set[str]:
    words = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{word!r} is no id of a kept image, which is a string; exemplars() lists them")
    if not words:
        raise UserError("no id was given; exemplars() lists those of all kept images")
    return set(words)


def _ids(store: PixelStore) -> list[str]:
    pieces = (store.part(start, stop).cpu().contiguous().numpy() for start, stop in chunks(store))
    return [hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() for piece in pieces for image in piece]


def _have_ids(images: ImageSet, ids: set[str]) -> Tensor:
    return torch.tensor([key in ids for key in _ids(images.store)], dtype=torch.bool, device=images.labels.device)


def _plain_image(pixels: Tensor) -> NDArray[np.uint8]:
    image: NDArray[np.uint8] = pixels.cpu().numpy()
    return image[0] if len(image) == 1 else image.transpose(1, 2, 0)
