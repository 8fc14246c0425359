"""Progress of a phase or of a run: how far it has come, as a bar where a person is watching and as lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from poise.actions import Action
from poise.training import Event, Outlook, Trying, Workload, events
from poise.words import duration, one_line, printable

LINE_SECONDS: Final = 10.0  # seconds between plain lines about one phase
BAR_WIDTH: Final = 16  # so that all of it fits into 80 columns


_TrialEvent = events.TrialStep | events.TrialDone | events.TuningDone

# How far ----------------------------------------------------------------------------------------------------------


class Worker(Protocol):
    """What is at work: a learner."""

    def outlook(self) -> Outlook:
        """What it is doing, and how much is to come."""


@dataclass(frozen=True)
class Done:
    """How far the work has come.

    Attributes:
        share: of the whole, in [0, 1]; trials count as well as training.
        left: seconds that the rest will take; None where nothing was measured yet.
        rate: images trained on in a second, in trials or in training, whichever was last.
        trying: what is being tried when it is called, such as `trial 3 of 12: …`; empty where nothing is.
    """

    share: float
    left: float | None = None
    rate: float = 0.0
    trying: Callable[[], str] = str


class Meter:
    """Counts the work that is done against the work that is planned.

    Trials and training are timed apart: several trials may run side by side, and a training may have a teacher.
    `plans` are the phases of a run; what the worker knows of a phase takes the place of what was planned.
    """

    def __init__(
        self, worker: Worker, plans: Sequence[Workload] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._plans = {plan.phase: plan for plan in plans}
        self._clock, self._last = clock, clock()
        self._phase = -1
        self._prepared = self._chosen = self._trained = 0.0  # images of this phase: before its training, and in it
        self._tuning, self._training = _Pace(), _Pace()
        self._expected: float | None = None  # images in a second, as long as nothing was measured

    def note(self, event: Event) -> Done:
        """Count what led to this event. Of a phase that was resumed, the first one only says where it stands."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        measures = self._phase >= 0
        if event.phase != self._phase:
            self._phase, self._prepared, self._chosen, self._trained = event.phase, 0.0, 0.0, 0.0
        outlook = self._worker.outlook()
        plan = self._plans.get(event.phase, Workload(event.phase))
        if outlook.work is not None:
            plan = replace(outlook.work, preparing=max(outlook.work.preparing, plan.preparing))
            self._plans[event.phase] = plan
        if isinstance(event, events.TimeExpected):
            self._expected = event.rate or None
            return self._done(event.rate)
        if isinstance(event, events.JudgingStep):
            self._prepared = float(event.trained)
            self._training.count(event.images, elapsed)
            return self._done(self._training.rate or 0.0)
        self._prepared = plan.preparing
        chosen, trained = self._chosen, self._trained
        self._chosen, self._trained = _work_done(event, plan, outlook.trying, (chosen, trained))
        tuning = isinstance(event, events.TrialStep | events.TrialDone | events.TuningDone)
        if tuning and measures:
            self._tuning.count(self._chosen - chosen, elapsed)
        elif isinstance(event, events.StepDone | events.EpochDone | events.StageDone) and measures:
            self._training.count(self._trained - trained, elapsed)
        return self._done((self._tuning if tuning else self._training).rate or 0.0)

    def _done(self, rate: float) -> Done:
        choosing = training = whole = 0.0  # what is left, and all of it
        for plan in self._plans.values():
            whole += plan.preparing + plan.choosing + plan.training
            here = plan.phase == self._phase
            if plan.phase >= self._phase:
                choosing += max(0.0, plan.choosing - self._chosen * here)
                training += max(0.0, plan.training - self._trained * here)
                training += max(0.0, plan.preparing - self._prepared * here)
        share = 1 - (choosing + training) / whole if whole else 0.0
        return Done(share, self._left(choosing, training) if whole else None, rate, self._trying)

    def _left(self, choosing: float, training: float) -> float | None:
        """Each kind of work at the rate that was measured for it, or for the other kind as long as it was not."""
        rates = self._tuning.rate, self._training.rate
        known = next((rate for rate in rates if rate), self._expected)
        if known is None:
            return None
        return choosing / (rates[0] or known) + training / (rates[1] or known)

    def _trying(self) -> str:
        """What the worker tries at this moment; a display may ask between two events, too."""
        outlook = self._worker.outlook()
        trying, work = outlook.trying, outlook.work
        if trying is None or work is None or trying.finished >= len(trying.actions):
            return ""
        if trying.purpose != "policy":
            return "judging the classifiers"
        number = trying.before + trying.finished + 1
        most = max(work.trials, trying.before + len(trying.actions))
        bound = "" if work.exact and work.trials == most else "up to "
        return f"trial {number} of {bound}{most}: {trying.actions[trying.finished]}"


def _work_done(event: Event, plan: Workload, trying: Trying | None, before: tuple[float, float]) -> tuple[float, float]:
    """How many images of a phase were trained on: before its own training, and in it."""
    chosen, trained = before
    match event:
        case events.TrialStep() | events.TrialDone() | events.TuningDone():
            return max(chosen, _tried(event, plan, trying, chosen)), trained
        case events.ActionDecided():
            return plan.choosing, trained
        case events.StepDone() | events.EpochDone() | events.StageDone():
            return plan.choosing, _trained(event, plan)
        case events.PhaseDone():
            return plan.choosing, plan.training
    return chosen, trained


def _tried(event: _TrialEvent, plan: Workload, trying: Trying | None, before: float) -> float:
    """How many of the planned images trials, or a tuner, were trained on: those that are finished, and parts of others.

    A trial may train on more images than were planned; inside of those at work it goes no further than their end.
    """
    if trying is None:
        finished, at_work = _stepped(event, plan)
    else:
        policy, count = trying.purpose == "policy", event.at_work if isinstance(event, events.TrialStep) else 1
        whole = plan.tuning if policy else plan.judging
        finished = (0.0 if policy else plan.tuning) + whole * trying.done
        at_work = whole * sum(trying.shares[trying.finished : trying.finished + count])
    if isinstance(event, events.TrialStep):
        return min(finished + at_work, max(before, finished) + event.images)
    return finished


def _stepped(event: _TrialEvent, plan: Workload) -> tuple[float, float]:
    """The planned images of the finished steps of a tuner that is no policy, and those of the next."""
    steps = max(plan.trials, 1)
    done = step_number(event) if isinstance(event, events.TuningDone) else getattr(event, "step", 0)
    return plan.tuning * min(1.0, done / steps), plan.tuning / steps


class _Pace:
    """Images and seconds of one kind of work."""

    def __init__(self) -> None:
        self._images = self._seconds = 0.0

    def count(self, images: float, seconds: float) -> None:
        """Add what was done; seconds without an image count, too, because queued steps take them later."""
        self._images += max(0.0, images)
        self._seconds += seconds

    @property
    def rate(self) -> float | None:
        return self._images / max(self._seconds, 1e-9) if self._images else None


def _trained(event: events.StepDone | events.EpochDone | events.StageDone, plan: Workload) -> float:
    """How many images of the phase's own training were trained on."""
    names = list(plan.stages)
    if event.stage not in names:  # the training has other stages than planned
        return plan.training
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
    for _ in shown(worker, phase):
        pass


def shown(worker: Worker, phase: Iterable[Event]) -> Iterator[Event]:
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
    if isinstance(event, events.DefaultsChosen | events.TimeExpected):
        return [event.line]
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
