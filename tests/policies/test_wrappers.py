from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from poise import draws
from poise.actions import Action, make_space
from poise.errors import UserError
from poise.policies import Outcome, Policy, Setup, make_policy
from poise.policies.wrappers import Safe

Array = NDArray[np.float64]
BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)
SPACE = make_space("paper", BASE)
LEVEL = 0.1587  # Φ(−1)


def answered(policy: Policy, accuracies: Callable[[int], tuple[float, ...]]) -> None:
    while trials := policy.ask():
        found = {each: accuracies(each.arm) for each in trials}
        policy.tell([Outcome(each, float(np.mean(per_class)), per_class) for each, per_class in found.items()])


def simulated(name: str, depth: float, classes: int, phases: int, runs: int, images: int = 10) -> Array:
    """Runs × phases: whether the safe policy left the default, where the best arm is `depth` better than the worst.

    An arm is as good as it is close to the last one. Classes differ in difficulty; each is validated on some images.
    """
    truth = 0.65 - depth * np.linspace(1, 0, len(SPACE))[:, None] + np.linspace(-0.2, 0.2, classes)
    left = np.zeros((runs, phases))
    for run in range(runs):
        policy = make_policy(name, Setup(SPACE, 16, 160, seed=run), {"safe": 1.0})
        for phase in range(1, phases + 1):
            policy.begin(phase)
            generator = draws.generator(run, "rewards", phase)
            answered(policy, lambda arm: tuple((generator.binomial(images, truth[arm]) / images).tolist()))  # noqa: B023
            left[run, phase - 1] = policy.decide() != SPACE.default
    return left


@pytest.mark.parametrize(("name", "classes"), [("hedge", 8), ("hedge", 20), ("race", 20)])
def test_safe_leaves_the_default_on_pure_noise_no_more_often_than_its_level(name: str, classes: int) -> None:
    left = simulated(name, depth=0.0, classes=classes, phases=2, runs=60).mean(axis=0)
    assert (left <= LEVEL + 2.6 * np.sqrt(LEVEL * (1 - LEVEL) / 60)).all()


def test_safe_gathers_evidence_over_phases() -> None:
    left = simulated("hedge", depth=0.15, classes=12, phases=6, runs=25, images=5).mean(axis=0)
    assert left[-1] > left[0] + 0.2


def test_safe_leaves_the_default_for_a_clear_gain() -> None:
    policy = make_policy("grid", Setup(SPACE, 4, 40, seed=0), {"safe": 1.0})
    policy.begin(1)
    answered(policy, lambda arm: (0.8, 0.7, 0.9, 0.6, 0.75, 0.8) if arm == 7 else (0.5, 0.6, 0.55, 0.5, 0.6, 0.45))
    assert policy.decide() == 7
    assert isinstance(policy, Safe)
    gain, error, chance = policy.evidence(7)
    assert gain == pytest.approx(4.55 / 6 - 3.2 / 6)
    assert error == pytest.approx(np.std([0.3, 0.1, 0.35, 0.1, 0.15, 0.35], ddof=1) / np.sqrt(6))
    assert chance == pytest.approx(1 / 64), "all six classes gained: one of 2⁶ ways to flip the signs"
    unsure = make_policy("grid", Setup(SPACE, 4, 40, seed=0), {"safe": 1.0})
    unsure.begin(1)
    answered(unsure, lambda arm: (0.9, 0.95) if arm == 7 else (0.5, 0.5))
    assert unsure.decide() == SPACE.default, "two classes are too few to be sure of anything"


def test_safe_adds_the_default_to_every_round_and_no_trial_is_run_twice() -> None:
    policy = make_policy("exp3", Setup(SPACE, 4, 40, seed=0), {"iterations": 6, "safe": 1.0})
    policy.begin(1)
    seen = []
    while trials := policy.ask():
        seen += trials
        assert SPACE.default in {trial.arm for trial in trials}
        policy.tell([Outcome(trial, 0.5, (0.5, 0.5)) for trial in trials])
    assert {trial.round for trial in seen} == set(range(6))
    assert [trial.id for trial in seen] == list(range(len(seen)))
    raced = make_policy("race", Setup(SPACE, 4, 40, seed=0), {"safe": 1.0})
    raced.begin(1)
    assert len(raced.ask()) == 50, "the race has the default already"


def test_a_default_that_was_added_answers_when_it_is_asked_for_later() -> None:
    space = make_space({"feature_kd": [1, 2, 3]}, BASE)
    for seed in range(8):  # random arms: the default may come in any batch
        policy = make_policy("random", Setup(space, 4, 40, seed), {"trials": 2, "safe": 0.0})
        policy.begin(1)
        answered(policy, lambda arm: (0.5, 0.5, 0.4 + arm / 10))
        assert len(policy.told) in (2, 3)


def test_safe_copes_with_a_default_that_diverged() -> None:
    policy = make_policy("grid", Setup(SPACE, 4, 40, seed=0), {"safe": 1.0})
    policy.begin(1)
    for trial in policy.ask():
        lost, fine = trial.arm == SPACE.default, 0.65 - 0.01 * (trial.arm != 3)
        outcome = Outcome(trial, 0.0, diverged=True) if lost else Outcome(trial, fine, (0.5, 0.6, 0.7, 0.8))
        policy.tell([outcome])
    assert policy.decide() == 3


@pytest.mark.parametrize(("every", "tuned"), [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (5, [1, 6])])
def test_every_tunes_some_phases_and_repeats_the_decision_in_between(every: int, tuned: list[int]) -> None:
    policy = make_policy("grid", Setup(SPACE, 4, 40, seed=0), {"every": every})
    asked, decided = [], []
    for phase in range(1, 7):
        policy.begin(phase)
        if trials := policy.ask():
            asked.append(phase)
            policy.tell([Outcome(trial, 0.5 + 0.1 * (trial.arm == phase)) for trial in trials])
        assert policy.ask() == []
        decided.append(policy.decide())
    assert asked == tuned
    assert decided == [max(phase for phase in tuned if phase <= now) for now in range(1, 7)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("race", {"rung": 3}, "did you mean 'rungs'"),
        ("race", {"rungs": 0}, "at least 1"),
        ("race", {"rungs": 2.5}, "must be like 3"),
        ("race", {"safe": -1.0}, "at least 0"),
        ("race", {"every": 0}, "at least 1"),
        ("exp3", {"rule": "printd"}, "did you mean 'printed'"),
        ("exp3", {"xi": 0}, "above 0"),
        ("online", {"fewest": 0}, "fewest"),
        ("online", {"again": 0}, "again"),
    ],
)
def test_mistakes_are_one_line_with_what_to_do(name: str, options: dict[str, bool | float | str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_policy(name, Setup(SPACE, 4, 40, seed=0), options)
