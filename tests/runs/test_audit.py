"""The leak audit: the exam as reward, labelled, and out of reach of an ordinary run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import UserError
from poise.report import comparison_table, run_table
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen
from poise.runs.checks import Audit, runner_in
from poise.runs.folder import RunDescription
from poise.runs.journal import read_journal
from poise.runs.record import run_of_result

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
WORDS = (
    *("groups=[3,1,1]", "images_per_class=30", "epochs=3"),
    *("policy=race", "trials.length=0.5", "space={feature_kd=[0,1],lr=[0.05,0.02]}"),
)


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(folder.journal.path) if event["event"] == kind]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an audit that nobody disturbed."""
    folder = tmp_path_factory.mktemp("audit") / "run"
    Audit(make_plan("digits/lucir", load_recipe("digits/lucir", [*WORDS, "batch=64"])), RunFolder(folder)).start()
    return folder


@pytest.fixture
def tried(audited: Path) -> list[dict[str, Any]]:
    """The policy's trials; others only judge classifiers."""
    return [event for event in events(RunFolder(audited), "trial") if "purpose" not in event["trial"]]


def test_the_reward_is_the_exam_and_the_local_one_is_beside_it(audited: Path, tried: list[dict[str, Any]]) -> None:
    exams = events(RunFolder(audited), "exam")
    images = {label: count for exam in exams for label, count in zip(exam["classes"], exam["images"], strict=True)}
    rows: list[int] = []
    for phase, exam in enumerate(exams):
        rows += sorted(label for label in exam["classes"] if label not in rows)
        for event in (event for event in tried if event["phase"] == phase):
            hits = event["record"]["exam"][str(event["trial"]["epochs"])][event["classifier"]]
            assert event["reward"] == pytest.approx(
                sum(right / images[label] for right, label in zip(hits, rows, strict=True)) / len(rows)
            )
            assert event["record"]["leak"] is True
    assert {event["phase"] for event in tried} == {1, 2}
    assert any(event["reward"] != event["record"]["local_reward"] for event in tried)


def test_it_is_labelled_everywhere(audited: Path) -> None:
    result = json.loads((audited / "result.json").read_bytes())
    assert result["leak"] is True
    assert result["resolved_policy"]["reward"] == "exam test (leak)"
    assert "race (leak)" in comparison_table([run_of_result(result)])
    assert "leak: the policy was told" in run_table(run_of_result(result))
    assert json.loads((audited / "recipe.json").read_bytes())["runner"] == "audit"


def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    audited: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Audit(plan(*WORDS), folder, checkpoint_seconds=0).starting()
    while len(events(folder, "trial")) < 12:
        next(going)
    going.close()
    opened, reopened = reopen(folder.path)
    assert runner_in(opened) is Audit
    assert Audit(reopened, opened).resume()["leak"] is True
    assert outcome(folder.path) == outcome(audited)


def test_a_run_and_an_audit_do_not_mix(audited: Path, plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    job = Audit(plan(*WORDS), folder, checkpoint_seconds=0)
    going = job.starting()
    while not events(folder, "trial"):
        next(going)
    going.close()
    with pytest.raises(UserError, match=r"the folder of another runner \(audit\)"):
        Run(plan(*WORDS), folder).resume()
    assert folder.difference(RunDescription(**plan(*WORDS).as_json())) == "a leak audit"
    assert job.state() == "begun"
    with pytest.raises(UserError, match="holds this run, finished"):
        Audit(plan(*WORDS), RunFolder(audited)).start()


def test_what_cannot_leak_is_refused(plan: Plans, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use trials\.environment=local"):
        Audit(plan(*WORDS, "trials.environment=lookahead"), RunFolder(tmp_path / "run"))
