"""Tuners by their names: what is known of each before one is made, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poise.errors import UserError
from poise.methods import make_method
from poise.policies import POLICIES, PRESETS, Preset, Setup
from poise.spaces import make_space
from poise.tuning import BilevelTuner, OfflineTuner, PolicyTuner, TrialSettings, Tuner, tuner_kind, tuner_names
from poise.tuning.search import FixedTuner

OWN = make_method("lucir").default_action
SETUP = Setup(make_space({"lr": [0.1, 0.05]}, OWN), short=4, full=40, seed=0)
KINDS: dict[str, type[Tuner]] = {"fixed": FixedTuner, "bilevel": BilevelTuner, "offline-rl": OfflineTuner}


def test_every_policy_and_every_other_tuner_has_a_name() -> None:
    assert tuner_names() == [*POLICIES, "fixed", "bilevel", "offline-rl"]


@pytest.mark.parametrize("name", tuner_names())
def test_what_a_name_stands_for(name: str) -> None:
    kind = tuner_kind(name)
    assert kind.tunes is (name != "fixed")
    assert kind.asks is (name not in ("fixed", "bilevel", "offline-rl"))
    assert (kind.least_classes, kind.before_phase_0) == ((4, True) if name == "offline-rl" else (1, False))
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


def test_a_policy_brings_a_space_and_trials_along_unless_they_are_given() -> None:
    online = tuner_kind("online")
    trials = TrialSettings(environment="both", length=0.3, longest=16, validation=30, even=False, classifier="trials")
    assert (online.own_space(None, None), online.trial_settings({})) == ("online", trials.whole())
    assert online.own_space("wide", ["lr"]) == "wide"
    assert online.trial_settings({"length": 0.5}) == trials.replace(length=0.5).whole()
    assert [trials.short(full) for full in (10, 30, 53, 54, 160)] == [3, 9, 16, 16, 16]
    assert (tuner_kind("race").own_space(None, None), tuner_kind("race").trial_settings({})) == (
        "paper",
        TrialSettings(),
    )
    for space, tune in (("paper", None), ({"lr": [0.1]}, None), (None, ["lr"])):
        with pytest.raises(UserError, match=r"^policy=bilevel moves [^\n]*; leave space and tune out$"):
            tuner_kind("bilevel").own_space(space, tune)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bilevl", "did you mean 'bilevel'?"),
        ("offline", "did you mean 'offline-rl'?"),
        (3, "unknown policy '3'; known: "),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name: Any, words: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        tuner_kind(name)
    assert words in str(caught.value)


def test_a_policy_of_ones_own_is_a_tuner_with_what_it_brings_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "mine", POLICIES["grid"])
    monkeypatch.setitem(PRESETS, "mine", Preset("wide", {"horizon": 1}))
    kind = tuner_kind("mine")
    assert (kind.own_space(None, None), kind.trial_settings({}).horizon, kind.asks) == ("wide", 1, True)
