"""Lanes: models trained side by side on one device, each on a stream of its own, from a single thread."""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from poise.actions import Action
from poise.data import Feed, ImageSet
from poise.nets import Model
from poise.training.backend import Backend
from poise.training.phase import PhaseStart
from poise.training.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")
LANES = 8  # at most; beyond it an H200 trains hardly more images per second (see benchmarks)


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


@dataclass
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


class Lanes:
    """Some lanes on one device: one on a CPU, several on a GPU, fewer when its memory does not suffice."""

    def __init__(self, backend: Backend, count: int | None = None) -> None:
        on_gpu = backend.device.type == "cuda"
        self._backend = backend
        self._lanes = [self._new() for _ in range(count or (LANES if on_gpu else 1))]

    def __len__(self) -> int:
        return len(self._lanes)

    def _new(self) -> Lane:
        if self._backend.lane is None:
            return Lane(self._backend)
        return Lane(replace(self._backend, lane=torch.cuda.Stream(self._backend.device)))  # type: ignore[no-untyped-call]

    def fewer(self) -> None:
        """Half as many lanes; everything captured is given back first."""
        count = max(1, len(self._lanes) // 2)
        log.warning("out of memory on %s: going on with %d lanes", self._backend.device, count)
        self._lanes = []
        torch.cuda.empty_cache()
        self._lanes = [self._new() for _ in range(count)]

    def __getitem__(self, place: int) -> Lane:
        return self._lanes[place]

    def side_by_side(self, work: Sequence[Generator[None, None, T]]) -> list[T]:
        """Run one piece of work on each lane, taking turns; returns what each of them returns."""
        self._backend.synchronise()  # what they start from was queued elsewhere
        results: dict[int, T] = {}
        while len(results) < len(work):
            for place, piece in enumerate(work):
                if place in results:
                    continue
                with torch.cuda.stream(self[place].backend.lane):
                    try:
                        next(piece)
                    except StopIteration as end:
                        results[place] = end.value
        for lane in self._lanes:
            lane.backend.synchronise()
        return [results[place] for place in range(len(work))]
