"""Progress of a phase or of a run: how far it has come, as a bar where a person is watching and as lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from poise.actions import Action
from poise.training import Event, WorkPlanned, events
from poise.words import duration

LINE_SECONDS: Final = 10.0  # seconds between plain lines about one phase
BAR_WIDTH: Final = 16  # so that all of it fits into 80 columns


# How far ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """How far the work has come.

    Attributes:
        share: of the whole, in [0, 1]; trials count as well as training.
        left: seconds that the rest will take; None where nothing was measured yet.
        rate: images trained on in a second, in trials or in training, whichever is under way.
        trying: what is being tried, such as `trial 3 of 12`; empty where nothing is.
        action: the action of that trial.
    """

    share: float
    left: float | None = None
    rate: float = 0.0
    trying: str = ""
    action: str = ""


class Meter:
    """Counts the work that the events tell of, against the work that is planned.

    Trials and training are timed apart: several trials may run side by side, and a training may have a teacher.
    `plans` are the phases of a run; what the events say of a phase takes the place of what was planned.
    """

    def __init__(self, plans: Sequence[WorkPlanned] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._plans = {plan.phase: plan for plan in plans}
        self._clock, self._last = clock, clock()
        self._phase = -1
        self._tuned = self._trained = 0.0  # images of this phase
        self._started: events.TrialsStarted | None = None
        self._finished = 0  # of the trials that were started
        self._tuning, self._training = _Pace(), _Pace()

    def note(self, event: Event) -> Done:
        """Count the event."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        if event.phase != self._phase:
            self._phase, self._tuned, self._trained, self._started = event.phase, 0.0, 0.0, None
        if isinstance(event, WorkPlanned):
            self._plans[event.phase] = event
        plan = self._plans.get(event.phase)
        if plan is not None:
            self._count(event, plan, elapsed)
        return self._done(event)

    def _count(self, event: Event, plan: WorkPlanned, elapsed: float) -> None:
        tuned, trained = self._tuned, self._trained
        match event:
            case events.TrialsStarted():
                self._started, self._finished = event, 0
                if event.purpose == "policy":
                    self._tuned = plan.tuning * event.spent
            case events.TrialDone():
                if self._started is not None and self._finished < len(self._started.shares):
                    whole = plan.tuning if self._started.purpose == "policy" else plan.judging
                    self._tuned += whole * self._started.shares[self._finished]
                self._finished += 1
                self._tuning.count(self._tuned - tuned, elapsed)
            case events.TuningDone():
                self._tuned = plan.tuning * min(1.0, step_number(event) / max(plan.trials, 1))
                self._tuning.count(self._tuned - tuned, elapsed)
            case events.ActionDecided():
                self._started, self._tuned = None, plan.tuning + plan.judging
            case events.StepDone() | events.EpochDone() | events.StageDone():
                self._tuned = plan.tuning + plan.judging
                self._trained = _trained(event, plan)
                self._training.count(self._trained - trained, elapsed)
            case events.PhaseDone():
                self._tuned, self._trained = plan.tuning + plan.judging, sum(plan.stages.values())

    def _done(self, event: Event) -> Done:
        tuning = training = 0.0  # what is left
        whole = 0.0
        for plan in self._plans.values():
            pair = plan.tuning + plan.judging, sum(plan.stages.values())
            whole += sum(pair)
            if plan.phase >= event.phase:
                here = plan.phase == event.phase
                tuning += max(0.0, pair[0] - self._tuned * here)
                training += max(0.0, pair[1] - self._trained * here)
        share = 1 - (tuning + training) / whole if whole else float(isinstance(event, events.PhaseDone))
        trying, action = self._trying()
        rate = (self._tuning if trying or isinstance(event, events.TuningDone) else self._training).rate
        return Done(share, self._left(tuning, training), rate or 0.0, trying, action)

    def _left(self, tuning: float, training: float) -> float | None:
        """Each kind of work at the rate that was measured for it, or for the other kind as long as it was not."""
        rates = self._tuning.rate, self._training.rate
        known = next((rate for rate in rates if rate), None)
        if known is None:
            return None
        return tuning / (rates[0] or known) + training / (rates[1] or known)

    def _trying(self) -> tuple[str, str]:
        started = self._started
        if started is None or self._finished >= len(started.actions):
            return "", ""
        if started.purpose != "policy":
            return "judging the classifiers", ""
        number, plan = started.before + self._finished + 1, self._plans.get(self._phase)
        expected = max(plan.trials if plan is not None else 0, started.before + len(started.actions))
        bound = "" if plan is not None and plan.exact and plan.trials == expected else "up to "
        return f"trial {number} of {bound}{expected}", str(Action(**started.actions[self._finished]))


