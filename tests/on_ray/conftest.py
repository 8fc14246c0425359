"""A cluster of two nodes on this machine, and the same sweep run here, which all others are compared with."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import poise
from poise.runs import Cell, Lines, read_sweep, sweep_cells
from poise.runs.claims import ATTEMPTS

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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each; the workers' poise is the one that is tested."""
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    source, before = str(Path(poise.__file__).parents[1]), dict(os.environ)
    os.environ |= {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: sockets are made in it
    Path(get_ray_address_file(None)).parent.mkdir(exist_ok=True)  # where Ray was never started, it does not make it
    started: Any = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "temp_dir": folder}
    )
    started.add_node(**NODE)
    yield started
    started.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def address(cluster: Any) -> str:
    """Of the cluster."""
    return str(cluster.address)


@pytest.fixture(scope="session")
def sweep_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short cells."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture(scope="session")
def cells(sweep_file: Path) -> list[Cell]:
    """Of the sweep."""
    return read_sweep(sweep_file)


@pytest.fixture(scope="session")
def here(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sweep as it is run here."""
    out = tmp_path_factory.mktemp("here")
    assert not sweep_cells(cells, out, 1, Lines(None, io.StringIO()))
    return out


@pytest.fixture
def assert_same(here: Path, cells: list[Cell]) -> Callable[[Path], None]:
    """That a sweep elsewhere gave the bytes of the one here, and left nothing else."""

    def check(out: Path) -> None:
        for cell in cells:
            one, other = here / cell.name, out / cell.name
            assert result_bytes(one) == result_bytes(other)
            for name in ("journal.jsonl", "model.safetensors", "phase-0.safetensors"):
                assert (one / name).read_bytes() == (other / name).read_bytes(), name
            assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())

    return check


def result_bytes(folder: Path) -> bytes:
    """result.json but for its seconds, and the digest, which is about them too."""
    return re.sub(rb'"seconds": \{[^}]*\}|"digest": "[0-9a-f]*"', b"", (folder / "result.json").read_bytes())


def attempts_in(out: Path) -> dict[Path, int]:
    """The claims under way in the folders of a sweep, with the process of each."""
    found = {}
    for path in out.glob(f"*/{ATTEMPTS}/0*"):
        try:
            found[path] = int(path.read_text().split()[1])
        except (OSError, IndexError):
            continue
    return found


def start_command(*words: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    path = {"PYTHONPATH": str(Path(poise.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "poise", *words],
        env={**os.environ, **path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(found: Callable[[], Any], seconds: float = 240.0, job: subprocess.Popen[str] | None = None) -> Any:
    """What it finds, as soon as it finds something; in vain where the job has ended, which is then told."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and (job is None or job.poll() is None):
        if value := found():
            return value
        time.sleep(0.01)
    if job is not None:
        job.kill()
    raise AssertionError(f"waited in vain; it said {job.communicate()}" if job is not None else "waited in vain")


@pytest.fixture
def once_a_cell_is_at_work() -> Iterator[Callable[[Path, Callable[[int], object]], None]]:
    """Do something to the process of the first cell that has a checkpoint, beside the test."""
    threads: list[threading.Thread] = []

    def begin(out: Path, act: Callable[[int], object]) -> None:
        def look() -> int | None:
            for path, process in attempts_in(out).items():
                if list((path.parents[1] / "checkpoints").glob("*.safetensors")):
                    return process
            return None

        threads.append(threading.Thread(target=lambda: act(wait_for(look))))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join(60)


def kill(process: int) -> None:
    """Without a chance to clean up."""
    os.kill(process, signal.SIGKILL)
