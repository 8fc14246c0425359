"""All cells of a sweep in one view: what each is at, how many images are trained on in a second, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from poise.meter import Done
from poise.progress import BAR_WIDTH, LINE_SECONDS, Lines
from poise.runs.examiner import Exam
from poise.runs.progress import Quiet
from poise.training import Event
from poise.words import duration, one_line, printable

MOST_ROWS = 12  # cells that have a bar of their own


@dataclass(frozen=True)
class Standing:
    """How far a cell has come: its phase, the share of it that is done, and images trained on in a second."""

    phase: int
    share: float
    rate: float


class CellView(Protocol):
    """Shows what cells do."""

    def say(self, line: str) -> None:
        """A line of its own."""

    def note(self, name: str, standing: Standing) -> None:
        """A cell has come so far."""

    def ended(self, name: str) -> None:
        """A cell is finished or has failed."""


class CellWatcher(Quiet):
    """Tells a view how far a cell has come, and says a line per exam, with the name of its cell."""

    def __init__(self, name: str, view: CellView) -> None:
        self._name, self._view = name, view

    def event(self, event: Event, done: Done) -> None:
        """Tell how far it has come."""
        self._view.note(self._name, Standing(event.phase, done.share, done.rate))

    def exam(self, exam: Exam) -> None:
        """The accuracy after a phase."""
        self._view.say(f"{self._name}: phase {exam.phase}, accuracy {exam.accuracy():.2f} ({exam.classifier})")


class Rows(Lines):
    """Lines above a bar for the whole sweep and one for each cell at work, in a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(None, sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True, min_width=11)),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(printable(text), highlight=False, markup=False, emoji=False)

    def show(self, name: str, words: str, share: float, rate: float, left: str = "") -> None:
        """Move the bar of this name, which is made if there is room for it."""
        if name not in self._tasks and len(self._tasks) <= MOST_ROWS:
            self._progress.start()
            self._tasks[name] = self._progress.add_task("", total=1.0, rate="", left="")
        if name in self._tasks:
            speed = f"{rate:,.0f} images/s" if rate else ""
            self._progress.update(
                self._tasks[name], description=one_line(words), completed=share, rate=speed, left=left
            )

    def remove(self, name: str) -> None:
        """Take a bar away."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))

    def close(self) -> None:
        """Take all bars away."""
        self._progress.stop()


class SweepView:
    """What is shown of a sweep: a bar for it and for each cell at work in a terminal, a line now and then elsewhere."""

    def __init__(self, lines: Lines, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._lines, self._names, self._clock = lines, list(names), clock
        self._working: dict[str, Standing] = {}
        self._done: set[str] = set()
        self._began: dict[str, float] = {}  # the share of each cell that was done when it was first heard of
        self._start = self._last = clock()

    def __enter__(self) -> Self:
        self._start = self._last = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._lines, Rows):
            self._lines.close()

    def say(self, line: str) -> None:
        """A line of its own."""
        self._lines.say(line)

    def note(self, name: str, standing: Standing) -> None:
        """A cell has come so far."""
        self._began.setdefault(name, standing.share)
        self._working[name] = standing
        if isinstance(self._lines, Rows):
            self._lines.show(name, f"{name}, phase {standing.phase}", standing.share, standing.rate)
        self._show()

    def ended(self, name: str) -> None:
        """A cell is finished or has failed."""
        self._done.add(name)
        self.lost(name)

    def lost(self, name: str) -> None:
        """Nothing is heard of a cell for now."""
        self._working.pop(name, None)
        if isinstance(self._lines, Rows):
            self._lines.remove(name)
        self._show()

    @property
    def share(self) -> float:
        """Of all cells, how much is done; they count alike."""
        return (len(self._done) + sum(each.share for each in self._working.values())) / max(1, len(self._names))

    def left(self) -> float | None:
        """Seconds that the rest will take, if it goes on as it did since the sweep was started here."""
        gained = self.share - sum(self._began.values()) / max(1, len(self._names))
        gained -= len(self._done - self._began.keys()) / max(1, len(self._names))  # those that were finished before
        spent = self._clock() - self._start
        return spent * (1 - self.share) / gained if gained > 0.001 else None

    def summary(self) -> str:
        """One line about the whole sweep."""
        rate = sum(each.rate for each in self._working.values())
        speed = f", {rate:,.0f} images/s" if rate else ""
        left = f", about {duration(found)} left" if (found := self.left()) is not None else ""
        count = f"{len(self._done)} of {len(self._names)} cells done, {len(self._working)} at work"
        return f"{count}, {100 * self.share:.0f} %{speed}{left}"

    def _show(self) -> None:
        now = self._clock()
        if isinstance(self._lines, Rows):
            if now - self._last > 0.2:
                self._last = now
                left = f"{duration(found)} left" if (found := self.left()) is not None else ""
                rate = sum(each.rate for each in self._working.values())
                self._lines.show("", f"{len(self._done)} of {len(self._names)} cells", self.share, rate, left)
        elif now - self._last > LINE_SECONDS:
            self._last = now
            self._lines.say(self.summary())


def sweep_lines() -> Lines:
    """Bars where a person is watching, lines elsewhere."""
    console = Console(stderr=True)
    return Rows(console) if console.is_terminal else Lines(None, sys.stderr)
