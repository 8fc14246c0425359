from __future__ import annotations

from collections.abc import Sequence

import pytest

from poise import draws
from poise.actions import Action
from poise.policies import Outcome, Policy, Setup, Trial, Wish, forecast, make_policy, new_epochs
from poise.spaces import make_space

SETUP = Setup(make_space("paper", Action(logit_kd=0, feature_kd=1, lr=0.1)), short=16, full=160, seed=0)
POLICIES: dict[str, dict[str, float | str]] = {
    "fixed": {},
    "random": {"trials": 7},
    "grid": {"rounds": 2},
    "exp3": {"iterations": 4},
    "hedge": {},
    "race": {"rungs": 3, "finalists": 1},
    "online": {},
}


def made(name: str, **more: float | str) -> Policy:
    return make_policy(name, SETUP, {**POLICIES[name], **more})


def played(policy: Policy, seed: int, phases: int = 1) -> list[Trial]:
    """The trials of the last phase, with rewards by chance."""
    generator = draws.generator(seed, "rewards")
    for phase in range(1, phases + 1):
        policy.begin(phase)
        trials: list[Trial] = []
        while asked := policy.ask():
            trials += asked
            policy.tell([Outcome(trial, float(generator.random()), (0.5, 0.5)) for trial in asked])
    return trials


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_asks_for_more_than_was_told_before(name: str) -> None:
    expected = forecast(lambda: made(name), 1)
    counts, epochs = [], []
    for seed in range(5):
        trials = played(made(name), seed)
        counts.append(len(trials))
        epochs.append(sum(new_epochs(trials).values()))
    assert max(counts, default=0) <= expected.trials
    assert max(epochs, default=0) <= expected.epochs
    assert expected.exact == (name != "race")
    if expected.exact:
        assert set(counts) == {expected.trials}
        assert set(epochs) == {expected.epochs}
    assert expected.full == (name == "race"), "only the race here has finalists"


def test_known_numbers() -> None:
    assert forecast(lambda: made("random"), 1).trials == 7
    assert forecast(lambda: made("grid"), 1).trials == 100
    assert forecast(lambda: made("grid"), 1).epochs == 100 * 16
    assert not forecast(lambda: made("fixed"), 1).trials


def test_fewer_trials_from_phase_to_phase_are_told_before() -> None:
    found = [forecast(lambda: made("online"), phase) for phase in range(1, 8)]
    assert [each.trials for each in found] == [50, 25, 13, 7, 4, 50, 25]
    for phase, expected in enumerate(found, start=1):
        trials = played(made("online"), seed=phase, phases=phase)
        assert (len(trials), sum(new_epochs(trials).values())) == (expected.trials, expected.epochs)
        assert expected.exact


def test_phases_that_are_not_tuned_have_no_trials() -> None:
    found = [forecast(lambda: made("grid", every=2), phase).trials for phase in (1, 2, 3, 4)]
    assert found == [100, 0, 100, 0]


def test_the_default_that_a_wrapper_adds_is_counted() -> None:
    expected = forecast(lambda: made("random", safe=1.0), 1)
    assert expected.trials == len(played(made("random", safe=1.0), 0)) >= 7


class Waits(Policy):
    """A policy of one's own that stops at a reward which is never played."""

    def propose(self) -> Sequence[Wish]:
        best = max((outcome.reward for outcome in self.told.values()), default=0.0)
        return () if 0.8 < best < 0.9 else [Wish(0, 1, len(self.told))]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def decide(self) -> int:
        return 0


def test_a_policy_that_would_never_stop_is_not_waited_for() -> None:
    assert forecast(lambda: Waits(SETUP), 1).trials == 10_000
