"""Numbers of a run in tracking services: the real packages, offline, each skipped where that extra is missing."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from poise.errors import Interrupted, UserError
from poise.runs import TRACKERS, Observer, Plan, Run, RunFolder, Tracker, reopen
from poise.runs.journal import read_journal
from poise.runs.trackers import TRACKED, Opened, Scalar, scalars
from poise.training.events import Event

Plans = Callable[..., Plan]
POLICY = ("groups=[2,1]", "policy=online", 'space={"lr"=[0.1,0.05]}')


@dataclass
class Recorded:
    """A service that remembers; it stands for those that are not installed."""

    begun: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)
    found: list[Scalar] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    is_reached: bool = True

    def open(self, _: object, folder: RunFolder, settings: dict[str, Any], known: str | None) -> Opened:
        self.begun.append((folder.path.name, settings, known))
        return Opened(known or "run-1", self.write, lambda: self.ended.append(folder.finished))

    def write(self, found: list[Scalar]) -> None:
        if not self.is_reached:
            raise ConnectionError("no route\nto the server")
        self.found += found


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What is known by the name `recorded`."""
    service = Recorded()
    monkeypatch.setitem(TRACKERS, "recorded", ("json", service.open))
    return service


class Stopper(Observer):
    """Asks the run to stop in phase 1."""

    def __init__(self, job: Run) -> None:
        self.job = job

    def event(self, event: Event) -> None:
        if event.phase == 1:
            self.job.stop.set()


def stopped_and_resumed(name: str, plan: Plans, tmp_path: Path) -> str:
    """A run that is handed on, stopped and resumed; its id."""
    folder = RunFolder(tmp_path / "run")
    job = Run(plan("groups=[2,1]"), folder)
    job.observers = [Tracker(name, folder), Stopper(job)]
    with pytest.raises(Interrupted):
        job.start()
    opened, same = reopen(folder.path)
    Run(same, opened, [Tracker(name, opened)]).resume()
    known: str = json.loads((folder.path / TRACKED).read_text())[name]
    return known


def test_every_number_of_the_journal_is_handed_on_once(plan: Plans, tmp_path: Path, recorded: Recorded) -> None:
    folder = RunFolder(tmp_path / "run")
    result = Run(plan(*POLICY), folder, [Tracker("recorded", folder)]).start()
    ((name, settings, known),) = recorded.begun
    assert (name, known) == ("run", None)
    assert (settings["policy"], settings["memory.per_class"]) == ("online", 5)
    told = [each for entry in read_journal(folder.path / "journal.jsonl") for each in scalars(entry)]
    assert recorded.found[: len(told)] == told
    assert ("result/average_accuracy", result["average_accuracy"], 1) in recorded.found[len(told) :]
    assert recorded.ended == [True]


def test_a_resumed_run_goes_on_under_its_id(plan: Plans, tmp_path: Path, recorded: Recorded) -> None:
    assert stopped_and_resumed("recorded", plan, tmp_path) == "run-1"
    assert ([known for _, _, known in recorded.begun], recorded.ended) == ([None, "run-1"], [False, True])
    steps = [(name, step) for name, _, step in recorded.found]
    assert len(set(steps)) == len(steps)


def test_a_service_that_fails_does_not_fail_the_run(
    plan: Plans, tmp_path: Path, recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    folder, recorded.is_reached = RunFolder(tmp_path / "run"), False
    with caplog.at_level(logging.WARNING):
        result = Run(plan("groups=[2,1]"), folder, [Tracker("recorded", folder)]).start()
    assert result["average_accuracy"] > 0
    (warned,) = [record.getMessage() for record in caplog.records if "recorded" in record.getMessage()]
    assert "no route" in warned


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_extra_or_an_unknown_word_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], None)
    with pytest.raises(UserError, match=f"{name} needs the extra; .*pip install '.*{name}"):
        Tracker(name, RunFolder(tmp_path))
    with pytest.raises(UserError, match=f"unknown tracking service .*did you mean '{name}'"):
        Tracker(f"{name}x", RunFolder(tmp_path))


def test_a_refused_run_opens_nothing(plan: Plans, tmp_path: Path, recorded: Recorded) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(UserError):
        Run(plan("device=cuda:99"), folder, [Tracker("recorded", folder)]).start()
    assert not recorded.begun
    assert not (tmp_path / "run").exists()


# The real packages ----------------------------------------------------------------------------------------------------


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What a service has to know of a run."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in read_journal(folder / "journal.jsonl"):
        for name, value, step in scalars(entry):
            found.setdefault(name, []).append((step, value))
    return found


@pytest.mark.filterwarnings("ignore")
def test_mlflow_knows_the_run(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is missing: MLflow was not tried")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    known = stopped_and_resumed("mlflow", plan, tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("poise").experiment_id])
    assert (run.info.run_id, run.info.status, run.info.run_name) == (known, "FINISHED", "run")
    assert run.data.params["method"] == "lucir"
    for name, expected in points(tmp_path / "run").items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((point.step, point.value) for point in history) == sorted(expected), name


@pytest.mark.filterwarnings("ignore")
def test_trackio_knows_the_run(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="the extra trackio is missing: trackio was not tried")
    known = stopped_and_resumed("trackio", plan, tmp_path)
    (database,) = (tmp_path / "trackio").rglob("poise*.db")
    rows = sqlite3.connect(database).execute("select run_name, metrics from metrics order by id").fetchall()
    assert {name for name, _ in rows} == {known}
    written = [json.loads(metrics) for _, metrics in rows]
    for name, expected in points(tmp_path / "run").items():
        assert [row[name] for row in written if name in row] == pytest.approx([value for _, value in expected]), name


@pytest.mark.filterwarnings("ignore")
def test_wandb_knows_the_run(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    pytest.importorskip("wandb", reason="the extra wandb is missing: Weights & Biases was not tried")
    known = stopped_and_resumed("wandb", plan, tmp_path)
    written = (tmp_path / "wandb").glob(f"offline-run-*{known}/run-{known}.wandb")
    data = b"".join(file.read_bytes() for file in written)
    assert all(name.encode() in data for name in points(tmp_path / "run"))
