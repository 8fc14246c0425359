"""The cluster as poise needs it: nodes, workers, calls and answers. The only module that imports Ray."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poise.errors import UserError, first_line
from poise.ray.host import Host
from poise.words import install_extra

Pending = Any  # the answer to a call, some time

CONNECT_SECONDS = 5.0  # until an address that does not answer is given up
STOP_SECONDS = 2.0  # that stopped workers are waited for
LOCAL = "local"
_PORTS = range(1, 65536)
_users: list[Cluster] = []  # who uses the connection of this process


class WorkerLost(Exception):
    """A worker, or the node that it was on, is gone."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    id: str
    name: str
    cpus: float
    gpus: float


def _ray() -> Any:  # noqa: ANN401 - an extra, of which we use little
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # it is read once; what matters is said by us
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UserError(f"Ray is not installed; it is an extra; {install_extra('ray')}") from error


class Cluster:
    """A connection to a cluster, shared by all of this process."""

    def __init__(self, address: str | None = None) -> None:
        self._ray = _ray()
        self._exceptions: Any = self._ray.exceptions
        self._gone: tuple[type[Exception], ...] = (self._exceptions.RayError,)
        self._connected, self._address = False, address
        if address is not None and (others := {user._address for user in _users} - {None, address}):
            raise UserError(f"this process uses the Ray cluster at {others.pop()}; close that executor first")
        if not self._ray.is_initialized():
            self._connect(address)
            self._connected = True
        _users.append(self)
        groups = {"health": 1}  # answers while the worker is busy
        self._host = self._ray.remote(concurrency_groups=groups, max_restarts=0, max_task_retries=0)(Host)

    def _connect(self, address: str | None) -> None:
        found = _find_address(address)
        logging.getLogger("ray").setLevel(logging.ERROR)
        options = {"include_dashboard": False} if found == LOCAL else {}
        said = list[str]()
        try:
            with _same_signals(), _caught_stderr(said):
                self._ray.init(found, log_to_driver=False, configure_logging=False, **options)
        except (ConnectionError, OSError, RuntimeError, ValueError, self._exceptions.RayError) as error:
            if isinstance(error, self._exceptions.AuthenticationError) or "InvalidAuthToken" in "".join(said):
                raise UserError(
                    f"the Ray cluster at {found} asks for a token; put that of its head node into ~/.ray/auth_token "
                    "here and on all nodes, or into RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token"
                ) from error
            raise UserError(f"no connection to the Ray cluster at {found}: {first_line(error)[:300]}") from error
        with suppress(Exception):  # it would print to our output that workers were lost, which we say ourselves
            inside: Any = importlib.import_module("ray._private.worker")
            inside.print_to_stdstream = lambda *_, **__: None

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        return [
            Node(
                each["NodeID"],
                f"{each['NodeManagerHostname']} ({each['NodeManagerAddress']})",
                each["Resources"].get("CPU", 0.0),
                each["Resources"].get("GPU", 0.0),
            )
            for each in sorted(self._ray.nodes(), key=lambda each: str(each["NodeID"]))
            if each["Alive"]
        ]

    def start(self, node: Node, cpus: float, gpus: float) -> Any:  # noqa: ANN401 - Ray's own handle
        """A worker on that node, with so many CPUs and GPUs to itself."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        return self._host.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=there).remote()

    def call(self, worker: Any, method: str, *args: object) -> Pending:  # noqa: ANN401
        """Ask a worker for something; `get` has the answer."""
        return getattr(worker, method).remote(*args)

    def ping(self, worker: Any) -> Pending:  # noqa: ANN401
        """Ask a worker for a sign of life, which it gives whatever it is doing."""
        return worker.ping.options(concurrency_group="health").remote()

    def kill(self, worker: Any) -> None:  # noqa: ANN401
        """Stop a worker, if it can be reached."""
        with suppress(Exception):
            self._ray.kill(worker)

    def stop(self, workers: Sequence[Any], pending: Sequence[Pending]) -> None:
        """Stop all workers, and wait a moment until they are gone and what was asked of them is `pending` no more.

        Ray's library may crash this process where it leaves the cluster while it is still being told of their end.
        """
        if not self._ray.is_initialized():  # it was left by somebody else; Ray would connect again to tell them
            return
        waiting = list(pending)
        for worker in workers:
            with suppress(Exception):
                waiting.append(self.ping(worker))  # an idle one would not be waited for
            self.kill(worker)
        if waiting:
            with suppress(Exception):
                self._ray.wait(waiting, num_returns=len(waiting), timeout=STOP_SECONDS, fetch_local=False)

    def put(self, value: object) -> Pending:
        """Store a value once for all workers."""
        return self._ray.put(value)

    def ready(self, pending: Sequence[Pending], timeout: float) -> list[Pending]:
        """Those that are there after at most so many seconds."""
        found: list[Pending] = self._ray.wait(list(pending), num_returns=1, timeout=timeout, fetch_local=True)[0]
        if found:  # and all others that are
            found = self._ray.wait(list(pending), num_returns=len(pending), timeout=0, fetch_local=True)[0]
        return found

    def get(self, pending: Pending) -> Any:  # noqa: ANN401 - whatever was answered
        """The answer; raises `WorkerLost` if there will be none."""
        try:
            return self._ray.get(pending)
        except self._gone as error:
            raise WorkerLost(_reason(error)) from error

    @property
    def pickler(self) -> Any:  # noqa: ANN401 - a class of Ray's
        """Pickles functions and classes of a script, too."""
        return importlib.import_module("ray.cloudpickle").Pickler

    def close(self) -> None:
        """Leave the cluster, if nobody else in this process uses it."""
        if self in _users:
            _users.remove(self)
            if _users:  # the last one leaves
                _users[0]._connected |= self._connected
            elif self._connected:
                with _same_signals(), suppress(Exception):
                    self._ray.shutdown()


def _reason(error: Exception) -> str:
    """Why a worker is gone, in a few words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "No module named" in line:
            return f"{line.rpartition(': ')[2]}; install the same poise there, with the extra ray"
    if any("references to the actor were removed" in line for line in lines):  # it cannot answer us
        return "nothing is heard of it; RAY_AUTH_MODE may differ from the cluster's"
    for mark in ("The actor is dead because", "Worker exit detail:", "The node"):
        for line in lines:
            if mark in line:
                return line[line.index(mark) :].removeprefix("The actor is dead because ")[:200]
    return (lines[-1] if lines else type(error).__name__)[:200]


