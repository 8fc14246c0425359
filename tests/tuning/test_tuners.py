"""Tuners by their names, and behind the same call: what each decides is trained with, and told as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import Learner, UserError
from poise.actions import Action
from poise.methods import make_method
from poise.policies import POLICIES, Preset, Setup
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan
from poise.settings import TrialSettings
from poise.spaces import make_space
from poise.training import EpochDone, TrialDone, TuningDone
from poise.tuning import BilevelTuner, OfflineTuner, PolicyTuner, Tuner, tuner_kind, tuner_names
from poise.tuning.bilevel import tuned_axes
from poise.tuning.search import FixedTuner

from .learners import SMALL, decided_in, digits, of, saved, small, tried_in

SETUP = Setup(make_space({"lr": [0.1, 0.05]}, make_method("lucir").default_action), short=4, full=40, seed=0)
KINDS: dict[str, type[Tuner]] = {"fixed": FixedTuner, "bilevel": BilevelTuner, "offline-rl": OfflineTuner}
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


def test_every_policy_and_every_other_tuner_has_a_name() -> None:
    assert tuner_names() == [*POLICIES, *KINDS]


@pytest.mark.parametrize("name", tuner_names())
def test_what_a_name_stands_for(name: str) -> None:
    kind = tuner_kind(name)
    assert kind.tunes is (name != "fixed")
    assert kind.asks is (name not in KINDS)
    assert kind.before_phase_0 is (name == "offline-rl")
    options = kind.resolve({})
    assert json.loads(json.dumps(options)) == kind.resolve(options) == options
    with pytest.raises(UserError, match=r"^[^\n]*no such thing[^\n]*$"):
        kind.resolve({"no such thing": 1})
    tuner = kind.make(kind, SETUP, options)
    assert type(tuner) is KINDS.get(name, PolicyTuner)
    described = tuner.describe()
    assert described["name"] == name
    assert {key: described[key] for key in options} == options
    assert json.loads(json.dumps(described)) == described


def test_a_policy_brings_a_space_and_trials_along_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    online, race = tuner_kind("online"), tuner_kind("race")
    trials = TrialSettings(environment="both", length=0.3, longest=16, validation=30, even=False, classifier="trials")
    assert (online.own_space(None, None), online.trial_settings({})) == ("online", trials.whole())
    assert online.own_space("wide", ["lr"]) == "wide"
    assert online.trial_settings({"length": 0.5}) == trials.replace(length=0.5).whole()
    assert [trials.short(full) for full in (10, 30, 53, 54, 160)] == [3, 9, 16, 16, 16]
    assert (race.own_space(None, None), race.trial_settings({})) == ("paper", TrialSettings())
    monkeypatch.setitem(POLICIES, "mine", Preset(POLICIES["grid"].make, "wide", {"horizon": 1}))
    mine = tuner_kind("mine")
    assert (mine.own_space(None, None), mine.trial_settings({}).horizon, mine.asks) == ("wide", 1, True)
    for space, tune in (("paper", None), ({"lr": [0.1]}, None), (None, ["lr"])):
        with pytest.raises(UserError, match=r"^policy=bilevel moves [^\n]*; leave space and tune out$"):
            tuner_kind("bilevel").own_space(space, tune)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bilevl", "did you mean 'bilevel'?"),
        ("offline", "did you mean 'offline-rl'?"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name: Any, words: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        tuner_kind(name)
    assert words in str(caught.value)


def test_online_is_the_default_and_everything_in_it_is_named() -> None:
    learner = Learner(device="cpu")
    found = learner.resolved_policy()
    assert found == json.loads(json.dumps(found)) == Learner(policy="online", device="cpu").resolved_policy()
    assert (learner.settings.policy, found["name"], found["space"]["name"]) == ("online", "online", "online")
    assert [found[key] for key in ("fewest", "again", "carry", "handicap", "head_start")] == [4, 5, 0.8, 0.03, 0.05]
    stable, plastic = found["space"]["grids"]
    assert (stable["feature_kd"], stable["adjustment"], stable["lr"]) == ([0.5, 1.0], [0.0, 0.5], [0.05, 0.02])
    assert (plastic["feature_kd"], plastic["adjustment"], plastic["lr"]) == ([0.0], [1.0], [0.1, 0.05, 0.02])
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
    assert learner.action_ == Action(**decided.action)
    assert of(EpochDone, events)[0].lr == pytest.approx(learner.action_.lr)
    assert all(0 <= trial.reward <= 1 and Action(**trial.action) in learner.action_space.actions for trial in trials)
    if tuner in ("grid", "random"):
        best = max(trial.reward for trial in trials)
        assert best == max(trial.reward for trial in trials if trial.action == decided.action)
    list(plain.fitting(*digits(SECOND), action=decided.action))
    (trained, _), (expected, _) = saved(learner), saved(plain)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tuner", ["bilevel", "offline-rl"])
def test_steps_are_told_as_plain_values(tuner: str) -> None:
    learner = made(tuner)
    events = [event for labels in (FIRST, SECOND, THIRD) for event in learner.fitting(*digits(labels))]
    steps = of(TuningDone, events)
    assert {(step.tuner, step.kept) for step in steps} == {(tuner, True)}
    for step in steps:
        assert json.loads(json.dumps(step.as_json(), allow_nan=False)) == step.as_json()
    found = [(step.phase, step.record["round" if tuner == "bilevel" else "number"]) for step in steps]
    assert found == ([(1, 0), (1, 1), (2, 0), (2, 1)] if tuner == "bilevel" else [(0, 0), (0, 1), (0, 2)])
    assert all(event.trial.get("purpose") == "classifier" for event in of(TrialDone, events))
    assert tuner == "bilevel" or learner.action_ in learner.action_space.actions


def test_the_last_round_of_bilevel_is_what_it_decides() -> None:
    learner = made("bilevel").partial_fit(*digits(FIRST))
    events = list(learner.fitting(*digits(SECOND)))
    steps, decided = of(TuningDone, events), decided_in(events)
    assert decided.action == steps[-1].record["action"]
    axes = tuned_axes(Action(**decided.action))
    assert set(steps[0].record["gradient"]) == set(axes)
    before = learner.settings.default_action
    assert decided.action["lr"] != before.lr  # a weight of 0 may stay there
    assert all(decided.action[axis] == before[axis] for axis in before if axis not in axes)


@pytest.mark.parametrize("tuner", ["grid", "bilevel"])
def test_where_nothing_can_be_held_out_the_default_stays(tuner: str, caplog: pytest.LogCaptureFixture) -> None:
    learner = made(tuner, memory=1).partial_fit(*digits([0, 1], count=1)).partial_fit(*digits([2], count=1))
    assert learner.action_ == learner.settings.default_action
    assert "nothing to validate on" in caplog.text


def test_a_fixed_phase_tries_and_remembers_nothing() -> None:
    learner = small(policy="fixed").partial_fit(*digits([3]))
    assert learner.knowledge.history == ()
    with pytest.raises(UserError, match=r"^policy fixed chooses nothing; leave safe out, or name another policy$"):
        _ = Learner(policy="fixed", policy_options={"safe": 1.0}).settings


# Runs -----------------------------------------------------------------------------------------------------------------


def plan_of(*words: str) -> Plan:
    return make_plan("digits/lucir", load_recipe("digits/lucir", ["epochs=2", "batch=64", "groups=[4,1]", *words]))


def test_offline_rl_cannot_start_after_the_first_phase(tmp_path: Path) -> None:
    Run(plan_of("policy=fixed"), RunFolder(tmp_path / "first"), until=1).start()
    late = plan_of("policy=offline-rl", "policy_options={episodes=3}", f"start={tmp_path / 'first'}")
    with pytest.raises(UserError, match=r"^[^\n]*offline-rl[^\n]*leave start out$"):
        Run(late, RunFolder(tmp_path / "late")).start()
    assert not (tmp_path / "late").exists()
