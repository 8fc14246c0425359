"""Extras that watch a run: its numbers as scalars in TensorBoard, Weights & Biases, trackio or MLflow."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from poise import store
from poise.errors import UserError, first_line, suggestion
from poise.runs.examiner import FIGURES, Exam
from poise.runs.folder import RunFolder
from poise.runs.observers import Observer
from poise.settings import flat_keys
from poise.training import Event
from poise.words import install_extra

log = logging.getLogger(__name__)

TRACKED: Final = "tracking.json"  # says, in a run folder, under which id each service knows the run
PROJECT: Final = "poise"
LONGEST: Final = 500  # characters of a parameter that every MLflow store takes


class Scalar(NamedTuple):
    """One number of a run, and where it belongs: at an epoch, a trial or a phase."""

    name: str
    value: float
    step: int


def scalars(entry: Mapping[str, Any]) -> Iterator[Scalar]:
    """The numbers in an entry of a journal."""
    phase = entry.get("phase", 0)
    match entry.get("event"):
        case "epoch":
            for name, value in {"loss": entry["loss"], "lr": entry["lr"], **entry["terms"]}.items():
                yield Scalar(f"phase-{phase}/{entry['stage']}/{name}", value, entry["epoch"])
        case "trial":
            yield Scalar(f"phase-{phase}/trials/reward", entry["reward"], entry["trial"]["id"])
        case "action":
            for axis, value in entry["action"].items():
                if not isinstance(value, str):
                    yield Scalar(f"action/{axis}", value, phase)
        case "exam":
            exam = Exam.from_json(entry)
            for name, classifier in (("counted", None), ("fc", "fc"), ("ncm", "ncm")):
                yield Scalar(f"accuracy/{name}", exam.accuracy(classifier), phase)


class Tracker(Observer):
    """Hands the numbers of a run to a service, which is opened with the first of them.

    A service that fails does not fail the run: that is said once, and the journal has everything.
    """

    name: ClassVar[str]  # the word for it on the command line, and the extra that it needs
    module: ClassVar[str]

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self._opened, self._failed = folder, False, False
        try:
            self.service: Any = importlib.import_module(self.module)
        except ImportError as error:
            raise UserError(f"{self.name} needs the extra; {install_extra(self.name)}") from error

    def event(self, event: Event) -> None:
        """Hand on the numbers of an event that belongs in the journal."""
        self._hand_on(list(scalars(event.as_json())) if event.kept else [])

    def exam(self, exam: Exam) -> None:
        """Hand on the accuracies after a phase."""
        self._hand_on(list(scalars(exam.as_json())))

    def end(self, result: Mapping[str, Any]) -> None:
        """Hand on the figures of the whole run."""
        last = len(result["curve"]) - 1
        self._hand_on([Scalar(f"result/{name}", result[name], last) for name in FIGURES])

    def close(self) -> None:
        """Close the service."""
        if self._opened:
            self._try(self._finish)

    def _hand_on(self, found: list[Scalar]) -> None:
        if found and not self._opened:
            self._opened = self._try(self._open)
        if found:
            self._try(lambda: self._write(found))

    def _open(self) -> None:
        path = self.folder.path / TRACKED
        known = store.read_json(path) if path.exists() else {}
        recipe = flat_keys(store.read_json(self.folder.recipe)["recipe"])
        settings = {key: value for key, value in recipe if value not in (None, {})}
        found = self._begin(self.folder.path.absolute().name, settings, known.get(self.name))
        store.write_json(path, {**known, self.name: found})

    def _try(self, act: Callable[[], None]) -> bool:
        if not self._failed:
            try:
                act()
            except Exception as error:  # of a service, which may raise anything
                self._failed = True
                log.warning("%s does not work (%s); the run goes on without it", self.name, first_line(error))
        return not self._failed

    def _begin(self, name: str, settings: dict[str, Any], known: str | None) -> str:
        """Begin a run of that name, or continue the one with the known id; its id."""
        raise NotImplementedError

    def _write(self, found: list[Scalar]) -> None:
        """Write some numbers."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Close the run, which is finished or left for now."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Writes under `DIR/tensorboard`."""

    name, module = "tensorboard", "torch.utils.tensorboard"

    def _begin(self, name: str, settings: dict[str, Any], known: str | None) -> str:
        self._writer = self.service.SummaryWriter(str(self.folder.path / "tensorboard"))
        return name

    def _write(self, found: list[Scalar]) -> None:
        for scalar in found:
            self._writer.add_scalar(*scalar)

    def _finish(self) -> None:
        self._writer.close()


class Wandb(Tracker):
    """A run of the project `poise`, or of the one that `WANDB_PROJECT` names."""

    name = module = "wandb"

    def _begin(self, name: str, settings: dict[str, Any], known: str | None) -> str:
        project, resume = os.environ.get("WANDB_PROJECT", PROJECT), "allow" if known is not None else None
        self._run = self.service.init(project=project, name=name, config=settings, id=known, resume=resume)
        return str(self._run.id)

    def _write(self, found: list[Scalar]) -> None:
        # All numbers of a run share one axis, on which it is counted what was written; so the real one is written too.
        axis = "phase" if found[0].name.startswith(("accuracy/", "action/", "result/")) else "epoch or trial"
        self._run.log({**{name: value for name, value, _ in found}, axis: found[0].step})

    def _finish(self) -> None:
        self._run.finish()


class Trackio(Wandb):
    """A run of the project `poise`, or of the one that `TRACKIO_PROJECT` names; it is known by its name."""

    name = module = "trackio"

    def _begin(self, name: str, settings: dict[str, Any], known: str | None) -> str:
        project, unique = os.environ.get("TRACKIO_PROJECT", PROJECT), known or f"{name}-{int(time.time()):x}"
        self._run = self.service.init(project=project, name=unique, config=settings, resume="allow")
        return str(self._run.name)


class MLflow(Tracker):
    """A run of the experiment `poise`, or of the one that `MLFLOW_EXPERIMENT_NAME` names."""

    name = module = "mlflow"

    def _begin(self, name: str, settings: dict[str, Any], known: str | None) -> str:
        self._client = self.service.MlflowClient()  # a run of its own: whatever the process has active stays so
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._run = known
            return known
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(wanted)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(wanted)
        self._run = str(self._client.create_run(number, run_name=name).info.run_id)
        words = [self.service.entities.Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        self._client.log_batch(self._run, params=words)
        return self._run

    def _write(self, found: list[Scalar]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.service.entities.Metric(name, float(value), now, step) for name, value, step in found]
        self._client.log_batch(self._run, metrics=metrics)

    def _finish(self) -> None:
        self._client.set_terminated(self._run, status="FINISHED" if self.folder.finished else "KILLED")


TRACKERS: Final[Mapping[str, type[Tracker]]] = {each.name: each for each in (Wandb, Trackio, MLflow)}


def make_tracker(name: str, folder: RunFolder) -> Tracker:
    """What hands the numbers of the run in this folder to the service of that name."""
    if name not in TRACKERS:
        raise UserError(f"unknown tracking service '{name}'; {suggestion(name, TRACKERS)}")
    return TRACKERS[name](folder)
