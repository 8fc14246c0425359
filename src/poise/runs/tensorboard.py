"""An extra: the same events as scalars for TensorBoard (`tensorboard`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from poise.errors import UserError
from poise.meter import Done
from poise.runs.examiner import Exam
from poise.runs.tracking import scalars
from poise.training import Event
from poise.words import install_extra


class TensorBoard:
    """Writes losses, rewards, actions and accuracies under `DIR/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(f"--tensorboard needs the extra; {install_extra('tensorboard')}") from error
        self._make: Callable[[], Any] = lambda: SummaryWriter(str(folder / "tensorboard"))

    @cached_property
    def _writer(self) -> Any:  # noqa: ANN401 - an extra without types
        """Created when there is something to write, so that a refused run leaves no files."""
        return self._make()

    def event(self, event: Event, done: Done) -> None:
        """Write what is in an event that belongs in the journal."""
        for name, value, step in scalars(event.as_json()) if event.kept else ():
            self._writer.add_scalar(name, value, step)

    def exam(self, exam: Exam) -> None:
        """Write the accuracies of a phase."""
        for name, value, step in scalars(exam.as_json()):
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if "_writer" in vars(self):
            self._writer.close()
