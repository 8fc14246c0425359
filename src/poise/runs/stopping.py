"""When a job is stopped, when it writes a checkpoint, and what it must find again to continue with the same bytes."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch

from poise.errors import Interrupted, OutOfMemory
from poise.training.events import Event, Progress, StageDone, TrialDone, TuningDone
from poise.training.ranks import World

TRIAL_SECONDS = 2.0  # between checkpoints during policy learning, which are small
PATIENCE = 1.0  # seconds in which one who keeps pressing Ctrl-C does not disturb what is being closed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(threading.Event):
    """Set: write a checkpoint and leave. It remembers which signal asked for it."""

    signal: int = signal.SIGINT

    def agree(self, world: World) -> bool:
        """Whether it is set on any rank; then it is set here."""
        signum = max(world.all_gather(self.signal if self.is_set() else 0))
        if signum:
            self.signal = signum
            self.set()
        return bool(signum)

    def as_exit(self, message: str) -> Interrupted:
        """What to leave with: the line for the user, and the exit code of that signal."""
        return Interrupted(message, 128 + self.signal)


@contextmanager
def stopping(stop: Stop, *, raises: bool = True) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP set the event; a second Ctrl-C stops at once. What Ctrl-C does is said.

    Unless it `raises`, any signal only sets the event, as often as it comes, and nothing is said: torchrun hears
    Ctrl-C, passes it on, and ends what does not end by itself.
    A command that was started to survive the end of its terminal (`nohup`) does. Signals that something in here ignores
    from some moment on (`ignore_signals`) stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    raised = -math.inf  # when Ctrl-C last stopped it at once

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal raised
        if raises and stop.is_set() and signum == signal.SIGINT:
            if time.monotonic() - raised < PATIENCE:  # it is stopping
                return
            raised = time.monotonic()
            _say("stopping at once")
            raise KeyboardInterrupt
        if raises and signum == signal.SIGINT:
            _say("stopping; Ctrl-C again stops at once, without a checkpoint")
        if signum == signal.SIGHUP:
            _leave_closed_terminals(terminals)
        stop.signal = signum
        stop.set()

    terminals = [number for number in (1, 2) if os.isatty(number)]
    unheard = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, ask) for number in SIGNALS if number not in unheard}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is ask:
                signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore further signals: the work is saved, and the process ends by itself in a moment.

    A signal would turn success into failure, and whoever started it would do all of it again.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # which stays so while the interpreter ends


def _leave_closed_terminals(before: list[int]) -> None:
    """Redirect what is still to be said to nowhere if the terminal is gone: writing there would fail."""
    for number in before:
        if not os.isatty(number):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def _say(text: str) -> None:
    """A line from inside of a signal handler, where nothing may be written that is buffered."""
    with suppress(OSError):  # whoever would read it is gone
        os.write(2, f"\npoise: {text}\n".encode())


class CheckpointClock:
    """Says when the next checkpoint is due: after a stage; after an epoch or a trial, when enough time has passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._written = time.monotonic()

    def is_due(self, event: Event) -> bool:
        """Whether to write one after this event; never inside an epoch or a trial."""
        if isinstance(event, Progress):
            return False
        patience = min(self._seconds, TRIAL_SECONDS) if isinstance(event, TrialDone | TuningDone) else self._seconds
        return isinstance(event, StageDone) or time.monotonic() - self._written >= patience

    def restart(self) -> None:
        """Count from now: a checkpoint was written."""
        self._written = time.monotonic()


@contextmanager
def explaining_memory(again: str) -> Iterator[None]:
    """Running out of GPU memory is one line that says how to go on."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(f"out of GPU memory; free some and {again}") from error


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """As many threads as the job was started with: sums are split among them, so bytes depend on it."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
