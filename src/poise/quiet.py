"""Work without warnings in one thread; those of all others are shown as before."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Threads(threading.local):
    """How many blocks without warnings each thread is inside of."""

    depth = 0


class _QuietThread:
    """Stands in a filter where a pattern does, and matches every warning of a thread that wants none.

    scikit-learn hands the filters to its workers: it can be pickled, and what it makes of `pattern` matches nothing.
    """

    pattern = "(?!)"

    def match(self, _text: str) -> bool:
        """Whether the thread that warns is inside of `without_warnings`."""
        return _threads.depth > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _QuietThread)

    def __hash__(self) -> int:
        return hash(_QuietThread)


_threads = _Threads()
_changing = threading.Lock()
_inside = 0  # blocks without warnings, in all threads
_FILTER: Any = ("ignore", _QuietThread(), Warning, None, 0)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Show no warning of this thread.

    `warnings.catch_warnings` is for one thread only: it puts back the filters that it found, so that of two threads the
    one that ends last can put back those of the other, which ignore everything. Here the filters get one entry as long
    as any thread is inside. Should the program keep a copy of it meanwhile, that does nothing to other threads.
    """
    _enter()
    _threads.depth += 1
    try:
        yield
    finally:
        _threads.depth -= 1
        _leave()


def _enter() -> None:
    global _inside  # noqa: PLW0603 - as the filters are: one for all threads
    with _changing:
        _inside += 1
        filters: Any = warnings.filters
        if filters[:1] != [_FILTER]:  # the first that matches counts: it must come before those of the program
            filters.insert(0, _FILTER)
            _remove_from(filters, 1)


def _leave() -> None:
    global _inside  # noqa: PLW0603
    with _changing:
        _inside -= 1
        if not _inside:
            _remove_from(warnings.filters, 0)


def _remove_from(filters: Any, first: int) -> None:  # noqa: ANN401 - a list of tuples, of which ours is a strange one
    """Take our entry out, wherever it is from this place on."""
    for place in range(len(filters) - 1, first - 1, -1):
        if filters[place] == _FILTER:
            del filters[place]
