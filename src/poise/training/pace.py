"""Pace: how many pieces of work share a device, found by measuring their speed as they run."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch

from poise.data import free_on
from poise.training.capture import CapturedRunner

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Generator[int, None, T]  # yields 1 after a training step, 0 after anything else
MOST_PIECES = 8  # with more, an H200 is no faster, and every lane costs a capture
GAIN = 1.05  # the least speed-up, in images per second, for which the number of pieces is doubled
MARGIN = 1.25  # free memory needed to double the pieces, as a multiple of what the running ones took
FIRST = 2  # steps of each piece, on average, before they are measured
WINDOW = 0.5  # seconds over which a rate is measured
LANE_RATE = 43_000.0  # images per second of one lane, as measured on an H200
CAPTURE_SECONDS = 1.0  # of one captured step, an estimate


@dataclass(frozen=True)
class Gauge:
    """What is measured: the host's clock, free bytes of a device, and how many steps were captured so far."""

    clock: Callable[[], float] = time.perf_counter
    free: Callable[[], int] = lambda: 0
    captured: Callable[[], int] = lambda: CapturedRunner.captured
    wait: Callable[[], None] = lambda: None  # until the device has finished all queued work

    @staticmethod
    def of(device: torch.device) -> Gauge:
        """The gauge of a GPU."""
        return Gauge(free=lambda: free_on(device), wait=lambda: torch.cuda.synchronize(device))


class Found(NamedTuple):
    """What is known about the right number of pieces.

    Attributes:
        allowed: how many pieces may run at once.
        settled: whether that number is final.
        rate: images per second of `allowed` pieces if settled, otherwise of half that number.
    """

    allowed: int = 1
    settled: bool = False
    rate: float = 0.0


_FOUND: dict[Hashable, Found] = {}  # by kind of work, for the life of the process


def worthwhile_lanes(images: float, captures: int) -> int:
    """How many lanes finish so much work soonest, where each of them first captures so many steps.

    The speed of several lanes is taken to grow as the third root of their number; while one captures, nothing else is
    queued.

    >>> worthwhile_lanes(1e6, 6), worthwhile_lanes(4e6, 6), worthwhile_lanes(4e6, 3), worthwhile_lanes(1e8, 3)
    (1, 3, 6, 8)
    """

    def needed(lanes: int) -> float:
        return float(images / (LANE_RATE * lanes ** (1 / 3)) + CAPTURE_SECONDS * captures * lanes)

    return min(range(1, MOST_PIECES + 1), key=needed)


class Pace:
    """How many pieces may run at once.

    It starts with one and doubles the number while that trains at least 5 % more images per second and memory suffices.
    A rate is measured over a window in which all allowed pieces run and nothing is captured; a disappointing one is
    measured again. The result for a `kind` of work holds for the rest of the process.
    """

    def __init__(
        self, count: int | None = None, *, gauge: Gauge | None = None, kind: Hashable = None, window: float = WINDOW
    ) -> None:
        self._gauge, self._kind, self._window = gauge or Gauge(), kind, window
        known = _FOUND.get(kind, Found()) if kind is not None else Found()
        self._found = known if count is None else Found(count, settled=True)
        self._working: set[Hashable] = set()
        self._mark: float | None = None  # when the window began
        self._captured = self._steps = self._images = 0  # steps and images since it was last disturbed, or began
        self._doubted = False
        self._beside = 1
        self._before = 0 if self._found.settled else self._gauge.free()

    @property
    def allowed(self) -> int:
        """How many pieces may run at once."""
        return self._found.allowed

    @property
    def settled(self) -> bool:
        """Whether that number is final."""
        return self._found.settled

    @property
    def beside_others(self) -> int:
        """How many may run at once while others share the device, as far as memory is known to suffice."""
        return self.allowed if self._found.settled else self._beside

    def begin(self, piece: Hashable) -> None:
        """A piece has started."""
        self._working.add(piece)

    def count_images(self, images: int) -> None:
        """A piece trained on this number of images."""
        self._steps += images > 0
        self._images += images

    def end(self, piece: Hashable) -> None:
        """A piece has ended or failed."""
        self._working.discard(piece)

    def leave_out(self, seconds: float) -> None:
        """Nothing was queued for this time, which does not belong to the window."""
        if self._mark is not None:
            self._mark += seconds

    def share(self, most: int) -> None:
        """Others share the device at present: nothing is measured, and at most so many are allowed as memory permits.

        Their number is doubled once those that run have trained, and so taken what they need.
        """
        self._mark, self._beside = None, min(self._beside, most)
        trained = len(self._working) >= self._beside and self._steps >= FIRST * self._beside
        if self._beside < most and trained and self._fits():
            self._beside, self._steps = min(2 * self._beside, most), 0

    def start_over(self) -> None:
        """What was being measured is not about the allowed number of pieces alone."""
        self._mark, self._steps = None, 0

    def look(self, waiting: int) -> None:
        """Measure and adjust; called before each round of turns, once every piece that may run has been admitted."""
        if self._found.settled:
            return
        before, self._captured = self._captured, self._gauge.captured()
        if len(self._working) != self.allowed or self._captured != before:  # there were more beside others
            self.start_over()
        elif self._mark is None:
            if self._steps >= FIRST * self.allowed:
                self._gauge.wait()
                self._mark, self._images = self._gauge.clock(), 0
        elif self._gauge.clock() - self._mark >= self._window:
            self._gauge.wait()
            rate = self._images / (self._gauge.clock() - self._mark)
            self._mark, self._steps = None, 0
            if rate > 0:  # otherwise nothing was trained in the window
                self._judge(rate, waiting)

    def allow_at_most(self, count: int, *, beside_others: bool = False) -> None:
        """Memory did not suffice: allow at most `count` pieces from now on, or as long as others are there."""
        self._mark, self._steps, self._beside = None, 0, max(1, count)
        if not beside_others:
            self._know(Found(max(1, count), settled=True))

    def _judge(self, rate: float, waiting: int) -> None:
        count, before = self.allowed, self._found.rate
        if rate < GAIN * before:
            if self._doubted:
                self._settle(count // 2, before, f"{count} train {rate:,.0f}")
            self._doubted = not self._doubted
            return
        self._doubted = False
        if 2 * count > MOST_PIECES:
            self._settle(count, rate, "the maximum")
        elif not self._fits():
            self._settle(count, rate, "memory does not suffice for more")
        elif waiting:
            self._know(Found(2 * count, settled=False, rate=rate))

    def _fits(self) -> bool:
        """Whether memory suffices for twice the pieces."""
        free = self._gauge.free()
        return free >= MARGIN * (self._before - free)

    def _settle(self, count: int, rate: float, why: str) -> None:
        log.info("lanes: %d, %s images/s, %s", count, f"{rate:,.0f}", why)
        self._know(Found(count, settled=True, rate=rate))

    def _know(self, found: Found) -> None:
        self._found = found
        if self._kind is not None:
            _FOUND[self._kind] = found


def give_back() -> None:
    """Free unused memory, including captured steps, which hold references to each other."""
    gc.collect()
    torch.cuda.empty_cache()
