"""Claims: which attempt at a run may write into its folder, where attempts are made on several machines.

A lock is seen on its own machine, and on others only if their shared disk says so. A worker that was given up may also
wake up again: it was paused, or its network came back. So every attempt has a file with the next number in `attempts/`,
and those before it are removed. Before it writes anything it touches its own file, which is an operation of the disk
itself and no memory of it: where the file is gone, another attempt has begun, and this one stops.

Where cells are handed out, the driver makes the file and the worker takes it. A worker that was given up before it
began finds it gone; would it make its own, it would be the newest attempt.

Between looking and writing an attempt may still be paused. What it then writes replaces whole files by such of the same
run, and what it still has open of the journal is a file that nobody reads any more (`RunFolder.rewind_journal`).
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from poise import files, locks
from poise.errors import Superseded

ATTEMPTS = "attempts"


@dataclass(frozen=True)
class Claim:
    """One attempt's right to write into a folder, as long as no newer one has it."""

    folder: Path
    number: int
    path: Path

    @staticmethod
    def newest_in(folder: Path) -> int | None:
        """The number of the newest attempt; None if there was none, or the run is finished."""
        return max(_find_attempts(folder), default=None)

    @staticmethod
    def is_of(folder: Path, process: str) -> bool:
        """Whether the newest attempt is that of this process: it stops when there is a newer one."""
        found = _find_attempts(folder)
        try:
            return bool(found) and [path.read_text() for path in found[max(found)]] == [f"{process}\n"]
        except OSError:  # it is replaced at this moment
            return False

    @classmethod
    def make(cls, folder: Path) -> Claim:
        """The next attempt. All before it have no right to write any more."""
        place = folder / ATTEMPTS
        files.make_folder(place)
        while True:
            number = (cls.newest_in(folder) or 0) + 1
            path = place / f"{number:06d}-{secrets.token_hex(4)}"  # no other attempt has this name, ever
            files.write_bytes(path, f"{locks.this_process()}\n".encode())
            found = _find_attempts(folder)
            if max(found) > number or found[number] != [path]:  # another one was as quick: both try again
                path.unlink(missing_ok=True)
                continue
            for older in sorted(found.keys() - {number}):
                for each in found[older]:
                    each.unlink(missing_ok=True)
            return cls(folder, number, path)

    @classmethod
    def take(cls, folder: Path, name: str) -> Claim:
        """The attempt that was made for this process under this name; it is signed anew."""
        path = folder / ATTEMPTS / name
        found = cls(folder, int(name.partition("-")[0]), path)
        with found._while_newest():
            handle = os.open(path, os.O_WRONLY | os.O_TRUNC)  # which makes no new file
        with os.fdopen(handle, "wb") as file:
            file.write(f"{locks.this_process()}\n".encode())
        return found

    def check(self) -> None:
        """Raise `Superseded` if a newer attempt has begun."""
        with self._while_newest():
            os.utime(self.path)

    @contextmanager
    def _while_newest(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            raise Superseded(f"a newer attempt works in {self.folder}; this one ({self.number}) stops") from error

    def give_up(self) -> None:
        """Nothing is left to write: the run is finished."""
        self.path.unlink(missing_ok=True)
        try:
            (self.folder / ATTEMPTS).rmdir()
        except OSError:
            return  # another attempt is there


def _find_attempts(folder: Path) -> dict[int, list[Path]]:
    """The attempts in a folder, by number."""
    found: dict[int, list[Path]] = {}
    for path in (folder / ATTEMPTS).glob("[0-9]*-*"):
        number = path.name.partition("-")[0]
        if number.isdecimal():
            found.setdefault(int(number), []).append(path)
    return found
