"""The cells of a sweep on the workers of a cluster.

A cell whose worker is lost goes on elsewhere from its last checkpoint. Its new attempt is numbered in its folder, so
that the old one, should it still live, stops before it writes again (`poise.runs.claims`).
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poise.errors import PoiseError, RunFailed, UserError
from poise.progress import SweepDisplay
from poise.ray.staff import Loss, Member, Needs, Staff
from poise.runs.folder import RunFolder
from poise.runs.sweep import CellBench, Failure, lanes_on
from poise.runs.sweep_file import Cell
from poise.training import LocalExecutor

MOST_LOST = 3  # attempts without a new checkpoint, after which a cell has failed
WAIT_SECONDS = 0.5
TOKEN_SECONDS = 86_400.0  # after which a token is nobody's
_TOKEN = ".poise-"


@dataclass(eq=False)
class Job:
    """A cell, and how its attempts went."""

    cell: Cell
    folder: RunFolder
    lost: int = 0  # attempts in a row that ended with their worker and made no new checkpoint
    suspect: bool = False  # it lost a worker
    checkpoint: int = -1  # the newest one when its attempt began
    attempt: str | None = None  # the name of its attempt; none is needed for one that is finished

    @property
    def name(self) -> str:
        """Of the cell."""
        return self.cell.name

    def words(self) -> dict[str, Any]:
        """What a worker is sent: nothing but words."""
        return {"cell": self.name, "attempt": self.attempt, **self.cell.plan.as_json()}

    def begin(self) -> None:
        """A new attempt; all before it stop."""
        self.checkpoint = self.folder.last_checkpoint()
        self.attempt = None if self.folder.finished else self.folder.open_attempt()

    def lose(self) -> None:
        """The attempt has ended with its worker."""
        self.lost = 0 if self.folder.last_checkpoint() > self.checkpoint else self.lost + 1
        self.suspect = True
        if self.folder.finished:  # it had ended, and could not say so
            self.lost = min(self.lost, MOST_LOST - 1)


def cell_needs(cells: Sequence[Cell], has_gpus: bool, cpus: int | None, threads: int) -> Needs:
    """What the workers of these cells need; a GPU each, where there are some and a cell may use one."""
    devices = {cell.plan.recipe.device for cell in cells}
    numbered = sorted(device for device in devices if device.startswith("cuda:"))
    if numbered:
        raise UserError(f"device={numbered[0]} is a GPU of this machine; on a cluster use device=cuda")
    return Needs("cuda" in devices or (has_gpus and devices != {"cpu"}), cpus, threads)


def finish_here(bench: CellBench, cells: Sequence[Cell]) -> dict[str, Failure | None]:
    """What comes of the cells that are finished already, for which no worker is needed."""
    found: dict[str, Failure | None] = {}
    for cell in cells:
        if bench.folder(cell).finished:
            for results in LocalExecutor(lanes_on("cpu", 1)).run(bench, [cell]):
                found.update((cell.name, result) for result in results)
    return found


class Token:
    """A file in the folder of all runs, by which a worker sees that it is the same folder there."""

    def __init__(self, out: Path) -> None:
        self.out, self.name, self.token = out, f"{_TOKEN}{secrets.token_hex(6)}", secrets.token_hex(16)

    def __enter__(self) -> dict[str, str]:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            for old in self.out.glob(f"{_TOKEN}*"):  # of commands that were killed
                with suppress(FileNotFoundError):  # those of others come and go
                    if time.time() - old.stat().st_mtime > TOKEN_SECONDS:
                        old.unlink()
            (self.out / self.name).write_text(self.token)
        except OSError as error:
            raise UserError(f"{self.out} cannot be used: {error.strerror}; choose another --out") from error
        return {"folder": str(self.out), "name": self.name, "token": self.token}

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            (self.out / self.name).unlink()


class CellDriver:
    """Hands out cells, one at a time or as many as a worker has room for, and gathers what comes of them."""

    def __init__(self, staff: Staff, bench: CellBench, cells: Sequence[Cell]) -> None:
        self._staff, self._bench = staff, bench
        self._waiting = deque(
            Job(cell, RunFolder(bench.out / cell.name, numbered=True, takes_over=True)) for cell in cells
        )
        self._working: dict[Member, dict[str, Job]] = {}
        self._room: dict[Member, int] = {}
        self.results: dict[str, Failure | None] = {}

    def run(self) -> None:
        """Until every cell has ended; or, where it is asked to stop, until those at work have stopped."""
        while self._at_work or (self._waiting and not self._bench.stop.is_set()):
            self._staff.recruit(len(self._waiting) + len(self._at_work))
            self._hand_out()
            answers, losses = self._staff.wait(WAIT_SECONDS)
            for member, report in answers:
                self._hear(member, report)
            for loss in losses:
                self._lose(loss)

    @property
    def _at_work(self) -> list[Job]:
        return [job for jobs in self._working.values() for job in jobs.values()]

    def _hand_out(self) -> None:
        stop = self._bench.stop.signal if self._bench.stop.is_set() else None
        for member in self._staff.idle:
            jobs = self._working.setdefault(member, {})
            orders = self._orders(member, jobs) if stop is None else []
            orders = [job for job in orders if self._begin(job)]
            jobs.update({job.name: job for job in orders})
            if jobs:
                self._staff.ask(member, "turn", [job.words() for job in orders], len(self._waiting), stop)

    def _begin(self, job: Job) -> bool:
        """Whether an attempt at this cell can begin: its folder can be written, and no command works there."""
        try:
            job.begin()
        except PoiseError as error:
            self.results[job.name] = self._bench.failed(job.cell, error)
            return False
        return True

    def _orders(self, member: Member, jobs: Mapping[str, Job]) -> list[Job]:
        """What this worker begins now. A cell that lost its worker has one to itself: perhaps it was to blame."""
        room = self._room.get(member, 1)
        orders: list[Job] = []
        while self._waiting and len(orders) < room and not any(job.suspect for job in (*jobs.values(), *orders)):
            if self._waiting[0].suspect and (jobs or orders):
                break
            orders.append(self._waiting.popleft())
        return orders

    def _hear(self, member: Member, report: Mapping[str, Any]) -> None:
        self._room[member] = report["room"]
        view = self._bench.view
        for name, result in report["done"].items():
            job = self._working[member].pop(name, None)
            if job is not None and result is not None:
                job.folder.withdraw_attempt()
            self.results[name] = result
        if view is None:
            return
        for line in report["lines"]:
            view.say(line)
        for name, standing in report["standings"].items():
            if name in self._working[member]:
                view.note(name, standing)
        for name in report["ended"]:
            view.ended(name)

    def _lose(self, loss: Loss) -> None:
        member, reason = loss
        again: list[str] = []
        for job in self._working.pop(member, {}).values():
            job.lose()
            if isinstance(self._bench.view, SweepDisplay):
                self._bench.view.lost(job.name)
            if job.lost >= MOST_LOST:
                job.folder.withdraw_attempt()
                failure = RunFailed(
                    f"lost its worker {MOST_LOST} times without a new checkpoint (node {member.name}: {reason}); the "
                    "same command tries again"
                )
                self.results[job.name] = self._bench.failed(job.cell, failure)
            else:
                self._waiting.appendleft(job)
                again.append(job.name)
        if self._bench.view is not None and again:
            names = ", ".join(again)
            self._bench.view.say(f"node {member.name}: a worker is lost ({reason}); on another one: {names}")
