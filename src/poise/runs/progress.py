"""Progress of a run: what `poise.progress` shows of its phases, and the exams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poise.meter import Done
from poise.progress import Display, Lines, make_display
from poise.runs.examiner import Exam
from poise.training import Event


class Watcher(Protocol):
    """An observer of a run; it cannot change anything."""

    def event(self, event: Event, done: Done) -> None:
        """Something happened, and so much of the whole run is done."""

    def exam(self, exam: Exam) -> None:
        """A phase was examined."""

    def close(self) -> None:
        """The run ended, well or not."""


class Quiet:
    """Shows nothing."""

    def event(self, event: Event, done: Done) -> None:
        """Nothing is shown."""

    def exam(self, exam: Exam) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing was opened."""


class Shown:
    """What a display shows of a run."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def event(self, event: Event, done: Done) -> None:
        """Show how far it has come."""
        self._display.event(event, done)

    def exam(self, exam: Exam) -> None:
        """The accuracies after a phase."""
        fc, ncm = exam.accuracy("fc"), exam.accuracy("ncm")
        counts = f"({exam.classifier} counts; fc {fc:.2f}, ncm {ncm:.2f})"
        self._display.say(f"  accuracy {exam.accuracy():.2f} {counts}")

    def close(self) -> None:
        """Take the display away."""
        self._display.close()


def make_watcher(phases: int | None, opening: Sequence[str] = ()) -> Watcher:
    """A bar if a person is watching, lines if not; `opening` is printed once the work has begun.

    `phases` is None if their number is not known.
    """
    return Shown(make_display(phases, opening))


__all__ = ["Lines", "Quiet", "Shown", "Watcher", "make_watcher"]
