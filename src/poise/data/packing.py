"""Making a pack: every image file is decoded once, class by class, by several processes.

What is written grows at its end and is made sure of after each class, so that a pack that was interrupted goes on with
the class that it was at. Beside it lies a journal of what is finished. At the end the index is added, and the file
gets its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from poise import files, locks, store
from poise.data.inputs import scale_picture
from poise.data.packs import DIGEST, TEST, TRAIN, Block, Described, block_digest, digest_of, write_index
from poise.data.processes import decode_in_order
from poise.data.suitable import LARGEST_SIZE, LEAST_SIZE
from poise.errors import UserError, check_whole, suggestion
from poise.places import COLLECTIONS, Files, Layout, scan
from poise.places.packfile import ENDING, MAGIC, PAGE, Footer

log = logging.getLogger(__name__)

SIZE: Final = 256
CHUNK: Final = 16  # files that a process decodes before it hands them over
_FORMAT: Final = 1


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
        layout = choose_classes(scan(self.folder), self.classes, self.folder)
        _warn_of_unexamined(sorted(set(layout.train) - set(layout.train if layout.test is None else layout.test)))
        with locks.locked(self._beside("lock"), f"is packing {self.out}; wait for it", sign=True):
            self._refuse_existing()  # finished by another process meanwhile: many files take long to list
            try:
                yield from self._pack(layout)
            except OSError as error:  # such as a full disk, of which the system does not say where
                error.filename = error.filename or str(self.out)
                raise

    def _refuse_existing(self) -> None:
        if self.out.exists() or self.out.is_symlink():
            raise UserError(f"{self.out} is there already; give another name, or remove it first")

    def _beside(self, word: str) -> Path:
        return self.out.with_name(f"{self.out.name}.{word}")

    def _pack(self, layout: Layout) -> Generator[Packed, None, None]:
        places = self._beside("partial"), self._beside("journal")
        chosen = {"folder": str(self.folder.resolve()), "classes": sorted(layout.train) if self.classes else None}
        with _Unfinished(*places, self._describe(), chosen, skip_bad=self.skip_bad) as unfinished:
            tasks = [
                (part, name, members, _listing(members))
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
        return {"format": _FORMAT, "size": self.size, "square": self.square, "channels": 3}

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
            text = files.read_text(path)
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


# What is unfinished ---------------------------------------------------------------------------------------------------


class _Unfinished:
    """A pack in the making: a file that only grows, and a journal of its finished blocks."""

    def __init__(
        self, path: Path, journal: Path, described: dict[str, Any], chosen: dict[str, Any], *, skip_bad: bool
    ) -> None:
        self._path, self._journal_path, self._skip_bad = path, journal, skip_bad
        self._values, self._chosen = described, chosen
        self._blocks: list[Block] = []
        self._images: list[Described] = []
        self.skipped = 0
        self._place = PAGE
        self._file: BinaryIO = files.open_to_append(path)
        self._journal: BinaryIO = files.open_to_append(journal)

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._journal.close()

    def go_on(self, tasks: Sequence[tuple[str, str, str]]) -> int:
        """How many of these classes are finished; whatever follows them is cut off.

        A class is finished if it was packed of files with the same names, sizes and times. Where it was packed by
        another command, or bad files were left out of it and now may not be, nothing is changed.
        """
        kept, bytes_of_journal = 0, 0
        self._journal.seek(0)
        end = self._path.stat().st_size
        begun: dict[str, Any] = {}
        for number, line in enumerate(self._journal):
            record = _parse_line(line)
            if number == 0:
                if not isinstance(record, dict):
                    break
                begun = record
            else:
                found = self._read_finished(record, tasks[kept] if kept < len(tasks) else None, end)
                whole = isinstance(record, dict)  # not cut off in the middle
                if end and whole:
                    self._refuse_other(begun, fits=found is not None)
                if found is None:
                    if whole and kept < len(tasks):
                        log.warning(
                            "class '%s' is not as it was packed before; it and those after it are packed again",
                            tasks[kept][1],
                        )
                    break
                self._blocks.append(found[0])
                self._images.append(found[1])
                self._place = found[0].place + found[0].length
                self.skipped = int(record["skipped"])
                kept += 1
            bytes_of_journal += len(line)
        if self.skipped and not self._skip_bad:
            raise UserError(
                f"{self.skipped} files that cannot be decoded were left out before; go on with --skip-bad, or remove "
                f"{self._path} to begin anew"
            )
        self._journal.truncate(bytes_of_journal if self._blocks else 0)
        if not self._blocks:
            self._note({**self._values, **self._chosen})
        self._file.truncate(self._place if self._blocks else 0)
        if not self._blocks:
            self._file.write(MAGIC.ljust(PAGE, b"\0"))
        return kept

    def _refuse_other(self, begun: dict[str, Any], *, fits: bool) -> None:
        """Refuse to throw away what another command has packed: it may be the work of hours.

        A folder that was moved is the same as long as what was packed of it `fits`.
        """
        now = {**self._values, **self._chosen}
        begun = {**self._chosen, **begun}  # an older poise did not say what it packed
        if fits:
            begun["folder"] = now["folder"]
        if begun == now:
            return
        if begun["folder"] != now["folder"]:
            other = f"of {begun['folder']}, not {now['folder']}"
        elif begun["classes"] != now["classes"]:
            both = begun["classes"] and now["classes"]
            other = f"with {'other ' * bool(both)}--classes" if begun["classes"] else "without --classes"
        else:
            sizes = (f"--size {each.get('size')}{' --square' * bool(each.get('square'))}" for each in (begun, now))
            other = "with {}, not {}".format(*sizes)
        raise UserError(
            f"{self._path} was begun {other}; give the same, use another --out, or remove it and {self._journal_path} "
            "to begin anew"
        )

    def _read_finished(
        self,
        record: Any,  # noqa: ANN401 - read from a file
        task: tuple[str, str, str] | None,
        end: int,
    ) -> tuple[Block, Described] | None:
        try:
            block = Block.from_json(record)
            images = Described.from_bytes(bytes.fromhex(record["described"]), block.images)
            length = int(images.sizes.astype(np.int64).prod(axis=1).sum()) * self._values["channels"]
            same = task == (block.part, block.name, record["listing"]) and block_digest(images) == block.digest
            fits = (block.place, block.length) == (self._next_place(block.part), length)
            there = fits and block.place + length <= end and int(record["skipped"]) >= 0
        except (KeyError, TypeError, ValueError):
            return None
        return (block, images) if same and there else None

    def _next_place(self, part: str) -> int:
        """Where a class of this part begins after those that are finished."""
        follows = not self._blocks or self._blocks[-1].part == part
        return self._place if follows else -(-self._place // PAGE) * PAGE

    def begin(self, part: str) -> None:
        """A class of this part follows; a part begins at a page."""
        self._start = self._next_place(part)
        self._file.write(bytes(self._start - self._place))
        self._place = self._start

    def write(self, pixels: bytes) -> None:
        """More images of the class."""
        self._file.write(pixels)
        self._place += len(pixels)

    def end(self, part: str, name: str, listing: str, images: Described, folder: Path) -> None:
        """The class is complete: made sure of on disk, then noted."""
        if not len(images.sizes) and part == TRAIN:
            raise UserError(
                f"no training image of class '{name}' in {folder} can be decoded; remove the class, or mend it"
            )
        if not len(images.sizes):
            log.warning("no test image of class '%s' can be decoded; exams do not ask for it", name)
        block = Block(part, name, self._start, self._place - self._start, len(images.sizes), block_digest(images))
        self._file.flush()
        os.fsync(self._file.fileno())
        more = {"listing": listing, "skipped": self.skipped, "described": images.as_bytes().hex()}
        self._note({**block.as_json(), **more})
        self._blocks.append(block)
        self._images.append(images)

    def _note(self, record: dict[str, Any]) -> None:
        self._journal.write(json.dumps(record).encode() + b"\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def finish(self, out: Path) -> None:
        """Add the index, and give the file its name."""
        values = {**self._values, "skipped": self.skipped}
        index = write_index(values, [block for block in self._blocks if block.images], Described.joined(self._images))
        self._file.truncate(self._place)  # without an index that was added before it was killed
        self._file.write(index + Footer(self._place, len(index), digest_of(index)).as_bytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(out)
        self._journal_path.unlink(missing_ok=True)


def _parse_line(line: bytes) -> Any:  # noqa: ANN401 - whatever a file holds
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None


def _listing(members: Sequence[Path]) -> str:
    """Names, sizes and times of files: by which it is seen that they are the same."""
    total = hashlib.blake2b(digest_size=DIGEST)
    for path in members:
        try:
            found = path.stat()
            total.update(f"{os.fsencode(path.name)!r} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            total.update(f"{os.fsencode(path.name)!r} gone\n".encode())
    return total.hexdigest()
