"""Locks: between processes, taken over from dead ones, on disks of every kind."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from poise import locks
from poise.errors import UserError

HOLD = """
import sys
from pathlib import Path
from poise import locks
with locks.locked(Path(sys.argv[1]), "is busy", sign=True):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    words = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process


def test_another_process_is_refused_with_the_number_of_the_owner(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    before = (tmp_path / "lock").read_bytes()
    with pytest.raises(UserError) as refused, locks.locked(tmp_path / "lock", "is busy", sign=True):
        pass
    assert str(refused.value) == f"process {holder.pid} is busy"
    assert (tmp_path / "lock").read_bytes() == before
    holder.communicate()
    assert not (tmp_path / "lock").exists()
    with locks.locked(tmp_path / "lock", "is busy", sign=True):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert not (tmp_path / "lock").exists()


def test_who_holds_a_lock_can_be_asked(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert locks.owner_of(path) == f"process {holder.pid} on {socket.gethostname()}"
    holder.kill()
    holder.wait()
    assert path.exists()
    assert locks.owner_of(path) is None, "it is dead"
    with locks.locked(path, "is busy", sign=True):
        assert locks.owner_of(path) is None, "it is this process"
    assert locks.owner_of(path) is None, "there is no lock"


def test_the_lock_of_a_dead_process_is_taken_over(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.kill()
    holder.communicate()
    assert str(holder.pid) in (tmp_path / "lock").read_text()
    with locks.locked(tmp_path / "lock", "is busy", sign=True):
        assert str(holder.pid) not in (tmp_path / "lock").read_text()
    assert not (tmp_path / "lock").exists()


def test_the_owner_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as file:
        file.write(b"poise: process 12 on elsewhere\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=rf"^process 12 on elsewhere is busy; if .* remove {tmp_path}/lock$"):
            locks.locked(tmp_path / "lock", "is busy", sign=True).__enter__()


def test_a_file_with_something_else_in_it_is_locked_and_stays(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    for sign in (True, False):
        with locks.locked(tmp_path / "lock", "is busy", sign=sign):
            with pytest.raises(UserError, match=r"^another process is busy$"):
                locks.locked(tmp_path / "lock", "is busy", sign=True).__enter__()
            assert (tmp_path / "lock").read_text() == "mine"
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_lock_that_was_removed_while_one_waited_for_it_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = fcntl.flock, list[Path]()

    def remove_before(file: IO[bytes], operation: int) -> None:
        if not removed:
            removed.append(tmp_path / "lock")
            removed[0].unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_before)
    with locks.locked(tmp_path / "lock", "is busy", sign=True):
        assert (tmp_path / "lock").exists()
        with pytest.raises(UserError, match="is busy"):
            locks.locked(tmp_path / "lock", "is busy", sign=True).__enter__()


def test_a_disk_that_knows_no_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: IO[bytes], operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"cannot be locked \(No locks available\); use a folder on another disk"):
        locks.locked(tmp_path / "lock", "is busy").__enter__()
