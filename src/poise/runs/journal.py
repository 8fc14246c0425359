"""The journal of a run: an append-only file of JSON lines, which a run that is resumed cuts where it goes on."""

from __future__ import annotations

import hashlib
import itertools
import json
import lzma
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from poise.errors import Damaged
from poise.runs.examiner import Exam
from poise.runs.observers import Observer
from poise.store import PLAIN_FORMAT, check_format, encode_line
from poise.training.events import Event

PACKED: Final = ".xz"  # what the name of a journal ends with that was compressed to be kept


class Journal(Observer):
    """An append-only file of JSON lines: every event that is kept, and every exam.

    Its length in bytes is a position one can return to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def event(self, event: Event) -> None:
        """Write an event that is kept."""
        if event.kept:
            self.append(event.as_json())

    def exam(self, exam: Exam) -> None:
        """Write the exam."""
        self.append(exam.as_json())

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file = self._file or self.path.open("ab")
        if self._file.tell() == 0:
            self._file.write(encode_line(json.dumps({"journal": "poise", "format": PLAIN_FORMAT})))
        self._file.write(encode_line(json.dumps(event, ensure_ascii=False, allow_nan=False)))
        self._file.flush()

    def position(self) -> int:
        """The length so far, on the disk: what is before it survives a crash of the machine."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self.path.stat().st_size if self.path.exists() else 0

    def digest(self, position: int | None = None) -> str:
        """Of all bytes so far, or of those before `position`."""
        begun = self.path.read_bytes()[:position] if self.path.exists() else b""
        return hashlib.blake2b(begun, digest_size=16).hexdigest()

    def check(self, position: int, digest: str) -> None:
        """Refuse a journal that is shorter than `position`, or whose bytes up to there have another digest."""
        if self.digest(position) != digest:
            raise Damaged(f"{self.path} was changed since the checkpoint was written")

    def rewind(self, position: int) -> None:
        """Cut everything after `position`: the events that a resumed run will produce again."""
        self.close()
        with self.path.open("ab") as file:
            file.truncate(position)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal, finished or still growing; a torn last line and the header are left out.

    One that was compressed to be kept (`.xz`) is unpacked on the way.
    """
    if not path.exists():
        return
    with lzma.open(path) if path.suffix == PACKED else path.open("rb") as file:
        for number in itertools.count(1):
            try:
                line = file.readline()
            except (lzma.LZMAError, EOFError) as error:
                raise Damaged(f"{path} is not a compressed journal, or cut off") from error
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Damaged(f"{path}, line {number} is not JSON") from error
            if number == 1 and "journal" in event:
                check_format(path, event.get("format"))
            else:
                yield event