class _Pace:
    """Images and seconds of one kind of work."""

    def __init__(self) -> None:
        self._images = self._seconds = 0.0

    def count(self, images: float, seconds: float) -> None:
        if images > 0:
            self._images += images
            self._seconds += seconds

    @property
    def rate(self) -> float | None:
        return self._images / max(self._seconds, 1e-9) if self._images else None


def _trained(event: events.StepDone | events.EpochDone | events.StageDone, plan: WorkPlanned) -> float:
    """How many images of the phase's own training were trained on."""
    names = list(plan.stages)
    if event.stage not in names:  # the training has other stages than planned
        return sum(plan.stages.values())
    before = sum(plan.stages[name] for name in names[: names.index(event.stage)])
    share = 1.0
    if isinstance(event, events.EpochDone):
        share = event.epoch / event.epochs
    elif isinstance(event, events.StepDone):
        share = (event.epoch + event.step / event.steps) / event.epochs
    return before + share * plan.stages[event.stage]


def step_number(event: events.TuningDone) -> int:
    """Which round or episode it was, counted from 1."""
    return int(event.record.get("round", event.record.get("number", 0))) + 1


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
            now = f"; now {done.trying}" if done.trying else ""
            self.say(f"  {words}, {100 * done.share:.0f} % done{left}{now}")

    def close(self) -> None:
        """Nothing to close."""

    def say(self, text: str) -> None:
        """Print a line."""
        self._last = time.monotonic()
        print(text, file=self._out, flush=True)


class Bar:
    """A bar over all of the work, with phase, epoch or trial, rate and time left."""

    def __init__(self, phases: int | None, console: Console, opening: Sequence[str] = ()) -> None:
        self._phases = phases
        self._opening = list(opening)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            _TimeLeft(table_column=Column(no_wrap=True, min_width=11)),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=1.0, rate="", until=None)

    def event(self, event: Event, done: Done) -> None:
        """Move the bar, which appears with the first event."""
        self._progress.start()
        while self._opening:
            self.say(self._opening.pop(0))
        for line in _lines_of(event, self._phases):
            self.say(line)
        self._progress.update(
            self._task,
            completed=done.share,
            description=_now_words(event, done),
            rate=f"{done.rate:,.0f} images/s" if done.rate else "",
            until=time.monotonic() + done.left if done.left is not None else None,
        )

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


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
    widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    if console.is_terminal or widgets:
        return Bar(phases, console, opening)
    return Lines(phases, sys.stdout if console.is_jupyter else sys.stderr, opening)


def watch_phase(phase: Iterable[Event], tell: Callable[[Event], None] | None = None) -> None:
    """Run one phase and show its progress; each event is also told to `tell`."""
    display, meter = make_display(None), Meter()
    try:
        for event in phase:
            display.event(event, meter.note(event))
            if tell is not None:
                tell(event)
    finally:
        display.close()


# In words ---------------------------------------------------------------------------------------------------------


def _lines_of(event: Event, phases: int | None) -> list[str]:
    """What is always said, in a line of its own."""
    if isinstance(event, events.PhaseStarted):
        return [_phase_line(event, phases)]
    if isinstance(event, events.ActionDecided):
        return [f"  action: {Action(**event.action)}"]
    return []


def _phase_line(event: events.PhaseStarted, phases: int | None) -> str:
    kept = f" and {event.memory_images} kept ones" if event.memory_images else ""
    new = f"{event.new_classes} new class{'es' if event.new_classes != 1 else ''}"
    known = f" of 0–{phases - 1}" if phases is not None else ""
    return f"phase {event.phase}{known}: {new} ({event.classes} in all), {event.new_images} images{kept}"


def _now_words(event: Event, done: Done) -> str:
    """What is under way, the most important first: a bar may have to cut the end off."""
    words = f"phase {event.phase}"
    if done.trying:
        return f"{words}, {done.trying}{f': {done.action}' if done.action else ''}"
    match event:
        case events.StepDone():
            return f"{words}, {event.stage} epoch {event.epoch + 1}/{event.epochs}"
        case events.EpochDone():
            return f"{words}, {event.stage} epoch {event.epoch}/{event.epochs}"
        case events.TuningDone():
            return f"{words}, {event.tuner}: step {step_number(event)}"
        case events.PhaseDone():
            return f"{words}, learned"
    return words


def _result_words(event: Event) -> str:
    """What was just found, for events that have a result."""
    match event:
        case events.TrialDone():
            judged = event.trial.get("purpose") == "classifier"
            name = "classifiers judged" if judged else f"trial {event.trial['id'] + 1}: {Action(**event.action)}"
            return f"{name}, reward {event.reward:.3f}"
        case events.TuningDone():
            return f"{event.tuner}: step {step_number(event)}"
        case events.EpochDone():
            return f"{event.stage} epoch {event.epoch}/{event.epochs}, loss {event.loss:.4f}"
    return ""
