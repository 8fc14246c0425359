"""Warnings of one thread are not shown; the filters of the process stay as they were for all others."""

from __future__ import annotations

import os
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from sklearn.utils.parallel import Parallel, delayed

from poise import quiet
from poise.quiet import _FILTER, without_warnings


def warn() -> None:
    warnings.warn("mine", stacklevel=1)


def test_a_thread_that_wants_no_warnings_gets_none_whatever_the_filters_say() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_warnings():
            warn()
            warnings.simplefilter("error", UserWarning)  # as a program may, meanwhile
            with without_warnings():
                warn()
            warn()
        with pytest.raises(UserWarning, match="mine"):
            warn()


def test_threads_that_overlap_leave_every_filter_as_it_was() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = [each for each in warnings.filters if each != _FILTER]
        barrier = threading.Barrier(3)

        def work(number: int) -> None:
            if number:
                barrier.wait(30)
            with without_warnings():
                if not number:
                    barrier.wait(30)
                barrier.wait(30)
                warn()
                if number:
                    barrier.wait(30)
            if not number:
                barrier.wait(30)

        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(work, number) for number in (0, 1)]
            barrier.wait(30)
            barrier.wait(30)
            warn()  # of this thread, while the others work
            barrier.wait(30)
            for each in waiting:
                each.result(30)
        assert [each for each in warnings.filters if each != _FILTER] == before
        warn()
    assert [str(each.message) for each in seen] == ["mine", "mine"]


def test_the_filter_is_there_once_and_first() -> None:
    with warnings.catch_warnings():
        for category in (UserWarning, DeprecationWarning, FutureWarning):
            warnings.simplefilter("error", category)
            with without_warnings():
                assert [place for place, each in enumerate(warnings.filters) if each == _FILTER] == [0]


def test_the_filter_that_stays_hides_nothing() -> None:
    with without_warnings():
        pass
    with pytest.warns(UserWarning, match="mine"):
        warn()


def test_a_process_that_is_forked_while_another_thread_holds_the_lock_does_not_hang() -> None:
    with quiet._changing:
        child = os.fork()
        if not child:
            warnings.resetwarnings()
            with without_warnings():
                warn()
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_sklearn_hands_the_filters_to_its_workers() -> None:
    with without_warnings():
        assert _FILTER in pickle.loads(pickle.dumps(list(warnings.filters)))
        assert Parallel(n_jobs=1)(delayed(abs)(number) for number in (-1, 2)) == [1, 2]
