"""Locks: one process at a time at a file or a folder; every other one is told so in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from poise.errors import UserError


@contextmanager
def locked(path: Path, busy: str, *, passing: bool = False) -> Iterator[None]:
    """Keep every other process out; the operating system ends the lock with this one, however it ends.

    The empty file at `path` stays unless it is `passing`: then whoever comes in the moment in which it is removed may
    come in beside us. Another process gets one line, which ends with `busy`.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"another process {busy}") from error
    except NotImplementedError as error:
        raise UserError(f"{path} cannot be locked on this disk; use a folder on another one") from error
    try:
        yield
    finally:
        if passing:
            path.unlink(missing_ok=True)
        lock.release()


def lock_beside(path: Path) -> Path:
    """Where the lock of a single file lies."""
    return path.with_name(f".{path.name}.lock")
