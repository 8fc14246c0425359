"""Cells on a cluster: the same bytes as here, whatever is lost on the way; and one line for what cannot work."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise import cli
from poise.errors import UserError
from poise.ray import Executor, executor
from poise.ray import cells as cells_module
from poise.ray.cluster import Cluster, Node
from poise.ray.staff import Needs, Staff
from poise.runs import Cell, Lines, read_sweep, sweep_cells
from poise.runs.provenance import versions

from .conftest import NODE, attempts_in, kill, start_command, wait_for

pytestmark = pytest.mark.ray
Begin = Callable[[Path, Callable[[int], object]], None]


def swept(cells_: list[Cell], out: Path, address: str, **options: Any) -> str:
    """Run a sweep on the cluster, in which no cell fails; what was said."""
    said = io.StringIO()
    with Executor(address, **options) as there:
        assert not sweep_cells(cells_, out, None, Lines(None, said), checkpoint_seconds=0, executor=there)
    return said.getvalue()


def test_a_sweep_on_a_cluster_gives_the_same_bytes_though_a_worker_is_killed(
    cells: list[Cell], address: str, tmp_path: Path, once_a_cell_is_at_work: Begin, assert_same: Callable[[Path], None]
) -> None:
    once_a_cell_is_at_work(tmp_path, kill)
    said = swept(cells, tmp_path, address)
    assert_same(tmp_path)
    assert "2 workers on 2 nodes, 1 CPU each\n" in said  # perhaps after a line that it waits for them
    assert said.count("a worker is lost") == 1
    assert said.count(": finished") == len(cells)
    assert not list(tmp_path.glob(".poise*")), "the token is gone"


def test_a_sweep_goes_on_when_a_node_is_removed(
    cluster: Any,
    cells: list[Cell],
    address: str,
    tmp_path: Path,
    once_a_cell_is_at_work: Begin,
    assert_same: Callable[[Path], None],
) -> None:
    gone, stays = (cluster.add_node(**{**NODE, "num_cpus": 2}) for _ in range(2))
    once_a_cell_is_at_work(tmp_path, lambda process: cluster.remove_node(gone, allow_graceful=False))
    said = swept(cells, tmp_path, address, cpus_per_worker=2)
    cluster.remove_node(stays)
    assert_same(tmp_path)
    assert "2 workers on 2 nodes, 2 CPUs each\n" in said  # perhaps after a line that it waits for them
    assert "a worker is lost" in said


def command(sweep_file: Path, out: Path, address: str) -> subprocess.Popen[str]:
    return start_command(
        "sweep", str(sweep_file), "--out", str(out), "--on", f"ray:{address}", "--checkpoint-every", "0"
    )


def test_the_same_command_goes_on_after_ctrl_c_and_after_a_kill(
    sweep_file: Path, cells: list[Cell], address: str, tmp_path: Path, assert_same: Callable[[Path], None]
) -> None:
    first = command(sweep_file, tmp_path, address)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/*.safetensors")), job=first)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "stopped after a checkpoint" in said
    assert said.splitlines()[-1] == "poise: interrupted; the same command continues with the unfinished cells"
    stopped = attempts_in(tmp_path)
    assert stopped, "a cell that was stopped keeps the number of its attempt"
    second = command(sweep_file, tmp_path, address)
    wait_for(lambda: attempts_in(tmp_path).keys() - stopped.keys(), job=second)
    second.kill()
    second.communicate(timeout=60)
    swept(cells, tmp_path, address)  # while workers of the killed one may still run
    assert_same(tmp_path)


def test_a_worker_that_was_paused_and_replaced_writes_nothing_when_it_wakes_up(
    cells: list[Cell], address: str, tmp_path: Path, once_a_cell_is_at_work: Begin, assert_same: Callable[[Path], None]
) -> None:
    woken: list[float] = []

    def pause(process: int) -> None:
        (path,) = [each for each, found in attempts_in(tmp_path).items() if found == process]
        os.kill(process, signal.SIGSTOP)
        wait_for(lambda: not path.exists(), 60)  # another attempt has begun
        try:
            os.kill(process, signal.SIGCONT)
            woken.append(time.monotonic())
        except ProcessLookupError:
            return

    once_a_cell_is_at_work(tmp_path, pause)
    said = swept(cells, tmp_path, address, patience=3.0)
    assert "no sign of life for 3 s" in said
    assert_same(tmp_path)


BOOM = """
import os, signal, sys
from poise.nets import build_backbone

def net():
    if any("default_worker" in word for word in sys.orig_argv):
        os.kill(os.getpid(), signal.SIGKILL)
    return build_backbone("small", "resnet", 1, 0)
