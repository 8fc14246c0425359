"""What watches runs and cannot change them: the display, TensorBoard, trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from poise.progress import PhaseDisplay, Tally
from poise.runs.examiner import Exam
from poise.training import Event, Progress


class Observer:
    """Watches a run and does nothing; others override what they want to hear of."""

    def begin(self, plan: Sequence[Progress]) -> None:
        """The run begins or is resumed; the plan says what its phases will train on."""

    def event(self, event: Event) -> None:
        """Something happened in a phase."""

    def exam(self, exam: Exam) -> None:
        """A phase was learned and examined."""

    def end(self, result: Mapping[str, Any]) -> None:
        """The run is finished."""

    def close(self) -> None:
        """The run has left its folder, finished or not."""


class RunDisplay(Observer):
    """Shows how far a run has come, and the accuracy after each phase."""

    def __init__(self, phases: int, opening: Sequence[str] = ()) -> None:
        self._display = PhaseDisplay(phases, opening)

    def begin(self, plan: Sequence[Progress]) -> None:
        """Know what is to come."""
        self._display.tally = Tally(plan)

    def event(self, event: Event) -> None:
        """Show how far it has come."""
        self._display.event(event)

    def exam(self, exam: Exam) -> None:
        """Say the accuracies."""
        fc, ncm = exam.accuracy("fc"), exam.accuracy("ncm")
        counts = f"({exam.classifier} counts; fc {fc:.2f}, ncm {ncm:.2f})"
        self._display.say(f"  accuracy {exam.accuracy():.2f} {counts}")

    def close(self) -> None:
        """Take the bar away."""
        self._display.close()


class Standing(NamedTuple):
    """How far a cell of a sweep has come: its phase, and images of all its phases."""

    phase: int
    done: int
    of: int


class CellView(Protocol):
    """Shows what cells do, here or at the other end of a cluster."""

    def say(self, line: str) -> None:
        """A line of its own."""

    def note(self, name: str, standing: Standing) -> None:
        """A cell has come so far."""

    def ended(self, name: str) -> None:
        """A cell is finished or has failed."""


class CellObserver(Observer):
    """Tells a view how far a cell has come, and says a line per exam, with the name of its cell."""

    def __init__(self, name: str, view: CellView) -> None:
        self._name, self._view, self._tally = name, view, Tally()

    def begin(self, plan: Sequence[Progress]) -> None:
        """Know what is to come."""
        self._tally = Tally(plan)

    def event(self, event: Event) -> None:
        """Tell how far it has come."""
        self._tally.note(event)
        self._view.note(self._name, Standing(event.phase, self._tally.done, self._tally.of))

    def exam(self, exam: Exam) -> None:
        """Say the accuracy."""
        self._view.say(f"{self._name}: phase {exam.phase}, accuracy {exam.accuracy():.2f} ({exam.classifier})")
