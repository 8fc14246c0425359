"""The oracle of Table 3, row 5: the best constant action by the exams of whole runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.errors import RunFailed, UserError
from poise.report import actions_table
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan
from poise.runs.checks import run_crossval
from poise.runs.record import load_result

Plans = Callable[..., Plan]
WORDS = ("groups=[3,2]", "epochs=2", "batch=64", "space={feature_kd=[0,1],lr=[0.05,1e9]}")


def say_nothing(line: str) -> None:
    """Nobody is told."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a crossval in which half of the actions diverge."""
    folder = tmp_path_factory.mktemp("crossval") / "oracle"
    run_crossval(make_plan("digits/lucir", load_recipe("digits/lucir", WORDS)), folder, 2, say_nothing)
    return folder


@pytest.fixture
def result(oracle: Path) -> dict[str, Any]:
    return load_result(oracle)


def test_the_winner_has_the_best_average_of_all_candidates(result: dict[str, Any]) -> None:
    assert (result["policy"], result["oracle"]) == ("crossval", True)
    averages = [line["average_accuracy"] for line in result["actions"]]
    assert len(averages) == 4 * 2, "every action with each classifier"
    known = [average for average in averages if average is not None]
    assert len(known) == 4, "a diverged action has none"
    assert result["average_accuracy"] == max(known)
    winner = result["actions"][averages.index(max(known))]
    assert winner["action"] == result["resolved_policy"]["action"]
    assert actions_table(result).splitlines()[2].split()[1] == f"{max(known):.2f}"
    assert "–" in actions_table(result)


def test_the_winner_is_what_an_ordinary_run_with_that_action_gives(
    result: dict[str, Any], oracle: Path, tmp_path: Path
) -> None:
    words = [f"action.{axis}={value}" for axis, value in result["resolved_policy"]["action"].items()]
    recipe = load_recipe("digits/lucir", [*WORDS, *words, f"start={oracle / 'phase-0'}"])
    same = Run(make_plan("digits/lucir", recipe), RunFolder(tmp_path / "run")).start()
    for key in ("average_accuracy", "average_accuracy_after_phase_0", "last_accuracy", "average_forgetting"):
        assert result[key] == same[key]
    for key in ("backward_transfer", "accuracy_matrix", "curve"):
        assert result[key] == same[key]


def test_a_finished_one_says_so_and_another_one_is_refused(oracle: Path, result: dict[str, Any]) -> None:
    plan = make_plan("digits/lucir", load_recipe("digits/lucir", WORDS))
    said = list[str]()
    assert run_crossval(plan, oracle, 1, said.append) == result
    assert "holds this crossval, finished" in said[0]
    other = make_plan("digits/lucir", load_recipe("digits/lucir", [*WORDS, "space={lr=[0.1]}"]))
    with pytest.raises(UserError, match=r"holds another crossval \(other recipe, space\)"):
        run_crossval(other, oracle, 1, say_nothing)


def test_a_folder_of_something_else_is_left_alone(plan: Plans, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds files of something else"):
        run_crossval(plan(), tmp_path, 1, say_nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_any_finished_action_there_is_no_winner(plan: Plans, tmp_path: Path) -> None:
    words = ("epochs=2", "action.lr=1e9", "space={lr=[1e9]}")
    with pytest.raises(RunFailed, match="every one of the 1 actions diverged"):
        run_crossval(plan(*words), tmp_path / "out", 1, say_nothing)
    assert not (tmp_path / "out" / "result.json").exists()
    assert json.loads((tmp_path / "out" / "crossval.json").read_text())["name"] == "digits/lucir"


def test_an_error_in_one_action_stops_no_other_and_the_same_command_tries_it_again(
    oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, copy, original = make_plan("digits/lucir", load_recipe("digits/lucir", WORDS)), tmp_path / "copy", Run._learn
    shutil.copytree(oracle / "phase-0", copy / "phase-0")
    shutil.copy(oracle / "crossval.json", copy)

    def learn(self: Run, *args: Any) -> Any:
        if self.folder.path.name == "arm-000":
            raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED\nand a long story")
        return original(self, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Run, "_learn", learn)
        with pytest.raises(RunFailed, match=r"^1 of 4 actions failed and have no result \(arm-000\)[^\n]*") as failed:
            run_crossval(plan, copy, 1, say_nothing)
    assert "arm-000: RuntimeError: CUDNN_STATUS_NOT_SUPPORTED (" in str(failed.value)
    assert str(failed.value).endswith("the same command tries them again")
    assert RunFolder(copy / "arm-002").finished
    assert not (copy / "result.json").exists()
    finished = (copy / "arm-002" / "result.json").stat().st_mtime_ns
    again, first = run_crossval(plan, copy, 1, say_nothing), load_result(oracle)
    assert (copy / "arm-002" / "result.json").stat().st_mtime_ns == finished, "it is not run again"
    assert [line["average_accuracy"] for line in again["actions"]] == [
        line["average_accuracy"] for line in first["actions"]
    ]
