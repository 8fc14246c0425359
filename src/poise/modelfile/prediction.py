"""A learner's predictions for files and packs: image by image, or as a score over classes."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from poise.data import Decoder
from poise.data.packs import Pack, PackedImage
from poise.data.sources.layout import image_files, labelled_files, names_pack
from poise.errors import BadImages, UserError, naming, not_learned
from poise.learner import Label, Learner
from poise.store import expand_user
from poise.words import one_line

log = logging.getLogger(__name__)

#: The word for the threshold that a learner was saved with.
SAVED: Final = "saved"
#: How many images are held at a time.
CHUNK: Final = 256
#: The most bytes of a path, and those of standard input that are read together.
MOST_PATH_BYTES: Final = 1 << 14
READ_AT_ONCE: Final = 1 << 16

Ranked = tuple[tuple[Label, float], ...]  # classes with their probabilities, the most probable one first


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image.

    Attributes:
        path: of the file.
        packed: which image it is, where the file is a pack.
        ranked: the most probable classes with their probabilities, the most probable one first; empty if unread.
        unread: why the file could not be read; None if it was.
        rejected: whether it looks like none of the known classes.
    """

    path: Path
    ranked: Ranked = ()
    unread: UserError | None = None
    rejected: bool = False
    packed: PackedImage | None = None

    @property
    def name(self) -> str:
        """The path; of an image in a pack with its part, class and number there, as in `some.pack:test/cat/3`."""
        if self.packed is None:
            return str(self.path)
        return f"{self.path}:{self.packed.part}/{self.packed.name}/{self.packed.number}"

    def as_json(self) -> dict[str, Any]:
        """Plain values for programs."""
        where = {"path": str(self.path)}
        if self.packed is not None:
            part, name, number, source = self.packed
            where |= {"image": f"{part}/{name}/{number}", "source": source}
        if self.unread is not None:
            return {**where, "error": str(self.unread)}
        ranked = [{"label": label, "probability": round(chance, 6)} for label, chance in self.ranked]
        if self.rejected:
            return {**where, "label": None, "rejected": True, "ranked": ranked}
        return {**where, **ranked[0], **({"ranked": ranked} if len(ranked) > 1 else {})}

    def as_text(self) -> str:
        """The name, then each class with its probability, separated by tabs; nothing known is `-`."""
        if self.rejected:
            return f"{one_line(self.name)}\t-"
        ranked = (f"{one_line(str(label))}\t{chance:.3f}" for label, chance in self.ranked)
        return "\t".join([one_line(self.name), *ranked])


def predict_paths(
    learner: Learner, paths: Sequence[Path], top: int = 1, *, reject: bool = False, streamed: bool = False
) -> Iterator[Prediction]:
    """The `top` most probable classes of image files, of those in and below folders, and of the images of packs.

    Of a pack it is the test part; where it has none, the training part. All paths are looked at before the first image.
    What cannot be read or is not there is told as `unread`; the others are predicted. Of paths that are `streamed`, a
    folder without images and a file that only has the name of a pack are told so, too, which else are refused.
    """
    for given in _list_images(paths, streamed=streamed):
        if isinstance(given, Pack):
            if not given.has_test:
                log.warning("%s has no test part: these are the images that are trained on", given.path)
            yield from predict_pack(learner, given, top, reject=reject)
        elif isinstance(given, Prediction):
            yield given
        else:
            yield from predict_files(learner, given, top, reject=reject)


def read_paths(file: BufferedIOBase, separator: bytes = b"\n") -> Iterator[list[Path]]:
    """The paths in a stream, each followed by a separator, as they come: those that are there, then it waits for more.

    Empty ones are left out.
    """
    rest = b""
    with naming("standard input"):
        while some := file.read1(READ_AT_ONCE):  # what was written so far
            *whole, rest = (rest + some).split(separator)
            for word in (*whole, rest):
                long = f"a path of more than {MOST_PATH_BYTES} bytes" if len(word) > MOST_PATH_BYTES else ""
                if what := "a NUL, which no path has" if b"\0" in word else long:
                    how = "one per line, or with -0 each followed by a NUL"
                    raise UserError(f"standard input has {what}; give paths of images, {how}")
            if paths := [_plain_path(word) for word in whole if word.strip()]:
                yield paths
    if rest.strip():
        yield [_plain_path(rest)]


def _plain_path(word: bytes) -> Path:
    """A path, with a leading `~` written out; a line that was made on Windows ends with a character of its own."""
    if word.endswith(b"\r") and not os.path.lexists(word):
        word = word[:-1]
    path = Path(os.fsdecode(word))
    try:
        return expand_user(path)
    except UserError:  # there is no such user; that nothing is there is said when it is to be read
        return path


def _list_images(paths: Sequence[Path], *, streamed: bool) -> list[list[Path] | Pack | Prediction]:
    """Packs, in one list the image files between two of them, and what could not be listed."""
    found: list[list[Path] | Pack | Prediction] = []
    for path in paths:
        try:
            if os.path.lexists(path) and names_pack(path):
                found.append(Pack.open(path))
                continue
            images = image_files(path)  # of a path that leads nowhere, itself: told when it is to be read
        except UserError as error:
            if not streamed:
                raise
            found.append(Prediction(path, unread=error))
            continue
        if found and isinstance(found[-1], list):
            found[-1] += images
        else:
            found.append(images)
    return found


