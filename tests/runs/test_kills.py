"""Killed at any moment, at every point of every write, and with a full disk there: resumed to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import RunFailed
from poise.runs import Plan, Run, RunFolder, reopen

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
Command = Callable[..., tuple[int, str, str]]
Driven = Callable[..., tuple[int, str]]

RUN = ["run", "groups=[2,1,1]", "epochs=1", "batch=64", "--checkpoint-every", "0", "--out"]
TRAINING = "poise.training.optimiser:Optimiser:step"
HERDING = "poise.data.memory:herd"
RENAMING = "pathlib:Path:replace"
JOURNAL = "poise.runs.journal:Journal:append"
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


def test_killed_at_every_so_many_writes_it_arrives_at_the_same_bytes(
    plan: Plans, reference: Path, outcome: Outcome, failing: Callable[..., None], tmp_path: Path
) -> None:
    """Again and again: each start gets one write further than the last, until the run is done."""
    kills, number = 0, 9
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


@pytest.mark.parametrize("number", [2, 17, 41])
def test_a_disk_that_is_full_at_any_write_is_one_line_and_resumed(
    number: int, plan: Plans, reference: Path, outcome: Outcome, failing: Callable[..., None], tmp_path: Path
) -> None:
    failing(OSError(errno.ENOSPC, "No space left on device"), number)
    end = "give the command again" if number == 2 else r"nothing saved is lost\)"  # 2: nothing was saved yet
    with pytest.raises(RunFailed, match=rf"^no space left for [^\n]*{end}$"):
        go_on(plan(), tmp_path / "run")
    failing(Killed(), -1)
    go_on(plan(), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(reference)


# Processes ------------------------------------------------------------------------------------------------------------


def test_killed_again_and_again_it_still_arrives(
    driven: Driven, reference: Path, outcome: Outcome, poise: Command, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    assert driven(RENAMING, 1, signal.SIGKILL, *RUN, folder)[0] == -signal.SIGKILL  # before the run had begun
    assert driven(TRAINING, 3, signal.SIGKILL, *RUN, folder)[0] == -signal.SIGKILL
    assert not (tmp_path / "run" / "result.json").exists()
    words = ["resume", "--checkpoint-every", "0", folder]
    assert driven(RENAMING, 3, signal.SIGKILL, *words)[0] == -signal.SIGKILL
    for place, number in ((HERDING, 2), (JOURNAL, 3)):
        assert driven(place, number, signal.SIGKILL, *words)[0] == -signal.SIGKILL
    drawing = driven("poise.report.writing:make_page", 1, signal.SIGKILL, *words)
    assert drawing[0] == -signal.SIGKILL
    assert (tmp_path / "run" / "result.json").exists()
    assert poise("resume", folder)[0] == 0
    assert outcome(tmp_path / "run") == outcome(reference)
    assert (tmp_path / "run" / "report" / "index.html").exists()
    machine = json.loads((tmp_path / "run" / "machine.json").read_bytes())
    assert [resume["exact"] for resume in machine["resumes"]] == [True] * len(machine["resumes"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_writes_a_checkpoint_and_says_how_to_go_on(
    signum: int, driven: Driven, plan: Plans, reference: Path, outcome: Outcome, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [word if word != "0" else "60" for word in RUN]
    code, printed = driven(HERDING if signum == signal.SIGINT else TRAINING, 2, signum, *words, str(folder))
    assert code == 128 + signum
    assert printed.splitlines()[-1] == f"poise: interrupted; continue with 'poise resume {folder}'"
    assert "Traceback" not in printed
    assert list((folder / "checkpoints").iterdir())
    go_on(plan(), folder)
    assert outcome(folder) == outcome(reference)
