"""What it costs to send cells and trials to the workers of a Ray cluster, and what two workers bring.

    python benchmarks/cluster.py

starts a cluster of two nodes with one CPU each on this machine. Prints one JSON line:

- `start_seconds`: from the command to workers that are ready;
- `cell_overhead_seconds`: of a short cell on one worker, beyond what it takes here (medians over cells);
- `trial_overhead_seconds`: of a short trial on one worker, beyond what it takes here (medians over trials), and the
  bytes that are sent once per phase;
- `round_trip_seconds`: from asking a worker for trials to its answer, where there are none to run (median of 200), and
  `open_seconds` until it has opened what a phase's trials start from: what sending costs, whatever trials take;
- `speed_up`: of eight short cells on two workers against one, workers ready, alternating in this run (medians).

Ray lowers the priority of its workers: on a machine with other work to do they get less of it than this process does.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and Ray are imported

import torch

import poise
from poise import Learner
from poise.data.sources import open_source
from poise.ray import Executor
from poise.ray.letters import OpenData, write_letter
from poise.runs import Cell, Lines, read_sweep, sweep_cells
from poise.training import TrialDone
from poise.tuning import Trials

SWEEP = """
recipe = "digits/lucir"
[set]
groups = [3, 1, 1]
epochs = {epochs}
device = "cpu"
[grid]
seed = [0, 1, 2, 3, 4, 5, 6, 7]
"""
LEARNER: dict[str, Any] = {
    **{"method": "lucir", "net": "small", "batch": 64, "epochs": 20, "device": "cpu", "policy": "exp3"},
    **{"policy_options": {"iterations": 24}, "trials": {"length": 0.05}, "space": {"lr": [0.1, 0.05, 0.02, 0.01]}},
}


class Timed(Lines):
    """Remembers when the workers were ready, and when each cell was finished."""

    def __init__(self) -> None:
        super().__init__(None, io.StringIO())
        self.marks = [time.perf_counter()]

    def say(self, text: str) -> None:
        """A line."""
        if " on " in text and text.endswith(" each"):
            self.marks = [time.perf_counter()]
        elif text.endswith(": finished"):
            self.marks.append(time.perf_counter())


def sweep_marks(cells: list[Cell], out: Path, executor: Executor | None = None) -> tuple[float, list[float]]:
    """How long the workers took to be ready, and how long it then was until each cell was finished."""
    lines, began = Timed(), time.perf_counter()
    failed = sweep_cells(cells, out, 1, lines, executor=executor)
    if failed:
        raise SystemExit(f"cells failed: {failed}")
    return lines.marks[0] - began, [mark - lines.marks[0] for mark in lines.marks[1:]]


def each_seconds(marks: list[float]) -> float:
    """Of a cell that follows another; the first one also opens the data."""
    return median([later - earlier for earlier, later in itertools.pairwise(marks)])


def trial_seconds(executor: Executor | None) -> float:
    """Of a trial, in a phase whose workers are ready."""
    train = open_source("digits").train()
    learner = Learner(**LEARNER, executor=executor)
    seconds: list[float] = []
    for number, labels in enumerate(([0, 1, 2], [3], [4])):
        images = train.of_labels(labels)
        last = time.perf_counter()
        for event in learner.fitting(images.pixels, images.labels):
            now = time.perf_counter()
            if isinstance(event, TrialDone) and number == 2:  # workers are ready since the phase before
                seconds.append(now - last)
            last = now
    return median(seconds)


def second_phase() -> Trials:
    """The trials of a learner's second phase."""
    train = open_source("digits").train()
    learner = Learner(**LEARNER)
    first, new = train.of_labels([0, 1, 2]), train.of_labels([3])
    list(learner.fitting(first.pixels, first.labels, origins=first.origins))
    return learner.phase_of(new.pixels, new.labels).task.trials


