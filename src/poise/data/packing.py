"""Making a pack: every image file is decoded once, class by class, by several processes.

A pack that was interrupted goes on with the class that it was at (`poise.data.unfinished_pack`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from poise import files, locks, store
from poise.data.inputs import scale_picture
from poise.data.packfile import ENDING, is_pack
from poise.data.packs import DIGEST, FORMAT, TEST, TRAIN, Described, digest_of
from poise.data.processes import decode_in_order
from poise.data.sources.layout import Files, Layout, scan
from poise.data.sources.registry import COLLECTIONS
from poise.data.unfinished_pack import UnfinishedPack, listing_of
from poise.errors import UnreadFile, UserError, check_whole, suggestion
from poise.settings import LARGEST_SIZE, LEAST_SIZE

log = logging.getLogger(__name__)

SIZE: Final = 256
CHUNK: Final = 16  # files that a process decodes before it hands them over


class Packed(NamedTuple):
    """How far a pack has come: images that are packed, all of them, and the class that is at work.

    `resumed` counts those that were packed before this command.
    """

    images: int
    total: int
    name: str
    resumed: int


class _Scaled(NamedTuple):
    """Some images of a class: their bytes one after the other, what is known of each, and the files that are bad."""

    pixels: bytes
    images: Described
    bad: list[str]


@dataclass(frozen=True)
class Packing:
    """What is to be packed, and how.

    Attributes:
        folder: with one folder of images per class, or `train` and `test` (or `val`) with such folders.
        out: the pack to be made.
        size: short side of the images in pixels.
        square: whether they are cropped to squares.
        classes: only these, if any are given.
        skip_bad: leave files out that cannot be decoded; else the first one is refused.
        jobs: processes that decode; one: this one.
    """

    folder: Path
    out: Path
    size: int = SIZE
    square: bool = False
    classes: tuple[str, ...] = ()
    skip_bad: bool = False
    jobs: int = 1

    def run(self) -> Generator[Packed, None, None]:
        """Make the pack, from where it was interrupted; what can be wrong with it is found first."""
        check_whole("size", self.size, LEAST_SIZE, LARGEST_SIZE)
        store.refuse_bad_place(self.out)
        if self.out.suffix != ENDING:
            raise UserError(f"{self.out} must end in {ENDING}, by which a pack is recognised")
        self._refuse_existing()
        if is_pack(self.folder):
            raise UserError(f"{self.folder} is a pack already; give the folder of images that it was made of")
        layout = choose_classes(scan(self.folder), self.classes, self.folder)
        _warn_of_unexamined(sorted(set(layout.train) - set(layout.train if layout.test is None else layout.test)))
        with locks.locked(self._beside("lock"), f"is packing {self.out}; wait for it", sign=True):
            self._refuse_existing()  # finished by another process meanwhile: many files take long to list
            with files.naming(self.out):  # a full disk does not say where
                yield from self._pack(layout)

    def _refuse_existing(self) -> None:
        if self.out.exists() or self.out.is_symlink():
            raise UserError(f"{self.out} is there already; give another name, or remove it first")

    def _beside(self, word: str) -> Path:
        return self.out.with_name(f"{self.out.name}.{word}")

    def _pack(self, layout: Layout) -> Generator[Packed, None, None]:
        places = self._beside("partial"), self._beside("journal")
        chosen = {"folder": str(self.folder.resolve()), "classes": sorted(layout.train) if self.classes else None}
        with UnfinishedPack(*places, self._describe(), chosen, skip_bad=self.skip_bad) as unfinished:
            tasks = [
                (part, name, members, listing_of(members))
                for part, found in ((TRAIN, layout.train), (TEST, layout.test or {}))
                for name, members in sorted(found.items())
            ]
            total = sum(len(members) for _, _, members, _ in tasks)
            left = unfinished.go_on([(part, name, listing) for part, name, _, listing in tasks])
            done = resumed = total - sum(len(members) for _, _, members, _ in tasks[left:])
            with contextlib.closing(self._decode_classes([members for _, _, members, _ in tasks[left:]])) as decoded:
                for part, name, members, listing in tasks[left:]:
                    unfinished.begin(part)
                    scaled = []
                    for _ in range(0, len(members), CHUNK):
                        some = next(decoded)
                        self._refuse_bad(some.bad)
                        unfinished.write(some.pixels)
                        scaled.append(some.images)
                        done += len(some.images.sizes) + len(some.bad)
                        unfinished.skipped += len(some.bad)
                        yield Packed(done, total, name, resumed)
                    unfinished.end(part, name, listing, Described.joined(scaled), self.folder)
            unfinished.finish(self.out)

    def _describe(self) -> dict[str, Any]:
        return {"format": FORMAT, "size": self.size, "square": self.square, "channels": 3}

    def _decode_classes(self, classes: Sequence[Sequence[Path]]) -> Generator[_Scaled, None, None]:
        """The images of these classes in order, `CHUNK` at a time, none of two classes together."""
        work = partial(_scale_some, side=self.size, square=self.square)
        pieces = [each[start : start + CHUNK] for each in classes for start in range(0, len(each), CHUNK)]
        return decode_in_order(work, pieces, self.jobs)

    def _refuse_bad(self, lines: Sequence[str]) -> None:
        for line in lines:
            if not self.skip_bad:
                raise UserError(f"{line}, or leave out all such files with --skip-bad")
            log.warning("%s; it is left out", line)


def _warn_of_unexamined(names: Sequence[str]) -> None:
    """Say which classes no exam can ask for."""
    if names:
        which = f"class '{names[0]}' has" if len(names) == 1 else f"{len(names)} classes, such as '{names[0]}', have"
        log.warning("%s no test images; exams do not ask for %s", which, "it" if len(names) == 1 else "them")


def choose_classes(layout: Layout, wanted: Sequence[str], folder: Path) -> Layout:
    """Only these classes of a folder, or all of them where none are named; one that is not there is refused.

    The name of one of ImageNet's data sets stands for its classes.
    """
    if not wanted:
        return layout
    if len(wanted) == 1 and wanted[0] in COLLECTIONS and wanted[0] not in layout.train:
        wanted = COLLECTIONS[wanted[0]].select(sorted(layout.train), str(folder))
    for name in wanted:
        if name not in layout.train:
            raise UserError(f"{folder} has no class '{name}'; {suggestion(name, layout.train)}")
    chosen = set(wanted)
    if len(chosen) < 2:
        raise UserError(f"--classes names {len(chosen)} class; a pack needs at least 2")

    def some(found: Files) -> dict[str, tuple[Path, ...]]:
        return {name: members for name, members in found.items() if name in chosen}

    return replace(layout, train=some(layout.train), test=some(layout.test) if layout.test is not None else None)


def read_classes(words: str, folder: Path) -> tuple[str, ...]:
    """Class names from a file with one on each line, or from a list with commas; an empty word: none.

    A line may go on after the name, as in "n01440764 tench": where no class of the folder is called like all of it,
    its first word is the name.
    """
    path = Path(words)
    if not words:
        return ()
    if os.path.isfile(path):  # noqa: PTH113 - a long list is no path at all, of which pathlib makes an error
        try:
            text = files.read_text(path).removeprefix("\ufeff")  # the byte order mark that some editors write
        except UnicodeDecodeError as error:
            raise UserError(f"--classes {path} is no text in UTF-8; give a text file with one class a line") from error
        lines = (line.strip() for line in text.splitlines() if not line.startswith("#"))
        found = tuple(dict.fromkeys(_name_in(line, folder) for line in lines if line))
    else:
        found = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    if not found:
        raise UserError(f"--classes {words} names no class; name some, or leave it out for all of them")
    return found


def _name_in(line: str, folder: Path) -> str:
    """The class of a folder that a line names; the whole line where there is none."""
    roots, choices = (folder / "train", folder), (line, line.split(maxsplit=1)[0])
    names = (name for name in choices if any(os.path.isdir(root / name) for root in roots))  # noqa: PTH112 - as above
    return next(names, line)


# Decoding -------------------------------------------------------------------------------------------------------------


def _scale_some(members: Sequence[Path], side: int, square: bool) -> _Scaled:
    pixels, sizes, digests, sources, bad = list[bytes](), [], list[bytes](), list[bytes](), list[str]()
    for path in members:
        try:
            image, data = scale_picture(path, side, square=square)
        except UnreadFile:
            raise  # it may be a good one
        except UserError as error:
            bad.append(str(error))
            continue
        pixels.append(image.tobytes())
        sizes.append(image.shape[1:])
        digests.append(digest_of(pixels[-1]))
        sources.append(digest_of(data))
    count = len(sizes)
    arrays = (np.frombuffer(b"".join(each), np.uint8).reshape(count, DIGEST) for each in (digests, sources))
    return _Scaled(b"".join(pixels), Described(np.array(sizes, dtype=np.int32).reshape(count, 2), *arrays), bad)
