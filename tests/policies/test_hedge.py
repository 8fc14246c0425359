from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from poise import draws
from poise.actions import Action, make_space
from poise.policies import Outcome, Setup, Trial, make_policy
from poise.policies.beliefs import AdaHedge

Array = NDArray[np.float64]
ROUNDS = 400


def setup(arms: int) -> Setup:
    space = make_space({"feature_kd": [1 + arm for arm in range(arms)]}, Action(feature_kd=1, lr=0.1))
    return Setup(space, short=4, full=40, seed=0)


def told(losses: Array) -> list[Outcome]:
    return [Outcome(Trial(arm, arm, 4), float(1 - loss)) for arm, loss in enumerate(losses)]


def followed_leader_is_fooled(weights: Array, turn: int, arms: int) -> Array:
    losses = np.zeros(arms)
    losses[int(turn % 2 == 0)] = 1.0 if turn else 0.5
    return losses


def heaviest_arm_loses(weights: Array, turn: int, arms: int) -> Array:
    return np.asarray(np.arange(arms) == weights.argmax(), dtype=np.float64)


def one_arm_is_better(weights: Array, turn: int, arms: int) -> Array:
    noise = draws.generator(0, "better", turn).normal(0.5, 0.1, arms)
    return np.asarray(np.clip(noise - 0.1 * (np.arange(arms) == 1), 0, 1))


def nothing_differs(weights: Array, turn: int, arms: int) -> Array:
    return np.full(arms, 0.3)


@pytest.mark.parametrize("arms", [2, 3, 20])
@pytest.mark.parametrize("nature", [followed_leader_is_fooled, heaviest_arm_loses, one_arm_is_better, nothing_differs])
def test_the_regret_bound_holds_at_every_round(nature: Callable[[Array, int, int], Array], arms: int) -> None:
    """R ≤ 2 √(V ln K) + 4/3 ln K + 2 and R ≤ 2 Δ, for losses in [0, 1]."""
    belief = AdaHedge(setup(arms))
    belief.begin()
    paid = variance = 0.0
    total = np.zeros(arms)
    for turn in range(ROUNDS):
        weights = belief.distribution()
        assert weights.sum() == pytest.approx(1)
        loss = nature(weights, turn, arms)
        paid += float(weights @ loss)
        variance += float(weights @ loss**2 - (weights @ loss) ** 2)
        total += loss
        belief.learn(told(loss))
        regret = paid - total.min()
        assert regret <= 2 * belief.gap + 1e-9
        assert regret <= 2 * math.sqrt(max(0, variance) * math.log(arms)) + 4 / 3 * math.log(arms) + 2 + 1e-9


def test_two_rounds_by_hand() -> None:
    belief = AdaHedge(setup(2))
    belief.begin()
    belief.learn(told(np.array([0.2, 0.4])))  # even weights pay 0.3, the leader 0.2
    assert belief.gap == pytest.approx(0.1)
    rate = math.log(2) / 0.1
    first = 1 / (1 + math.exp(-rate * 0.2))  # 4 : 1
    assert first == pytest.approx(0.8)
    assert belief.distribution().tolist() == pytest.approx([0.8, 0.2])
    belief.learn(told(np.array([0.4, 0.4])))
    assert belief.gap == pytest.approx(0.1), "a round in which nothing differs teaches nothing"


def test_every_arm_is_tried_once_on_one_split() -> None:
    policy = make_policy("hedge", setup(5))
    policy.begin(1)
    assert policy.decide() == policy.setup.space.default, "a tie leaves it"
    trials = policy.ask()
    assert [(trial.arm, trial.round) for trial in trials] == [(arm, 0) for arm in range(5)]
    policy.tell([Outcome(trial, 0.5 + 0.1 * (trial.arm == 3)) for trial in trials])
    assert policy.ask() == []
    assert policy.decide() == 3
