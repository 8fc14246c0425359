"""Cells of a sweep and trials of a learner on a Ray cluster: the only module that imports Ray.

A cell or an attempt is a task of Ray's. Ray places it, starts it again where its worker is lost, and says when it has
ended; what a killed cell had done lies in its run folder, which all machines share, and is resumed there. Each task
computes with as many threads as the process that asks, so that its bytes are the same as here.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import torch
from torch import Tensor, nn

from poise.errors import RunFailed, UserError, check_whole, first_line
from poise.runs.machine import versions
from poise.runs.plan import plan_of_words
from poise.runs.sweep import Cell, CellBench, Failure, lanes_on
from poise.training.device import Backend
from poise.training.lanes import Bench
from poise.tuning.results import TrialResult
from poise.tuning.trials import Attempt, Trials
from poise.words import install_extra

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")
Pending = Any  # the result of a task, some time

LOCAL: Final = "local"
LOST: Final = 3  # times that a task is started again after its worker was lost
WAIT_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 5.0
#: Versions on which the bytes of a result depend.
SAME: Final = ("poise", "poise_source", "python", "torch", "numpy")


class Executor:
    """Runs attempts on the workers of a Ray cluster: trials of a learner, or cells of a sweep.

    >>> learner = Learner(executor=poise.ray.Executor("head:6379"))  # doctest: +SKIP

    Args:
        address: HOST:PORT of the cluster; `auto`: the one that was started on this machine; None: that one or, if there
            is none, one of its own on this machine.
        cpus_per_worker: CPUs that each task has to itself; if not given, as many as it has threads.
        lanes: cells that share a GPU; one if not given.
    """

    def __init__(
        self, address: str | None = None, *, cpus_per_worker: int | None = None, lanes: int | None = None
    ) -> None:
        for name, value in (("cpus_per_worker", cpus_per_worker), ("lanes", lanes)):
            if value is not None:
                check_whole(name, value, 1, 100_000)
        self.address, self.cpus_per_worker, self.lanes = address, cpus_per_worker, lanes
        self.meanwhile: Callable[[], None] = lambda: None  # called while trials are waited for: it may raise
        self._ray: Any = None
        self._connected = False
        self._sent: tuple[object, str, Pending] | None = None  # the last bench, its key, and where Ray keeps it

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Executor, self.address, cpus_per_worker=self.cpus_per_worker, lanes=self.lanes), ()

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """The results of all attempts in the order of asking, each time those that became known: none, one or more."""
        found: Iterator[Any]
        if isinstance(bench, CellBench):
            found = self._run_cells(bench, list(attempts))
        elif isinstance(bench, Trials):
            found = self._run_trials(bench, list(attempts))
        else:
            raise UserError(f"{type(bench).__name__} cannot be sent to a cluster")
        return found

    def connect(self) -> str:
        """Connect to the cluster, if that was not done yet; a line that says what there is."""
        if self._ray is None:
            ray = _import_ray()
            if not ray.is_initialized():
                _connect(ray, self.address)
                self._connected = True
            self._ray = ray
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        total: dict[str, float] = self._ray.cluster_resources()
        gpus = f", {total['GPU']:g} GPUs" if total.get("GPU") else ""
        return f"Ray cluster: {len(alive)} nodes, {total.get('CPU', 0):g} CPUs{gpus}"

    def close(self) -> None:
        """Leave the cluster, if this executor connected to it."""
        if self._ray is not None and self._connected:
            with suppress(Exception):
                self._ray.shutdown()
        self._ray, self._sent, self._connected = None, None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Cells ------------------------------------------------------------------------------------------------------------

    def _run_cells(self, bench: CellBench, cells: Sequence[Cell]) -> Iterator[list[Failure | None]]:
        """Every cell as a task; `None` or why it failed, in the order of the cells."""
        out = bench.out.resolve()
        found: dict[str, Failure | None] = {}
        if todo := [cell for cell in cells if not bench.folder(cell).finished]:
            bench.say(self.connect())
            with _Token(out) as token:
                found = self._gather_cells(bench, todo, lambda cell: self._start_cell(cell, out, token, bench))
        finished = [cell for cell in cells if cell not in todo]  # which says so, and completes what a kill left out
        known = [result for results in lanes_on("cpu", 1).run(bench, finished) for result in results]
        found |= dict(zip((cell.name for cell in finished), known, strict=True))
        return iter([[found.get(cell.name) for cell in cells]])

    def _start_cell(self, cell: Cell, out: Path, token: str, bench: CellBench) -> Pending:
        device = cell.plan.recipe.device
        if device.startswith("cuda:"):
            raise UserError(f"device={device} is a GPU of this machine; on a cluster use device=cuda")
        gpu = device == "cuda" or (device == "auto" and bool(self._ray.cluster_resources().get("GPU")))
        words: dict[str, Any] = {"name": cell.name, "plan": cell.plan.as_json(), "out": str(out), "token": token}
        words |= {"checkpoint_seconds": bench.checkpoint_seconds}
        return self._task(run_cell, gpu=1 / (self.lanes or 1) if gpu else 0).remote(words, _circumstances())

    def _gather_cells(
        self, bench: CellBench, cells: Sequence[Cell], start: Callable[[Cell], Pending]
    ) -> dict[str, Failure | None]:
        """Start every cell as soon as the phase 0 that it starts from is there, and wait for all."""
        results: dict[str, Failure | None] = {}
        tasks: dict[Pending, Cell] = {}
        unstarted, waiting = list(cells), list[Pending]()
        while (waiting or unstarted) and not bench.stop.is_set():
            ready = [cell for cell in unstarted if bench.ready(cell)] or ([] if waiting else unstarted)
            begun = {start(cell): cell for cell in ready}
            tasks |= begun
            unstarted = [cell for cell in unstarted if cell not in ready]
            done, waiting = self._ray.wait([*waiting, *begun], timeout=WAIT_SECONDS)
            for task in done:
                cell = tasks[task]
                try:
                    results[cell.name] = found = self._ray.get(task)
                except self._ray.exceptions.RayError as error:
                    results[cell.name] = bench.failed(cell, _explain(error))
                else:
                    bench.say(f"{cell.name}: {found or 'finished'}", ended=cell.name)
        for task in waiting:
            self._ray.cancel(task, force=True)
        return results

    # Trials -----------------------------------------------------------------------------------------------------------

    def _run_trials(self, trials: Trials, attempts: Sequence[Attempt]) -> Iterator[list[TrialResult]]:
        """Every attempt as a task, told in the order of asking as soon as it is known."""
        self.connect()
        if self._sent is None or self._sent[0] is not trials:
            self._sent = (trials, secrets.token_hex(8), self._ray.put(_pack(trials)))
        _, key, packed = self._sent
        gpu = trials.inputs.context.backend.device.type == "cuda"
        task = self._task(try_attempt, gpu=1 if gpu else 0)
        waiting = [task.remote(key, [packed], attempt, _circumstances()) for attempt in attempts]
        try:
            while waiting:
                self.meanwhile()
                if not self._ray.wait(waiting[:1], timeout=WAIT_SECONDS)[0]:
                    yield []
                    continue
                try:
                    found = self._ray.get(waiting[0])
                except self._ray.exceptions.RayError as error:
                    raise _explain(error) from None
                del waiting[0]
                yield [found]
        finally:
            for each in waiting:
                self._ray.cancel(each, force=True)

    def _task(self, function: Callable[..., Any], gpu: float) -> Any:  # noqa: ANN401 - Ray's own type
        cpus = self.cpus_per_worker or torch.get_num_threads()
        return self._ray.remote(function).options(num_cpus=cpus, num_gpus=gpu, max_retries=LOST)


def make_executor(place: str, option: str, cpus_per_worker: int | None = None, lanes: int | None = None) -> Executor:
    """The executor for what follows `--on` or `--trials-on`: `ray` or `ray:HOST:PORT`."""
    name, _, address = place.partition(":")
    if name != "ray" or place == "ray:":
        raise UserError(f"{option} {place} is not known; give ray, or ray:HOST:PORT")
    return Executor(address or None, cpus_per_worker=cpus_per_worker, lanes=lanes)


# On a worker ----------------------------------------------------------------------------------------------------------


def run_cell(words: dict[str, Any], circumstances: dict[str, Any]) -> Failure | None:
    """Run one cell from where its folder stands; why it failed, or None."""
    _prepare(circumstances)
    out = Path(words["out"])
    if not (out / words["token"]).exists():
        return RunFailed(
            f"node {os.uname().nodename} does not see the folder {out}; put it where all machines share it"
        )
    cell = Cell(words["name"], plan_of_words(words["plan"]))
    if cell.plan.source.fingerprint != words["plan"]["fingerprint"]:
        return RunFailed(f"node {os.uname().nodename} has other data {cell.plan.recipe.data!r}; copy them there anew")
    bench = CellBench(out, words["checkpoint_seconds"])
    device = cell.plan.recipe.device
    found = [result for results in lanes_on(device, 1).run(bench, [cell]) for result in results]
    return found[-1]


_BENCH: dict[str, Trials] = {}  # what this worker unpacked last, so that the attempts of a phase unpack it once


def try_attempt(key: str, packed: list[Pending], attempt: Attempt, circumstances: dict[str, Any]) -> TrialResult:
    """Run one attempt on what `packed` holds."""
    _prepare(circumstances)
    if key not in _BENCH:
        _BENCH.clear()
        _BENCH[key] = _import_ray().cloudpickle.loads(_import_ray().get(packed[0]))
    trials = _BENCH[key]
    with trials.inputs.context.backend.active():
        return trials.run_all([attempt])[0]


def _circumstances() -> dict[str, Any]:
    """The versions and switches that a worker must share with this process."""
    found = versions()
    return {
        "threads": torch.get_num_threads(),
        "versions": {name: found.get(name) for name in SAME},
        "data": os.environ.get("POISE_DATA"),
    }


def _prepare(circumstances: dict[str, Any]) -> None:
    """Refuse other versions; compute with as many threads as who asked: sums are split among them."""
    here = versions()
    for name, value in circumstances["versions"].items():
        if here.get(name) != value:
            raise RunFailed(
                f"node {os.uname().nodename} has {name} {here.get(name)}, not {value}; install the same there"
            )
    torch.set_num_threads(circumstances["threads"])
    if circumstances["data"] is not None:
        os.environ.setdefault("POISE_DATA", circumstances["data"])


# Words for a cluster --------------------------------------------------------------------------------------------------


class _Token:
    """A file in the folder of all runs, by which a worker sees that it is the same folder there."""

    def __init__(self, out: Path) -> None:
        self._path = out / f".poise-{secrets.token_hex(6)}"

    def __enter__(self) -> str:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            raise UserError(f"{self._path.parent} cannot be used: {error.strerror}; choose another --out") from error
        return self._path.name

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _import_ray() -> Any:  # noqa: ANN401 - an extra
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # it is read once; what matters is said by us
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(f"Ray is not installed; it is an extra; {install_extra('ray')}") from error


def _connect(ray: Any, address: str | None) -> None:  # noqa: ANN401
    found = address or os.environ.get("RAY_ADDRESS")
    words: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if found is not None and found != "auto":
            host, _, port = found.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()  # Ray waits much longer
            ray.init(found, **words)
            return
        try:
            ray.init("auto", **words)
        except ConnectionError:  # none was started here
            if found == "auto":
                raise
            ray.init(LOCAL, include_dashboard=False, **words)
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(
            f"no connection to the Ray cluster at {found}: {first_line(error)[:300]}; "
            "start it with 'ray start --head', or give its address as HOST:PORT"
        ) from error


def _explain(error: Exception) -> Exception:
    """An error of Ray's in our words: one that a task raised as it is, a lost worker in one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    missing = next((line.rpartition(": ")[2] for line in lines if "No module named" in line), None)
    if missing is not None:
        return RunFailed(f"a worker cannot start: {missing}; install the same poise there, with the extra ray")
    return RunFailed(f"lost its worker {LOST + 1} times ({lines[0][:200]}); the same command tries again")


def _pack(trials: Trials) -> bytes:
    """Pickle the inputs of these trials so that they fit a machine whose GPU has another number."""
    pickler: Any = importlib.import_module("ray.cloudpickle").Pickler

    class Packing(pickler):  # type: ignore[misc]
        """With our own way for devices."""

        def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - as pickle has it
            if isinstance(value, Backend) and (value.device.index is not None or value.lane is not None):
                return replace(value, device=torch.device(value.device.type), lane=None).__reduce_ex__(2)
            if isinstance(value, Tensor) and value.is_cuda:
                return _to_gpu, (value.detach().cpu(), isinstance(value, nn.Parameter), value.requires_grad)
            return super().reducer_override(value)

    file = io.BytesIO()
    Packing(file, protocol=5).dump(trials)
    return file.getvalue()


def _to_gpu(value: Tensor, is_parameter: bool, has_gradient: bool) -> Tensor:
    moved = value.cuda()
    return nn.Parameter(moved, has_gradient) if is_parameter else moved.requires_grad_(has_gradient)


__all__ = ["Executor", "make_executor"]
