"""The learner with policies that try actions: no test image, exact resume, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poise import Budget, Learner, UserError
from poise.actions import Action
from poise.data.sources import DigitsSource
from poise.policies import POLICIES as POLICY_BUILDERS
from poise.policies import register
from poise.training import ActionDecided, Event, PhaseDone, TrialDone

GRID = {"feature_kd": [0.1, 1], "lr": [0.1, 0.02]}
SETTINGS: dict[str, Any] = {
    "net": "small",
    "memory": 6,
    "epochs": 12,
    "space": GRID,
    "device": "cpu",
    "preprocessing": DigitsSource.preprocessing,
}
POLICIES: dict[str, dict[str, Any]] = {
    "grid": {},
    "race": {"safe": 1.0},
    "exp3": {"iterations": 4},
    "hedge": {},
    "gp": {"trials": 3, "batch": 2},
    "thompson": {"trials": 3, "batch": 2},
    "random": {"trials": 2},
}


def phase(labels: list[int], count: int = 24) -> tuple[Tensor, Tensor]:
    images = DigitsSource().train()
    chosen = torch.cat([(images.labels == label).nonzero().flatten()[:count] for label in labels])
    return images.pixels[chosen], images.labels[chosen]


def learned(**changes: Any) -> Learner:
    return Learner(**{**SETTINGS, "policy": "grid", **changes}).partial_fit(*phase([0, 1, 2]))


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    return learner.state(images=True)[0]


def assert_same(a: Learner, b: Learner) -> None:
    first, second = tensors_of(a), tensors_of(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert a.state(images=False)[1] == b.state(images=False)[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_tries_decides_and_the_phase_is_trained_with_that(policy: str) -> None:
    learner = learned(policy=policy, policy_options=POLICIES[policy])
    events = list(learner.fitting(*phase([3])))
    trials = [event for event in events if isinstance(event, TrialDone)]
    (decided,) = [event for event in events if isinstance(event, ActionDecided)]
    assert trials
    assert all(0 <= trial.reward <= 1 and Action(**trial.action) in learner.space.actions for trial in trials)
    assert learner.action_ == Action(**decided.action)
    if policy in ("grid", "random"):
        assert max(trial.reward for trial in trials) == max(
            trial.reward for trial in trials if trial.action == decided.action
        )


def test_nothing_is_tried_in_the_first_phase() -> None:
    learner = Learner(**SETTINGS, policy="grid")
    events = list(learner.fitting(*phase([0, 1])))
    assert not [event for event in events if isinstance(event, TrialDone)]


@pytest.mark.parametrize("policy", ["race", "exp3", "gp"])
def test_saved_after_any_trial_and_gone_on_it_ends_the_same(policy: str) -> None:
    settings = {"policy": policy, "policy_options": POLICIES[policy]}
    straight = learned(**settings)
    states = []
    for event in straight.fitting(*phase([3])):
        if isinstance(event, TrialDone | ActionDecided):
            tensors, meta = straight.state(images=True)
            states.append(({name: value.clone() for name, value in tensors.items()}, meta))
    straight.partial_fit(*phase([4]))
    for tensors, meta in states[:: max(1, len(states) // 3)]:
        resumed = Learner.from_state(tensors, meta, device="cpu")
        list(resumed.fitting(*phase([3])))
        resumed.partial_fit(*phase([4]))
        assert_same(straight, resumed)


def test_a_resumed_phase_does_not_repeat_its_events() -> None:
    learner = learned(policy="grid")
    told: list[Event] = []
    for event in learner.fitting(*phase([3])):
        told.append(event)
        if isinstance(event, TrialDone) and event.trial["id"] == 1:
            saved = learner.state(images=True)
            break
    resumed = Learner.from_state(*saved, device="cpu")
    told += list(resumed.fitting(*phase([3])))
    straight = list(learned(policy="grid").fitting(*phase([3])))
    assert [event.as_json() for event in told if event.kept] == [event.as_json() for event in straight if event.kept]


def test_a_phase_that_was_given_up_leaves_no_trace_in_the_policy() -> None:
    learner, straight = learned(policy="exp3"), learned(policy="exp3")
    going = learner.fitting(*phase([3]))
    for event in going:
        if isinstance(event, TrialDone):
            break
    going.close()  # type: ignore[attr-defined]
    assert_same(learner, straight)
    learner.partial_fit(*phase([4]))
    straight.partial_fit(*phase([4]))
    assert_same(learner, straight)


def test_where_nothing_can_be_held_out_the_default_stays(caplog: pytest.LogCaptureFixture) -> None:
    learner = Learner(**{**SETTINGS, "memory": 1}, policy="grid").partial_fit(*phase([0, 1], count=1))
    learner.partial_fit(*phase([2], count=1))
    assert learner.action_ == learner.space.actions[learner.space.default]
    assert "nothing to validate on" in caplog.text


def test_the_reserve_decides_auto_and_is_never_trained_on() -> None:
    learner = learned(policy="grid", memory=Budget(6, reserve=2), action={"classifier": "auto"})
    done = [event for event in learner.fitting(*phase([3])) if isinstance(event, PhaseDone)]
    assert done[0].classifier in ("fc", "ncm")
    assert learner.memory is not None
    assert len(learner.memory.reserve) == 8
    assert len(learner.memory) == 24


def test_fixed_ignores_the_space() -> None:
    assert len(learned(policy="fixed").space) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "exp4"}, "unknown policy 'exp4'; did you mean 'exp3'?"),
        ({"space": "papr"}, "did you mean 'paper'?"),
        ({"space": {"featur_kd": [0, 1]}}, "did you mean 'feature_kd'?"),
        ({"tune": ["kdd"]}, "did you mean 'kd'?"),
        ({"policy_options": {"roundz": 2}}, "did you mean 'rounds'?"),
    ],
)
def test_mistakes_are_found_when_the_learner_is_made(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        Learner(**{**SETTINGS, "policy": "grid", **wrong})
    assert words in str(caught.value)


def test_an_overtaken_phase_cannot_spoil_the_policy() -> None:
    learner, straight = learned(policy="exp3"), learned(policy="exp3")
    overtaken = learner.fitting(*phase([3]))
    while not isinstance(next(overtaken), TrialDone):
        pass
    learner.partial_fit(*phase([4]))
    straight.partial_fit(*phase([4]))
    assert_same(learner, straight)
    with pytest.raises(UserError, match="learned another phase in the meantime"):
        list(overtaken)
    assert_same(learner, straight)
    again = Learner.from_state(*learner.state(images=True), device="cpu")
    assert_same(again, learner)


def test_a_model_for_predictions_needs_no_policy(tmp_path: Path) -> None:
    register("a policy of one's own")(POLICY_BUILDERS["grid"])
    learner = learned(policy="a policy of one's own").partial_fit(*phase([3]))
    learner.save(tmp_path / "model", memory=False)
    del POLICY_BUILDERS["a policy of one's own"]
    images, _ = phase([0, 3])
    assert (Learner.load(tmp_path / "model").predict(images) == learner.predict(images)).all()
