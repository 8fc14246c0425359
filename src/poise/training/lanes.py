"""Lanes: work side by side on one device, each piece on a stream of its own, from a single thread.

The only scheduler on a device: trials of a round and runs of a sweep take turns here, and what finds no memory beside
the others waits here until there is more of it. How many lanes there are never changes a number.

An executor says where attempts run: here, on lanes, or elsewhere by whoever implements the same protocol. A bench is
what they are run on: a phase's inputs, or the folder of a sweep. Benches and attempts are plain values that pickle, so
that they can be sent away (but for the trials of a study with a witness, which stay here).
"""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import torch

from poise.actions import Action
from poise.errors import OutOfMemory
from poise.training.capture import StepCache
from poise.training.context import LocalPhase
from poise.training.device import Backend
from poise.training.trainer import Trainer

log = logging.getLogger(__name__)

A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
Work = Generator[object, None, T]  # yields whenever others may have their turn

LANES: Final = 8  # on a GPU, where nobody says another number: with more, an H200 is no faster

#: Among how many pieces of work, each of which may have lanes of its own, what runs at present is one.
_SHARERS: ContextVar[int] = ContextVar("sharers", default=1)


def give_back() -> None:
    """Free unused memory, including captured steps, which hold references to each other."""
    gc.collect()
    torch.cuda.empty_cache()


@dataclass(eq=False)
class Lane:
    """A place where one model is trained. Captured steps stay here and serve every training of the same shape."""

    backend: Backend
    _kept: dict[tuple[object, ...], StepCache] = field(default_factory=dict)

    def trainer(self, begun: LocalPhase, action: Action, epochs: int, address: tuple[int | str, ...]) -> Trainer:
        """A training of that local phase, ready to run."""
        networks = [tuple(model.state_dict()) for model in (begun.model, begun.teacher) if model is not None]
        # Equal shapes have equal counts of images and classes, settings of the step, and names of all weights: two
        # networks with the same number of classes may differ, and so may their teachers.
        shape = (begun.context.growth, begun.feed.kind, begun.follows, *action.step_key, *networks)
        kept = self._kept.get(shape)
        if kept is not None:
            kept.load(begun)
        else:
            on_gpu = self.backend.device.type == "cuda"
            feed = begun.feed.copy() if on_gpu else begun.feed
            teacher = begun.teacher.copy() if on_gpu and begun.teacher is not None else begun.teacher
            kept = StepCache(begun.model.copy(owns_fresh=begun.follows), teacher, feed, begun)
        context = replace(begun.context, backend=self.backend)
        made = Trainer(context, kept.model, kept.teacher, action, kept.feed, epochs=epochs, address=address, kept=kept)
        if made.captures:
            self._kept[shape] = kept
        return made


class Bench(Protocol[A_contra, R_co]):
    """Runs single attempts on lanes. What it reached stays with it, so that a later attempt may continue there."""

    def work(self, attempt: A_contra, lane: Lane) -> Work[R_co]:
        """One attempt, a little at a time; its result at the end. It may be started again."""

    def waits(self, attempt: A_contra) -> None:
        """Called when an attempt waits for memory, which others hold at present."""

    def failed(self, attempt: A_contra, error: Exception) -> R_co:
        """The result of an attempt that finds no memory even alone; or raise the error again."""


class Executor(Protocol):
    """Runs attempts on a bench, somewhere."""

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """The results of all attempts in the order of asking, each time those that became known: none, one or more.

        Two calls with equal values give equal results, so that nobody can tell where they were made.
        """


@runtime_checkable
class WaitingExecutor(Executor, Protocol):
    """An executor that waits for other machines, and calls `meanwhile` at least once a second, which may raise.

    Attempts that are under way are then lost, and all results that were given out before are known.
    """

    meanwhile: Callable[[], None]


Active = dict[int, tuple[Lane, Work[R]]]  # by their places, the attempts at work


