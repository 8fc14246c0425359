"""The workers of a command: started, compared with this machine, asked for signs of life, and replaced when lost."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poise.errors import RunFailed, UserError
from poise.ray.cluster import Cluster, Node, Pending, WorkerLost
from poise.ray.host import Warned
from poise.words import counted

PATIENCE = 60.0  # seconds without a sign of life after which a worker is given up
GATHER_SECONDS = 60.0  # that those who are ready wait for the others at the beginning
LOOK_SECONDS = 5.0  # between looks at the nodes of the cluster
REPLACE_SECONDS = 60.0  # that a place where a worker could not start stays empty
MOST_WORKERS = 10_000
STARTS = 3  # of workers on a node that are lost before any was ready, until a command is refused
EMPTY_SECONDS = 120.0  # without any worker that is ready, until a command gives up where none is under way
_WAITING = "waiting for workers: the cluster's CPUs or GPUs are taken, or slow to start"


@dataclass(frozen=True)
class Slot:
    """A place for one worker: a node, and the number of the worker there."""

    node: Node
    number: int


@dataclass(frozen=True)
class Needs:
    """What each worker has to itself: a GPU, or some CPUs."""

    on_gpu: bool
    cpus: int | None  # None: as many as it has threads; with a GPU, whichever are free
    threads: int

    def slots(self, nodes: list[Node]) -> list[Slot]:
        """All places, the first of every node first."""
        counts = {node: int(node.gpus) if self.on_gpu else math.floor(node.cpus / self.cpus_each) for node in nodes}
        places = [Slot(node, number) for node, count in counts.items() for number in range(count)]
        return sorted(places, key=lambda slot: slot.number)

    @property
    def cpus_each(self) -> int:
        """CPUs of a worker without a GPU."""
        return self.cpus or self.threads

    def refuse_none(self, nodes: list[Node]) -> None:
        """Refuse a cluster without a place for a worker."""
        if self.slots(nodes):
            return
        if self.on_gpu:
            raise UserError("no node of the cluster has a GPU; use device=cpu, or start Ray with --num-gpus")
        most = max((int(node.cpus) for node in nodes), default=0)
        raise UserError(
            f"no node of the cluster has {self.cpus_each} CPUs for a worker, at most {most}; set --cpus-per-worker, "
            "or fewer threads with OMP_NUM_THREADS"
        )


@dataclass(eq=False)
class Member:
    """A worker, and what it was asked for."""

    slot: Slot
    handle: Any
    asked: Pending | None = None
    ready: bool = False
    process: int = 0
    devices: str = ""
    opens: bool = False  # the data that trials are about
    ping: Pending | None = None
    pinged: float = 0.0
    heard: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """The node, for a line."""
        return self.slot.node.name


class Told(logging.Handler):
    """What the user was warned of, by this process or by workers: nothing is said again by every worker."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Said here."""
        self._texts.add(record.getMessage())

    def pass_on(self, member: Member, warnings: Iterable[Warned]) -> None:
        """Say what a worker says, as it would be said here, if it is new."""
        for logger, level, text in warnings:
            if text not in self._texts:
                self._texts.add(text)
                logging.getLogger(logger).log(level, "node %s: %s", member.name, text)

    def listen(self) -> None:
        """Hear what this process says from now on."""
        if logging.getLogger().handlers:  # Python itself shows warnings where nobody handles them: so it stays
            logging.getLogger().addHandler(self)

    def leave(self) -> None:
        """Hear no more."""
        logging.getLogger().removeHandler(self)


Answer = tuple[Member, Any]
Loss = tuple[Member, str]


