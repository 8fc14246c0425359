"""Progress of a phase or of a run, shown as a bar where a person is watching and as lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from poise.actions import Action, is_weight
from poise.meter import Done, Meter, Worker, step_number
from poise.training import Event, events
from poise.words import duration, one_line, printable

LINE_SECONDS: Final = 10.0  # seconds between plain lines about one phase
BAR_WIDTH: Final = 16  # so that all of it fits into 80 columns


# Shown ------------------------------------------------------------------------------------------------------------


class Display(Protocol):
    """Shows progress; it cannot change anything."""

    def event(self, event: Event, done: Done) -> None:
        """Something happened, and so much is done."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def close(self) -> None:
        """The work ended, well or not."""


class Lines:
    """One line per phase, and occasional lines in between."""

    def __init__(self, phases: int | None, out: TextIO, opening: Sequence[str] = ()) -> None:
        self._phases = phases
        self._out = out
        self._opening = list(opening)
        self._last = time.monotonic()

    def event(self, event: Event, done: Done) -> None:
        """A line at the start of a phase, then at most one in ten seconds."""
        while self._opening:  # not before: a run that is refused prints only one line
            self.say(self._opening.pop(0))
        if lines := _lines_of(event, self._phases):
            for line in lines:
                self.say(line)
        elif time.monotonic() - self._last > LINE_SECONDS and (words := _result_words(event)):
            left = f", about {duration(done.left)} left" if done.left is not None else ""
            now = done.trying().partition(":")[0]
            self.say(f"  {words}, {100 * done.share:.0f} % done{left}{f'; now {now}' if now else ''}")

    def begin(self) -> None:
        """Nothing is said before something happens."""

    def close(self) -> None:
        """Nothing to close."""

    def say(self, text: str) -> None:
        """Print a line."""
        self._last = time.monotonic()
        print(printable(text), file=self._out, flush=True)


class Bar:
    """A bar over all of the work, with phase, epoch or trial, rate and time left."""

    def __init__(self, phases: int | None, console: Console, opening: Sequence[str] = ()) -> None:
        self._phases = phases
        self._opening = list(opening)
        self._progress = Progress(
            _Doing(table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            _TimeLeft(table_column=Column(no_wrap=True, min_width=11)),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=1.0, rate="", until=None, phase=0, trying=str)

    def begin(self) -> None:
        """Show the bar."""
        self._progress.start()

    def event(self, event: Event, done: Done) -> None:
        """Move the bar, which appears with the first event if not before."""
        self.begin()
        while self._opening:
            self.say(self._opening.pop(0))
        for line in _lines_of(event, self._phases):
            self.say(line)
        self._progress.update(
            self._task,
            completed=done.share,
            description=_now_words(event),
            phase=event.phase,
            trying=done.trying,
            rate=f"{done.rate:,.0f} images/s" if done.rate else "",
            until=time.monotonic() + done.left if done.left is not None else None,
        )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(printable(text), highlight=False, markup=False, emoji=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


class _Doing(ProgressColumn):
    """What is under way, the most important first: its end is cut off where there is no room for it."""

    def render(self, task: Task) -> Text:
        trying = task.fields["trying"]()
        return Text(one_line(f"phase {task.fields['phase']}, {trying}" if trying else task.description))


class _TimeLeft(ProgressColumn):
    """The time left as it was last estimated, counted down in between."""

    def render(self, task: Task) -> Text:
        until = task.fields["until"]
        return Text("" if until is None else f"{duration(max(0.0, until - time.monotonic()))} left")


def make_display(phases: int | None, opening: Sequence[str] = ()) -> Lines | Bar:
    """A bar if a person is watching, in a terminal or a notebook; lines if not.

    `opening` is printed once the work has begun. `phases` is None if their number is not known.
    """
    console = Console(stderr=True)
    if console.is_terminal or (console.is_jupyter and _has_widgets()):
        return Bar(phases, console, opening)
    return Lines(phases, sys.stdout if console.is_jupyter else sys.stderr, opening)


def _has_widgets() -> bool:
    """Whether a notebook can show a bar that moves."""
    return importlib.util.find_spec("ipywidgets") is not None


def watch_phase(worker: Worker, phase: Iterable[Event]) -> None:
    """Run one phase of a learner and show its progress."""
    for _ in show_phase(worker, phase):
        pass


def show_phase(worker: Worker, phase: Iterable[Event]) -> Iterator[Event]:
    """The events of one phase, whose progress is shown."""
    display, meter = make_display(None), Meter(worker)
    display.begin()
    try:
        for event in phase:
            display.event(event, meter.note(event))
            yield event
    finally:
        display.close()


# In words ---------------------------------------------------------------------------------------------------------


def _lines_of(event: Event, phases: int | None) -> list[str]:
    """What is always said, in a line of its own."""
    if isinstance(event, events.DefaultsChosen):
        return [event.line]
    if isinstance(event, events.PhaseStarted):
        return [_phase_line(event, phases)]
    if isinstance(event, events.ActionDecided):
        return [f"  action: {_applying(event)}"]
    return []


def _applying(event: events.ActionDecided) -> Action:
    """What the action says of its phase: in the first one nothing is distilled, and there are no old classes."""
    told = {name: value for name, value in event.action.items() if event.phase or not _needs_old_classes(name)}
    return Action(**told)


def _needs_old_classes(axis: str) -> bool:
    return is_weight(axis) or axis in ("old_rows", "balance")


def _phase_line(event: events.PhaseStarted, phases: int | None) -> str:
    kept = f" and {event.memory_images} kept ones" if event.memory_images else ""
    new = f"{event.new_classes} new class{'es' if event.new_classes != 1 else ''}"
    known = f" of 0–{phases - 1}" if phases is not None else ""
    return f"phase {event.phase}{known}: {new} ({event.classes} in all), {event.new_images} images{kept}"


def _now_words(event: Event) -> str:
    words = f"phase {event.phase}"
    match event:
        case events.JudgingStep():
            return f"{words}, {_judging_words(event)}"
        case events.StepDone():
            return f"{words}, {event.stage} epoch {event.epoch + 1}/{event.epochs}"
        case events.EpochDone():
            return f"{words}, {event.stage} epoch {event.epoch}/{event.epochs}"
        case events.TuningDone() | events.TrialStep() if event.tuner:
            number = step_number(event) if isinstance(event, events.TuningDone) else event.step + 1
            return f"{words}, {event.tuner}: step {number}"
        case events.PhaseDone():
            return f"{words}, learned"
    return words


def _result_words(event: Event) -> str:
    """What was just found, for events that have a result."""
    match event:
        case events.JudgingStep():
            return _judging_words(event)
        case events.TrialDone():
            judged = event.trial.get("purpose") == "classifier"
            name = "classifiers judged" if judged else f"trial {event.trial['id'] + 1}: {Action(**event.action)}"
            return f"{name}, reward {event.reward:.3f}"
        case events.TuningDone():
            return f"{event.tuner}: step {step_number(event)}"
        case events.EpochDone():
            return f"{event.stage} epoch {event.epoch}/{event.epochs}, loss {event.loss:.4f}"
    return ""


def _judging_words(event: events.JudgingStep) -> str:
    return f"judging the augmentation, training {event.training} of {event.trainings}"