class Lanes:
    """Lanes on one device: `count` of them, by default one on a CPU and eight on a GPU.

    After an attempt found no memory there are half as many. Inside of work that itself shares the
    device each has fewer by default, so that a sweep of eight runs does not train 64 models at once.

    Args:
        count: how many attempts may be at work at once, if that is given.
        admits: whether another attempt may start at present.
        ready: whether this attempt may start beside others.
    """

    def __init__(
        self,
        backend: Backend,
        count: int | None = None,
        *,
        admits: Callable[[], bool] = lambda: True,
        ready: Callable[[Any], bool] = lambda attempt: True,
    ) -> None:
        self.backend, self._admits, self._ready = backend, admits, ready
        self._given = count is not None
        self.most = count or (LANES if backend.device.type == "cuda" else 1)
        if backend.world.joined:
            self.most = 1  # all ranks must exchange things in the same order
        self._lanes: list[Lane] = []  # those that were needed so far

    def __len__(self) -> int:
        """How many may be at work at once."""
        return self.most if self._given else max(1, min(self.most, LANES // _SHARERS.get()))

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """Run all attempts, taking turns; after every round those results that became known, in the order of asking.

        Between two rounds others may have their turn. An attempt that waits starts on whichever lane is free; where
        none is ready or at work, the first one starts. One that finds no memory beside others starts again when there
        is more of it; what comes of one that finds none alone, the bench says.
        """
        self.backend.synchronise()  # what they start from was queued elsewhere
        waiting, told = deque(range(len(attempts))), 0
        active: Active[R] = {}
        results: dict[int, R] = {}
        try:
            while active or waiting:
                if self._admits():
                    self._start(active, waiting, bench, attempts)
                if not active:
                    break
                failed, sharers = None, _SHARERS.set(_SHARERS.get() * len(active))
                try:
                    for place, (lane, work) in list(active.items()):
                        try:
                            with torch.cuda.stream(lane.backend.lane):
                                next(work)
                        except StopIteration as end:
                            lane.backend.synchronise()  # its result may be used on other lanes
                            results[place] = end.value
                            del active[place]
                        except (torch.cuda.OutOfMemoryError, OutOfMemory) as error:
                            del active[place]
                            if active or len(self._lanes) > 1:
                                failed = place
                                break
                            results[place] = bench.failed(attempts[place], error)
                finally:
                    _SHARERS.reset(sharers)
                del lane, work  # nothing may keep a failed training alive, nor what was captured for it
                if failed is not None:
                    bench.waits(attempts[failed])
                    waiting.appendleft(failed)
                    self._halve(active)
                known = list[R]()
                while told in results:
                    known.append(results.pop(told))
                    told += 1
                yield known
        finally:
            for _, work in active.values():
                work.close()

    def _start(self, active: Active[R], waiting: deque[int], bench: Bench[A, R], attempts: Sequence[A]) -> None:
        """Start attempts that wait and are ready on free lanes; the first one where nothing else is at work."""
        while waiting and len(active) < len(self):
            ready = (place for place in waiting if self._ready(attempts[place]))
            place = next(ready, None if active else waiting[0])
            if place is None:
                break
            waiting.remove(place)
            lane = self._idle_lane(active)
            active[place] = lane, bench.work(attempts[place], lane)

    def keep(self, busy: Sequence[Lane] = ()) -> None:
        """Give back every other lane, with all that was captured there."""
        if any(lane not in busy for lane in self._lanes):
            self._lanes = list(busy)
            give_back()

    def _idle_lane(self, active: Active[R]) -> Lane:
        """A lane on which nothing runs, a new one if need be; more than may be at work are not kept."""
        busy = [lane for lane, _ in active.values()]
        self._lanes = [lane for place, lane in enumerate(self._lanes) if place < len(self) or lane in busy]
        for lane in self._lanes:
            if lane not in busy:
                return lane
        stream = self.backend.lane
        if stream is not None:
            stream = torch.cuda.Stream(self.backend.device)  # type: ignore[no-untyped-call]
        self._lanes.append(Lane(replace(self.backend, lane=stream)))
        return self._lanes[-1]

    def _halve(self, active: Active[R]) -> None:
        """Half as many from now on; the lanes on which nothing runs any more are given back."""
        if len(active) < self.most:  # else more are still at work than may be by now
            self.most = max(1, self.most // 2)
        self.keep([lane for lane, _ in active.values()])
        log.warning("out of memory on %s: at most %d at a time from now on", self.backend.device, self.most)