def letter_bytes(trials: Trials) -> dict[str, int]:
    """What is sent once per phase: with pixels, and with places in a data set that workers can open."""
    source = open_source("digits")
    data = OpenData("digits", None, source.fingerprint, source.train().shape)
    letters = {"pixels": None, "places": data}
    return {name: write_letter(trials, pickle.Pickler, each).nbytes for name, each in letters.items()}


def sending_seconds(executor: Executor, trials: Trials) -> dict[str, float]:
    """What it takes to let a worker open a phase, and to ask it for trials of which there are none."""
    driver = executor._driver_for(trials)
    (member,) = driver.staff.ready

    def ask(method: str, *words: object) -> float:
        began, answers = time.perf_counter(), list[object]()
        driver.staff.ask(member, method, *words)
        while not answers:
            answers += driver.staff.wait(1.0)[0]
        return time.perf_counter() - began

    stored = executor.connect().put(write_letter(trials, executor.connect().pickler))
    opened = ask("open_bench", 0, stored, [])
    trips = [ask("try_all", 0, []) for _ in range(200)]
    return {"open_seconds": round(opened, 4), "round_trip_seconds": round(median(trips), 5)}


def measure(address: str, epochs: int, turns: int, folder: Path) -> dict[str, Any]:
    """All of it, on this cluster."""
    file = folder / "sweep.toml"
    file.write_text(SWEEP.format(epochs=epochs))
    cells = read_sweep(file)
    _, here = sweep_marks(cells, folder / "here")
    starts, ones, twos, apart = list[float](), list[float](), list[float](), list[float]()
    for turn in range(turns):
        for workers, found in ((1, ones), (2, twos)):
            with Executor(address, workers=workers) as executor:
                started, marks = sweep_marks(cells, folder / f"{workers}-{turn}", executor)
                starts.append(started)
                found.append(marks[-1])
                apart += [each_seconds(marks)] if workers == 1 else []
    trials = second_phase()
    with Executor(address, workers=1) as executor:
        sending = sending_seconds(executor, trials)
        there = trial_seconds(executor)
    trial_here = trial_seconds(None)
    return {
        "epochs": epochs,
        "start_seconds": round(median(starts), 2),
        "cell_seconds_here": round(each_seconds(here), 3),
        "cell_overhead_seconds": round(median(apart) - each_seconds(here), 3),
        "trial_seconds_here": round(trial_here, 4),
        "trial_overhead_seconds": round(there - trial_here, 4),
        **sending,
        "letter_bytes": letter_bytes(trials),
        "seconds_on_one": round(median(ones), 2),
        "seconds_on_two": round(median(twos), 2),
        "speed_up": round(median(ones) / median(twos), 2),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }


@contextmanager
def two_nodes() -> Iterator[str]:
    """A cluster of two nodes, each in a session of its own: where Linux shares the processor by sessions, as machines.

    The head node has no CPU to give away.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sockets = tempfile.mkdtemp(prefix="ray")  # a short path
    ray, address = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"], f"127.0.0.1:{port}"
    store = ["--object-store-memory", "90000000"]
    starts = [
        ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", "--node-ip-address=127.0.0.1"],
        [f"--address={address}", "--num-cpus=1", "--node-ip-address=127.0.0.1"],
        [f"--address={address}", "--num-cpus=1", "--node-ip-address=127.0.0.1"],
    ]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for words in starts:
            temp = [f"--temp-dir={sockets}"] if "--head" in words else []
            nodes.append(
                subprocess.Popen([*ray, *words, *store, *temp], stdout=subprocess.DEVNULL, start_new_session=True)
            )
            time.sleep(15 if "--head" in words else 5)
        yield address
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, signal.SIGTERM)
            node.wait()
        shutil.rmtree(sockets, ignore_errors=True)


def main() -> None:
    """Start a cluster, measure, print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="of each phase of a cell")
    parser.add_argument("--turns", type=int, default=3, help="with one worker and with two")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(poise.__file__).parents[1])
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory() as folder, two_nodes() as address:
        print(json.dumps(measure(address, options.epochs, options.turns, Path(folder))))


if __name__ == "__main__":
    main()
