"""Extras that watch a run: its numbers as scalars in TensorBoard, Weights & Biases, trackio or MLflow."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from poise import store
from poise.errors import UserError, first_line, suggestion
from poise.runs.examiner import FIGURES, Exam
from poise.runs.folder import RunFolder
from poise.runs.observers import Observer
from poise.settings import flat_keys
from poise.training.events import Event
from poise.words import install_extra

log = logging.getLogger(__name__)

TRACKED: Final = "tracking.json"  # says, in a run folder, under which id each service knows the run
LONGEST: Final = 500  # characters of a parameter that every MLflow store takes


class Scalar(NamedTuple):
    """A number of a run, and where it belongs: at an epoch, a trial or a phase."""

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


class Opened(NamedTuple):
    """A run as a service has it: the id by which it goes on later, and what writes its numbers and closes it."""

    known: str
    write: Callable[[list[Scalar]], object]
    close: Callable[[], object]


Opening = Callable[[Any, RunFolder, dict[str, Any], str | None], Opened]


class Tracker(Observer):
    """Hands the numbers of a run to a service, which is opened with the first of them.

    A service that fails does not fail the run: that is said once, and the journal has everything.

    Args:
        name: the word for the service on the command line, and the extra that it needs.
        folder: that of the run.
    """

    def __init__(self, name: str, folder: RunFolder) -> None:
        if name not in TRACKERS:
            raise UserError(f"unknown tracking service '{name}'; {suggestion(name, TRACKERS)}")
        self._name, self._folder, self._failed = name, folder, False
        self._opened: Opened | None = None
        module, self._open = TRACKERS[name]
        try:
            self._module: Any = importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"{name} needs the extra; {install_extra(name)}") from error

    def event(self, event: Event) -> None:
        """Hand on the numbers of an event that belongs in the journal."""
        if event.kept:
            self._try(self._hand_on, list(scalars(event.as_json())))

    def exam(self, exam: Exam) -> None:
        """Hand on the accuracies after a phase."""
        self._try(self._hand_on, list(scalars(exam.as_json())))

    def end(self, result: Mapping[str, Any]) -> None:
        """Hand on the figures of the whole run."""
        last = len(result["curve"]) - 1
        self._try(self._hand_on, [Scalar(f"result/{name}", result[name], last) for name in FIGURES])

    def close(self) -> None:
        """Close the service."""
        if self._opened is not None:
            self._try(self._opened.close)

    def _hand_on(self, found: list[Scalar]) -> None:
        if found and self._opened is None:
            path = self._folder.path / TRACKED
            known = store.read_json(path) if path.exists() else {}
            recipe = flat_keys(store.read_json(self._folder.recipe)["recipe"])
            settings = {key: value for key, value in recipe if value not in (None, {})}
            self._opened = self._open(self._module, self._folder, settings, known.get(self._name))
            store.write_json(path, {**known, self._name: self._opened.known})
        if found and self._opened is not None:
            self._opened.write(found)

    def _try(self, act: Callable[..., object], *found: list[Scalar]) -> None:
        try:
            if not self._failed:
                act(*found)
        except Exception as error:  # of a service, which may raise anything
            self._failed = True
            log.warning("%s does not work (%s); the run goes on without it", self._name, first_line(error))


# The services ---------------------------------------------------------------------------------------------------------


def _open_tensorboard(tensorboard: Any, folder: RunFolder, settings: dict[str, Any], known: str | None) -> Opened:  # noqa: ANN401 - a module
    writer = tensorboard.SummaryWriter(str(folder.path / "tensorboard"))
    return Opened("tensorboard", lambda found: [writer.add_scalar(*scalar) for scalar in found], writer.close)


def _open_wandb(wandb: Any, folder: RunFolder, settings: dict[str, Any], known: str | None) -> Opened:  # noqa: ANN401 - a module
    project, resume = os.environ.get("WANDB_PROJECT", "poise"), "allow" if known is not None else None
    name = folder.path.absolute().name
    run = wandb.init(project=project, name=name, config=settings, id=known, resume=resume)
    return Opened(str(run.id), lambda found: _log(run, found), run.finish)


def _open_trackio(trackio: Any, folder: RunFolder, settings: dict[str, Any], known: str | None) -> Opened:  # noqa: ANN401 - a module
    unique = known or f"{folder.path.absolute().name}-{int(time.time()):x}"  # a run is known by its name
    project = os.environ.get("TRACKIO_PROJECT", "poise")
    run = trackio.init(project=project, name=unique, config=settings, resume="allow")
    return Opened(str(run.name), lambda found: _log(run, found), run.finish)


def _log(run: Any, found: list[Scalar]) -> None:  # noqa: ANN401 - a run of Weights & Biases, or of trackio
    # All numbers of a run share one axis, on which it is counted what was written; so the real one is written too.
    axis = "phase" if found[0].name.startswith(("accuracy/", "action/", "result/")) else "epoch or trial"
    run.log({**{name: value for name, value, _ in found}, axis: found[0].step})


def _open_mlflow(mlflow: Any, folder: RunFolder, settings: dict[str, Any], known: str | None) -> Opened:  # noqa: ANN401 - a module
    client, make = mlflow.MlflowClient(), mlflow.entities  # a run of its own: whatever the process has active stays so
    if known is not None:
        client.update_run(known, status="RUNNING")
    else:
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", "poise")
        experiment = client.get_experiment_by_name(wanted)
        number = experiment.experiment_id if experiment is not None else client.create_experiment(wanted)
        known = str(client.create_run(number, run_name=folder.path.absolute().name).info.run_id)
        words = [make.Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        client.log_batch(known, params=words)

    def write(found: list[Scalar]) -> None:
        now = int(time.time() * 1000)
        metrics = [make.Metric(name, float(value), now, step) for name, value, step in found]
        client.log_batch(known, metrics=metrics)

    return Opened(known, write, lambda: client.set_terminated(known, "FINISHED" if folder.finished else "KILLED"))


#: The module of each service, and what opens it.
TRACKERS: Final[dict[str, tuple[str, Opening]]] = {
    "wandb": ("wandb", _open_wandb),
    "trackio": ("trackio", _open_trackio),
    "mlflow": ("mlflow", _open_mlflow),
    "tensorboard": ("torch.utils.tensorboard", _open_tensorboard),
}
