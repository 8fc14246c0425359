"""Lanes: models trained side by side on one device, each on a stream of its own, from a single thread."""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from poise.actions import Action
from poise.data import Feed, ImageSet
from poise.nets import Model
from poise.training.backend import Backend
from poise.training.pace import Gauge, Pace, Piece, give_back
from poise.training.situation import PhaseStart
from poise.training.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Leg:
    """One training inside a trial: what it starts from and what it trains on."""

    start: PhaseStart
    kept: ImageSet
    new: ImageSet
    model: Model  # grown, its new rows imprinted from these new images
    teacher: Model | None
    feed: Feed

    @staticmethod
    def of(start: PhaseStart, kept: ImageSet, new: ImageSet) -> Leg:
        """The training of these images from there."""
        return Leg(start, kept, new, start.grown(new), start.teacher(), start.feed(kept, new))


@dataclass(eq=False)
class Lane:
    """A place where one model is trained. Captured steps stay here and serve every training of the same shape."""

    backend: Backend
    _trainers: dict[tuple[object, ...], Trainer] = field(default_factory=dict)

    def trainer(self, leg: Leg, action: Action, epochs: int | None, address: tuple[int | str, ...]) -> Trainer:
        """A training of that leg, ready to run."""
        start = replace(leg.start, backend=self.backend)
        networks = [tuple(model.state_dict()) for model in (leg.model, leg.teacher) if model is not None]
        shape = (leg.start.growth, len(leg.feed), action.old_rows, action.balance, *networks)
        kept = self._trainers.get(shape)
        if kept is None:
            captured = self.backend.device.type == "cuda"
            feed = leg.feed.copy() if captured else leg.feed
            teacher = copy.deepcopy(leg.teacher) if captured else leg.teacher
            made = start.trainer(copy.deepcopy(leg.model), teacher, action, feed, epochs=epochs, address=address)
            if made.captures:
                self._trainers[shape] = made
            return made
        kept.feed.load(leg.feed)
        if kept.teacher is not None and leg.teacher is not None:
            kept.teacher.load_state_dict(leg.teacher.state_dict())
        kept.restart(action, start.lasting(epochs or action.epochs), address, leg.model.state_dict())
        return kept

    def turn(self, piece: Piece[T]) -> int:
        """Let a piece of work go on here for a moment; raises `StopIteration` with its result when it ends."""
        with torch.cuda.stream(self.backend.lane):
            try:
                return next(piece)
            except StopIteration:
                self.backend.synchronise()  # what comes of it may be used on other lanes
                raise


class Lanes:
    """Some lanes on one device: one on a CPU; on a GPU as many as its pace allows, unless a number is given.

    `kind` of work: what was found out about the pace of one serves the next of the same kind.
    """

    def __init__(self, backend: Backend, count: int | None = None, kind: tuple[int, ...] = ()) -> None:
        self._backend = backend
        if count is None and backend.device.type == "cuda":
            self._pace = Pace(gauge=Gauge.of(backend.device), kind=(str(backend.device), *kind))
        else:
            self._pace = Pace(count or 1)
        self._lanes: list[Lane] = []  # those that were needed so far

    def __len__(self) -> int:
        return self._pace.allowed

    def __getitem__(self, place: int) -> Lane:
        while len(self._lanes) <= place:
            self._lanes.append(self._new())
        return self._lanes[place]

    def _new(self) -> Lane:
        if self._backend.lane is None:
            return Lane(self._backend)
        return Lane(replace(self._backend, lane=torch.cuda.Stream(self._backend.device)))  # type: ignore[no-untyped-call]

    def fewer(self) -> None:
        """Half as many lanes; everything captured is given back first."""
        self._pace.fewer(len(self) // 2)
        log.warning("out of memory on %s: going on with %d lanes", self._backend.device, len(self))
        self.keep(0)

    def keep(self, count: int) -> None:
        """Give back what was captured on the other lanes."""
        del self._lanes[count:]
        give_back()

    def side_by_side(self, work: Sequence[Callable[[Lane], Piece[T]]]) -> Generator[T, None, None]:
        """Run pieces of work, each on a lane, taking turns; results in the order of asking, as soon as they are known.

        A piece that waits starts on whichever lane is free.
        """
        self._backend.synchronise()  # what they start from was queued elsewhere
        waiting, results = deque(enumerate(work)), dict[int, T]()
        active: dict[int, tuple[Lane, Piece[T]]] = {}
        told = 0
        try:
            while told < len(work):
                while waiting and len(active) < len(self):
                    place, start = waiting.popleft()
                    lane = self._idle([busy for busy, _ in active.values()])
                    active[place] = lane, start(lane)
                    self._pace.begin(place)
                self._pace.look(len(waiting))
                for place, (lane, piece) in list(active.items()):
                    try:
                        self._pace.did(lane.turn(piece))
                    except StopIteration as end:
                        results[place] = end.value
                        del active[place]
                        self._pace.end(place)
                while told in results:
                    left = time.perf_counter()
                    yield results.pop(told)
                    self._pace.paused(time.perf_counter() - left)
                    told += 1
        finally:
            for place in active:
                self._pace.end(place)

    def _idle(self, busy: Sequence[Lane]) -> Lane:
        """A lane on which nothing runs; those that are too many are given back."""
        self._lanes = [lane for place, lane in enumerate(self._lanes) if place < len(self) or lane in busy]
        return next((lane for lane in self._lanes if lane not in busy), None) or self[len(self._lanes)]
