"""Fewer arms from phase to phase: which stay, and when all are tried again."""

from __future__ import annotations

import pytest

from poise import Learner
from poise.actions import Action, make_space
from poise.policies import Outcome, Policy, Setup, Trial, make_policy
from poise.policies.beliefs import Informed

GRID = {"feature_kd": (0.1, 0.2, 0.3, 0.4), "lr": (0.1, 0.05)}
OWN = Action(feature_kd=0.4, lr=0.05)


def made(**options: int) -> Policy:
    return make_policy("online", Setup(make_space(GRID, OWN), short=4, full=40, seed=0), options)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards alone decide, unless a test says otherwise."""
    monkeypatch.setattr(Informed, "HANDICAP", 0.0)
    monkeypatch.setattr(Informed, "HEAD_START", 0.0)


def play(policy: Policy, phase: int, worth: dict[int, float], classes: int = 400) -> list[Trial]:
    """One phase in which every arm is worth so much, .5 where nothing is said; the trials that were asked for."""
    policy.begin(phase)
    asked: list[Trial] = []
    while batch := policy.ask():
        asked += batch
        rewards = [worth.get(trial.arm, 0.5) for trial in batch]
        policy.tell([Outcome(trial, each, (each,) * classes) for trial, each in zip(batch, rewards, strict=True)])
    return asked


def test_the_better_half_stays_with_the_default_until_all_are_tried_again() -> None:
    policy = made(fewest=2, again=4)
    own = policy.setup.space.default
    worth = {0: 0.9, 3: 0.8, 5: 0.7, own: 0.1}
    trials = [play(policy, phase, worth) for phase in range(1, 6)]
    schedules = {(each.epochs, each.round, each.full) for asked in trials for each in asked}
    assert schedules == {(4, 0, False)}, "a whole short schedule each"
    fields = [[trial.arm for trial in asked] for asked in trials]
    assert fields[0] == list(range(8))
    assert fields[1] == sorted([0, 3, 5, own])
    assert fields[2] == fields[3] == sorted([0, own])
    assert fields[4] == list(range(8))
    assert policy.decide() == 0


def test_what_was_good_before_counts_and_fades() -> None:
    policy = made(fewest=8)
    play(policy, 1, {2: 0.7})
    play(policy, 2, {2: 0.5, 4: 0.6})
    assert policy.decide() == 2  # .8 · .2 + 0 against .1
    play(policy, 3, {2: 0.4, 4: 0.7})
    assert policy.decide() == 4


def test_a_small_rate_needs_more_than_its_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Informed, "HANDICAP", 0.1)
    fast, slow = 0, 1  # feature_kd .1 at both rates
    near, far = made(), made()
    play(near, 1, {fast: 0.7, slow: 0.78})
    play(far, 1, {fast: 0.7, slow: 0.82})
    assert (near.decide(), far.decide()) == (fast, slow)


def test_the_head_start_decides_where_little_is_seen_and_not_where_much_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Informed, "HEAD_START", 0.05)
    own = made().setup.space.default
    for classes, expected in ((2, own), (200, 3)):
        policy = made()
        play(policy, 1, {3: 0.6}, classes)  # a tenth better than the default, which has the head start
        assert policy.decide() == expected


def test_a_method_names_its_favourite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    space = Learner("lucir", device="cpu").settings.action_space
    assert space.favourite is not None
    favourite = space.actions[space.favourite]
    assert space.as_json()["favourite"] == dict(favourite)
    assert (favourite["feature_kd"], favourite.adjustment, favourite.old_rows, favourite.lr) == (0, 1, "trained", 0.1)
    for worth, classes in (({}, 2), ({space.favourite: 0.4}, 100)):
        policy = make_policy("online", Setup(space, short=4, full=40, seed=0))
        play(policy, 1, worth, classes)
        assert (policy.decide() == space.favourite) is (classes == 2)


def test_phases_in_which_nothing_is_tried_do_not_count() -> None:
    policy = made(fewest=2, again=3, every=2)
    fields = [len(play(policy, phase, {0: 0.9})) for phase in range(1, 9)]
    assert fields == [8, 0, 4, 0, 2, 0, 8, 0]
