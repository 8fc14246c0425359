"""Work without warnings in one thread; those of all others are shown as before."""

from __future__ import annotations

import os
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
_FILTER: Any = ("ignore", _QuietThread(), Warning, None, 0)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Show no warning of this thread.

    `warnings.catch_warnings` is for one thread only: it puts back the filters that it found, so that of two threads the
    one that ends last can put back those of the other, which ignore everything. Here the filters get one entry, which
    does nothing to other threads. It stays: while one is taken out, another thread could miss the filter behind it.
    """
    _come_first()
    _threads.depth += 1
    try:
        yield
    finally:
        _threads.depth -= 1


def _come_first() -> None:
    """Put our entry before those of the program, of which the first that matches counts; there is only one of it."""
    filters: Any = warnings.filters
    if filters[:1] == [_FILTER]:
        return
    with _changing:
        filters.insert(0, _FILTER)
        for place in range(len(filters) - 1, 0, -1):
            if filters[place] == _FILTER:
                del filters[place]


def _renew_lock() -> None:
    """In a process that was forked while another thread held it, nobody would ever give it back."""
    global _changing  # noqa: PLW0603 - one for all threads, as the filters are
    _changing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
