"""What runs on a worker, without a cluster."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from poise.ray import executor
from poise.ray import host as host_module
from poise.ray.cells import Job, Token
from poise.ray.cluster import Node
from poise.ray.host import Host
from poise.ray.letters import Letter
from poise.ray.staff import Member, Slot, Told
from poise.runs import Cell, Run, RunFolder


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A worker in this process, which is as before afterwards."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(host_module, "TURN_SECONDS", 0.05)
    threads, found = torch.get_num_threads(), Host()
    yield found
    if found._crew is not None:
        found._crew.dismiss()
    logging.getLogger().removeHandler(found._notes)
    torch.set_num_threads(threads)


def test_a_cell_goes_on_with_the_threads_it_was_started_with(host: Host, cells: list[Cell], tmp_path: Path) -> None:
    """Bytes depend on them, whatever those of this command are."""
    cell = cells[0]
    torch.set_num_threads(2)
    started = Run(cell.plan, RunFolder(tmp_path / cell.name), checkpoint_seconds=0).starting()
    next(started)
    started.close()
    torch.set_num_threads(1)
    job = Job(cell, RunFolder(tmp_path / cell.name, numbered=True, takes_over=True))
    job.begin()
    with Token(tmp_path) as out:
        hello = {**executor._hello(1), "out": out, "on_gpu": False, "lanes": 1, "checkpoint_seconds": 60.0}
        assert host.introduce(hello)["problem"] is None
    assert torch.get_num_threads() == 1
    ended = host.turn([job.words()], 0, None)["done"]
    for _ in range(3):
        assert not ended
        assert torch.get_num_threads() == 2
        ended = host.turn([], 0, None)["done"]


def test_what_cannot_be_opened_is_one_line(host: Host) -> None:
    """Not a worker that is lost, which would be replaced by one that cannot open it either."""
    letter = Letter(b"\x80\x05cnot_installed\nNet\n.", [])
    expected = "what trials start from cannot be opened: ModuleNotFoundError: No module named 'not_installed'"
    assert host.open_bench(0, letter, [])["problem"] == expected


def test_warnings_are_passed_on_once_as_they_would_be_said_here(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in (("a.method", "odd"), ("ray.worker", "busy")):
        logging.getLogger(name).warning(text)
    first, then = (host.try_all(0, [])["warnings"] for _ in range(2))
    assert first == [("a.method", logging.WARNING, "odd")], "Ray's own stay there"
    assert then == []
    told, members = Told(), [Member(Slot(Node(name, name, 1, 0), 0), None) for name in ("n1", "n2")]
    told.listen()
    logging.getLogger("poise").warning("known here")
    caplog.clear()
    for member in members:
        told.pass_on(member, [*first, ("poise", logging.WARNING, "known here")])
    told.leave()
    assert caplog.record_tuples == [("a.method", logging.WARNING, "node n1: odd")]


def test_a_cell_fails_after_three_attempts_in_a_row_without_a_new_checkpoint(cells: list[Cell], tmp_path: Path) -> None:
    job, lost = Job(cells[0], RunFolder(tmp_path, numbered=True, takes_over=True)), list[int]()
    for number in (None, 0, None, None, None):
        job.begin()
        if number is not None:
            (job.folder.checkpoints / f"{number:06d}.safetensors").touch()
        job.lose()
        lost.append(job.lost)
    assert lost == [1, 0, 1, 2, 3]


def test_another_poise_of_the_same_commit_is_told_apart(host: Host) -> None:
    hello = executor._hello(1)
    own = hello["versions"]
    name = own["poise_commit"] or own["poise"]
    problem = host.introduce({**hello, "versions": {**own, "poise_source": "changed"}})["problem"]
    assert problem == f"another poise is installed there ({name} as well, with other files); install the same"
    older = {**own, "poise_source": "changed", "poise_commit": "abc"}
    problem = host.introduce({**hello, "versions": older})["problem"]
    assert problem == f"another poise is installed there ({name}, here abc); install the same"
