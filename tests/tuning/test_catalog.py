"""Tuners by their names: what is known of each before one is made, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from poise.errors import UserError
from poise.learner import Settings
from poise.methods import make_method
from poise.policies import POLICIES, PRESETS, Preset, Setup
from poise.spaces import make_space
from poise.tuning import PolicyTuner, TrialSettings, Tuner, tuner_kind, tuner_names
from poise.tuning.bilevel import BilevelTuner
from poise.tuning.offline import OfflineTuner

OWN = make_method("lucir").default_action
SETUP = Setup(make_space({"lr": [0.1, 0.05]}, OWN), short=4, full=40, seed=0)
KINDS: dict[str, type[Tuner]] = {"bilevel": BilevelTuner, "offline-rl": OfflineTuner}
#: Of the policies that bring a space and trials of their own.
TRIALS = {
    "online": TrialSettings("both", length=0.3, longest=16, validation=30, even=False, classifier="trials"),
}


def make_tuner(name: str, options: Mapping[str, Any]) -> Tuner:
    kind = tuner_kind(name)
    return kind.make(kind, SETUP, kind.resolve(options))


def test_every_policy_and_every_other_tuner_has_a_name() -> None:
    assert tuner_names() == [*POLICIES, "bilevel", "offline-rl"]
    assert len(set(tuner_names())) == len(tuner_names())


@pytest.mark.parametrize("name", tuner_names())
class TestEveryName:
    def test_its_kind_says_what_it_needs(self, name: str) -> None:
        kind = tuner_kind(name)
        assert kind.name == name
        assert kind.tunes is (name != "fixed")
        assert kind.asks is (name not in ("fixed", "bilevel", "offline-rl"))
        assert (kind.least_classes, kind.before_phase_0) == ((4, True) if name == "offline-rl" else (1, False))

    def test_a_first_phase_of_too_few_classes_is_refused(self, name: str) -> None:
        kind = tuner_kind(name)
        kind.check_first_phase(kind.least_classes)
        with pytest.raises(UserError, match=rf"^{name} [^\n]*needs at least {kind.least_classes} classes[^\n]*$"):
            kind.check_first_phase(kind.least_classes - 1)

    def test_its_options_are_plain_values_that_resolve_to_themselves(self, name: str) -> None:
        kind = tuner_kind(name)
        options = kind.resolve({})
        assert json.loads(json.dumps(options)) == options
        assert kind.resolve(options) == options
        with pytest.raises(UserError, match=rf"^policy {name} has no option 'no such thing'; [^\n]*$"):
            kind.resolve({"no such thing": 1})

    def test_it_brings_a_space_along_unless_it_moves_freely(self, name: str) -> None:
        kind = tuner_kind(name)
        if name == "bilevel":
            assert kind.own_space(None, None) == {}
            for space, tune in (("paper", None), ({"lr": [0.1]}, None), (None, ["lr"])):
                with pytest.raises(UserError, match=r"^policy=bilevel moves [^\n]*; leave space and tune out$"):
                    kind.own_space(space, tune)
        else:
            assert kind.own_space(None, None) == (name if name in TRIALS else "paper")
            assert kind.own_space("wide", ["lr"]) == "wide"
            assert kind.own_space({"lr": [0.1]}, None) == {"lr": [0.1]}

    def test_it_brings_along_how_actions_are_tried(self, name: str) -> None:
        kind = tuner_kind(name)
        assert kind.trial_settings({}) == TRIALS.get(name, TrialSettings())
        assert kind.trial_settings({"length": 0.5}).length == 0.5
        assert kind.trial_settings({"length": 0.5}).validation == kind.trial_settings({}).validation

    def test_what_is_made_chooses_from_the_space_and_says_what_it_is(self, name: str) -> None:
        tuner = make_tuner(name, {})
        assert type(tuner) is KINDS.get(name, PolicyTuner)
        assert (tuner.space, tuner.default) == (SETUP.space, OWN)
        described = tuner.describe()
        assert described["name"] == name
        assert json.loads(json.dumps(described)) == described
        options = tuner_kind(name).resolve({})
        assert {key: described[key] for key in options} == options


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bilevl", "unknown policy 'bilevl'; did you mean 'bilevel'?"),
        ("offline", "did you mean 'offline-rl'?"),
        ("rase", "unknown policy 'rase'; did you mean 'race'?"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name: Any, words: str) -> None:
    for refused in (lambda: tuner_kind(name), lambda: Settings.resolve(policy=name)):
        with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
            refused()
        assert words in str(caught.value)


def test_a_policy_of_ones_own_is_a_tuner_with_what_it_brings_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "mine", POLICIES["grid"])
    monkeypatch.setitem(PRESETS, "mine", Preset("wide", {"horizon": 1}))
    assert "mine" in tuner_names()
    kind = tuner_kind("mine")
    assert (kind.own_space(None, None), kind.trial_settings({}).horizon, kind.asks) == ("wide", 1, True)
    assert make_tuner("mine", {"rounds": 2}).describe()["rounds"] == 2
