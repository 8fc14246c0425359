from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from poise import draws
from poise.actions import Action, ActionSpace, make_space
from poise.policies.reinforce import FEATURES, Reinforce, state_of

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)
SPACE = make_space({"feature_kd": [0, 1, 2], "lr": [0.1, 0.05]}, BASE)
OFF_GRID = make_space({"feature_kd": [0, 2], "lr": [0.1, 0.05]}, BASE)
SINGLE = make_space({}, BASE)

Array = NDArray[np.float64]

states = st.lists(st.floats(-5, 5), min_size=FEATURES, max_size=FEATURES)
episodes = st.lists(st.lists(st.tuples(states, st.integers(0, 3), st.floats(0, 1)), max_size=4), max_size=12)


def scrambled(space: ActionSpace) -> Reinforce:
    """A policy somewhere in the middle of its learning."""
    policy = Reinforce(space, 0.7)
    generator = draws.generator(0, "scrambled")
    for _ in range(10):
        episode = [(generator.normal(size=FEATURES), int(generator.integers(4)), generator.uniform()) for _ in range(3)]
        policy.update(episode)
    return policy


@given(episodes, states, st.sampled_from([SPACE, OFF_GRID]), st.floats(1e-3, 1e3))
def test_probabilities_are_a_distribution_always(
    history: list[list[tuple[list[float], int, float]]], state: list[float], space: ActionSpace, rate: float
) -> None:
    policy = Reinforce(space, rate)
    for episode in history:
        policy.update(episode)
    chances = policy.probabilities(state)
    assert len(chances) == len(space)
    assert (chances >= 0).all()
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    arm = policy.sample(state, draws.generator(0, "arm"))
    assert chances[arm] > 0
    assert chances[policy.decide(state)] == chances.max()


def test_before_any_episode_all_arms_of_the_grid_are_alike_and_the_default_is_decided() -> None:
    state = state_of(50, 10, 1000)
    assert Reinforce(SPACE, 0.2).probabilities(state).tolist() == pytest.approx([1 / 6] * 6)
    assert Reinforce(SPACE, 0.2).decide(state) == SPACE.default
    assert Reinforce(SINGLE, 0.2).probabilities(state).tolist() == [1]


def test_a_default_off_the_grid_is_never_drawn_or_decided() -> None:
    policy, state = scrambled(OFF_GRID), state_of(50, 10, 1000)
    assert OFF_GRID.default == len(OFF_GRID) - 1
    assert policy.probabilities(state)[OFF_GRID.default] == 0
    generator = draws.generator(0, "many")
    assert OFF_GRID.default not in {policy.sample(state, generator) for _ in range(300)}
    assert Reinforce(OFF_GRID, 0.2).decide(state) != OFF_GRID.default
    with pytest.raises(ValueError, match="out of bounds"):
        policy.update([(state, OFF_GRID.default, 1.0)])


def test_the_axes_are_independent_given_the_state() -> None:
    state = np.array([1.0, -0.5, 0.3])
    table = scrambled(SPACE).probabilities(state).reshape(3, 2)  # in the order of the space's product
    np.testing.assert_allclose(table, np.outer(table.sum(axis=1), table.sum(axis=0)), atol=1e-15)
    assert [SPACE.actions[arm]["lr"] for arm in range(2)] == [0.1, 0.05]


def test_an_update_by_hand() -> None:
    space = make_space({"lr": [0.1, 0.05]}, BASE)
    policy, one, two = Reinforce(space, 0.5), [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]
    # a return counts later rewards too: 0.8 and 0.6, both their own baselines
    policy.update([(two, 0, 0.2), (two, 1, 0.6)])
    assert policy.probabilities(two).tolist() == [0.5, 0.5]
    policy.update([(two, 1, 0.4), (one, 0, 0.5)])  # returns 0.9 and 0.5, baselines 0.8 and 0.6
    # θ(0.1) = 0.5 · [(0.9 − 0.8) · (0 − ½) · 2 + (0.5 − 0.6) · (1 − ½) · 1]
    assert policy._weights["lr"][:, 0].tolist() == pytest.approx([-0.075, 0.075])
    assert policy._means == pytest.approx([0.9 * 0.6 + 0.1 * 0.5, 0.9 * 0.8 + 0.1 * 0.9])


def noisy_reward(few_arrive: bool, arm: int, generator: np.random.Generator) -> float:
    """Strong distillation and a small rate pay where few classes arrive, the opposite where many do."""
    action = SPACE.actions[arm]
    strength, small = float(action["feature_kd"]) / 2, float(action["lr"] == 0.05)
    fit = (strength + small) / 2 if few_arrive else 1 - (strength + small) / 2
    return float(np.clip(0.5 + 0.2 * fit + generator.normal(0, 0.05), 0, 1))


def learned(seed: int, count: int) -> Reinforce:
    policy = Reinforce(SPACE, 0.2)
    for number in range(count):
        generator = draws.generator(seed, "episode", number)
        few_arrive = bool(number % 2)
        episode = []
        for phase in range(3):
            old = 50 + 5 * phase if few_arrive else 10 * 2**phase
            state = state_of(old, 5 if few_arrive else old, 20 * old)
            arm = policy.sample(state, generator)
            episode.append((state, arm, noisy_reward(few_arrive, arm, generator)))
        policy.update(episode)
    return policy


def test_it_learns_which_arm_is_best_in_which_state() -> None:
    policy = learned(0, 400)
    few, many = state_of(60, 5, 1200), state_of(30, 30, 600)
    best = [SPACE.actions.index(BASE.replace(feature_kd=strength, lr=rate)) for strength, rate in ((2, 0.05), (0, 0.1))]
    assert [policy.decide(few), policy.decide(many)] == best
    for state, arm in zip((few, many), best, strict=True):
        assert policy.probabilities(state)[arm] > 0.5


def test_the_state_is_a_summary_of_classes_and_memory() -> None:
    assert state_of(50, 10, 1000).tolist() == pytest.approx([1, math.log(0.2), 1])
    assert state_of(10, 10, 0).tolist() == [1, 0, 0]
    assert state_of(10, 0, 100).tolist() == state_of(10, 1, 100).tolist()
    assert len(state_of(1, 1, 1)) == FEATURES
