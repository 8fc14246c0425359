"""Decoding by several processes: each has a pipe of its own, at which it is handed pieces of the work.

Others are started only where this process alone would take long, and they end with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

from poise.errors import UserError

LOOK_SECONDS: Final = 1.0  # in which one process decodes, before it is seen how long it would take for the rest
WORTH_SECONDS: Final = 10.0  # that the rest must take one process: others need some seconds to start

P = TypeVar("P")  # a piece of the work
R = TypeVar("R")  # what is made of it; no exception: those are raised here


def decode_in_order(work: Callable[[P], R], pieces: Sequence[P], jobs: int) -> Generator[R, None, None]:
    """What `work` makes of each piece, in order: in this process, and where it would take long, in others.

    This one goes on until the others have started.
    """
    began, done = time.monotonic(), 0
    while done < len(pieces) and (jobs == 1 or not _takes_long(time.monotonic() - began, done, len(pieces))):
        yield work(pieces[done])
        done += 1
    if done == len(pieces):
        return
    with _workers(min(jobs, len(pieces) - done), work) as pipes:
        while done < len(pieces) and not _are_ready(pipes):
            yield work(pieces[done])
            done += 1
        yield from _hand_around(pipes, pieces[done:])


def _takes_long(elapsed: float, done: int, total: int) -> bool:
    """Whether the rest takes one process so long that it pays to start others."""
    return elapsed >= LOOK_SECONDS and elapsed / max(done, 1) * (total - done) > WORTH_SECONDS


def _are_ready(pipes: Sequence[Connection]) -> bool:
    """Whether every process has started, or ended; each says so."""
    return all(pipe.poll() for pipe in pipes)


def _hand_around(pipes: Sequence[Connection], pieces: Sequence[Any]) -> Iterator[Any]:
    """What is made of these pieces, in order; each process has one piece at work, and one that waits."""
    for pipe in pipes:
        pipe.recv()  # that it is ready
    waiting: deque[Connection] = deque()
    for number, piece in enumerate(pieces):
        if len(waiting) == 2 * len(pipes):
            yield _receive(waiting.popleft())
        waiting.append(pipes[number % len(pipes)])
        waiting[-1].send(piece)
    while waiting:
        yield _receive(waiting.popleft())


def _receive(pipe: Connection) -> Any:  # noqa: ANN401 - whatever the work makes
    found = pipe.recv()
    if isinstance(found, Exception):
        raise found
    return found


@contextlib.contextmanager
def _workers(jobs: int, work: Callable[[Any], object]) -> Iterator[list[Connection]]:
    """Processes that decode, each at a pipe of its own. They have nothing to lose, and are ended at once."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        with _signals_held_back():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                processes.append(context.Process(target=_serve, args=(theirs, work), daemon=True))
                processes[-1].start()
                theirs.close()
        yield pipes
    except (EOFError, ConnectionError) as error:
        time.sleep(0.2)  # a signal that ended them may be meant for us as well, and says more
        raise UserError(
            "a process that decodes images was ended from outside, perhaps for lack of memory; "
            "the same command goes on; with fewer --jobs it needs less"
        ) from error
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
        for pipe in pipes:
            pipe.close()


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Ctrl-C and the like wait; processes that are started meanwhile do not hear them, which is our business."""
    held = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        resource_tracker.ensure_running()  # a process of Python's own; when that is started, Python holds back no more
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, work: Callable[[Any], object]) -> None:
    """In a process that decodes: piece after piece, until the other end is gone."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send("ready")
        while True:
            piece = pipe.recv()
            try:
                found = work(piece)
            except Exception as error:  # such as a lack of memory: it is the other end's business
                found = error
            pipe.send(found)
