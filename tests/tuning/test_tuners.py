"""`online`, `bilevel` and `offline-rl` behind the same call: what they decide is trained with, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poise import Learner, UserError
from poise.actions import Action
from poise.journal import read_journal
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen
from poise.training import ActionDecided, EpochDone, TrialDone, TuningDone
from poise.tuning.bilevel import tuned_axes

from .learners import GRID, SETTINGS, digits, of, saved

SHORT: dict[str, Any] = {**SETTINGS, "memory": 4, "epochs": 2, "batch": 64}
TUNERS: dict[str, dict[str, Any]] = {
    "online": {"policy": "online", "space": GRID, "trials": {"length": 1.0}},
    "bilevel": {"policy": "bilevel", "policy_options": {"rounds": 2, "steps": 2}},
    "offline-rl": {"policy": "offline-rl", "policy_options": {"episodes": 3}, "space": GRID},
}
FIRST, SECOND, THIRD = [0, 1, 2, 3], [4, 5], [6]


def phase(labels: list[int], count: int = 10) -> tuple[Tensor, Tensor]:
    return digits(labels, count)


def made(tuner: str, **changes: Any) -> Learner:
    return Learner(**{**SHORT, **TUNERS[tuner], **changes})


# The learner --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuner", TUNERS)
def test_the_phase_is_trained_with_what_was_decided(tuner: str) -> None:
    learner, plain = made(tuner), made(tuner)
    for each in (learner, plain):
        each.partial_fit(*phase(FIRST))
    events = list(learner.fitting(*phase(SECOND)))
    (decided,) = of(ActionDecided, events)
    assert decided.policy == tuner
    assert learner.action_ == Action(**decided.action)
    assert of(EpochDone, events)[0].lr == pytest.approx(learner.action_.lr)
    list(plain.fitting(*phase(SECOND), action=decided.action))
    (trained, _), (expected, _) = saved(learner), saved(plain)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tuner", ["bilevel", "offline-rl"])
def test_steps_are_told_as_plain_values(tuner: str) -> None:
    learner = made(tuner)
    events = [event for labels in (FIRST, SECOND, THIRD) for event in learner.fitting(*phase(labels))]
    steps = of(TuningDone, events)
    assert {step.tuner for step in steps} == {tuner}
    for step in steps:
        assert step.kept
        assert json.loads(json.dumps(step.as_json(), allow_nan=False)) == step.as_json()
    found = [(step.phase, step.record["round" if tuner == "bilevel" else "number"]) for step in steps]
    assert found == ([(1, 0), (1, 1), (2, 0), (2, 1)] if tuner == "bilevel" else [(0, 0), (0, 1), (0, 2)])


def test_the_last_round_of_bilevel_is_what_it_decides() -> None:
    learner = made("bilevel").partial_fit(*phase(FIRST))
    events = list(learner.fitting(*phase(SECOND)))
    steps, (decided,) = of(TuningDone, events), of(ActionDecided, events)
    assert decided.action == steps[-1].record["action"]
    axes = tuned_axes(Action(**decided.action))
    assert set(steps[0].record["gradient"]) == set(axes)
    before = learner.action_space.actions[learner.action_space.default]
    assert decided.action["lr"] != before.lr  # a weight of 0 may stay there
    assert all(decided.action[axis] == before[axis] for axis in before if axis not in axes)


def test_offline_rl_decides_one_of_its_arms_and_tries_nothing_after_the_first_phase() -> None:
    learner = made("offline-rl").partial_fit(*phase(FIRST))
    for labels in (SECOND, THIRD):
        events = list(learner.fitting(*phase(labels)))
        assert not of(TuningDone, events)
        assert [event for event in of(TrialDone, events) if event.trial.get("purpose") != "classifier"] == []
        assert learner.action_ in learner.action_space.actions


def test_bilevel_without_anything_to_validate_on_leaves_the_action(caplog: pytest.LogCaptureFixture) -> None:
    learner = made("bilevel", memory=1).partial_fit(*phase([0, 1], count=1))
    events = list(learner.fitting(*phase([2], count=1)))
    assert not of(TuningDone, events)
    assert learner.action_ == learner.action_space.actions[learner.action_space.default]
    assert "nothing to validate on" in caplog.text


# The record ---------------------------------------------------------------------------------------------------------


def test_online_is_the_default_and_everything_in_it_is_named() -> None:
    learner = Learner(device="cpu")
    assert learner.settings.policy == "online"
    found = learner.resolved_policy()
    assert found == json.loads(json.dumps(found))
    assert found["name"] == "online"
    assert [found[key] for key in ("fewest", "again", "carry", "handicap", "head_start")] == [4, 5, 0.8, 0.03, 0.05]
    assert found["space"]["name"] == "online"
    stable, plastic = found["space"]["grids"]
    assert (stable["feature_kd"], stable["adjustment"], stable["lr"]) == ([0.5, 1.0], [0.0, 0.5], [0.05, 0.02])
    assert (plastic["feature_kd"], plastic["adjustment"], plastic["lr"]) == ([0.0], [1.0], [0.1, 0.05, 0.02])
    assert found["space"]["actions"] == len(found["space"]["arms"]) == 12  # the default among them
    tried = {key: found["trials"][key] for key in ("environment", "length", "longest", "validation", "even")}
    assert tried == {"environment": "both", "length": 0.3, "longest": 16, "validation": 30, "even": False}
    assert found["trials"]["classifier"] == "trials"
    same = Learner(policy="online", device="cpu")
    assert same.resolved_policy() == found


# Runs ---------------------------------------------------------------------------------------------------------------

RUNS: dict[str, tuple[str, ...]] = {
    "online": ("policy=online", "space={lr=[0.1,0.02],feature_kd=[0.5,1.0]}", "groups=[2,2]"),
    "offline-rl": ("policy=offline-rl", "policy_options={episodes=3}", "groups=[4,1]"),
}
Outcome = tuple[dict[str, Any], bytes, bytes]


def plan_of(tuner: str, *words: str) -> Plan:
    return make_plan("digits/lucir", load_recipe("digits/lucir", ["epochs=2", "batch=64", *RUNS[tuner], *words]))


def outcome(folder: Path) -> Outcome:
    result = json.loads((folder / "result.json").read_bytes())
    del result["seconds"], result["digest"]
    return result, (folder / "journal.jsonl").read_bytes(), (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("tuner", RUNS)
def test_a_run_that_is_killed_while_it_tunes_goes_on_to_the_same_bytes(tuner: str, tmp_path: Path) -> None:
    Run(plan_of(tuner), RunFolder(tmp_path / "whole")).start()
    expected = outcome(tmp_path / "whole")
    assert expected[0]["resolved_policy"]["name"] == expected[0]["policy"] == tuner
    folder, tuning = RunFolder(tmp_path / "killed"), ("trial", "tuning")
    going = Run(plan_of(tuner), folder, checkpoint_seconds=0).starting()
    while sum(event["event"] in tuning for event in read_journal(folder.journal.path)) < 2:
        next(going)
    going.close()
    opened, plan = reopen(folder.path)
    Run(plan, opened).resume()
    assert outcome(folder.path) == expected


def test_offline_rl_cannot_start_after_the_first_phase(tmp_path: Path) -> None:
    first = Run(plan_of("offline-rl", "policy=fixed", "policy_options={}"), RunFolder(tmp_path / "first"), until=1)
    first.start()
    late = plan_of("offline-rl", f"start={tmp_path / 'first'}")
    with pytest.raises(UserError, match=r"^[^\n]*offline-rl[^\n]*leave start out$"):
        Run(late, RunFolder(tmp_path / "late")).start()
    assert not (tmp_path / "late").exists()
