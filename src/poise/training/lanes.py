"""Lanes: work side by side on one device, each piece on a stream of its own, from a single thread.

The only scheduler: trials of a round, a judgement beside the phase's own training, and the runs of a sweep take turns
here, and what does not fit into memory beside the others waits here until it does. Trials of a run in a sweep take
turns with the other runs, and the more of these there are, the fewer lanes they have for themselves. As long as the
right number of runs is being measured, they have one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch

from poise.actions import Action
from poise.errors import OutOfMemory
from poise.training.backend import Backend
from poise.training.pace import MOST_PIECES, WINDOW, Gauge, Pace, Work, give_back
from poise.training.situation import LocalPhase
from poise.training.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E")


@dataclass(eq=False)
class Lane:
    """A place where one model is trained. Captured steps stay here and serve every training of the same shape."""

    backend: Backend
    _trainers: dict[tuple[object, ...], Trainer] = field(default_factory=dict)

    def trainer(self, begun: LocalPhase, action: Action, epochs: int, address: tuple[int | str, ...]) -> Trainer:
        """A training of that local phase, ready to run."""
        networks = [tuple(model.state_dict()) for model in (begun.model, begun.teacher) if model is not None]
        shape = (begun.situation.growth, begun.feed.kind, begun.follows, *action.step_key, *networks)
        known = self._trainers.get(shape)
        if known is not None:
            known.restart(begun, action, epochs, address)
            return known
        situation = replace(begun.situation, backend=self.backend)
        on_gpu = self.backend.device.type == "cuda"
        feed = begun.feed.copy() if on_gpu else begun.feed
        teacher = begun.teacher.copy() if on_gpu and begun.teacher is not None else begun.teacher
        model = begun.model.copy(owns_fresh=begun.follows)
        made = Trainer(situation, model, teacher, action, feed, epochs=epochs, address=address, begun=begun)
        if made.captures:
            self._trainers[shape] = made
        return made

    def turn(self, work: Work[T]) -> int:
        """Let a piece of work continue here for a moment; raises `StopIteration` with its result when it ends."""
        with torch.cuda.stream(self.backend.lane):
            try:
                return next(work)
            except StopIteration:
                self.backend.synchronise()  # its result may be used on other lanes
                raise


Job = Callable[[Lane], Work[T]]  # starts, or starts again, a piece of work on a lane


class _Sharing(threading.local):
    """Among how many pieces of work, each of which may have lanes of its own, what runs in this thread is one."""

    pieces = 1


_SHARING = _Sharing()


@contextmanager
def _sharing(pieces: int) -> Iterator[None]:
    """One of so many pieces has its turn."""
    before = _SHARING.pieces
    _SHARING.pieces = before * max(1, pieces)
    try:
        yield
    finally:
        _SHARING.pieces = before


def _part() -> int:
    """How many lanes are left to a piece of work that shares the device."""
    return max(1, MOST_PIECES // _SHARING.pieces)


class Lanes:
    """Some lanes on one device: one on a CPU; on a GPU as many as its pace allows, unless a number is given.

    `kind` of work: what was found out about the pace of one serves the next of the same kind. Inside of a piece of work
    that shares the device with others, there are as many as leave all of them `MOST_PIECES`, as far as memory permits:
    nothing is measured there.
    """

    def __init__(
        self, backend: Backend, count: int | None = None, kind: tuple[int, ...] = (), window: float = WINDOW
    ) -> None:
        self.backend = backend
        count = 1 if backend.world.joined else count  # all ranks must exchange things in the same order
        self._measured = count is None and backend.device.type == "cuda"
        if self._measured:
            known = (str(backend.device), *kind) if kind else None
            self.pace = Pace(gauge=Gauge.of(backend.device), kind=known, window=window)
        else:
            self.pace = Pace(count or 1)
        self._lanes: list[Lane] = []  # those that were needed so far
        self._most = MOST_PIECES  # at once, where the work to do is not worth more of them

    def __len__(self) -> int:
        """How many may be at work at once."""
        if not self._measured or _SHARING.pieces == 1:
            return min(self._most, self.pace.allowed)
        return min(self._most, _part(), self.pace.beside_others)

    def limit(self, most: int) -> None:
        """Use at most so many where their number is found by measuring."""
        if self._measured:
            self._most = most

    @property
    def opened(self) -> int:
        """How many there are at present."""
        return len(self._lanes)

    def first(self, count: int) -> list[Lane]:
        """The first lanes of those there are."""
        return self._lanes[:count]

    def keep(self, lanes: Sequence[Lane] = ()) -> None:
        """Give back every other lane, with all that was captured there."""
        self._lanes = [lane for lane in self._lanes if lane in lanes]
        give_back()

    def idle(self, busy: Sequence[Lane], most: int) -> Lane:
        """A lane on which nothing runs; those beyond `most` are given back."""
        self._lanes = [lane for place, lane in enumerate(self._lanes) if place < most or lane in busy]
        free = next((lane for lane in self._lanes if lane not in busy), None)
        return free or self._open()

    def _open(self) -> Lane:
        stream = self.backend.lane
        if stream is not None:
            stream = torch.cuda.Stream(self.backend.device)  # type: ignore[no-untyped-call]
        self._lanes.append(Lane(replace(self.backend, lane=stream)))
        return self._lanes[-1]

    def side_by_side(
        self,
        jobs: Sequence[Job[T]],
        *,
        admits: Callable[[], bool] = lambda: True,
        waits: Callable[[int], None] = lambda place: None,
        too_large: Callable[[int, Exception], T] | None = None,
    ) -> Generator[list[T], None, None]:
        """Run all jobs, taking turns; after every round those results that became known, in the order of asking.

        Between two rounds others may have their turn. A job that waits starts on whichever
        lane is free, as long as `admits` says so. One that finds no memory beside others starts again when there is
        more of it, and `waits` is told; one that finds none alone raises, unless `too_large` makes a result of that.
        """
        crew, told = Crew(self, jobs, waits=waits, too_large=too_large), 0
        try:
            while crew.active or (crew.waiting and admits()):
                crew.take_turns(admits())
                known = list[T]()
                while told in crew.results:
                    known.append(crew.results.pop(told))
                    told += 1
                left = time.perf_counter()
                yield known
                self.pace.leave_out(time.perf_counter() - left)
        finally:
            crew.dismiss()

    def beside(
        self, main: Iterable[E], jobs: Sequence[Job[T]], done: Callable[[list[T]], E]
    ) -> Generator[E, None, None]:
        """The events of a main training, with these jobs beside it, all at once; `done` turns their results into one.

        Where memory does not suffice for both, the jobs run after the main training.
        """
        crew = Crew(self, jobs, beside=True)

        def event() -> E:
            return done([crew.results[place] for place in range(len(jobs))])

        try:
            for each in main:
                yield each
                if crew.busy and not crew.held:
                    crew.take_turns()
                    if not crew.busy:
                        yield event()
            if crew.busy:
                crew.release()
                while crew.busy:
                    crew.take_turns()
                yield event()
        finally:
            crew.dismiss()


class Crew(Generic[T]):
    """Jobs at work on lanes; others may join them.

    Beside a main training they are all at work at once, whatever the pace allows, and the pace learns nothing of them:
    it is about work that has the device to itself.
    """

    def __init__(
        self,
        lanes: Lanes,
        jobs: Sequence[Job[T]] = (),
        *,
        beside: bool = False,
        waits: Callable[[int], None] = lambda place: None,
        too_large: Callable[[int, Exception], T] | None = None,
    ) -> None:
        lanes.backend.synchronise()  # what they start from was queued elsewhere
        self._lanes, self._beside, self._waits, self._too_large = lanes, beside, waits, too_large
        self._pace = Pace(len(jobs)) if beside else lanes.pace
        self.held = False
        self.waiting = deque(enumerate(jobs))
        self._joined = len(jobs)
        self.active: dict[int, tuple[Lane, Work[T], Job[T]]] = {}
        self.results: dict[int, T] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.active)

    @property
    def room(self) -> int:
        """How many more could be at work at once."""
        return max(0, self._allowed - len(self.active) - len(self.waiting))

    @property
    def _allowed(self) -> int:
        """How many may be at work at once."""
        return len(self._lanes) if self._pace is self._lanes.pace else self._pace.allowed

    def join(self, job: Job[T]) -> int:
        """One job more; by this number its result is known."""
        self.waiting.append((self._joined, job))
        self._joined += 1
        return self._joined - 1

    def take_turns(self, admits: bool = True, more: int = 0) -> None:
        """Start what may start, and let every job continue for a moment; so many `more` wait for room elsewhere."""
        if admits:
            self._admit()
        if _SHARING.pieces > 1:
            self._pace.share(_part())
        else:
            self._pace.look(len(self.waiting) + more)
        failed: tuple[int, Job[T]] | None = None
        sharers = self._sharers(len(self.waiting) + more)
        for place in list(self.active):
            lane, work, job = self.active[place]
            try:
                with _sharing(sharers):
                    images = self._turn(lane, work)
                self._pace.count_images(images)
                continue
            except StopIteration as end:
                self.results[place] = end.value
            except (torch.cuda.OutOfMemoryError, OutOfMemory) as error:
                if self._beside or len(self.active) > 1 or self._lanes.opened > 1:
                    failed = place, job
                elif self._too_large is None:
                    raise
                else:
                    self.results[place] = self._too_large(place, error)
            del self.active[place], work
            self._pace.end(place)
            if failed:
                del lane
                break
        if failed:  # outside the handler, which would keep the failed training alive
            self._wait(*failed)

    def _sharers(self, waiting: int) -> int:
        """Among how many pieces the lanes inside of them are shared out: those at work.

        While it is measured how many there may be, it is as many as there could be: a piece that had all lanes for its
        trials would seem to be as fast as several, and no other one would ever join it.
        """
        return MOST_PIECES if waiting and not self._pace.settled else len(self.active)

    def _turn(self, lane: Lane, work: Work[T]) -> int:
        """A moment; beside a main training until the job has trained on something, so that it keeps up."""
        images = lane.turn(work)
        while self._beside and not images:
            images = lane.turn(work)
        return images

    def _admit(self) -> None:
        allowed = self._allowed
        while self.waiting and len(self.active) < allowed:
            place, job = self.waiting.popleft()
            lane = self._lanes.idle([busy for busy, _, _ in self.active.values()], allowed)
            self.active[place] = lane, job(lane), job
            self._pace.begin(place)

    def _wait(self, place: int, job: Job[T]) -> None:
        """Memory did not suffice: the job goes back to the queue, its lane and idle ones are given back.

        Beside a main training, which needs the memory most, all jobs wait for its end.
        """
        self._waits(place)
        self.waiting.appendleft((place, job))
        if self._beside:
            self.held = True
            self.waiting.extend((other, held) for other, (_, _, held) in self.active.items())
            self.active.clear()
        else:
            self._pace.allow_at_most(len(self.active), beside_others=_SHARING.pieces > 1)
        self._lanes.keep([lane for lane, _, _ in self.active.values()])
        log.warning("out of memory on %s: %d at a time from now on", self._lanes.backend.device, len(self.active) or 1)

    def release(self) -> None:
        """What was beside the jobs has ended. Those that had to wait for it run one at a time."""
        if self.held:
            self._pace = Pace(1)
        self.held = self._beside = False

    def dismiss(self) -> None:
        """Leave whatever still runs."""
        for place, (_, work, _) in self.active.items():
            work.close()
            self._pace.end(place)
        self.active.clear()