"""


def test_a_cell_that_kills_its_worker_fails_alone_after_three_attempts(address: str, tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text(BOOM)
    text = "recipe = 'digits/lucir'\n[set]\nepochs = 1\ngroups = [2, 1]\n[grid]\n"
    text += f"net = ['small', '{tmp_path}/boom.py:net']"
    (tmp_path / "sweep.toml").write_text(text)
    both, said = read_sweep(tmp_path / "sweep.toml"), io.StringIO()
    with Executor(address) as there:
        failed = sweep_cells(both, tmp_path / "runs", None, Lines(None, said), executor=there)
    assert list(failed) == [both[1].name]
    assert str(failed[both[1].name]).startswith("lost its worker 3 times without a new checkpoint (node ")
    assert (tmp_path / "runs" / both[0].name / "result.json").exists()


def test_workers_with_logical_gpus_have_different_devices(
    cluster: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.ray.staff.GATHER_SECONDS", 300.0)  # on a busy machine a worker is slow to start
    node = cluster.add_node(**{**NODE, "num_gpus": 2})
    try:
        with Executor(address) as there:
            connection: Cluster = there.connect()
            staff = Staff(connection, Needs(True, None, 1), executor._hello(1), say=print)
            staff.gather(5)
            assert sorted(member.devices for member in staff.members) == ["0", "1"]
            staff.close()
    finally:
        cluster.remove_node(node)


# What cannot work is one line -----------------------------------------------------------------------------------------


def test_a_folder_that_a_node_does_not_see_is_refused_with_its_name(
    cells: list[Cell], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch)
    with pytest.raises(UserError, match=r"^node \S+ \([0-9.]+\): .* is not seen there; give an --out that") as caught:
        swept(cells[:1], tmp_path / "runs", address)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "runs").iterdir()) == [], "nothing was begun"


def hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folder were of this machine alone: workers do not find what was written there."""
    original = cells_module.Token.__enter__

    def enter(token: Any) -> dict[str, str]:
        found = original(token)
        (token.out / token.name).unlink()
        return found

    monkeypatch.setattr(cells_module.Token, "__enter__", enter)


def test_another_version_is_refused(
    cells: list[Cell], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = versions()
    monkeypatch.setattr(executor, "versions", lambda: {**own, "poise_source": "0.1"})
    with pytest.raises(UserError, match=r"^node [^\n]*: another poise is installed there"):
        swept(cells[:1], tmp_path, address)


def test_other_data_are_refused(
    cells: list[Cell], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(cells[0].plan.source), "fingerprint", "another")
    with pytest.raises(UserError, match=r"^node [^\n]*: the data 'digits' there are not those here; copy them anew$"):
        swept(cells[:1], tmp_path, address)


def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that is refused."""
    monkeypatch.setattr(sys, "argv", ["poise", *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert leaving.value.code == 2
    return line


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("ray:127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1 (Connection refused); start it with"),
        ("ray:no.such.host.invalid:6379", "no Ray cluster answers at no.such.host.invalid:6379"),
        ("ray:nonsense", "'nonsense' is no address of a Ray cluster; give HOST:PORT"),
        ("ray:ray://127.0.0.1:10001", "'ray://127.0.0.1:10001' is no address of a Ray cluster"),
        ("slurm", "--on slurm: give ray, or ray:HOST:PORT"),
    ],
)
def test_a_wrong_address_is_one_line(
    place: str,
    words: str,
    sweep_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = failing(monkeypatch, capsys, "sweep", str(sweep_file), "--out", str(tmp_path / "runs"), "--on", place)
    assert words in line
    assert not (tmp_path / "runs").exists()
    line = failing(monkeypatch, capsys, "run", "--out", str(tmp_path / "run"), "--trials-on", place)
    assert words.replace("--on", "--trials-on") in line
    assert not (tmp_path / "run").exists()


# Places for workers ---------------------------------------------------------------------------------------------------


def test_workers_are_spread_over_nodes_and_need_what_they_are_given() -> None:
    nodes = [Node("a", "a", 4, 1), Node("b", "b", 2, 0), Node("c", "c", 8, 2)]
    names = [slot.node.name for slot in Needs(False, 2, 1).slots(nodes)]
    assert names == ["a", "b", "c", "a", "c", "c", "c"]
    assert [slot.node.name for slot in Needs(True, None, 4).slots(nodes)] == ["a", "c", "c"]
    with pytest.raises(UserError, match=r"^no node of the cluster has 16 CPUs for a worker, at most 8; set --cpus"):
        Needs(False, None, 16).refuse_none(nodes)
    with pytest.raises(UserError, match=r"^no node of the cluster has a GPU; use device=cpu"):
        Needs(True, None, 1).refuse_none(nodes[1:2])
