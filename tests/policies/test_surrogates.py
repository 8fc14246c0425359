from __future__ import annotations

import numpy as np
import pytest

from poise import draws
from poise.actions import Action
from poise.policies import Outcome, Setup, Trial, make_policy
from poise.policies.simulate import replay_on_table
from poise.policies.surrogate import _Gaussian, noise_variance
from poise.spaces import make_space

from .tables import smooth_table

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)


def test_conditioning_agrees_with_the_textbook_formula() -> None:
    generator = draws.generator(0, "gaussian")
    root = generator.normal(size=(4, 4))
    prior = root @ root.T
    model = _Gaussian(prior)
    joint = np.zeros((5, 5))
    joint[:4, :4] = prior
    joint[4, 4] = 0.25
    select = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 0, 1]], dtype=float)
    rewards = np.array([0.6, 0.4])
    gram = select @ joint @ select.T + 0.01 * np.eye(2)
    gain = joint @ select.T @ np.linalg.inv(gram)
    start = np.array([0, 0, 0, 0, 0.5])
    surprise = rewards - select @ start
    model.observe([0, 2], rewards, 0.01)
    np.testing.assert_allclose(model.mean, start + gain @ surprise, atol=1e-12)
    np.testing.assert_allclose(model.covariance, joint - gain @ select @ joint, atol=1e-12)
    density = -0.5 * (surprise @ np.linalg.solve(gram, surprise) + np.log(np.linalg.det(2 * np.pi * gram)))
    assert model.evidence == pytest.approx(density)


def test_observing_one_by_one_is_observing_together() -> None:
    prior = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.5], [0.1, 0.5, 1.0]])
    together, apart = _Gaussian(prior), _Gaussian(prior)
    together.observe([0, 2], np.array([0.7, 0.4]), 0.02)
    apart.observe([0], np.array([0.7]), 0.02)
    apart.observe([2], np.array([0.4]), 0.02)
    np.testing.assert_allclose(together.mean, apart.mean)
    np.testing.assert_allclose(together.covariance, apart.covariance)
    assert together.evidence == pytest.approx(apart.evidence)


def test_the_posterior_becomes_a_weaker_prior_and_the_level_is_new() -> None:
    prior = np.eye(2)
    for memory in (0.0, 0.5, 1.0):
        model = _Gaussian(prior)
        model.observe([0], np.array([0.9]), 0.01)
        mean, covariance = model.mean.copy(), model.covariance.copy()
        model.drift(memory)
        np.testing.assert_allclose(model.mean, [*(memory * mean[:2]), 0.5])
        np.testing.assert_allclose(model.covariance[:2, :2], memory**2 * covariance[:2, :2] + (1 - memory**2) * prior)
        assert model.covariance[2].tolist() == [0, 0, 0.25]


def test_the_noise_is_what_arm_and_class_effects_do_not_explain() -> None:
    generator = draws.generator(0, "noise")
    effects = np.array([0.5, 0.55, 0.6])[:, None] + generator.uniform(-0.1, 0.1, 400)
    table = effects + generator.normal(0, 0.05, effects.shape)
    outcomes = [Outcome(Trial(arm, arm, 4), float(row.mean()), tuple(row)) for arm, row in enumerate(table)]
    assert noise_variance(outcomes) == pytest.approx(0.05**2 / 400, rel=0.15)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gp", {}),
        ("gp", {"kernel": "quadratic"}),
        ("thompson", {}),
        ("thompson", {"kernel": "matern"}),
    ],
)
def test_they_find_the_best_arm_of_a_smooth_table_better_than_random(name: str, options: dict[str, str]) -> None:
    table = smooth_table(make_space("paper", BASE), phases=3, classes=40, images=10, seed=3)
    few = 12
    found = replay_on_table(lambda setup: make_policy(name, setup, {"trials": few, **options}), table, runs=25)
    random = replay_on_table(lambda setup: make_policy("random", setup, {"trials": few}), table, runs=25)
    assert (found.regret()[1:] < random.regret()[1:] - 0.001).all()
    assert found.regret()[-1] < 0.01


def test_no_arm_is_tried_twice_in_a_phase_and_only_tried_arms_are_decided() -> None:
    table = smooth_table(make_space("wide", BASE), phases=2, classes=10)
    policy = make_policy("gp", Setup(table.space, 16, 160, seed=1), {"trials": 9, "batch": 4})
    tried: set[int] = set()
    for phase in (1, 2):
        policy.begin(phase)
        arms: list[int] = []
        while trials := policy.ask():
            arms += [trial.arm for trial in trials]
            policy.tell([Outcome(trial, 0.3 + trial.arm / 1000) for trial in trials])
        assert len(arms) == len(set(arms)) == 9
        assert arms[0] == table.space.default
        tried |= set(arms)
        assert policy.decide() in tried
