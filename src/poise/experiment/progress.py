"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from poise.actions import Action
from poise.experiment.examiner import Exam
from poise.training import Event, events
from poise.words import duration

LINE_SECONDS = 10.0  # seconds between plain lines about one phase


class Watcher(Protocol):
    """An observer of a run; it cannot change anything."""

    def event(self, event: Event, done: float) -> None:
        """Something happened; `done` is the share of the whole run."""

    def exam(self, exam: Exam) -> None:
        """A phase was examined."""

    def close(self) -> None:
        """The run ended, well or not."""


class Quiet:
    """Shows nothing."""

    def event(self, event: Event, done: float) -> None:
        """Nothing is shown."""

    def exam(self, exam: Exam) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing was opened."""


class Lines:
    """One line per phase and per exam, and occasional lines in between."""

    def __init__(self, phases: int | None, out: TextIO, opening: Sequence[str] = ()) -> None:
        self._phases = phases
        self._out = out
        self._opening = list(opening)
        self._last = self._began = time.monotonic()

    def event(self, event: Event, done: float) -> None:
        """A line at the start of a phase, then at most one in ten seconds."""
        while self._opening:  # not before: a run that is refused prints only one line
            self.say(self._opening.pop(0))
        if isinstance(event, events.PhaseStarted):
            self.say(_phase_line(event, self._phases))
        elif isinstance(event, events.ActionDecided):
            self.say(f"  action: {Action(**event.action)}")
        elif isinstance(event, events.TrialDone | events.TuningDone) and time.monotonic() - self._last > LINE_SECONDS:
            self.say(f"  {_trial_words(event)}")
        elif isinstance(event, events.EpochDone) and time.monotonic() - self._last > LINE_SECONDS:
            left = (time.monotonic() - self._began) * (1 - done) / max(done, 1e-9)
            self.say(f"  {_epoch_words(event)}, {100 * done:.0f} % of the run, about {duration(left)} left")

    def exam(self, exam: Exam) -> None:
        """The accuracies after a phase."""
        self.say(f"  {_exam_words(exam)}")

    def close(self) -> None:
        """Nothing to close."""

    def say(self, text: str) -> None:
        """Print a line."""
        self._last = time.monotonic()
        print(text, file=self._out, flush=True)


class Bar:
    """A bar over the whole run, with phase, epoch, rate and time left."""

    def __init__(self, phases: int | None, console: Console, opening: Sequence[str] = ()) -> None:
        self._phases = phases
        self._opening = list(opening)
        self._began, self._images = time.monotonic(), 0
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
        self._progress = Progress(*columns, TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=console)
        self._task = self._progress.add_task("starting", total=1.0, rate="")

    def event(self, event: Event, done: float) -> None:
        """Move the bar, which appears with the first event."""
        self._progress.start()
        while self._opening:
            self._progress.console.print(self._opening.pop(0), highlight=False)
        if isinstance(event, events.PhaseStarted):
            self._progress.console.print(_phase_line(event, self._phases), highlight=False)
        elif isinstance(event, events.ActionDecided):
            self._progress.console.print(f"  action: {Action(**event.action)}", highlight=False)
        if isinstance(event, events.StepDone):
            self._images += event.images
        words = f"phase {event.phase}"
        if isinstance(event, events.StepDone | events.EpochDone):
            words += f", {event.stage} epoch {event.epoch + isinstance(event, events.StepDone)}/{event.epochs}"
        elif isinstance(event, events.TrialDone | events.TuningDone):
            words += f", {_trial_words(event)}"
        elif isinstance(event, events.PhaseDone):
            words += ", exam"
        rate = f"{self._images / (time.monotonic() - self._began):,.0f} images/s"
        self._progress.update(self._task, completed=done, description=words, rate=rate)

    def exam(self, exam: Exam) -> None:
        """The accuracies after a phase."""
        self._progress.console.print(f"  {_exam_words(exam)}", highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def make_watcher(phases: int | None, opening: Sequence[str] = ()) -> Watcher:
    """A bar if a person is watching, lines if not; `opening` is printed once the work has begun.

    `phases` is None if their number is not known.
    """
    console = Console(stderr=True)
    return Bar(phases, console, opening) if console.is_terminal else Lines(phases, sys.stderr, opening)


def watch_phase(events: Iterable[Event]) -> None:
    """Run one phase and show its progress."""
    watcher = make_watcher(None)
    try:
        for event in events:
            watcher.event(event, share_of_phase(event))
    finally:
        watcher.close()


def share_of_phase(event: Event) -> float:
    """Roughly what share of the phase is done, as if the current stage were the only one."""
    if isinstance(event, events.EpochDone):
        return event.epoch / event.epochs
    if isinstance(event, events.StepDone):
        return (event.epoch + event.step / event.steps) / event.epochs
    return float(isinstance(event, events.StageDone | events.PhaseDone))


def _phase_line(event: events.PhaseStarted, phases: int | None) -> str:
    kept = f" and {event.memory_images} kept ones" if event.memory_images else ""
    new = f"{event.new_classes} new class{'es' if event.new_classes != 1 else ''}"
    known = f" of 0–{phases - 1}" if phases is not None else ""
    return f"phase {event.phase}{known}: {new} ({event.classes} in all), {event.new_images} images{kept}"


def _trial_words(event: events.TrialDone | events.TuningDone) -> str:
    if isinstance(event, events.TuningDone):
        number = event.record.get("round", event.record.get("number", 0))
        return f"{event.tuner}: step {number + 1}"
    return f"trial {event.trial['id'] + 1}: {Action(**event.action)}, reward {event.reward:.3f}"


def _epoch_words(event: events.EpochDone) -> str:
    return f"{event.stage} epoch {event.epoch}/{event.epochs}, loss {event.loss:.4f}"


def _exam_words(exam: Exam) -> str:
    fc, ncm = exam.accuracy("fc"), exam.accuracy("ncm")
    return f"accuracy {exam.accuracy():.2f} ({exam.classifier} counts; fc {fc:.2f}, ncm {ncm:.2f})"
