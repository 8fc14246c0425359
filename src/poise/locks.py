"""Locks: one process at a time at a file or a folder, said in one line to every other one."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from poise import files
from poise.errors import UserError

_BUSY: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # how the system says that another one holds a lock


@contextmanager
def locked(
    path: Path,
    busy: str,
    *,
    sign: bool = False,
    attempt: bool = False,
    replaces: Callable[[str], bool] = lambda owner: False,
) -> Iterator[None]:
    """Keep every other process out as long as this file is locked; the operating system ends the lock with us.

    Another process gets one line: who holds the lock, then `busy`. With `sign` the file exists for the lock alone: it
    says which process that is, and is removed at the end. What is left of a process that was killed is taken over.

    One `attempt` at a job takes the place of another that still holds the lock, paused or out of reach: it puts a new
    file there. The older one does not notice; a claim on the folder must tell it (`poise.runs.claims`). So it
    does where `replaces` says that this owner may be replaced, by the words of `this_process`.
    """

    def may_replace(found: _Signature) -> bool:
        return (attempt and found.attempt) or replaces(found.owner)

    with _open_locked(path, busy, may_replace) as file:
        signed = sign and _sign(file, attempt)
        try:
            yield
        finally:
            if signed and files.is_at(file, path):
                path.unlink(missing_ok=True)  # before the lock ends: nobody else can have signed it


def lock_beside(path: Path) -> Path:
    """Where the lock of a single file lies."""
    return path.with_name(f".{path.name}.lock")


def owner_of(path: Path) -> str | None:
    """Which other process holds this lock at the moment, by what it signed; None if none does, or nobody can tell."""
    try:
        with files.open_plain(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                found = _Signature.read(file) if error.errno in _BUSY else None
                return found.owner if found is not None and found.owner != this_process() else None
    except (OSError, UserError):  # there is no such lock
        pass
    return None


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process is in here, for what takes a moment; where a disk has no locks, nothing waits."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open_locked(path: Path, busy: str, may_replace: Callable[[_Signature], bool]) -> BinaryIO:
    while True:
        file = files.open_to_append(path)  # which does not empty a file of that name
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if files.is_at(file, path):
                return file
        except OSError as error:
            is_busy = error.errno in _BUSY
            owner = _Signature.read(file)
            replaced = is_busy and owner is not None and may_replace(owner)
            if replaced and files.is_at(file, path):  # not the lock of another one that was as quick
                path.unlink(missing_ok=True)
            file.close()
            if replaced:
                continue
            if is_busy:
                raise UserError(_busy_line(owner, busy, path)) from error
            raise UserError(f"{path} cannot be locked ({error.strerror}); use a folder on another disk") from error
        file.close()  # its last owner removed it between our two calls: that lock keeps nobody out


_SIGNATURE = re.compile(rb"poise: (attempt by )?process (\d+) on (\S+)\n")


class _Signature(NamedTuple):
    """Who signed a lock."""

    attempt: bool
    number: str
    host: str

    @classmethod
    def read(cls, file: BinaryIO | BufferedReader) -> _Signature | None:
        """What is in a lock; None if that is no signature."""
        file.seek(0)
        found = _SIGNATURE.fullmatch(file.read(1000))
        return cls(found[1] is not None, found[2].decode(), found[3].decode(errors="replace")) if found else None

    @property
    def owner(self) -> str:
        """As `this_process` of the owner says it."""
        return f"process {self.number} on {self.host}"


def _sign(file: BinaryIO, attempt: bool) -> bool:
    """Write who we are; not into a file with something else in it, which is somebody's."""
    file.seek(0)
    found = file.read(1000)
    if found and not _SIGNATURE.fullmatch(found):
        return False
    file.truncate(0)
    file.write(f"poise: {'attempt by ' if attempt else ''}{this_process()}\n".encode())
    file.flush()
    return True


def this_process() -> str:
    """This process in words that mean something on other machines, too."""
    return f"process {os.getpid()} on {_this_host()}"


def is_elsewhere(process: str) -> bool:
    """Whether these words of `this_process` are about another machine."""
    return not process.endswith(f" on {_this_host()}")


def _this_host() -> str:
    return socket.gethostname() or "localhost"


def _busy_line(owner: _Signature | None, busy: str, path: Path) -> str:
    """The line about a lock that another process holds; a machine that failed may hold one for ever."""
    if owner is None:
        return f"another process {busy}"
    if owner.host == _this_host():
        return f"process {owner.number} {busy}"
    return f"{owner.owner} {busy}; if that machine is gone, remove {path}"
