"""What a learner is made with: every word and number checked, and resolved once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poise import Learner
from poise.data import Budget
from poise.learner import KEYS, Settings
from poise.runs import make_recipe
from poise.settings import TrialSettings

from .samples import Flat, refused


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "lucri"}, "unknown method 'lucri'; did you mean 'lucir'?"),
        ({"policy": "fixed", "space": "papr"}, "unknown action space 'papr'; did you mean 'paper'?"),
        ({"policy": "fixd"}, "unknown policy 'fixd'; did you mean 'fixed'?"),
        ({"net": "resnet23"}, "unknown net 'resnet23'; did you mean 'resnet32'?"),
        ({"net": "resnet32/lucri"}, "did you mean 'lucir'?"),
        ({"action": {"feature_dk": 1.0}}, "unknown action axis 'feature_dk'; did you mean 'feature_kd'?"),
        ({"precision": "bf61"}, "did you mean 'bf16'?"),
        ({"device": "gpu"}, "use auto, cpu, cuda or cuda:N"),
        ({"policy": "fixed", "policy_options": {"every": 2}}, "policy fixed chooses nothing; leave every out"),
        ({"policy": "bilevel", "policy_options": {"steps": 10**8}}, "at most 10000"),
        ({"net": Flat}, "net=Net()"),
        ({"tune": [["kd"]]}, "cannot be used; give a list of kinds"),
        ({"preprocessing": "none"}, "preprocessing='none' must be a poise.Preprocessing"),
        ({"augmentation": "cutout"}, "augmentation='cutout': give one like Augmentation(autoaugment=True"),
        ({"device": 1.5}, "unknown device '1.5'; use auto, cpu, cuda or cuda:N"),
        ({"callbacks": 3}, "callbacks=3 must be a list of functions"),
        ({"callbacks": print}, "must be a list of functions of an event, such as [print]"),
    ],
)
def test_a_word_or_number_that_does_not_fit_is_refused_when_the_learner_is_made(
    settings: dict[str, Any], line: str
) -> None:
    with refused(line):
        _ = Learner(**settings).settings


# Resolved once --------------------------------------------------------------------------------------------------------

GIVEN: list[dict[str, Any]] = [
    {},
    {"policy": "fixed", "action": {"lr": 0.05}, "first_lr": 0.2, "options": {"lambda_base": 3.0}},
    {"policy": "race", "space": {"feature_kd": (0.1, 1), "lr": (0.1, 0.02)}, "tune": ("kd",), "epochs": 7},
    {"policy": "exp3", "policy_options": {"iterations": 3, "every": 2}, "trials": {"length": 0.5}, "memory": 7},
    {"policy": "bilevel", "net": "small", "image_size": 16, "seed": 3},
    {"policy": "offline-rl", "memory": Budget(6, reserve=2), "deterministic": True},
    {"policy": "fixed", "method": "aanets", "memory": Budget(5, rule="rmm", allocation=(0.8, 0.6))},
    {"policy": "fixed", "method": "podnet", "milestones": (0.25, 0.5), "balance_share": 0.2, "balance_lr": 0.01},
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "-".join(map(str, given)) or "nothing")
def test_resolved_settings_are_read_as_they_were_written_and_resolved_again_are_the_same(given: dict[str, Any]) -> None:
    settings = Settings.resolve(**given)
    values = json.loads(json.dumps(settings.as_json()))
    assert Settings(**values) == settings
    assert values.pop("automatic") == []
    assert values.keys() == KEYS
    assert Settings.resolve(**values) == settings


def test_every_default_is_written_out() -> None:
    settings = Settings.resolve(policy="online")
    assert settings.policy_options == settings.kind.resolve({}) != {}
    assert settings.space == settings.kind.space
    assert settings.trials == settings.kind.trial_settings(TrialSettings())
    assert Settings.resolve() == settings == Learner().settings.replace(automatic=())


def test_a_recipe_and_a_learner_of_the_same_keys_are_made_with_the_same() -> None:
    keys: dict[str, Any] = {"policy": "race", "space": {"lr": [0.1, 0.02]}, "epochs": 3, "memory": 5, "seed": 2}
    assert make_recipe(keys).settings == Learner(**keys).settings.replace(automatic=())
    resolved = make_recipe(keys).resolved()
    assert resolved.settings == make_recipe(keys).settings
    assert resolved.resolved() == resolved


@pytest.mark.parametrize("method", ["finetune", "lwf", "ranpac", "joint", None])
def test_what_follows_from_the_method_or_from_keeping_no_image_is_not_said_to_be_unused(
    method: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    memory = None if method == "joint" else 0
    _ = Learner(method, memory=memory, policy="fixed").settings
    assert not caplog.messages
    _ = Learner(method, memory=memory, policy="fixed", trials={"length": 0.5}).settings
    assert caplog.messages == ["policy=fixed tries nothing, so it does not use trials"]
