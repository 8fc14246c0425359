"""What watches runs and cannot change them: the display of a run and of a cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poise.progress import PhaseDisplay, SweepDisplay, Tally
from poise.runs.examiner import Exam
from poise.training.events import Event, Progress


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


class RunDisplay(PhaseDisplay, Observer):
    """Shows how far a run has come, and the accuracy after each phase."""

    def begin(self, plan: Sequence[Progress]) -> None:
        """Know what is to come."""
        self.tally = Tally(plan)

    def exam(self, exam: Exam) -> None:
        """Say the accuracies."""
        fc, ncm = exam.accuracy("fc"), exam.accuracy("ncm")
        self.say(f"  accuracy {exam.accuracy():.2f} ({exam.classifier} counts; fc {fc:.2f}, ncm {ncm:.2f})")


class CellObserver(Observer):
    """Shows how far a cell of a sweep has come, and says a line per exam, with the name of the cell."""

    def __init__(self, name: str, display: SweepDisplay) -> None:
        self._name, self._display, self._tally = name, display, Tally()

    def begin(self, plan: Sequence[Progress]) -> None:
        """Know what is to come."""
        self._tally = Tally(plan)

    def event(self, event: Event) -> None:
        """Show how far it has come."""
        self._tally.note(event)
        self._display.note(self._name, event.phase, self._tally)

    def exam(self, exam: Exam) -> None:
        """Say the accuracy."""
        self._display.say(f"{self._name}: phase {exam.phase}, accuracy {exam.accuracy():.2f} ({exam.classifier})")
