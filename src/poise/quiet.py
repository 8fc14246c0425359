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


_threads = _Threads()
_changing = threading.Lock()


class _QuietThread:
    """Stands in a filter where a pattern does, and matches every warning of a thread that wants none.

    It can be pickled: scikit-learn hands the filters to other processes.
    """

    def match(self, _text: str) -> bool:
        """Whether the thread that warns is inside of `without_warnings`."""
        return _threads.depth > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _QuietThread)

    def __hash__(self) -> int:
        return hash(_QuietThread)


_FILTER: Any = ("ignore", _QuietThread(), Warning, None, 0)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Show no warning of this thread.

    `warnings.catch_warnings` is for one thread only: it puts back the filters that it found, so that of two threads the
    one that ends last can put back those of the other, which ignore everything. Here the filters get one entry, which
    stays and says nothing of other threads.
    """
    _put_filter_first()
    _threads.depth += 1
    try:
        yield
    finally:
        _threads.depth -= 1


def _put_filter_first() -> None:
    """The first filter that matches counts: ours must come before those that the program added meanwhile."""
    filters: Any = warnings.filters
    if filters[:1] == [_FILTER]:
        return
    with _changing:
        if filters[:1] != [_FILTER]:
            filters.insert(0, _FILTER)
        for place in range(len(filters) - 1, 0, -1):
            if filters[place] == _FILTER:
                del filters[place]
