from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.actions import Action, make_space
from poise.policies import Outcome, Setup, Trial, make_policy
from poise.policies.beliefs import Exp3
from poise.policies.catalog import Composed


def setup(arms: int) -> Setup:
    space = make_space({"feature_kd": [1 + arm for arm in range(arms)]}, Action(feature_kd=1, lr=0.1))
    return Setup(space, short=4, full=40, seed=0)


def pulled(arm: int, reward: float) -> list[Outcome]:
    return [Outcome(Trial(0, arm, 4), reward)]


def test_two_arms_by_hand() -> None:
    belief = Exp3(setup(2), xi=0.1)
    belief.begin()
    assert belief.distribution().tolist() == [0.5, 0.5]
    belief.learn(pulled(0, 0.6))  # log w(0) = 0.1 · 0.6 / 0.5
    assert belief.log_weights.tolist() == pytest.approx([0.12, 0.0])
    first = math.exp(0.12) / (math.exp(0.12) + 1)
    assert belief.distribution().tolist() == pytest.approx([first, 1 - first])
    assert first == pytest.approx(0.5299640517645717)
    belief.learn(pulled(1, 0.5))  # log w(1) = 0.1 · 0.5 / 0.470036
    assert belief.log_weights.tolist() == pytest.approx([0.12, 0.05 / 0.4700359482354283])
    belief.begin()
    assert belief.log_weights.tolist() == pytest.approx([0.12, 0.05 / 0.4700359482354283]), "carried across phases"


def test_the_released_rule_by_hand() -> None:
    belief = Exp3(setup(2), xi=1.0, released=True)
    belief.begin()
    belief.learn(pulled(0, 0.6))  # 60 percent · 0.1 / 2, not divided by p
    assert belief.log_weights.tolist() == pytest.approx([3.0, 0.0])
    assert belief.distribution().tolist() == [0.5, 0.5], "the decision is drawn from before the last update"
    belief.learn(pulled(1, 0.4))
    share = 0.9 * math.exp(3) / (math.exp(3) + 1) + 0.05
    assert belief.distribution().tolist() == pytest.approx([share, 1 - share])
    belief.begin()
    assert belief.log_weights.tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=60), st.floats(1e-3, 1e3), st.booleans())
def test_always_a_distribution(pulls: list[tuple[int, float]], xi: float, released: bool) -> None:
    belief = Exp3(setup(4), xi, released=released)
    belief.begin()
    for arm, reward in pulls:
        if belief.distribution()[arm] > 1e-300:  # what has no chance is never pulled
            belief.learn(pulled(arm, reward))
        chances = belief.distribution()
        assert (chances >= 0).all()
        assert chances.sum() == pytest.approx(1)


def test_each_iteration_draws_one_arm_on_a_fresh_split() -> None:
    policy = make_policy("exp3", setup(3), {"iterations": 7})
    policy.begin(1)
    rounds = []
    while trials := policy.ask():
        assert len(trials) == 1
        rounds.append(trials[0].round)
        policy.tell([Outcome(trials[0], 0.5)])
    assert rounds == list(range(7))


def test_arms_and_decisions_are_drawn_by_their_probability() -> None:
    first, decided = np.zeros(2), np.zeros(2)
    for seed in range(600):
        policy = make_policy("exp3", Setup(setup(2).space, 4, 40, seed), {"xi": 1.0, "iterations": 1})
        policy.begin(1)
        (trial,) = policy.ask()
        first[trial.arm] += 1
        assert isinstance(policy, Composed)
        assert isinstance(policy.belief, Exp3)
        policy.belief.log_weights[:] = [0.0, math.log(3)]
        decided[policy.decide()] += 1
    assert first[0] / 600 == pytest.approx(0.5, abs=0.07)
    assert decided[1] / 600 == pytest.approx(0.75, abs=0.07)
