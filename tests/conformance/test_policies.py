"""Every policy, with every wrapper around it, passes the suite that poise ships for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from poise.actions import make_space
from poise.errors import UserError
from poise.policies import POLICIES, Outcome, Policy, Setup, Trial, Tried, Wish, make_policy, register, replay
from poise.testing import PolicySuite
from poise.testing.policies import BASE, PHASES, SPACE, history_of

Options = dict[str, Any]

VARIANTS: list[tuple[str, Options]] = [
    *((name, {}) for name in POLICIES),
    ("random", {"trials": 0}),
    ("exp3", {"rule": "released", "iterations": 8}),
    ("race", {"finalists": 1, "rungs": 2}),
]
WRAPPERS: list[Options] = [{}, {"safe": 1.0}, {"every": 2}, {"safe": 0.0, "every": 3}]
CASES = [(name, {**own, **around}) for name, own in VARIANTS for around in WRAPPERS]


class TestPolicies(PolicySuite):
    @pytest.fixture(autouse=True, params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
    def case(self, request: pytest.FixtureRequest) -> None:
        self.policy, self.options = request.param  # type: ignore[misc]

    def test_going_back_or_telling_the_unasked_is_refused(self) -> None:
        """A history grows at its end."""
        policy = self.make()
        history_of(policy)
        with pytest.raises(ValueError, match="replay a fresh policy"):
            policy.begin(PHASES - 1)
        with pytest.raises(ValueError, match="no open trial"):
            policy.tell([Outcome(Trial(99, 0, 4), 0.5)])


@pytest.mark.parametrize("reward", [-0.1, 1.1, float("nan")])
def test_a_reward_outside_0_to_1_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Outcome(Trial(0, 0, 4), reward)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Outcome(Trial(0, 0, 4), 0.5, (0.5, reward))


@pytest.mark.parametrize("name", ["grid", "hedge", "online", "race"])
def test_a_tie_leaves_the_default(name: str) -> None:
    space = make_space({"feature_kd": [0, 1, 2, 3]}, BASE)
    policy = make_policy(name, Setup(space, short=4, full=20, seed=0))
    for phase in (1, 2):
        policy.begin(phase)
        while trials := policy.ask():
            policy.tell([Outcome(trial, 0.5, (0.4, 0.6)) for trial in trials])
        assert policy.decide() == space.default


class Newest(Policy):
    """A policy of one's own: tries the last arms, keeps the best one."""

    def __init__(self, setup: Setup, *, last: int = 2) -> None:
        super().__init__(setup)
        self.last = last

    def propose(self) -> list[Wish]:
        arms = np.arange(len(self.setup.space))[-self.last :]  # whose numbers become plain ones
        return [] if self.told else [Wish(arm, self.setup.short) for arm in arms]

    def learn(self, outcomes: Any) -> None:
        """Everything is in `told`."""

    def decide(self) -> int:
        return max(self.told.values(), key=lambda outcome: outcome.reward).trial.arm


def test_a_policy_of_ones_own_is_one_short_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.policies.catalog.POLICIES", dict(POLICIES))
    for again in (Newest, Newest):
        register("newest")(again)
    with pytest.raises(UserError, match=r"^the policy 'race' is registered already by .*catalog.py:race.*; give yours"):
        register("race")(Newest)
    setup = Setup(SPACE, short=4, full=20, seed=0)
    history = history_of(make_policy("newest", setup, {"last": 3, "safe": 1.0}))
    assert {entry.outcome.trial.arm for entry in history if isinstance(entry, Tried)} == {3, 4, 5, SPACE.default}
    assert json.dumps([asdict(entry) for entry in history])
    replay(make_policy("newest", setup, {"last": 3, "safe": 1.0}), history)


def own_policy(**answers: Any) -> Newest:
    """A policy of one's own in its first phase, with other answers."""
    policy = Newest(Setup(SPACE, short=4, full=20, seed=0))
    for name, answer in answers.items():
        setattr(policy, name, lambda answer=answer: answer)
    policy.begin(1)
    return policy


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        *(({"decide": answer}, f"decide returned {answer}; name an arm below") for answer in (-1, len(SPACE))),
        ({"propose": [Wish(len(SPACE), 4)]}, f"arm={len(SPACE)}.*name an arm below {len(SPACE)}"),
        ({"propose": [Wish(0, 5)]}, "epochs=5.*1 to 4 epochs"),
        ({"propose": [Wish(0, 4), Wish(0, 4)]}, "no wish twice in a phase"),
    ],
)
def test_what_is_no_arm_and_no_wish_is_refused(answers: Options, line: str) -> None:
    policy = own_policy(**answers)
    with pytest.raises(UserError, match=f"policy newest: .*{line}"):
        policy.decide_checked() if "decide" in answers else policy.ask()
