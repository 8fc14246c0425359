"""Numbers of a run in tracking services: the real packages, offline, each skipped where that extra is missing."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from poise.meter import Done
from poise.runs.tracking import TRACKED, Scalar, scalars

from poise import store
from poise.errors import Interrupted, UserError
from poise.journal import read_journal
from poise.runs import TRACKERS, Plan, Run, RunFolder, Tracker, make_tracker, reopen, track_folder
from poise.runs.examiner import Exam
from poise.training import Event

Plans = Callable[..., Plan]
POLICY = ("groups=[2,1]", "policy=online", 'space={"lr"=[0.1,0.05]}')


class Recorded(Tracker):
    """A service that remembers; it stands for those that are not installed."""

    name = "recorded"

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        self.begun: list[tuple[str, Mapping[str, Any], str | None]] = []
        self.found: list[Scalar] = []
        self.ended: list[bool] = []

    def _begin(self, name: str, settings: Mapping[str, Any], known: str | None) -> str:
        self.begun.append((name, settings, known))
        return known or "run-1"

    def _write(self, found: list[Scalar]) -> None:
        self.found += found

    def _end(self, *, finished: bool) -> None:
        self.ended.append(finished)


class Broken(Recorded):
    """A service that is not reached."""

    name = "broken"

    def _write(self, found: list[Scalar]) -> None:
        raise ConnectionError("no route\nto the server")


def test_every_number_of_the_journal_is_handed_on_once(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    service = Recorded(folder)
    result = Run(plan(*POLICY), folder, [service]).start()
    assert [(name, known) for name, _, known in service.begun] == [("run", None)]
    settings = service.begun[0][1]
    assert settings["policy"] == "online"
    assert settings["memory.per_class"] == 5
    by_name: dict[str, list[tuple[int, float]]] = {}
    for name, value, step in service.found:
        by_name.setdefault(name, []).append((step, value))
    counted = {step: round(value, 4) for step, value in by_name["accuracy/counted"]}
    assert counted == {point["phase"]: point["accuracy"] for point in result["curve"]}
    assert len(by_name["phase-0/main/loss"]) == 1
    journal = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    trials = [entry for entry in journal if entry["event"] == "trial"]
    assert [value for _, value in by_name["phase-1/trials/reward"]] == [entry["reward"] for entry in trials]
    assert by_name["action/lr"][-1] == (1, result["curve"][1]["action"]["lr"])
    assert by_name["result/average_accuracy"] == [(1, result["average_accuracy"])]
    assert service.ended == [True]
    again = Recorded(RunFolder(tmp_path / "run"))
    (tmp_path / "run" / TRACKED).unlink()
    assert track_folder(again) == len(service.found) - 5
    assert again.found == service.found


def test_a_resumed_run_goes_on_under_its_id(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    class Stop(Recorded):
        name = "recorded"

        def event(self, event: Event, done: Done) -> None:
            super().event(event, done)
            if event.phase == 1:
                job.stop.set()

    first = Stop(folder)
    job = Run(plan("groups=[2,1]"), folder, [first])
    with pytest.raises(Interrupted):
        job.start()
    assert first.ended == [False]
    assert json.loads((tmp_path / "run" / TRACKED).read_text())["recorded"] == "run-1"
    opened, same = reopen(tmp_path / "run")
    second = Recorded(opened)
    Run(same, opened, [second]).resume()
    assert [known for _, _, known in second.begun] == ["run-1"]
    assert second.ended == [True]
    steps = [(name, step) for name, _, step in (*first.found, *second.found)]
    assert len(set(steps)) == len(steps)
    with pytest.raises(UserError, match="is in recorded already, as run-1"):
        track_folder(Recorded(opened))


def test_a_service_that_fails_does_not_fail_the_run(
    plan: Plans, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        result = Run(plan("groups=[2,1]"), folder, [Broken(folder)]).start()
    assert result["average_accuracy"] > 0
    warned = [record.getMessage() for record in caplog.records if "broken" in record.getMessage()]
    assert len(warned) == 1
    assert "no route" in warned[0]
    (tmp_path / "run" / TRACKED).unlink()
    with pytest.raises(Exception, match="broken does not work: no route"):
        track_folder(Broken(folder))


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_extra_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as error:
        make_tracker(name, tmp_path)
    assert str(error.value) == f"{name} needs the extra; in a clone of poise: pip install '.[{name}]'"


def test_bad_words_and_folders_are_one_line(tmp_path: Path, plan: Plans) -> None:
    with pytest.raises(UserError, match="unknown tracking service 'mlfow'; did you mean 'mlflow'"):
        make_tracker("mlfow", tmp_path)
    with pytest.raises(UserError, match="is not a run folder"):
        track_folder(Recorded(RunFolder(tmp_path)))


def test_a_refused_run_opens_nothing(plan: Plans, tmp_path: Path) -> None:
    service = Recorded(RunFolder(tmp_path / "run"))
    with pytest.raises(UserError):
        Run(plan("device=cuda:99"), service.folder, [service]).start()
    assert not service.begun
    assert not (tmp_path / "run").exists()


# The real packages ------------------------------------------------------------------------------------------------


@pytest.fixture
def expected(reference: Path) -> dict[str, list[tuple[int, float]]]:
    """What a service has to know of the reference run."""
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in read_journal(reference / "journal.jsonl"):
        for name, value, step in scalars(entry):
            found.setdefault(name, []).append((step, value))
        if entry["event"] == "exam":
            assert Exam.from_json(entry).accuracy() == entry["accuracy"]
    assert {"phase-0/main/loss", "accuracy/counted"} <= set(found)
    return found


@pytest.fixture
def folder(reference: Path, tmp_path: Path) -> Path:
    """A copy of the reference run, which can be written to."""
    copy = tmp_path / "copied"
    copy.mkdir()
    for name in ("recipe.json", "journal.jsonl", "result.json"):
        (copy / name).write_bytes((reference / name).read_bytes())
    return copy


def hand_on_in_two(name: str, folder: Path) -> str:
    """Hand on a journal as a run that was stopped in its middle and resumed does; the id of the run."""
    journal = list(read_journal(folder / "journal.jsonl"))
    result, middle = (folder / "result.json").read_bytes(), len(journal) // 2
    (folder / "result.json").unlink()
    for part in (journal[:middle], journal[middle:]):
        tracker = make_tracker(name, folder)
        for entry in part:
            tracker.record(entry)
        if entry is journal[-1]:
            (folder / "result.json").write_bytes(result)
        tracker.finish()
        time.sleep(1.1 if name == "wandb" else 0)  # it names what it writes offline by the second
    known: str = json.loads((folder / TRACKED).read_text())[name]
    return known


@pytest.mark.filterwarnings("ignore")
def test_mlflow_knows_the_run(
    folder: Path, expected: dict[str, list[tuple[int, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is missing: MLflow was not tried")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    known = hand_on_in_two("mlflow", folder)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("poise").experiment_id])
    assert run.info.run_id == known
    assert (run.info.status, run.info.run_name) == ("FINISHED", "copied")
    assert run.data.params["method"] == "lucir"
    for name, points in expected.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((point.step, point.value) for point in history) == sorted(points), name
    assert run.data.metrics["result/average_accuracy"] == store.read_json(folder / "result.json")["average_accuracy"]


@pytest.mark.filterwarnings("ignore")
def test_trackio_knows_the_run(
    folder: Path, expected: dict[str, list[tuple[int, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="the extra trackio is missing: trackio was not tried")
    known = hand_on_in_two("trackio", folder)
    (database,) = (tmp_path / "trackio").rglob("poise*.db")
    rows = sqlite3.connect(database).execute("select run_name, metrics from metrics order by id").fetchall()
    assert {name for name, _ in rows} == {known}
    assert known.startswith("copied-")
    written = [json.loads(metrics) for _, metrics in rows]
    for name, points in expected.items():
        assert [row[name] for row in written if name in row] == pytest.approx([value for _, value in points]), name


@pytest.mark.filterwarnings("ignore")
def test_wandb_knows_the_run(
    folder: Path, expected: dict[str, list[tuple[int, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip("wandb", reason="the extra wandb is missing: Weights & Biases was not tried")
    name = hand_on_in_two("wandb", folder)
    written = sorted((tmp_path / "wandb").glob(f"offline-run-*{name}/run-{name}.wandb"))
    data = b"".join(file.read_bytes() for file in written)
    for each, points in expected.items():
        assert each.encode() in data, each
        assert all(json.dumps(value).encode() in data for _, value in points if "accuracy" in each), each