class Staff:
    """All workers of a command."""

    def __init__(
        self,
        cluster: Cluster,
        needs: Needs,
        hello: Mapping[str, Any],
        *,
        say: Callable[[str], None],
        patience: float = PATIENCE,
        most: int | None = None,
        told: Told | None = None,
    ) -> None:
        self.cluster, self._needs, self._hello = cluster, needs, dict(hello)
        self._say, self._patience, self._most = say, patience, most or MOST_WORKERS
        self._warned = told or Told()
        self.meanwhile: Callable[[], None] = lambda: None  # called before each wait: it may raise
        self.members: list[Member] = []
        self._nodes: list[Node] = []
        self._looked = -math.inf
        self._shunned: dict[tuple[str, int], float] = {}  # places, until when
        self._unfit: set[str] = set()  # nodes that were refused
        self.gathered = False  # all that can be had at the beginning: what is wrong with later ones refuses nothing
        self._empty_since: float | None = None
        self._told = False  # that it waits for workers

    @property
    def threads(self) -> int:
        """Of each worker."""
        return self._needs.threads

    @property
    def ready(self) -> list[Member]:
        """Those that can be asked for something."""
        return [member for member in self.members if member.ready]

    @property
    def idle(self) -> list[Member]:
        """Those that wait to be asked."""
        return [member for member in self.ready if member.asked is None]

    def summary(self) -> str:
        """How many workers there are and where, in a line."""
        nodes = {member.slot.node.id for member in self.members}
        each = "a GPU" if self._needs.on_gpu else counted(self._needs.cpus_each, "CPU")
        return f"{counted(len(self.members), 'worker')} on {counted(len(nodes), 'node')}, {each} each"

    def ask(self, member: Member, method: str, *args: object) -> None:
        """Ask a worker for something; `wait` has the answer."""
        assert member.asked is None
        member.asked = self.cluster.call(member.handle, method, *args)

    def gather(self, most: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start up to so many workers; all that is wrong with them is found here, before anything is begun.

        Where it is `stopped`, it may be called again and goes on.
        """
        self._look()
        self._needs.refuse_none(self._nodes)
        self.recruit(most)
        began, losses = time.monotonic(), dict[str, int]()
        while not (self.members and all(member.ready for member in self.members)):
            if stopped():
                return
            for member, reason in self.wait(0.5)[1]:  # a node that just left the cluster may still be listed
                losses[member.slot.node.id] = losses.get(member.slot.node.id, 0) + 1
                if losses[member.slot.node.id] == STARTS:
                    raise UserError(f"node {member.name}: no worker can be started: {reason}")
                self._shunned.pop((member.slot.node.id, member.slot.number), None)
                time.sleep(1.0)
            self.recruit(most)
            if self.ready and time.monotonic() - began > GATHER_SECONDS:
                break
        self.gathered = True

    def recruit(self, most: int) -> None:
        """Have up to so many workers, where there is a place for them."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._look()
        taken = {(member.slot.node.id, member.slot.number) for member in self.members}
        for slot in self._needs.slots([node for node in self._nodes if node.id not in self._unfit]):
            place = slot.node.id, slot.number
            if len(self.members) >= min(most, self._most) or place in taken or self._shunned.get(place, 0.0) > now:
                continue
            gpus, cpus = (1, self._needs.cpus or 0) if self._needs.on_gpu else (0, self._needs.cpus_each)
            member = Member(slot, self.cluster.start(slot.node, cpus, gpus))
            member.asked = self.cluster.call(member.handle, "introduce", self._hello)
            self.members.append(member)
        self._refuse_emptiness()

    def wait(self, seconds: float) -> tuple[list[Answer], list[Loss]]:
        """What workers answered within so many seconds, and which were lost, with the reason."""
        self.meanwhile()
        answers, losses = list[Answer](), list[Loss]()
        pending = {each: member for member in self.members for each in (member.asked, member.ping) if each is not None}
        if not pending:
            time.sleep(seconds)
        for each in self.cluster.ready(list(pending), seconds) if pending else ():
            member = pending[each]
            if member not in self.members:
                continue
            try:
                found = self.cluster.get(each)
            except WorkerLost as error:
                losses.append(self._lose(member, str(error)))
                continue
            member.heard = time.monotonic()
            if each is member.ping:
                member.ping = None
                continue
            self._warned.pass_on(member, found.get("warnings", ()))
            member.asked = None
            if member.ready:
                answers.append((member, found))
            else:
                losses += self._meet(member, found)
        losses += self._ask_for_signs()
        return [each for each in answers if each[0] in self.members], losses

    def close(self) -> None:
        """Stop all workers, and be told that they are gone."""
        pending = [each for member in self.members for each in (member.asked, member.ping) if each is not None]
        self.cluster.stop([member.handle for member in self.members], pending)
        self.members.clear()

    def _meet(self, member: Member, introduction: Mapping[str, Any]) -> list[Loss]:
        if introduction["problem"] is None:
            member.process, member.devices = introduction["process"], introduction["devices"]
            member.opens, member.ready = introduction["opens"], True
            return []
        line = f"node {member.name}: {introduction['problem']}"
        self._unfit.add(member.slot.node.id)
        if not self.gathered:
            raise UserError(line)
        self._say(line)
        return [self._lose(member, introduction["problem"])]

    def _ask_for_signs(self) -> list[Loss]:
        """Those that give no sign of life for too long are lost: paused, or out of reach."""
        now, losses = time.monotonic(), list[Loss]()
        for member in self.ready:
            if member.ping is None:
                if now - member.heard > self._patience / 4:
                    member.ping, member.pinged = self.cluster.ping(member.handle), now
            elif now - max(member.pinged, member.heard) > self._patience:
                losses.append(self._lose(member, f"no sign of life for {self._patience:.0f} s"))
        return losses

    def _lose(self, member: Member, reason: str) -> Loss:
        self.members.remove(member)
        self.cluster.kill(member.handle)
        self._looked = -math.inf
        if not member.ready:  # it could not even start: whatever it is, it would happen again
            self._shunned[member.slot.node.id, member.slot.number] = time.monotonic() + REPLACE_SECONDS
        return member, reason

    def _look(self) -> None:
        self._nodes, self._looked = self.cluster.nodes(), time.monotonic()

    def _refuse_emptiness(self) -> None:
        """Give up where no worker can be had for a long time; say it where one is waited for."""
        now = time.monotonic()
        if self.ready:
            self._empty_since, self._told = None, False
        elif self._empty_since is None:
            self._empty_since = now
        elif self.members:
            if now - self._empty_since > GATHER_SECONDS / 2:
                self._say_waiting()
        elif now - self._empty_since > EMPTY_SECONDS:
            raise RunFailed("no worker of the cluster is left; the same command goes on from the last checkpoints")

    def _say_waiting(self) -> None:
        if not self._told:
            self._say(_WAITING)
            self._told = True
