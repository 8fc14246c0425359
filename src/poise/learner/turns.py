"""One change of a learner at a time, whichever thread asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from poise.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
S = TypeVar("S", bound="Shared")


class Turns:
    """Who may change a learner, and who may look at it while it is changed.

    A second change is refused, not delayed: it would start from something else than its caller saw. Whoever looks waits
    until a step is done, so that what is saved is never something between two steps.
    """

    def __init__(self) -> None:
        self._taken = threading.Lock()
        self._queue = threading.Lock()  # lets a thread that waits go before one that comes again at once
        self._step = threading.Lock()
        self._stepping: int | None = None  # the thread that holds `_step`

    @property
    def taken(self) -> bool:
        """Whether the learner is being changed at this moment."""
        return self._taken.locked()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change the learner; refused while it is changed already, in this thread or another."""
        if not self._taken.acquire(blocking=False):
            raise UserError(
                "this learner is learning already, in another thread or around this call; wait for that phase to end"
            )
        try:
            yield
        finally:
            self._taken.release()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Between two steps: nothing changes meanwhile."""
        if self._stepping == threading.get_ident():
            yield
            return
        with self._queue:
            self._step.acquire()
        self._stepping = threading.get_ident()
        try:
            yield
        finally:
            self._stepping = None
            self._step.release()

    def steps(self, work: Generator[T, None, None], *, alone: bool = False) -> Generator[T, None, None]:
        """The items of `work`, each made in one step; a step is a change of its own, unless all of them are one."""
        with closing(work):  # at once, even if others still hold a reference
            while True:
                with nullcontext() if alone else self.change(), self.look():
                    try:
                        item = next(work)
                    except StopIteration:
                        return
                yield item


class Shared(Protocol):
    """What several threads may hold."""

    _turns: Turns


def one_at_a_time(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that changes a learner: refused while it is changed already."""

    @wraps(method)
    def alone(learner: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with learner._turns.change(), learner._turns.look():
            return method(learner, *args, **kwargs)

    return alone