def _find_address(address: str | None) -> str:
    """HOST:PORT of a cluster that answers; `local` where none is named and none is found."""
    asked = address
    if address is None or address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
        address = _started_here() if address == "auto" else address
        if address in (None, LOCAL):
            if asked == "auto":
                raise UserError("no Ray cluster is found here; start one with 'ray start --head', or give its address")
            return LOCAL
    if address == LOCAL:
        return LOCAL
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or int(port) not in _PORTS:
        raise UserError(f"'{address}' is no address of a Ray cluster; give HOST:PORT as 'ray start --head' says it")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            return address
    except OSError as error:
        if asked is None and "RAY_ADDRESS" not in os.environ:
            return LOCAL  # what was started here once is gone
        raise UserError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start it with 'ray start --head', "
            "or give its address"
        ) from error


def _started_here() -> str | None:
    """The address of the cluster that was last started on this machine, as Ray notes it."""
    try:
        utils = importlib.import_module("ray._common.utils")
        return Path(utils.get_ray_address_file(None)).read_text().strip() or None
    except (ImportError, AttributeError, OSError):
        return None


@contextmanager
def _caught_stderr(said: list[str]) -> Iterator[None]:
    """Ray's own library writes to stderr past Python while it connects: kept here, for the reason may be in it."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


@contextmanager
def _same_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which would end a command without a checkpoint: whoever heard it hears it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
