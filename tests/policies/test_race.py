from __future__ import annotations

import itertools
from collections import Counter

import pytest

from poise.actions import Action
from poise.policies import Outcome, Policy, Setup, Trial, make_policy
from poise.policies.beliefs import Scores
from poise.spaces import make_space

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


def test_survivors_continue_their_own_trial_on_the_same_split() -> None:
    rungs = batches(racing(rungs=3))
    for before, after in itertools.pairwise(rungs):
        ids = {trial.arm: trial.id for trial in before}
        assert all(trial.continues == ids[trial.arm] for trial in after)
    assert all(trial.continues is None for trial in rungs[0])
    assert {trial.round for trials in rungs for trial in trials} == {0}


def test_without_finalists_the_short_horizon_decides_unless_handicapped() -> None:
    for handicap, rate in ((0.0, 0.05), (0.3, 0.1)):
        policy = racing(handicap=handicap)
        batches(policy)
        assert policy.setup.space.actions[policy.decide()].lr == rate


def test_finalists_of_each_learning_rate_are_compared_at_full_length() -> None:
    policy = racing(finalists=1)
    final = batches(policy)[-1]
    assert {(trial.arm, trial.epochs, trial.full, trial.continues) for trial in final} == {
        (arm, 160, True, None) for arm in (policy.setup.space.default, 48, 49)
    }
    assert policy.decide() == 49


def test_what_was_learned_can_be_carried_over() -> None:
    policy = racing(carry=1.0, rungs=1)
    for phase, best in ((1, 7), (2, 9)):
        policy.begin(phase)
        policy.tell([Outcome(trial, 0.5 + (0.3 / phase) * (trial.arm == best)) for trial in policy.ask()])
    assert policy.decide() == 7
    forgetful = racing(rungs=1)
    for phase, best in ((1, 7), (2, 9)):
        forgetful.begin(phase)
        forgetful.tell([Outcome(trial, 0.5 + (0.3 / phase) * (trial.arm == best)) for trial in forgetful.ask()])
    assert forgetful.decide() == 9


def told(policy: Policy, phase: int, rewards: dict[int, dict[int, float]]) -> int:
    """A phase in which an arm has these rewards after so many epochs, 0.5 where none is given; the decided arm."""
    policy.begin(phase)
    while trials := policy.ask():
        policy.tell([Outcome(trial, rewards[trial.epochs].get(trial.arm, 0.5)) for trial in trials])
    return policy.decide()


def test_only_equally_long_trials_are_compared_over_phases() -> None:
    """Half the learning rate looks good after 8 epochs, and less so after 16: who was dropped keeps no such gain."""
    policy = racing(carry=1.0, rungs=2)
    slow = [arm for arm, action in enumerate(policy.setup.space.actions) if action.lr == 0.05]
    early = dict.fromkeys(slow, 0.8)
    steady, dropped = slow[0], slow[-1]
    first = {8: early | {dropped: 0.79}, 16: dict.fromkeys(slow, 0.52) | {steady: 0.53}}
    assert told(policy, 1, first) == steady
    assert told(policy, 2, {8: early | {dropped: 0.85}, 16: {steady: 0.53, dropped: 0.53}}) == steady


def test_a_dropped_arm_counts_like_the_worst_of_its_rate_that_went_on() -> None:
    policy = racing(carry=1.0, rungs=2)
    slow = [arm for arm, action in enumerate(policy.setup.space.actions) if action.lr == 0.05]
    one, other = slow[0], slow[-1]
    early = dict.fromkeys(slow, 0.6) | {one: 0.9}
    assert told(policy, 1, {8: early, 16: dict.fromkeys(slow, 0.55) | {one: 0.58}}) == one  # the other one: 0.55
    assert told(policy, 2, {8: early | {other: 0.9}, 16: {one: 0.5, other: 0.52}}) == one  # 0.58 + 0.50 > 0.55 + 0.52
    assert told(policy, 3, {8: early | {other: 0.9}, 16: {one: 0.5, other: 0.52}}) == other


def test_earlier_phases_count_less_with_a_smaller_carry() -> None:
    """One arm is 4 points ahead in phase 1, the other 3 in phase 2: only at full weight is the first one decided."""
    for carry, decided in ((1.0, 0), (0.5, 1), (0.0, 1)):
        policy = racing(carry=carry, rungs=2)
        slow = [arm for arm, action in enumerate(policy.setup.space.actions) if action.lr == 0.05][:2]
        for phase, best, lead in ((1, 0, 0.04), (2, 1, 0.03)):
            rewards = dict.fromkeys(slow, 0.6) | {slow[best]: 0.6 + lead}
            found = told(policy, phase, {8: dict.fromkeys(slow, 0.9), 16: rewards})
        assert found == slow[decided], carry


def test_finalists_are_compared_with_finalists_of_earlier_phases() -> None:
    """Half the rate leads in all short trials, and loses at full length: what is carried over is that."""
    policy = racing(carry=1.0, rungs=1, finalists=1)
    slow = {arm for arm, action in enumerate(policy.setup.space.actions) if action.lr == 0.05}
    short = dict.fromkeys(slow, 0.9)
    for phase in (1, 2):
        full = dict.fromkeys(slow, 0.4)
        assert told(policy, phase, {16: short, 160: full}) == policy.setup.space.default
    assert told(policy, 3, {16: short, 160: dict.fromkeys(slow, 0.55)}) == policy.setup.space.default
    assert told(racing(rungs=1, finalists=1), 2, {16: short, 160: dict.fromkeys(slow, 0.55)}) in slow


def test_rounds_are_apart_where_an_arm_was_dropped() -> None:
    policy = racing()
    setup = policy.setup
    slow = [arm for arm, action in enumerate(setup.space.actions) if action.lr == 0.05][:2]
    belief = Scores(setup, carry=1.0)
    ids = itertools.count()

    def learn(split: int, epochs: int, rewards: dict[int, float]) -> None:
        trials = {arm: Trial(next(ids), arm, epochs, round=split) for arm in rewards}
        belief.learn([Outcome(trials[arm], reward) for arm, reward in rewards.items()])

    for split, ends in ((0, {slow[0]: 0.6}), (1, {slow[0]: 0.7, slow[1]: 0.75})):
        learn(split, 8, {setup.space.default: 0.5, **dict.fromkeys(slow, 0.9)})
        learn(split, 16, {setup.space.default: 0.5, **ends})
    assert belief.means()[slow] == pytest.approx([0.15, 0.175])  # the second one: 0.1 and 0.25


def test_a_diverged_trial_is_not_continued() -> None:
    policy = racing(rungs=2)
    policy.tell([Outcome(trial, 0.0, diverged=True) for trial in policy.ask()])
    assert all(trial.continues is None for trial in policy.ask())


@pytest.mark.parametrize(("short", "lengths"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [4, 8, 16])])
def test_a_short_schedule_has_fewer_rungs(short: int, lengths: list[int]) -> None:
    policy = make_policy("race", Setup(make_space("paper", BASE), short, 10, seed=0))
    policy.begin(1)
    assert [trials[0].epochs for trials in batches(policy)] == lengths