def predict_pack(learner: Learner, pack: Pack, top: int = 1, *, reject: bool = False) -> Iterator[Prediction]:
    """The `top` most probable classes of each image of a pack's test part, or of its only part; a few are held."""
    described = pack.describe(pack.exam_part)
    for images in pack.stream(pack.exam_part, _decoder_of(learner), CHUNK):
        ranked = _rank_each(learner, images, top, reject=reject)
        for packed, (best, rejected) in zip(islice(described, len(images)), ranked, strict=True):
            yield Prediction(pack.path, best, rejected=rejected, packed=packed)


def _decoder_of(learner: Learner) -> Decoder:
    """How this learner sees pictures."""
    if learner.shape_ is None:
        raise not_learned()
    return Decoder(learner.shape_[1:], learner.shape_[0], learner.knowledge.short_side)


def predict_files(
    learner: Learner, paths: Sequence[Path], top: int = 1, *, reject: bool = False
) -> Iterator[Prediction]:
    """The `top` most probable classes of each file, in the order of the paths; a few files are held at a time.

    With `reject`, files that look like no known class are rejected, by the learner's threshold.
    """
    decoder = _decoder_of(learner)
    for start in range(0, len(paths), CHUNK):
        some, faults = paths[start : start + CHUNK], dict[str, UserError]()
        try:
            images = decoder.decode_all(some)
        except BadImages as error:
            faults = error.faults
            images = decoder.decode_all([path for path in some if str(path) not in faults])
        found = iter(_rank_each(learner, images, top, reject=reject) if len(images) else ())
        for path in some:
            if str(path) in faults:
                yield Prediction(path, unread=faults[str(path)])
            else:
                best, rejected = next(found)
                yield Prediction(path, best, rejected=rejected)


def _rank_each(learner: Learner, images: Tensor, top: int, *, reject: bool) -> list[tuple[Ranked, bool]]:
    """For each image its most probable classes with their probabilities, and whether it is rejected."""
    if reject:
        chances, rejected = learner.proba_and_rejected(images)
    else:
        chances = learner.predict_proba(images)
        rejected = np.zeros(len(chances), dtype=np.bool_)
    classes, orders = learner.knowledge.classes, np.argsort(-chances, axis=1, kind="stable")[:, :top]
    return [
        (tuple((classes[index], float(row[index])) for index in order), bool(refused))
        for row, order, refused in zip(chances, orders, rejected, strict=True)
    ]


def set_reject(learner: Learner, word: str) -> None:
    """Set the threshold that a user asks for: `saved`, that of the file, or the share of kept images to be rejected."""
    if word == SAVED:
        if not learner.reject_thresholds_:
            raise UserError("this learner was saved without a reject threshold; give a share, such as --reject 0.05")
        return
    if learner.reject_thresholds_:
        log.warning("this learner was saved with a reject threshold, which --reject %s would use", SAVED)
    try:
        learner.calibrate_reject(float(word))
    except (UserError, ValueError) as error:
        reason = str(error).partition("; give")[0] if isinstance(error, UserError) else "this is no number"
        raise UserError(f"--reject {word}: {reason}; give a share, such as 0.05, or '{SAVED}'") from error


@dataclass(frozen=True)
class FolderScore:
    """How a learner does on class folders.

    Attributes:
        images: of each class that the learner knows, how many were read.
        right: how many of them it recognised.
        unknown: of each class that it does not know, how many files there are; they count nowhere.
        unread: the files that could not be read; they count nowhere.
        part: of a pack, which part these images are: `test`, or `train` where it has no other.
    """

    images: dict[str, int]
    right: dict[str, int]
    unknown: dict[str, int]
    unread: tuple[Prediction, ...] = ()
    part: str | None = None

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
            **({} if self.part is None else {"part": self.part}),
        }


def score_folder(learner: Learner, folder: Path) -> FolderScore:
    """Predict every image in `folder/CLASS/*` whose class the learner knows; a folder's name is its label.

    Of a pack, every such image of its test part; where it has none, of its training part.
    """
    pack = Pack.open(folder) if names_pack(folder) else None
    paths, names = labelled_files(folder) if pack is None else ([], pack.names(pack.exam_part))
    labels, found = {str(label) for label in learner.classes_}, Counter(names)
    if not labels & found.keys():
        known = ", ".join(map(str, learner.classes_[:10])) + (", …" if len(learner.classes_) > 10 else "")
        raise UserError(f"{folder} has no class that this learner knows; it knows {known}")
    unknown = {name: found[name] for name in sorted(found.keys() - labels)}
    if pack is not None:
        told, predicted = names, predict_pack(learner, pack)
    else:
        told = [name for name in names if name not in unknown]
        predicted = predict_files(learner, [path for path, name in zip(paths, names, strict=True) if name in {*told}])
    images, right, unread = Counter[str](), Counter[str](), list[Prediction]()
    for name, prediction in zip(told, predicted, strict=True):
        if prediction.unread is not None:
            unread.append(prediction)
        elif name not in unknown:
            images[name] += 1
            right[name] += str(prediction.ranked[0][0]) == name
    if not images:
        raise UserError(str(unread[0].unread))
    hits = {name: right[name] for name in images}
    return FolderScore(dict(images), hits, unknown, tuple(unread), pack.exam_part if pack is not None else None)


def class_names(folder: Path) -> list[str]:
    """The class of each image in class folders, or of the part of a pack that is predicted."""
    if not names_pack(folder):
        return labelled_files(folder)[1]
    pack = Pack.open(folder)
    return pack.names(pack.exam_part)
