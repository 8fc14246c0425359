"""The executor: runs cells or trials on a Ray cluster, behind the same protocol as the local one."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from poise.errors import UserError, check_whole
from poise.ray.cells import CellDriver, Token, cell_needs, finish_here
from poise.ray.cluster import Cluster
from poise.ray.letters import OpenData
from poise.ray.staff import MOST_WORKERS, PATIENCE, Needs, Staff, Told
from poise.ray.trials import TrialDriver
from poise.runs.plan import Plan
from poise.runs.provenance import versions
from poise.runs.sweep import CellBench, Failure
from poise.runs.sweep_file import Cell
from poise.training import Bench, make_backend
from poise.tuning import Trials

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")

MEET_SECONDS = 10.0  # that a run waits for its workers before it begins without them


class Executor:
    """Runs attempts on the workers of a Ray cluster: trials of a learner, or cells of a sweep.

    >>> learner = Learner(executor=poise.ray.Executor("head:6379"))  # doctest: +SKIP

    There is one worker per GPU, or per `cpus_per_worker` where no GPU is used. Each computes with as many threads as
    this process does, so that its bytes are the same. Workers are started when they are first needed.

    Args:
        address: HOST:PORT of the cluster; `auto`: the one that was started on this machine; None: that one or, if there
            is none, one of its own on this machine.
        cpus_per_worker: CPUs that each worker has to itself; if not given, as many as it has threads.
        lanes: cells side by side on a worker; measured on a GPU if not given, one elsewhere.
        workers: at most so many; if not given, as many as the cluster has room for.
        patience: seconds without a sign of life after which a worker is given up.
        data: a data set that workers may open themselves, instead of being sent the images of trials.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus_per_worker: int | None = None,
        lanes: int | None = None,
        workers: int | None = None,
        patience: float = PATIENCE,
        data: OpenData | None = None,
    ) -> None:
        for name, value in (("cpus_per_worker", cpus_per_worker), ("lanes", lanes), ("workers", workers)):
            if value is not None:
                check_whole(name, value, 1, 100_000)
        self.address, self.cpus_per_worker, self.lanes = address, cpus_per_worker, lanes
        self.workers, self.patience, self.data = workers, patience, data
        self.meanwhile: Callable[[], None] = _nothing  # called while trials are waited for: it may raise
        self._cluster: Cluster | None = None
        self._told = Told()
        self._trials: dict[bool, TrialDriver] = {}  # by whether they are on a GPU

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.address, self.cpus_per_worker, self.lanes, self.workers, self.patience, self.data)

    def for_plan(self, plan: Plan) -> Self:
        """The same for the trials of a run, whose images workers may open themselves."""
        shape, recipe = plan.source.outline()[1], plan.recipe
        self.data = OpenData(recipe.data, recipe.image_size, plan.source.fingerprint, shape)
        return self

    def meet_workers(self, device: str) -> str:
        """Start the workers for trials of a run on this device now: what is wrong with them is said at once.

        Where the cluster is busy the run begins nevertheless, and waits for them when it has trials to run. Returns a
        line that says how many there are.
        """
        until = time.monotonic() + MEET_SECONDS
        on_gpu = make_backend(device, "fp32", deterministic=False).device.type == "cuda"
        staff = self._staff_driver(on_gpu, lambda: time.monotonic() > until).staff
        return staff.summary() if staff.ready else "no worker is ready yet; trials wait for one"

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """The results of all attempts in the order of asking, each as it becomes known."""
        found: Iterator[Any]
        if isinstance(bench, CellBench):
            found = self._run_cells(bench, list(attempts))
        elif isinstance(bench, Trials):
            found = self._driver_for(bench).run(bench, attempts)
        else:
            raise UserError(f"{type(bench).__name__} cannot be sent to a cluster")
        return ([result] for result in found)

    def connect(self) -> Cluster:
        """The connection to the cluster, made when it is first needed."""
        if self._cluster is None:
            self._cluster = Cluster(self.address)
            self._told.listen()
        return self._cluster

    def close(self) -> None:
        """Stop the workers and leave the cluster."""
        for driver in self._trials.values():
            driver.staff.close()
        self._trials.clear()
        if self._cluster is not None:
            self._told.leave()
            self._cluster.close()
            self._cluster = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look_up(self) -> None:
        self.meanwhile()  # which may be another one by now

    def _make_staff(self, needs: Needs, hello: Mapping[str, Any], say: Callable[[str], None]) -> Staff:
        return Staff(self.connect(), needs, hello, say=say, patience=self.patience, most=self.workers, told=self._told)

    # Cells ----------------------------------------------------------------------------------------------------------

    def _run_cells(self, bench: CellBench, cells: Sequence[Cell]) -> Iterator[Failure | None]:
        bench = CellBench(bench.out.resolve(), bench.checkpoint_seconds, bench.view, bench.stop)
        results = finish_here(bench, cells)
        todo = [cell for cell in cells if cell.name not in results]
        if todo:
            results |= self._send_cells(bench, todo)
        return iter([results.get(cell.name) for cell in cells])

    def _send_cells(self, bench: CellBench, cells: Sequence[Cell]) -> dict[str, Failure | None]:
        cluster, threads = self.connect(), torch.get_num_threads()
        has_gpus = any(node.gpus >= 1 for node in cluster.nodes())
        needs = cell_needs(cells, has_gpus, self.cpus_per_worker, threads)
        data = {(each.recipe.data, each.recipe.image_size, each.source.fingerprint) for each in (c.plan for c in cells)}
        say = bench.view.say if bench.view is not None else log.warning
        with Token(bench.out) as out:
            hello = {
                **_hello(threads),
                **{"out": out, "data": sorted(data, key=str), "on_gpu": needs.on_gpu},
                **{"lanes": self.lanes, "checkpoint_seconds": bench.checkpoint_seconds},
            }
            staff = self._make_staff(needs, hello, say)
            try:
                staff.gather(len(cells), bench.stop.is_set)
                say(staff.summary())
                driver = CellDriver(staff, bench, cells)
                driver.run()
            finally:
                staff.close()
        return driver.results

    # Trials ---------------------------------------------------------------------------------------------------------

    def _driver_for(self, trials: Trials) -> TrialDriver:
        """What hands out trials; its workers stay for the phases to come."""
        return self._staff_driver(trials.inputs.situation.backend.device.type == "cuda")

    def _staff_driver(self, on_gpu: bool, stopped: Callable[[], bool] = lambda: False) -> TrialDriver:
        """The same, with workers that have as many threads as this process: a run that is resumed has its own."""
        cluster, threads, data = self.connect(), torch.get_num_threads(), self.data
        if on_gpu in self._trials and self._trials[on_gpu].staff.threads != threads:
            self._trials.pop(on_gpu).staff.close()
        if on_gpu not in self._trials:
            may_open = [(data.data, data.size, data.fingerprint)] if data is not None else []
            hello = {**_hello(threads), "may_open": may_open, "on_gpu": on_gpu}
            staff = self._make_staff(Needs(on_gpu, self.cpus_per_worker, threads), hello, log.warning)
            staff.meanwhile = self._look_up
            self._trials[on_gpu] = TrialDriver(cluster, staff, data)
        driver = self._trials[on_gpu]
        if not driver.staff.gathered:
            try:
                driver.staff.gather(MOST_WORKERS, stopped)
            except BaseException:
                self._trials.pop(on_gpu).staff.close()
                raise
        return driver


def _nothing() -> None:
    """Nobody asks for anything."""


def _hello(threads: int) -> dict[str, Any]:
    """What every worker is told first: plain values, which any version can read."""
    data = os.environ.get("POISE_DATA")
    return {
        "versions": versions(),
        "threads": threads,
        "command": sys.argv[1:],
        "poise_data": str(Path(data).absolute()) if data else None,
        "out": None,
        "on_gpu": None,
        "data": [],
        "may_open": [],
    }


def _make(
    address: str | None,
    cpus: int | None,
    lanes: int | None,
    workers: int | None,
    patience: float,
    data: OpenData | None,
) -> Executor:
    """What a pickle of an executor names; so do those of older versions."""
    return Executor(address, cpus_per_worker=cpus, lanes=lanes, workers=workers, patience=patience, data=data)


def make_executor(place: str, option: str, *, cpus_per_worker: int | None, lanes: int | None = None) -> Executor:
    """The executor that an option such as `--on ray:HOST:PORT` names."""
    word, colon, address = place.partition(":")
    if word != "ray" or (colon and not address):
        raise UserError(f"{option} {place}: give ray, or ray:HOST:PORT with the address of a cluster")
    return Executor(address or None, cpus_per_worker=cpus_per_worker, lanes=lanes)
