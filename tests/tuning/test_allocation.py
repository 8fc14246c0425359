"""Memory allocation in the learner: what an action decides, what the released rule is told, what a failure leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from poise import Budget, Learner, UserError
from poise.actions import Action
from poise.data import ImageSet
from poise.data.sources import DigitsSource
from poise.errors import Diverged
from poise.learner import Settings
from poise.methods import make_method
from poise.training.events import ActionDecided, PhaseStarted, TrialDone

SETTINGS: dict[str, Any] = {
    "net": "small",
    "memory": Budget(per_class=5, rule="rmm", allocation=0.5),
    "policy": "fixed",
    "epochs": 4,
    "device": "cpu",
    "preprocessing": DigitsSource.preprocessing,
}
PLAIN = Budget(per_class=5, rule="rmm", allocation=0.5, after_phase_0="plain")
TRYING = {"policy": "grid", "space": {"allocation": [0.0, 0.9]}, "action": {"classifier": "fc"}}


def phase(labels: list[int]) -> ImageSet:
    """The first digits of some classes."""
    images = DigitsSource().train()
    chosen = torch.cat([(images.labels == label).nonzero().flatten()[:20] for label in labels])
    return images.select(chosen)


def learn(learner: Learner, labels: list[int], **more: Any) -> list[Any]:
    return list(learner.fitting(phase(labels), **more))


def per_class(learner: Learner) -> list[int]:
    return torch.bincount(learner.memory_.exemplars.labels).tolist()


@pytest.mark.parametrize(
    ("memory", "action", "kept"),
    [
        (Budget(per_class=5, rule="rmm", allocation=(0.2, 0.9)), {"lr": 0.1}, 9),  # (5 · 2 + 8) / 2: that of phase 0
        (Budget(per_class=5, rule="rmm", allocation=(0.2, 0.9)), {"allocation": 0.4}, 13),
        (Budget(per_class=5, rule="rmm", allocation=0.9), {"lr": 0.1}, 20),  # all of them
        (PLAIN, {"allocation": 0.4}, 5),
    ],
)
def test_what_an_action_given_for_phase_0_decides(memory: Budget, action: dict[str, float], kept: int) -> None:
    learner = Learner(**{**SETTINGS, **TRYING, "memory": memory})
    learn(learner, [0, 1], action=action)
    assert per_class(learner) == [kept, kept]
    learn(learner, [2, 3], action={"allocation": 0.9})
    assert learner.held_ <= learner.budget_ == 50


def test_with_the_plain_rule_after_phase_0_its_classes_never_have_more() -> None:
    learner = Learner(**{**SETTINGS, "memory": PLAIN})
    learn(learner, [0, 1])
    assert (per_class(learner), learner.held_, learner.budget_) == ([5, 5], 40, 40)
    (started, *_) = learn(learner, [2, 3])
    assert isinstance(started, PhaseStarted)
    assert (started.memory_images, started.new_images) == (10, 40)  # nothing to discard them for
    assert per_class(learner) == [5, 5, 10, 10]  # (5 · 4 + 20) / 4
    (started, *_) = learn(learner, [4, 5])
    assert (started.memory_images, started.new_images) == (30, 5 * 4 + 40 - 30)
    assert per_class(learner)[:4] == [5, 5, 8, 8]  # (5 · 6 + 20) / 6
    assert (learner.held_, learner.budget_) == (60, 60)
    (started, *_) = learn(learner, [6])
    assert started.memory_images == 5 + 5 + 4 * 6  # a small increment: (5 · 6 + 10) / 6
    assert learner.held_ == 5 * 6 + 20


def test_only_a_look_ahead_sees_what_an_allocation_is_worth() -> None:
    rewards: dict[str, list[float]] = {}
    for environment in ("local", "lookahead"):
        learner = Learner(**{**SETTINGS, **TRYING, "epochs": 10, "trials": {"environment": environment, "length": 0.5}})
        learn(learner, [0, 1, 2])
        events = learn(learner, [3, 4, 5, 6])
        tried = [event for event in events if isinstance(event, TrialDone)]
        assert {event.action["allocation"] for event in tried} == {0.0, 0.5, 0.9}  # the memory's own among them
        rewards[environment] = [event.reward for event in tried]
        (decided,) = [event for event in events if isinstance(event, ActionDecided)]
        assert learner.action_.allocation == decided.action["allocation"]
    assert len(set(rewards["local"])) == 1  # the same training on the same images
    assert len(set(rewards["lookahead"])) > 1


CANNOT = "the local environment cannot judge an allocation"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),
        ({"space": {"allocation": [0.5, 0.9], "lr": [0.1, 0.05]}}, True),
        ({"space": {"allocation": [0.5]}}, False),  # there is nothing to decide
        ({"action": {"allocation": 0.9}, "space": {"lr": [0.1, 0.05]}}, False),
        ({"trials": {"environment": "both"}}, False),
        ({"policy": "offline-rl"}, False),  # it learns on pseudo streams, where it sees what an allocation is worth
        ({"memory": 5, "space": {"lr": [0.1, 0.05]}}, False),
    ],
)
def test_that_a_local_environment_cannot_judge_an_allocation_is_said_once(
    changes: dict[str, Any], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner(**{**SETTINGS, **TRYING, "trials": {"environment": "local"}, "epochs": 1, **changes})
    assert any(CANNOT in line for line in learner.settings.remarks()) is said
    if not changes:
        for labels in ([0, 1], [2, 3], [4]):
            learn(learner, labels)
        assert len([line for line in caplog.messages if CANNOT in line]) == 1


def test_where_trials_are_left_open_an_allocation_is_judged_by_a_look_ahead(caplog: pytest.LogCaptureFixture) -> None:
    learner = Learner("lucir", **{**SETTINGS, "policy": None, "epochs": 2, "batch": 32, "space": TRYING["space"]})
    learn(learner, [0, 1])
    assert learner.settings.trials.environment == "both"
    assert CANNOT not in caplog.text


def test_the_released_rule_herds_from_images_that_it_discarded_and_the_causal_one_does_not() -> None:
    stored = {}
    for knows in (False, True):
        learner = Learner(
            **{**SETTINGS, "memory": Budget(per_class=5, rule="rmm", allocation=0.9, knows_increment=knows)}
        )
        told: dict[str, Any] = {"next_images": 40} if knows else {}
        learn(learner, [0, 1], **told)
        learn(learner, [2, 3], **told)
        events = learner.fitting(phase([4, 5]), **told)
        next(events)
        trained = set(learner.phase_under_way.new.origins.tolist())
        assert len(trained) < 40
        list(events)
        stored[knows] = set(learner.memory_.exemplars.of_labels([4, 5]).origins.tolist()) - trained
        assert (learner.held_ > learner.budget_) is knows
    assert not stored[False]
    assert stored[True]


def test_only_the_released_rule_may_be_told_what_comes_next() -> None:
    pixels, labels = phase([0, 1]).pixels, phase([0, 1]).labels
    with pytest.raises(UserError, match="leave next_images out"):
        Learner(**SETTINGS).partial_fit(pixels, labels, next_images=40)
    released = Learner(**{**SETTINGS, "memory": Budget(per_class=5, rule="rmm", knows_increment=True)})
    with pytest.raises(UserError, match="pass next_images"):
        released.partial_fit(pixels, labels)


def test_after_a_phase_that_failed_discarded_exemplars_stay_discarded_and_learning_goes_on() -> None:
    learner = Learner(**{**SETTINGS, "memory": Budget(per_class=5, rule="rmm", allocation=0.9)})
    learn(learner, [0, 1])
    assert per_class(learner) == [20, 20]
    with pytest.raises(Diverged):
        learn(learner, [2], action={"lr": 1e30})
    assert (learner.phases_, per_class(learner)) == (1, [14, 14])  # (5 · 2 + 18) / 2
    learn(learner, [2, 3])
    assert learner.phases_ == 2
    assert learner.held_ <= learner.budget_


def test_an_allocation_needs_a_memory_that_has_one() -> None:
    space, knowing = {"allocation": [0.2, 0.8]}, Budget(per_class=5, rule="rmm", knows_increment=True)
    cases: list[dict[str, Any]] = [
        {"space": space},
        {"space": space, "memory": knowing},
        {"space": "online+allocation"},
    ]
    for given in cases:
        with pytest.raises(UserError, match=r"needs RMM.s memory: set memory\.rule=rmm"):
            _ = Learner("aanets", **given).settings
    own = Settings.resolve(memory=PLAIN, space={"allocation": [0.2, 0.5]}).action_space
    assert (len(own), own.actions[own.default].allocation) == (2, 0.5)
    constant = Settings.resolve(memory=PLAIN, policy="fixed", action={"allocation": 0.3}).action_space
    assert constant.actions == (Action(**make_method("lucir").default_action, allocation=0.3),)


def test_a_named_space_takes_the_allocation_along_where_it_is_asked_to() -> None:
    memory = Budget(per_class=5, rule="rmm", allocation=0.8)
    plain, more = (
        Learner("aanets", memory=memory, space=word).settings.action_space for word in ("online", "online+allocation")
    )
    assert (len(more), more.name) == (3 * len(plain), "online+allocation")
    assert {action.allocation for action in more.actions} == {0.2, 0.5, 0.8}
    assert more.actions[more.default].allocation == 0.8
    with pytest.raises(UserError, match=r"unknown action space 'onlin\+allocation'; did you mean 'online'"):
        _ = Learner("aanets", memory=memory, space="onlin+allocation").settings
