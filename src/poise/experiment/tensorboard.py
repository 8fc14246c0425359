"""An extra: the same events as scalars for TensorBoard (`pip install poise[tensorboard]`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from poise.errors import UserError
from poise.experiment.examiner import Exam
from poise.progress import Done
from poise.training import EpochDone, Event


class TensorBoard:
    """Writes losses and accuracies under `DIR/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError("--tensorboard needs the extra: pip install 'poise[tensorboard]'") from error
        self._make: Callable[[], Any] = lambda: SummaryWriter(str(folder / "tensorboard"))

    @cached_property
    def _writer(self) -> Any:  # noqa: ANN401 - an extra without types
        """Created when there is something to write, so that a refused run leaves no files."""
        return self._make()

    def event(self, event: Event, done: Done) -> None:
        """Write the mean loss, its terms and the learning rate of an epoch."""
        if not isinstance(event, EpochDone):
            return
        for name, value in {"loss": event.loss, "lr": event.lr, **event.terms}.items():
            self._writer.add_scalar(f"phase-{event.phase}/{event.stage}/{name}", value, event.epoch)

    def exam(self, exam: Exam) -> None:
        """Write the accuracies of a phase."""
        for name, value in (("counted", exam.accuracy()), ("fc", exam.accuracy("fc")), ("ncm", exam.accuracy("ncm"))):
            self._writer.add_scalar(f"accuracy/{name}", value, exam.phase)

    def close(self) -> None:
        """Flush and close."""
        if "_writer" in vars(self):
            self._writer.close()
