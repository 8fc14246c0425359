"""A pack in the making, and how far an interrupted one had come.

What is written grows at its end and is made sure of after each class. Beside it lies a journal of what is finished. At
the end the index is added, and the file gets its name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from poise import files
from poise.data.packfile import MAGIC, PAGE, Footer
from poise.data.packs import DIGEST, TRAIN, Block, Described, block_digest, digest_of, write_index
from poise.errors import UserError

log = logging.getLogger(__name__)


class UnfinishedPack:
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

    def __enter__(self) -> UnfinishedPack:
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


def listing_of(members: Sequence[Path]) -> str:
    """Names, sizes and times of files: by which it is seen that they are the same."""
    total = hashlib.blake2b(digest_size=DIGEST)
    for path in members:
        try:
            found = path.stat()
            total.update(f"{os.fsencode(path.name)!r} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            total.update(f"{os.fsencode(path.name)!r} gone\n".encode())
    return total.hexdigest()
