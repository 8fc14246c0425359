"""Executors: where attempts run. Here, on lanes; elsewhere by whoever implements the same protocol.

A bench is what attempts are run on: a phase's inputs, or the folder of a sweep. Benches and attempts are plain values
that pickle, so that they can be sent away (but for the trials of a study with a witness, which stay here). Results come
back in the order of asking, so that nobody can tell where they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from poise.training.lanes import Lane, Lanes
from poise.training.pace import Work

A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
R = TypeVar("R")


class Bench(Protocol[A_contra, R_co]):
    """Runs single attempts on lanes. What it reached stays with it, so that a later attempt may continue there."""

    def work(self, attempt: A_contra, lane: Lane) -> Work[R_co]:
        """One attempt, a little at a time; its result at the end. It may be started again."""

    def waits(self, attempt: A_contra) -> None:
        """The attempt found no memory beside others, and starts again when there is more of it."""

    def failed(self, attempt: A_contra, error: Exception) -> R_co:
        """What comes of an attempt that finds no memory even alone: a result, or the error again."""


class Executor(Protocol):
    """Runs attempts on a bench, somewhere."""

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """The results of all attempts in the order of asking, each time those that became known: none, one or more.

        Two calls with equal values give equal results.
        """


@runtime_checkable
class WaitingExecutor(Executor, Protocol):
    """One that waits for other machines. Meanwhile it calls `meanwhile` at least once a second, which may raise.

    Attempts that are under way are then lost, and all results that were given out before are known.
    """

    meanwhile: Callable[[], None]


@dataclass(frozen=True)
class LocalExecutor:
    """Runs attempts in this process, side by side on lanes."""

    lanes: Lanes
    admits: Callable[[], bool] = lambda: True  # whether another attempt may start

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[list[R]]:
        """Taking turns, as many at once as the lanes allow."""

        def too_large(place: int, error: Exception) -> R:
            return bench.failed(attempts[place], error)

        def waits(place: int) -> None:
            bench.waits(attempts[place])

        jobs = [partial(bench.work, attempt) for attempt in attempts]
        return self.lanes.side_by_side(jobs, admits=self.admits, waits=waits, too_large=too_large)
