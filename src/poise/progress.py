"""How far work has come: a bar where a person is watching, a line now and then elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from poise.actions import Action, is_weight
from poise.training import events
from poise.training.events import Event, Progress
from poise.words import counted, duration, printable

LINE_SECONDS: Final = 10.0  # between two plain lines
BAR_SECONDS: Final = 0.1  # between two moves of a bar
BAR_WIDTH: Final = 16  # so that all of it fits into 80 columns
SPEED_SECONDS: Final = 120.0  # over which rich takes the mean of the speed
MOST_ROWS: Final = 12  # cells of a sweep that have a bar of their own


class Display:
    """Bars in a terminal or a notebook, each with its rate and the time left; lines about the first one elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        # In a notebook a bar moves only with its widgets.
        with_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        self.is_live = console.is_terminal or with_widgets
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._out = sys.stdout if console.is_jupyter else sys.stderr
        self._bars = Bars(
            TextColumn("{task.description}", markup=False, table_column=words),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
            _Rate(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
            disable=not self.is_live,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, float] = {}  # when each bar was moved
        self._told = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line of its own, above the bars."""
        self._told = time.monotonic()
        if self.is_live:
            self._bars.console.print(printable(text), highlight=False, markup=False, emoji=False)
        else:
            with suppress(BrokenPipeError):  # that nobody reads it any more stops no job
                print(printable(text), file=self._out, flush=True)

    def show(self, name: str, words: str, done: float, of: float, unit: str = "images") -> None:
        """Move the bar of this name; where there are no bars, say a line about it now and then."""
        now = time.monotonic()
        if now - self._shown.get(name, 0.0) < BAR_SECONDS:
            return
        self._shown[name] = now
        words = printable(words)
        if name not in self._tasks:
            if len(self._tasks) > MOST_ROWS:
                return
            self._bars.start()
            self._tasks[name] = self._bars.add_task(words, completed=int(done), total=of, unit=unit)
        task = self._tasks[name]
        self._bars.update(task, description=words, completed=done, total=of)
        if not self.is_live and task == 0 and words and now - self._told > LINE_SECONDS:
            left = self._bars.tasks[0].time_remaining
            about = f", about {duration(left)} left" if left else ""
            self.say(f"  {words}, {100 * done / max(of, 1):.0f} % done{about}")

    def close(self) -> None:
        """Take all bars away."""
        self._bars.stop()


class _Rate(ProgressColumn):
    """How much is done in a second."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        return Text(f"{task.speed:,.0f} {unit}/s" if task.speed and unit else "")


class Tally:
    """How much of some phases is done: the images of each of their parts, counted against those that are planned."""

    def __init__(self, plan: Iterable[Progress] = ()) -> None:
        self._parts = {(each.phase, each.what): (each.done, each.of) for each in plan}
        self.done = sum(done for done, _ in self._parts.values())  # images that were trained on
        self.of = sum(of for _, of in self._parts.values())  # images that are planned

    def note(self, event: Event) -> None:
        """Count what led to this event."""
        over, decided = isinstance(event, events.PhaseDone), isinstance(event, events.ActionDecided)
        for (phase, what), (_, of) in self._parts.items():
            ended = over or (decided and what != "training")
            if phase < event.phase or (phase == event.phase and ended):
                self._parts[phase, what] = of, of
        if isinstance(event, Progress):
            _, planned = self._parts.get((event.phase, event.what), (0, 0))
            self._parts[event.phase, event.what] = event.done, max(event.of, planned, event.done)
        self.done, self.of = (sum(count) for count in zip((0, 0), *self._parts.values(), strict=True))


class PhaseDisplay(Display):
    """Shows the events of one learner: a line for each phase and its action, a bar over all of its work.

    `phases` says how many there are, if it is known; `opening` is printed once the work has begun: one that is refused
    prints only one line.
    """

    def __init__(self, phases: int | None = None, opening: Sequence[str] = ()) -> None:
        super().__init__()
        self.tally = Tally()
        self._phases, self._opening = phases, list(opening)

    def event(self, event: Event) -> None:
        """Show what happened."""
        while self._opening:
            self.say(self._opening.pop(0))
        line, words = _describe(event, self._phases)
        if line:
            self.say(line)
        self.tally.note(event)
        if self.is_live:
            words = f"phase {event.phase}, {words}" if words else f"phase {event.phase}"
        self.show("", words, self.tally.done, self.tally.of)


def watch_phase(phase: Iterable[Event]) -> Iterator[Event]:
    """The events of one phase of a learner, whose progress is shown."""
    with closing(PhaseDisplay()) as display:
        for event in phase:
            display.event(event)
            yield event


class SweepDisplay(Display):
    """Shows the cells of a sweep: a bar for all of them and one for each that is at work."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._count, self._over = len(names), set[str]()
        self._at_work: dict[str, float] = {}  # the share of each cell that is done

    def note(self, name: str, phase: int, tally: Tally) -> None:
        """Show how far a cell has come in this phase."""
        self._at_work[name] = tally.done / max(tally.of, 1)
        self._show_all()
        self.show(name, f"{name}, phase {phase}", tally.done, tally.of)

    def ended(self, name: str) -> None:
        """Count a cell that is finished or has failed, and take its bar away."""
        self._over.add(name)
        self._at_work.pop(name, None)
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        self._show_all()

    def _show_all(self) -> None:
        words = f"{len(self._over)} of {self._count} cells done, {len(self._at_work)} at work"
        self.show("", words, len(self._over) + sum(self._at_work.values()), self._count, unit="")


# In words -------------------------------------------------------------------------------------------------------------


def _describe(event: Event, phases: int | None) -> tuple[str, str]:
    """What is said in a line of its own, and what is under way or was just found, for the bar; both may be empty."""
    line, words = "", ""
    match event:
        case events.DefaultsChosen():
            line = event.line
        case events.PhaseStarted():
            kept = f" and {event.memory_images} kept ones" if event.memory_images else ""
            new = counted(event.new_classes, "new class")
            known = f" of 0–{phases - 1}" if phases is not None else ""
            images = f"{event.new_images} images{kept}"
            line = f"phase {event.phase}{known}: {new} ({event.classes} in all), {images}"
        case events.ActionDecided():
            line = f"  action: {Action(**_in_use(event))}"
        case Progress():
            words = event.detail
        case events.TrialDone():
            judged = event.trial.get("purpose") == "classifier"
            name = "classifiers judged" if judged else f"trial {event.trial['id'] + 1}: {Action(**event.action)}"
            words = f"{name}, reward {event.reward:.3f}"
        case events.EpochDone():
            words = f"{event.stage} epoch {event.epoch}/{event.epochs}, loss {event.loss:.4f}"
    return line, words


def _in_use(event: events.ActionDecided) -> dict[str, float | str]:
    """The axes of an action that its phase uses."""
    found = dict(event.action)
    if not event.phase:  # nothing is distilled, and there are no old classes
        found = {name: found[name] for name in found if not is_weight(name) and name not in ("old_rows", "balance")}
    if not event.trains:
        found.pop("lr", None)
    if not found.get("ridge"):  # held-out images choose it
        found.pop("ridge", None)
    return found
