"""Attempts at one run from several machines: only the newest one writes, whoever wakes up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import Damaged, Superseded, UserError
from poise.journal import Journal, read_journal
from poise.runs import Plan, Run, RunFolder, read_sweep
from poise.runs.claims import ATTEMPTS, Claim


def test_numbers_rise_and_only_the_newest_may_write(tmp_path: Path) -> None:
    assert Claim.newest_in(tmp_path) is None
    first = Claim.make(tmp_path)
    first.check()
    second = Claim.make(tmp_path)
    assert (first.number, second.number, Claim.newest_in(tmp_path)) == (1, 2, 2)
    second.check()
    with pytest.raises(Superseded, match=rf"^a newer attempt works in {tmp_path}; this one \(1\) stops$"):
        first.check()
    first.give_up()
    second.check()
    second.give_up()
    assert not (tmp_path / ATTEMPTS).exists()
    third = Claim.make(tmp_path)
    assert third.number == 1
    for old in (first, second):  # whatever number it had
        with pytest.raises(Superseded):
            old.check()


def test_an_attempt_that_was_replaced_stops_before_its_next_write(plan: Callable[..., Plan], tmp_path: Path) -> None:
    """As on another machine, whose locks are not seen here."""
    old = Run(plan(), RunFolder(tmp_path, numbered=True, takes_over=True), checkpoint_seconds=0)
    running = old.starting()
    for _ in range(3):
        next(running)
    new = Run(plan(), RunFolder(tmp_path, numbered=True, takes_over=True), checkpoint_seconds=0)
    going_on = new.resuming()
    next(going_on)
    before = everything(tmp_path)
    with pytest.raises(Superseded):
        for _ in running:
            pass
    assert everything(tmp_path) == before
    for _ in going_on:
        pass
    assert new.folder.finished


def test_an_attempt_that_was_given_up_before_it_began_comes_too_late(plan: Callable[..., Plan], tmp_path: Path) -> None:
    """As a worker that is paused while it reads its data: the cell was handed out again before it began."""
    late, present = (RunFolder(tmp_path, numbered=True, takes_over=True).open_attempt() for _ in range(2))
    new = Run(plan(), RunFolder(tmp_path, takes_over=True, attempt=present), checkpoint_seconds=0)
    running = new.starting()
    next(running)
    before = everything(tmp_path)
    old = Run(plan(), RunFolder(tmp_path, takes_over=True, attempt=late), checkpoint_seconds=0)
    with pytest.raises(Superseded, match=r"this one \(1\) stops$"):
        next(old.starting())
    assert everything(tmp_path) == before
    for _ in running:
        pass
    assert new.folder.finished
    assert not (tmp_path / ATTEMPTS).exists()


def test_an_attempt_that_wrote_nothing_is_withdrawn(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "cell", numbered=True, takes_over=True)
    folder.open_attempt()
    folder.withdraw_attempt()
    assert not folder.path.exists()
    folder.open_attempt()
    folder.recipe.touch()
    folder.withdraw_attempt()
    assert (folder.path / ATTEMPTS).exists()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_result_is_that_of_one_attempt(
    plan: Callable[..., Plan], tmp_path: Path, reference: Path, outcome: Callable[[Path], Any]
) -> None:
    for events in (2, 5, 9, 10**6):
        folder = RunFolder(tmp_path, numbered=True, takes_over=True)
        run = Run(plan(), folder, checkpoint_seconds=0)
        running = run.resuming() if folder.exists else run.starting()
        for _ in zip(range(events), running, strict=False):
            pass
        run.folder.journal.path.open("ab").close()
        paused.append(running)  # it keeps its lock and its open journal
    assert outcome(tmp_path) == outcome(reference)
    assert not (tmp_path / ATTEMPTS).exists()


paused: list[Any] = []

AWAY = """
import sys, time
import torch
torch.set_num_threads(1)
from pathlib import Path
from poise.errors import Superseded
from poise.runs import Run, RunFolder, load_recipe, make_plan

run = Run(make_plan("digits/lucir", load_recipe("digits/lucir", sys.argv[2:])),
          RunFolder(Path(sys.argv[1]), numbered=True, takes_over=True), checkpoint_seconds=0)
try:
    for _ in run.resuming() if run.folder.exists else run.starting():
        time.sleep(0.05)
except Superseded as error:
    sys.exit(str(error))
