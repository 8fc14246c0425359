"""The learner with policies that try actions: no test image, exact resume, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from poise import Learner
from poise.actions import Action
from poise.errors import Damaged, UserError
from poise.methods import make_method
from poise.policies import POLICIES, Decided, Policy, Preset, Tried, Wish
from poise.tuning.results import Entry
from poise.tuning.search import PolicyTuner

from .learners import SMALL, assert_same, decided_in, digits, reopened, saved, small, tried_in

OWN = make_method("lucir").default_action


# An action that the caller decided ----------------------------------------------------------------------------------


def test_a_given_action_is_trained_with_and_nothing_is_tried() -> None:
    given: dict[str, Any] = {"feature_kd": 3.0, "lr": 0.03, "old_rows": "trained", "classifier": "ncm"}
    first = Learner(**SMALL)
    events = list(first.fitting(*digits([0, 1]), action={"lr": 0.03}))
    assert (decided_in(events).action["lr"], first.action_.lr) == (0.03, 0.03), "in the first phase too"
    learner = small()
    events = list(learner.fitting(*digits([3]), action=given))
    assert not tried_in(events)
    wanted = Action(**{**OWN, **given})
    assert (decided_in(events).policy, Action(**decided_in(events).action)) == ("given", wanted)
    assert (learner.action_, learner.classifier_) == (wanted, "ncm")
    set_before = small(policy="fixed", action=given)
    set_before.partial_fit(*digits([3]))
    (trained, _), (expected, _) = saved(learner), saved(set_before)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"featur_kd": 1.0}, "did you mean 'feature_kd'"), ({"lr": 0}, "lr=0"), ({"old_rows": "thawed"}, "'trained'")],
)
def test_a_wrong_action_is_refused_before_anything_happens(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        small(policy="fixed").fitting(*digits([3]), action=given)


class Moody(Policy):
    """A policy of one's own that tries what it likes at the moment."""

    arm = 0

    def propose(self) -> list[Wish]:
        return [] if self.told else [Wish(type(self).arm, self.setup.short)]

    def learn(self, outcomes: object) -> None:
        """It remembers nothing."""

    def decide(self) -> int:
        return 0


def test_a_policy_of_ones_own_that_does_not_repeat_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "moody", Preset(Moody))
    learner = small(policy="moody").partial_fit(*digits([3]))
    Learner.from_state(learner.state(), device="cpu")
    monkeypatch.setattr(Moody, "arm", 1)
    with pytest.raises(Damaged, match=r"policy moody does not repeat itself: .*the same from the same rewards"):
        Learner.from_state(learner.state(), device="cpu")


def policy_of(learner: Learner) -> Policy:
    """The learner's policy with all that it knows."""
    assert isinstance(learner.settings.tuner, PolicyTuner)
    return learner.settings.tuner.policy_after(learner.knowledge.history)


def told(learner: Learner) -> list[Entry]:
    return [entry for entry in learner.knowledge.history if isinstance(entry, Tried | Decided)]


def test_a_given_action_leaves_the_policy_as_it_was() -> None:
    learner = small(policy="exp3", policy_options={"iterations": 2})
    learner.partial_fit(*digits([3]))
    before, distribution = told(learner), policy_of(learner).distribution()
    events = list(learner.fitting(*digits([4]), action={"lr": 0.02}))
    assert not tried_in(events)
    assert decided_in(events).action["classifier"] == "auto"  # the learner's own, so its classifiers are judged
    assert len(tried_in(events, "classifier")) == 1
    assert told(learner) == before
    assert policy_of(learner).distribution() == pytest.approx(distribution)
    again = reopened(saved(learner))
    for each in (learner, again):
        each.partial_fit(*digits([5]))
    assert_same(learner, again)


def test_the_decision_carries_its_reward_and_those_of_earlier_phases() -> None:
    learner, past = small(trials={"length": 0.5}), 0.0
    for label in (3, 4, 5):
        events = list(learner.fitting(*digits([label])))
        decided = decided_in(events)
        (reward,) = [event.reward for event in tried_in(events) if event.action == decided.action]
        assert decided.reward == reward
        assert decided.past_reward == pytest.approx(past)
        past += reward
        learner = reopened(saved(learner))
    assert past > 0


def test_a_trial_carries_the_distribution_from_which_it_was_drawn() -> None:
    learner = small(policy="exp3", policy_options={"iterations": 3})
    for label in (3, 4):
        events = list(learner.fitting(*digits([label])))
        trials = tried_in(events)
        assert len(trials) == 3
        for event in trials:
            assert event.distribution is not None
            assert len(event.distribution) == len(learner.settings.action_space)
            assert sum(event.distribution) == pytest.approx(1)
        assert trials[0].distribution != trials[1].distribution != decided_in(events).distribution
