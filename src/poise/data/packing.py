"""Making a pack: every image file is decoded once, class by class, by several processes.

A pack in the making is a folder `NAME.pack.partial`. A class is finished when its line is in the index: a pack that was
interrupted goes on with the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from poise.data.decode import map_ahead, scale_for_pack
from poise.data.packs import DIGEST, FORMAT, TEST, TRAIN, Block, Pack, map_file, write_end
from poise.data.sources.layout import INDEX, PACK, Layout, is_pack, scan
from poise.data.sources.registry import COLLECTIONS
from poise.errors import UnreadFile, UserError, check_whole, suggestion
from poise.settings import LARGEST_SIZE, LEAST_SIZE
from poise.store import locked

log = logging.getLogger(__name__)

SIZE: Final = 256
CHUNK: Final = 16  # files that a process decodes before it hands them over
FEW: Final = 500  # files that one process decodes as soon as several have started
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Packed(NamedTuple):
    """How far a pack has come: images that are packed, all of them, and the class that is at work.

    `resumed` counts those that were packed before this command.
    """

    images: int
    total: int
    name: str
    resumed: int


class _Scaled(NamedTuple):
    """Some images of a class: their bytes, sizes and sources; and the lines about files that cannot be decoded."""

    pixels: list[bytes]
    sizes: list[tuple[int, ...]]
    sources: list[bytes]
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
        if self.out.suffix != PACK:
            raise UserError(f"{self.out} must end in {PACK}, by which a pack is recognised")
        if not self.out.absolute().parent.is_dir():
            raise UserError(f"the folder {self.out.absolute().parent} does not exist; make it first")
        taken = UserError(f"{self.out} is there already; give another name, or remove it first")
        if self.out.exists() and not is_pack(self.out):
            raise taken
        if is_pack(self.folder):
            raise UserError(f"{self.folder} is a pack already; give the folder of images that it was made of")
        layout = choose_classes(scan(self.folder), self.classes, self.folder)
        if names := sorted(set(layout.train) - set(layout.train if layout.test is None else layout.test)):
            which = (
                f"class '{names[0]}' has" if len(names) == 1 else f"{len(names)} classes, such as '{names[0]}', have"
            )
            log.warning("%s no test images; exams do not ask for %s", which, "it" if len(names) == 1 else "them")
        lock = self.out.with_name(f"{self.out.name}.lock")
        with locked(lock, f"is packing {self.out}; wait for it", passing=True):
            tasks = self._tasks(layout)
            if self.out.exists():
                if not self._is_made(tasks):
                    raise taken
                return
            try:
                yield from self._pack(layout, tasks)
            except OSError as error:
                error.filename = error.filename or str(self.out)  # a full disk does not say where
                raise

    def _tasks(self, layout: Layout) -> dict[Block, Sequence[Path]]:
        return {
            Block.begun(part, name, _listing_of(name, files)): files
            for part, found in ((TRAIN, layout.train), (TEST, layout.test or {}))
            for name, files in sorted(found.items())
        }

    def _is_made(self, tasks: Iterable[Block]) -> bool:
        """Whether the pack that is there is the one that would be made."""
        made = Pack.open(self.out)
        as_asked = (made.size, made.square) == (self.size, self.square) and (self.skip_bad or not made.skipped)
        return as_asked and _listings(made.blocks) == _listings(tasks)

    def _pack(self, layout: Layout, tasks: Mapping[Block, Sequence[Path]]) -> Generator[Packed, None, None]:
        making = self.out.with_name(f"{self.out.name}.partial")
        making.mkdir(exist_ok=True)
        head = {"format": FORMAT, "size": self.size, "square": self.square, "channels": 3}
        asked = {"folder": str(self.folder.resolve()), "classes": sorted(layout.train) if self.classes else None}
        finished = self._finished_blocks(making, {**head, **asked}, tasks)
        left = {block: files for block, files in tasks.items() if (block.part, block.name) not in finished}
        total = sum(map(len, tasks.values()))
        done = resumed = total - sum(map(len, left.values()))
        with (making / INDEX).open("ab") as index, contextlib.closing(self._decode(left.values())) as decoded:
            for begun, files in left.items():
                block = begun
                with (making / block.file).open("wb") as pixels:
                    for start in range(0, len(files), CHUNK):
                        scaled = next(decoded)
                        for line in scaled.bad:
                            if not self.skip_bad:
                                raise UserError(f"{line}, or leave out all such files with --skip-bad")
                            log.warning("%s; it is left out", line)
                        pixels.writelines(scaled.pixels)
                        block = block.extended(scaled.sizes, scaled.sources, len(scaled.bad))
                        yield Packed(done + min(start + CHUNK, len(files)), total, block.name, resumed)
                    _sync(pixels)
                done += len(files)
                if not len(block) and block.part == TRAIN:
                    raise UserError(
                        f"no training image of class '{block.name}' can be decoded; remove the class, or mend it"
                    )
                if not len(block):
                    log.warning("no test image of class '%s' can be decoded; exams do not ask for it", block.name)
                block = replace(block, digest=block.digest_of(map_file(making / block.file)))
                finished[block.part, block.name] = block
                index.write(json.dumps(block.as_line()).encode() + b"\n")
                _sync(index)
        write_end(making / f"{INDEX}.end", head, [finished[block.part, block.name] for block in tasks])
        (making / f"{INDEX}.end").replace(making / INDEX)
        making.rename(self.out)

    def _finished_blocks(
        self, making: Path, asked: dict[str, Any], tasks: Iterable[Block]
    ) -> dict[tuple[str, str], Block]:
        """The classes that an interrupted command has packed of the same files; the index is left with those."""
        lines = list(_whole_lines(making / INDEX))
        if lines and lines[0] != asked:
            changed = ", ".join(key for key, value in asked.items() if lines[0].get(key) != value)
            raise UserError(
                f"{making} was begun by another command (other {changed}); give the same, use another --out, or remove "
                "that folder to begin anew"
            )
        listings = _listings(tasks)
        finished = {
            (block.part, block.name): block
            for block in map(Block.from_line, lines[1:])
            if listings.get((block.part, block.name)) == block.listing
            and (self.skip_bad or not block.skipped)
            and (making / block.file).is_file()
        }
        kept = [asked, *(block.as_line() for block in finished.values())]
        (making / f"{INDEX}.new").write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in kept))
        (making / f"{INDEX}.new").replace(making / INDEX)
        return finished

    def _decode(self, classes: Iterable[Sequence[Path]]) -> Generator[_Scaled, None, None]:
        """The images of these classes in order, `CHUNK` at a time, none of two classes together."""
        work = partial(_scale_some, side=self.size, square=self.square)
        pieces = [files[start : start + CHUNK] for files in classes for start in range(0, len(files), CHUNK)]
        if self.jobs == 1 or sum(map(len, pieces)) <= FEW:
            yield from map(work, pieces)
            return
        with ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _begin_worker) as pool:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # which processes that begin now inherit:
            resource_tracker.ensure_running()  # one of Python's own, which would end with a closed terminal
            for _ in range(self.jobs):
                pool.submit(os.getpid)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            try:
                yield from map_ahead(pool, work, pieces, 4 * self.jobs)
            except BrokenProcessPool as error:
                raise UserError(
                    "a process that decodes images was ended from outside, perhaps for lack of memory; "
                    "the same command goes on; with fewer --jobs it needs less"
                ) from error


def _listing_of(name: str, files: Sequence[Path]) -> str:
    """A digest of the names, sizes and times of files: equal as long as nobody changes them."""
    total = hashlib.blake2b(os.fsencode(name), digest_size=DIGEST)
    for path in files:
        with contextlib.suppress(OSError):  # what is gone is refused when it is decoded
            found = path.stat()
            total.update(f"{os.fsencode(path.name)!r} {found.st_size} {found.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _listings(blocks: Iterable[Block]) -> dict[tuple[str, str], str]:
    return {(block.part, block.name): block.listing for block in blocks}


def _whole_lines(index: Path) -> Iterator[Any]:
    """The lines of an index, up to one that was cut off."""
    for line in index.read_bytes().splitlines(keepends=True) if index.exists() else ():
        if not line.endswith(b"\n"):
            return
        yield json.loads(line)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def choose_classes(layout: Layout, wanted: Sequence[str], folder: Path) -> Layout:
    """The layout with these classes of a folder alone, or all of them where none are named.

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
    train, test = (
        None if files is None else {name: members for name, members in files.items() if name in chosen}
        for files in (layout.train, layout.test)
    )
    assert train is not None
    return Layout(train, test)