"""


def test_a_process_that_is_paused_replaced_and_woken_writes_nothing(
    plan: Callable[..., Plan], tmp_path: Path, reference: Path, outcome: Callable[[Path], Any]
) -> None:
    folder, words = tmp_path / "run", ("groups=[2,1,1]", "epochs=1", "batch=64")
    command = [sys.executable, "-c", AWAY, str(folder), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as zombie:
        until = time.monotonic() + 60
        while not list(folder.glob("checkpoints/*.safetensors")) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(zombie.pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=rf"^process {zombie.pid} runs in {folder}; wait for it"):
            Run(plan(), RunFolder(folder)).resume()  # a command of a user does not take it over
        new = Run(plan(), RunFolder(folder, numbered=True, takes_over=True), checkpoint_seconds=0)
        going_on = new.resuming()
        next(going_on)
        os.kill(zombie.pid, signal.SIGCONT)
        said = zombie.communicate(timeout=60)[1]
        assert said == f"a newer attempt works in {folder}; this one (1) stops\n"
        assert zombie.returncode == 1
        assert (folder / "lock").exists(), "the lock of the new one"
        for _ in going_on:
            pass
    assert outcome(folder) == outcome(reference)
    names, others = ({path.name for path in each.iterdir()} - {"report"} for each in (folder, reference))
    assert names == others


def test_a_command_that_goes_on_after_attempts_elsewhere_replaces_them(
    plan: Callable[..., Plan], tmp_path: Path, reference: Path, outcome: Callable[[Path], Any]
) -> None:
    old = Run(plan(), RunFolder(tmp_path, numbered=True), checkpoint_seconds=0)
    running = old.starting()
    for _ in range(3):
        next(running)
    (tmp_path / "lock").unlink()  # as if it were of another machine
    Run(plan(), RunFolder(tmp_path)).resume()
    with pytest.raises(Superseded):
        for _ in running:
            pass
    assert outcome(tmp_path) == outcome(reference)


def test_an_attempt_does_not_take_over_what_a_command_runs(plan: Callable[..., Plan], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    running = Run(plan(), folder, checkpoint_seconds=0).starting()
    next(running)
    with pytest.raises(UserError, match=rf"^process {os.getpid()} runs in {tmp_path}; wait for it"):
        next(Run(plan(), RunFolder(tmp_path, numbered=True, takes_over=True)).resuming())
    for _ in running:
        pass
    assert folder.finished


@pytest.fixture
def start_on_node7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Any]]:
    """Begin the only cell of a sweep, as on another machine whose lock is seen here: the sweep file, and the run."""

    def start(*, numbered: bool = False) -> tuple[Path, Any]:
        file = tmp_path / "sweep.toml"
        file.write_text("recipe = 'digits/lucir'\n[set]\ngroups = [2, 1, 1]\nepochs = 1\nbatch = 64\n")
        (cell,) = read_sweep(file)
        run = Run(cell.plan, RunFolder(tmp_path / "runs" / cell.name, numbered=numbered), checkpoint_seconds=0)
        with monkeypatch.context() as there:
            there.setattr(socket, "gethostname", lambda: "node7")
            running = run.starting()
            for _ in range(3):
                next(running)
        return run.folder.path, running

    return start


def test_a_cell_of_a_node_that_failed_is_taken_over(
    start_on_node7: Callable[..., tuple[Path, Any]],
    command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    reference: Path,
    outcome: Callable[[Path], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, old = start_on_node7(numbered=True)
    words = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "runs")]
    code, _, said = command(*words)  # which may be about cells that others are still working on
    assert code == 1
    busy = f"process {os.getpid()} on node7 runs in {folder}; wait for it or choose another --out"
    assert f"{busy}; if that machine is gone, remove {folder}/lock" in said
    code, _, said = command(*words, "--cell", "0")
    assert code == 0, said
    assert f"{folder}: taken over from process {os.getpid()} on node7, which stops before it" in caplog.text
    before = everything(folder)
    with pytest.raises(Superseded):
        for _ in old:
            pass
    assert everything(folder) == before
    assert outcome(folder) == outcome(reference)
    assert not {"lock", ATTEMPTS} & {path.name for path in folder.iterdir()}


def test_what_has_no_number_is_not_taken_over_from_another_machine(
    start_on_node7: Callable[..., tuple[Path, Any]], command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Nothing would stop it, should it still live."""
    folder, old = start_on_node7()
    words = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "runs"), "--cell", "0"]
    code, _, said = command(*words)
    assert code == 2
    assert said.endswith(f"; if that machine is gone, remove {folder}/lock\n")
    (folder / "lock").unlink()
    assert command(*words)[0] == 0
    old.close()


def test_a_journal_that_is_rewound_anew_does_not_get_what_others_still_write(tmp_path: Path) -> None:
    old = Journal(tmp_path / "journal")
    old.append({"event": "one"})
    position = old.position()
    old.append({"event": "two"})
    new = Journal(tmp_path / "journal")
    new.rewind(position, anew=True)
    old.append({"event": "lost"})
    new.append({"event": "three"})
    assert [event["event"] for event in read_journal(tmp_path / "journal")] == ["one", "three"]
    new.rewind(0, anew=True)
    assert (tmp_path / "journal").read_bytes() == b""
    old.close()


def test_what_is_written_between_looking_and_writing_goes_into_the_old_journal(tmp_path: Path) -> None:
    new = Journal(tmp_path / "journal")
    new.append({"event": "one"})
    position = new.position()
    old = Journal(tmp_path / "journal", check=lambda: new.rewind(position, anew=True))  # replaced once it looked
    old.append({"event": "lost"})
    new.append({"event": "two"})
    assert [event["event"] for event in read_journal(tmp_path / "journal")] == ["one", "two"]
    for journal in (old, new):
        journal.close()


def test_a_journal_that_is_replaced_while_it_is_written_is_noticed(tmp_path: Path) -> None:
    new = Journal(tmp_path / "journal")
    new.append({"event": "one"})
    Journal(tmp_path / "journal").rewind(0, anew=True)  # by an older attempt that was paused in the middle of it
    with pytest.raises(Damaged, match="was replaced by another process"):
        new.position()
    new.close()
