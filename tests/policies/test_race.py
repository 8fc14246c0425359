from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from poise.actions import Action, make_space
from poise.policies import Outcome, Policy, Setup, Trial, make_policy

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)


def racing(**options: float) -> Policy:
    policy = make_policy("race", Setup(make_space("paper", BASE), short=16, full=160, seed=0), options)
    policy.begin(1)
    return policy


def batches(policy: Policy) -> list[list[Trial]]:
    """Small learning rates look better, later arms of a rate are better."""
    found = []
    while trials := policy.ask():
        found.append(trials)
        policy.tell([Outcome(trial, 0.4 + worth(policy, trial)) for trial in trials])
    return found


def worth(policy: Policy, trial: Trial) -> float:
    short_horizon = 0.0 if trial.full else 0.2 * (policy.setup.space.actions[trial.arm].lr < 0.1)
    return trial.arm / 1000 + short_horizon


def rates(policy: Policy, trials: list[Trial]) -> Counter[float]:
    own = policy.setup.space.default
    return Counter(policy.setup.space.actions[trial.arm].lr for trial in trials if trial.arm != own)


def test_each_learning_rate_keeps_its_own_better_half() -> None:
    policy = racing(rungs=3)
    rungs = batches(policy)
    assert [{trial.epochs for trial in trials} for trials in rungs] == [{4}, {8}, {16}]
    assert [rates(policy, trials) for trials in rungs] == [{0.1: 24, 0.05: 25}, {0.1: 13, 0.05: 13}, {0.1: 7, 0.05: 7}]
    assert all(policy.setup.space.default in {trial.arm for trial in trials} for trials in rungs)
    last = {trial.arm for trial in rungs[-1]} - {policy.setup.space.default}
    assert last == set(range(36, 50))
    assert policy.setup.space.actions[policy.decide()].lr == 0.05, "the short horizon decides"


def test_survivors_go_on_on_the_same_split() -> None:
    policy = racing(rungs=3)
    rungs = batches(policy)
    assert all({trial.arm for trial in after} < {trial.arm for trial in before} for before, after in pairwise(rungs))
    assert {trial.round for trials in rungs for trial in trials} == {0}
    assert policy.epochs == 4 * 50 + (8 - 4) * len(rungs[1]) + (16 - 8) * len(rungs[2])


def test_finalists_of_each_learning_rate_are_compared_at_full_length() -> None:
    policy = racing(finalists=1)
    final = batches(policy)[-1]
    assert {(trial.arm, trial.epochs, trial.full) for trial in final} == {
        (arm, 160, True) for arm in (policy.setup.space.default, 48, 49)
    }
    assert policy.decide() == 49


@pytest.mark.parametrize(("short", "lengths"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [4, 8, 16])])
def test_a_short_schedule_has_fewer_rungs(short: int, lengths: list[int]) -> None:
    policy = make_policy("race", Setup(make_space("paper", BASE), short, 10, seed=0))
    policy.begin(1)
    assert [trials[0].epochs for trials in batches(policy)] == lengths