def read_classes(words: str, folder: Path) -> tuple[str, ...]:
    """Class names from a file with one on each line, or from a list with commas; an empty word: none.

    A line may go on after the name, as in "n01440764 tench": where no class of the folder is called like all of it,
    its first word is the name.
    """
    if not words:
        return ()
    if os.path.isfile(words):  # noqa: PTH113 - a long list is no path at all, of which pathlib makes an error
        try:
            text = Path(words).read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
        except UnicodeDecodeError as error:
            raise UserError(f"--classes {words} is no text in UTF-8; give a text file with one class a line") from error
        known = {name.name for root in (folder / "train", folder) if root.is_dir() for name in root.iterdir()}
        lines = (line.strip() for line in text.splitlines() if not line.startswith("#"))
        firsts = ((line, line.split(maxsplit=1)[0]) for line in lines if line)
        found = dict.fromkeys(first if line not in known and first in known else line for line, first in firsts)
    else:
        found = dict.fromkeys(word.strip() for word in words.split(",") if word.strip())
    if not found:
        raise UserError(f"--classes {words} names no class; name some, or leave it out for all of them")
    return tuple(found)


# Decoding -------------------------------------------------------------------------------------------------------------


def _begin_worker() -> None:
    """In a process that decodes: it hears no signals, and ends with the process that started it."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _scale_some(files: Sequence[Path], side: int, square: bool) -> _Scaled:
    scaled = _Scaled([], [], [], [])
    for path in files:
        try:
            image, (_, source) = scale_for_pack(path, side, square=square)
        except UnreadFile:
            raise  # it may be a good one
        except UserError as error:
            scaled.bad.append(str(error))
            continue
        scaled.pixels.append(image.tobytes())
        scaled.sizes.append(image.shape[1:])
        scaled.sources.append(source)
    return scaled
