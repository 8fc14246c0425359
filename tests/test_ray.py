"""Cells and trials on a cluster of two nodes: the same bytes as here, whatever is lost on the way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import poise
from poise import Learner, cli
from poise.errors import RunFailed, UserError
from poise.ray import Executor, _circumstances, run_cell
from poise.runs import Cell, read_sweep, sweep_cells

pytestmark = pytest.mark.ray
SWEEP = """
recipe = ["digits/lucir"]
[set]
epochs = 30
groups = [2, 1]
policy = "race"
space = {lr = [0.1, 0.02]}
[grid]
seed = [0, 1]
"""
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 90_000_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each; the workers' poise is the one that is tested."""
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    source = str(Path(poise.__file__).parents[1])
    os.environ |= {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets are made in it
    Path(get_ray_address_file(None)).parent.mkdir(exist_ok=True)
    arguments = {**NODE, "include_dashboard": False, "temp_dir": folder}
    started: Any = Cluster(initialize_head=True, head_node_args=arguments)
    started.add_node(**NODE)
    yield started
    started.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    path = tmp_path_factory.mktemp("sweep") / "sweep.toml"
    path.write_text(SWEEP)
    return read_sweep(path)


@pytest.fixture(scope="module")
def here(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep as it runs on this machine."""
    out = tmp_path_factory.mktemp("here")
    assert not sweep_cells(cells, out, 1)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    found = {name: (folder / name).read_bytes() for name in ("journal.jsonl", "model.safetensors")}
    seconds = rb'"seconds": \{[^}]*\}|"digest": "[0-9a-f]*"'
    return {**found, "result": re.sub(seconds, b"", (folder / "result.json").read_bytes())}


def kill_the_worker_of_a_cell(out: Path, done: list[int]) -> None:
    """Kill the process that holds the lock of the first cell with a checkpoint."""
    until = time.monotonic() + 240
    while time.monotonic() < until and not done:
        for path in out.glob("*/checkpoints/*.safetensors"):
            lock = path.parents[1] / "lock"
            for process in _holders(lock):
                os.kill(process, signal.SIGKILL)
                done.append(process)
                return
        time.sleep(0.01)


def _holders(lock: Path) -> list[int]:
    """Processes that have this file open."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if any(link.resolve() == lock.resolve() for link in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("lost", ["worker", "node"])
def test_a_sweep_gives_the_same_bytes_though_a_worker_or_its_node_is_lost(
    cluster: Any, cells: list[Cell], here: Path, tmp_path: Path, lost: str
) -> None:
    done: list[int] = []
    gone = cluster.add_node(**NODE) if lost == "node" else None

    def lose_a_node() -> None:
        while not list(tmp_path.glob("*/checkpoints/*.safetensors")):
            time.sleep(0.01)
        cluster.remove_node(gone, allow_graceful=False)
        done.append(0)

    act: Callable[[], None] = lose_a_node if gone is not None else lambda: kill_the_worker_of_a_cell(tmp_path, done)
    thread = threading.Thread(target=act)
    thread.start()
    with Executor(str(cluster.address)) as executor:
        assert not sweep_cells(cells, tmp_path, None, checkpoint_seconds=0, executor=executor)
    thread.join(60)
    assert done
    for cell in cells:
        assert contents(tmp_path / cell.name) == contents(here / cell.name)


def test_a_cell_that_fails_elsewhere_fails_as_here(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('recipe = ["digits/lucir"]\n[set]\nepochs = 1\ngroups = [2, 1]\naction.lr = 1e9\nfirst_lr = 1e9\n')
    with Executor(str(cluster.address)) as executor:
        failed = sweep_cells(read_sweep(path), tmp_path / "out", None, executor=executor)
    assert "diverged" in str(next(iter(failed.values())))


def test_trials_elsewhere_are_those_here(cluster: Any) -> None:
    found = load_digits()
    pixels = (found.images * 15.9).astype(np.uint8)
    first, second = found.target < 3, (found.target >= 3) & (found.target < 5)

    def learn(executor: Executor | None) -> Learner:
        space = {"lr": [0.1, 0.02]}
        learner = Learner(
            "lucir", net="small", epochs=2, batch=32, memory=5, policy="race", space=space, executor=executor
        )
        for part in (first, second):
            learner.partial_fit(pixels[part][:100], found.target[part][:100])
        return learner

    with Executor(str(cluster.address)) as executor:
        there = learn(executor)
    local = learn(None)
    assert np.array_equal(there.predict_proba(pixels[:50]), local.predict_proba(pixels[:50]))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--on", "ray:localhost:1"), "no connection"),
        (("--on", "slurm"), "give ray"),
        (("--cpus-per-worker", "2"), "--on ray"),
    ],
)
def test_what_cannot_work_is_one_line(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    monkeypatch.setattr("sys.argv", ["poise", "sweep", str(path), "--out", str(tmp_path / "out"), *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_node_that_is_not_like_this_machine_is_named(cells: list[Cell], tmp_path: Path) -> None:
    """Asked here what a worker of Ray's would be asked there."""
    here = _circumstances()
    words = {"name": "cell", "plan": cells[0].plan.as_json(), "out": str(tmp_path), "token": "gone"}
    with pytest.raises(RunFailed, match=r"^node [^\n]* has torch [^\n]*, not 0\.1; install the same there$"):
        run_cell(words, {**here, "versions": {**here["versions"], "torch": "0.1"}})
    assert re.match(r"node [^\n]* does not see the folder ", str(run_cell(words, here)))
    (tmp_path / "gone").touch()
    words["plan"] = {**cells[0].plan.as_json(), "fingerprint": "another"}
    assert re.match(r"node [^\n]* has other data 'digits'; copy them there anew$", str(run_cell(words, here)))
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]


def test_an_option_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="cpus_per_worker"):
        Executor(cpus_per_worker=0)
