"""Tuners by their names, and behind the same call: what each decides is trained with, and told as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import Learner, UserError
from poise.actions import Action, make_space
from poise.methods import make_method
from poise.policies import POLICIES, Preset, Setup
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan
from poise.settings import TrialSettings
from poise.training.events import EpochDone, TuningDone
from poise.tuning.bilevel import BilevelTuner, tuned_axes
from poise.tuning.offline import OfflineTuner
from poise.tuning.search import PolicyTuner, Tuner, tuner_kind, tuner_names

from .learners import SMALL, decided_in, digits, of, saved, tried_in

SETUP = Setup(make_space({"lr": [0.1, 0.05]}, make_method("lucir").default_action), short=4, full=40, seed=0)
KINDS: dict[str, type[Tuner]] = {"fixed": Tuner, "bilevel": BilevelTuner, "offline-rl": OfflineTuner}
TUNERS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "grid": {},
    "race": {"policy_options": {"safe": 1.0}},
    "exp3": {"policy_options": {"iterations": 4}},
    "hedge": {},
    "random": {"policy_options": {"trials": 2}},
    "online": {"trials": {"length": 1.0}},
    "bilevel": {"policy_options": {"rounds": 2, "steps": 2}, "space": None},
    "offline-rl": {"policy_options": {"episodes": 3}},
}
FIRST, SECOND, THIRD = ([0, 1, 2, 3], [4, 5], [6])


def made(tuner: str, **changes: Any) -> Learner:
    return Learner(**{**SMALL, "policy": tuner, **TUNERS[tuner], **changes})


# By their names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*POLICIES, *KINDS])
def test_what_a_name_stands_for(name: str) -> None:
    kind = tuner_kind(name)
    assert (kind.tunes, kind.asks, kind.before_phase_0) == (name != "fixed", name not in KINDS, name == "offline-rl")
    options = kind.resolve({})
    assert kind.resolve(options) == options
    with pytest.raises(UserError, match=r"^[^\n]*no such thing[^\n]*$"):
        kind.resolve({"no such thing": 1})
    tuner = kind.make(kind, SETUP, options)
    assert type(tuner) is KINDS.get(name, PolicyTuner)
    described = tuner.describe()
    assert described == json.loads(json.dumps(described)) == {**described, "name": name, **options}


def test_a_policy_brings_a_space_and_trials_along_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuner_names() == [*POLICIES, *KINDS]
    monkeypatch.setitem(POLICIES, "mine", Preset(POLICIES["grid"].make, "wide", {"horizon": 1}))
    mine, race, nothing = tuner_kind("mine"), tuner_kind("race"), TrialSettings()
    assert (mine.own_space(None, None), mine.trial_settings(nothing)) == ("wide", TrialSettings(horizon=1).whole())
    assert (mine.own_space("paper", ["lr"]), mine.trial_settings(TrialSettings(horizon=2)).horizon) == ("paper", 2)
    assert (race.own_space(None, None), race.trial_settings(nothing)) == ("paper", nothing)
    for space, tune in (("paper", None), ({"lr": [0.1]}, None), (None, ["lr"])):
        with pytest.raises(UserError, match=r"^policy=bilevel moves [^\n]*; leave space and tune out$"):
            tuner_kind("bilevel").own_space(space, tune)


def test_online_is_the_default_and_everything_in_it_is_named() -> None:
    learner = Learner(device="cpu")
    found = learner.settings.resolved_policy()
    assert found == json.loads(json.dumps(found)) == Learner(policy="online", device="cpu").settings.resolved_policy()
    assert (learner.settings.policy, found["name"], found["space"]["name"]) == ("online", "online", "online")
    assert [found[key] for key in ("fewest", "again")] == [4, 5]
    assert found["space"]["actions"] == len(found["space"]["arms"]) == 12  # the default among them
    assert found["trials"] == learner.settings.trials.as_json()


# In the learner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuner", TUNERS)
def test_the_phase_is_trained_with_what_was_decided(tuner: str) -> None:
    learner = made(tuner, action={"classifier": "fc"}).partial_fit(*digits(FIRST))
    plain = made("fixed", action={"classifier": "fc"}).partial_fit(*digits(FIRST))
    events = list(learner.fitting(*digits(SECOND)))
    trials, decided = tried_in(events), decided_in(events)
    assert decided.policy == tuner
    assert bool(trials) is (tuner not in KINDS)
    assert bool(learner.knowledge.history) is (tuner != "fixed")
    assert learner.action_ == Action(**decided.action)
    assert of(EpochDone, events)[0].lr == pytest.approx(learner.action_.lr)
    assert all(
        0 <= trial.reward <= 1 and Action(**trial.action) in learner.settings.action_space.actions for trial in trials
    )
    if tuner in ("grid", "random"):
        best = max(trial.reward for trial in trials)
        assert best == max(trial.reward for trial in trials if trial.action == decided.action)
    list(plain.fitting(*digits(SECOND), action=decided.action))
    (trained, _), (expected, _) = saved(learner), saved(plain)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tuner", ["bilevel", "offline-rl"])
def test_steps_are_told_as_plain_values(tuner: str) -> None:
    learner = made(tuner)
    first, second, third = (list(learner.fitting(*digits(labels))) for labels in (FIRST, SECOND, THIRD))
    steps = of(TuningDone, [*first, *second, *third])
    assert {(step.tuner, step.kept) for step in steps} == {(tuner, True)}
    assert all(json.loads(json.dumps(step.as_json(), allow_nan=False)) == step.as_json() for step in steps)
    if tuner == "offline-rl":
        assert [(step.phase, step.record["number"]) for step in steps] == [(0, 0), (0, 1), (0, 2)]
        assert learner.action_ in learner.settings.action_space.actions
        return
    assert [(step.phase, step.record["round"]) for step in steps] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    decided, before = decided_in(second).action, learner.settings.default_action
    assert decided == steps[1].record["action"], "the last round decides"
    axes = tuned_axes(before)
    assert set(steps[0].record["gradient"]) == set(axes)
    assert decided["lr"] != before.lr  # a weight of 0 may stay there
    assert all(decided[axis] == before[axis] for axis in before if axis not in axes)


@pytest.mark.parametrize("tuner", ["grid", "bilevel"])
def test_where_nothing_can_be_held_out_the_default_stays(tuner: str, caplog: pytest.LogCaptureFixture) -> None:
    learner = made(tuner, memory=1).partial_fit(*digits([0, 1], count=1)).partial_fit(*digits([2], count=1))
    assert learner.action_ == learner.settings.default_action
    assert "nothing to validate on" in caplog.text


def plan_of(*words: str) -> Plan:
    return make_plan("digits/lucir", load_recipe("digits/lucir", ["epochs=2", "batch=64", "groups=[4,1]", *words]))


def test_offline_rl_cannot_start_after_the_first_phase(tmp_path: Path) -> None:
    Run(plan_of("policy=fixed"), RunFolder(tmp_path / "first"), until=1).start()
    late = plan_of("policy=offline-rl", "policy_options={episodes=3}", f"start={tmp_path / 'first'}")
    with pytest.raises(UserError, match=r"^[^\n]*offline-rl[^\n]*leave start out$"):
        Run(late, RunFolder(tmp_path / "late")).start()
    assert not (tmp_path / "late").exists()
