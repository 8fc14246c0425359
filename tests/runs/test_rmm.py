"""Runs with RMM's memory: what is reported, killed and resumed, one phase 0 for several rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise import Budget, UserError
from poise.report import comparison_table, run_table
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen
from poise.runs.journal import read_journal
from poise.runs.record import run_of_result

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
STREAM = "groups=[3,2,2]"
TRYING = (
    *("policy=race", "space={allocation=[0.0,0.9]}", "trials.environment=lookahead"),
    *("images_per_class=20", "batch=16"),
)


@pytest.fixture
def rmm(plan: Plans) -> Plans:
    def made(*words: str) -> Plan:
        return plan(STREAM, *words, name="digits/rmm")

    return made


def test_the_images_stored_and_held_are_beside_the_accuracy(rmm: Plans, tmp_path: Path) -> None:
    results = {}
    for knows in (False, True):
        words = ("memory.knows_increment=true",) if knows else ()
        results[knows] = Run(rmm(*words), RunFolder(tmp_path / str(knows))).start()
        held = [(point["held_images"], point["budget_images"]) for point in results[knows]["curve"]]
        assert any(most > budget for most, budget in held) is knows
        assert held[0][0] == held[0][1]
    first, second, last = results[False]["curve"]
    assert first["stored_images"] > 3 * 50
    assert 5 * 5 < second["stored_images"] < first["stored_images"]
    assert last["held_images"] == last["budget_images"]
    table = run_table(run_of_result(results[False]))
    assert f"{last['held_images']} of {last['budget_images']}" in table
    assert "knows increment" not in table
    assert f"(aanets+rmm, groups 3: {first['stored_images'] / 3:.0f} of each class instead of 5)" in table
    assert "cuts them when phase 1 arrives" in table
    assert "told how many images come next" in run_table(run_of_result(results[True]))
    both = comparison_table([*map(run_of_result, results.values())])
    assert "fixed (knows increment)" in both
    assert "fixed (more after phase 0)" in both
    assert both.count("cuts them when phase 1 arrives") == 1
    assert "stored  held" in both


def test_killed_and_resumed_a_run_that_tries_allocations_gives_the_same_bytes(
    rmm: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    words = (*TRYING, "groups=[2,2]")
    Run(rmm(*words), RunFolder(tmp_path / "whole")).start()
    going = Run(rmm(*words), RunFolder(tmp_path / "run"), checkpoint_seconds=0).starting()
    while not any(event["event"] == "trial" for event in read_journal(tmp_path / "run" / "journal.jsonl")):
        next(going)
    going.close()
    folder, again = reopen(tmp_path / "run")
    Run(again, folder).resume()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_phase_0_is_shared_where_the_memory_after_it_is_the_same(plan: Plans, rmm: Plans, tmp_path: Path) -> None:
    Run(plan(STREAM, name="digits/aanets"), RunFolder(tmp_path / "plain"), until=1).start()
    start = f"start={tmp_path / 'plain'}"
    plain = "memory.after_phase_0=plain"
    result = Run(rmm(start, plain), RunFolder(tmp_path / "rmm")).start()
    assert result["curve"][0]["held_images"] == result["curve"][0]["budget_images"] > 0
    for words, why in {
        (): r"kept other images after phase 0 \(per_class=5\) than .*rule=rmm.*, or set memory.after_phase_0=plain$",
        ("memory.knows_increment=true",): "has other next group; start from a run of the same data",
        (plain, "memory.per_class=4"): r"than this run keeps \(per_class=4",
    }.items():
        with pytest.raises(UserError, match=why):
            Run(rmm(start, *words), RunFolder(tmp_path / "refused")).start()
        assert not RunFolder(tmp_path / "refused").exists


def test_a_phase_0_of_rmm_is_shared_by_its_share_and_not_with_plain_runs(
    plan: Plans, rmm: Plans, tmp_path: Path
) -> None:
    Run(rmm(), RunFolder(tmp_path / "first"), until=1).start()
    start = f"start={tmp_path / 'first'}"
    words = "memory.allocation=[0.8,0.1]"
    later = Run(rmm(words, start), RunFolder(tmp_path / "later")).start()
    whole = Run(rmm(words), RunFolder(tmp_path / "whole")).start()
    assert later["curve"] == whole["curve"]
    with pytest.raises(UserError, match=r"0\.8.* than this run keeps \(.*0\.5.*\)"):
        Run(rmm(start, "memory.allocation=0.5"), RunFolder(tmp_path / "half")).start()
    with pytest.raises(UserError, match=r"than this run keeps \(per_class=5\);"):
        Run(plan(STREAM, start, name="digits/aanets"), RunFolder(tmp_path / "plain")).start()


def test_a_released_phase_0_is_shared_only_where_the_same_comes_next(rmm: Plans, tmp_path: Path) -> None:
    told = "memory.knows_increment=true"
    Run(rmm(told, "groups=[[0,1],[2],[3]]"), RunFolder(tmp_path / "first"), until=1).start()
    start = f"start={tmp_path / 'first'}"
    with pytest.raises(UserError, match="other next group"):
        Run(rmm(told, start, "groups=[[0,1],[2,3]]"), RunFolder(tmp_path / "other")).start()
    Run(rmm(told, start, "groups=[[0,1],[2],[4]]"), RunFolder(tmp_path / "same"), until=2).start()


def test_what_a_recipe_says_of_it() -> None:
    recipe = load_recipe("digits/rmm")
    shares = (0.8, 0.8, 0.6, 0.6, 0.6, 0.6)
    assert recipe.settings.memory == Budget(5, rule="rmm", allocation=shares)
    assert load_recipe("cifar100/rmm").settings.memory == Budget(20, rule="rmm", allocation=shares)
    longer = (*[0.7] * 10, *[0.8] * 5, *[0.9] * 11)
    assert load_recipe("cifar100/rmm-25").settings.memory == Budget(20, rule="rmm", allocation=longer)
    assert load_recipe("digits/rmm", ["memory.allocation=0.5"]).settings.memory.rho(3) == 0.5
    with pytest.raises(UserError, match=r"memory\.rule=rmm"):
        load_recipe("digits/lucir", ["policy=race", "space={allocation=[0.1,0.5]}"])
    with pytest.raises(UserError, match=r"did you mean 'memory\.allocation'"):
        load_recipe("digits/rmm", ["memory.alocation=0.5"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("setting=tfs", "phases=10"),
            "memory.allocation lists 6 numbers for 10 phases: 0.6 stays in force from phase 6 on",
        ),
        ((STREAM,), "memory.allocation lists 6 numbers for 3 phases: those after the first 3 are not used"),
        (("phases=5",), None),
        ((STREAM, "memory.allocation=0.5"), None),
    ],
)
def test_shares_for_another_number_of_phases_are_said_aloud(words: tuple[str, ...], line: str | None) -> None:
    notes = make_plan("digits/rmm", load_recipe("digits/rmm", ("order=sorted", *words))).notes
    assert [note for note in notes if "allocation" in note] == ([line] if line else [])
