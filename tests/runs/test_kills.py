"""Killed at every point of every write, and with a full disk there: resumed to the same bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import RunFailed
from poise.runs import Plan, Run, RunFolder, reopen

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
#: What writing is made of: flushed, renamed, removed, cut.
WRITES = ("fsync", "replace", "unlink", "ftruncate")


class Killed(BaseException):
    """As abrupt as an exception can be: nothing in poise catches it, and no temporary file is cleared away."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException, int], None]:
    """Raise this error at the n-th next write."""

    def fail(error: BaseException, number: int) -> None:
        calls = 0

        def watched(name: str) -> Callable[..., Any]:
            original = originals[name]

            def write(*args: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == number:
                    raise error
                return original(*args, **more)

            return write

        for name in WRITES:
            monkeypatch.setattr(os, name, watched(name))

    originals = {name: getattr(os, name) for name in WRITES}
    return fail


def go_on(plan: Plan, folder: Path) -> None:
    opened = RunFolder(folder)
    if opened.exists:
        opened, plan = reopen(folder)
    job = Run(plan, opened, checkpoint_seconds=0)
    if opened.finished:
        return
    if opened.exists:
        job.resume()
    else:
        job.start()


@pytest.mark.parametrize("first", [9, 11])
def test_killed_at_every_so_many_writes_it_arrives_at_the_same_bytes(
    first: int, plan: Plans, reference: Path, outcome: Outcome, failing: Callable[..., None], tmp_path: Path
) -> None:
    """Again and again: each start gets one write further than the last, until the run is done."""
    kills, number = 0, first
    while True:
        failing(Killed(), number)
        try:
            go_on(plan(), tmp_path / "run")
            break
        except Killed:
            kills, number = kills + 1, number + 3
            assert kills < 60, "it does not get on"
    assert kills > 3
    assert outcome(tmp_path / "run") == outcome(reference)


@pytest.mark.parametrize("number", [2, 8, 17, 29, 41])
def test_a_disk_that_is_full_at_any_write_is_one_line_and_resumed(
    number: int, plan: Plans, reference: Path, outcome: Outcome, failing: Callable[..., None], tmp_path: Path
) -> None:
    failing(OSError(errno.ENOSPC, "No space left on device"), number)
    end = "give the same command again" if number == 2 else r"nothing saved is lost\)"  # 2: nothing was saved yet
    with pytest.raises(RunFailed, match=rf"^no space left for [^\n]*{end}$"):
        go_on(plan(), tmp_path / "run")
    failing(Killed(), -1)
    go_on(plan(), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(reference)
