"""What every policy must hold: plain Python and numpy, no network and no image."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from poise import draws
from poise.actions import Action, ActionSpace, make_space
from poise.errors import Damaged
from poise.policies import Decided, Outcome, Policy, Setup, Trial, Tried, make_policy, replay

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)
SPACE = make_space({"feature_kd": [0, 1, 2], "lr": [0.1, 0.05]}, BASE)
SINGLE = make_space({}, BASE)
PHASES = 4
SHORT, FULL = 4, 20  # epochs of a trial, and of one that is trained to the end

Reward = Callable[[int, Trial], Outcome]
History = list[Tried | Decided]


def noisy_rewards(phase: int, trial: Trial) -> Outcome:
    """Rewards of three classes, better for larger arms and longer trials."""
    noise = draws.generator(0, "rewards", phase, trial.arm, trial.round, trial.epochs).uniform(-0.1, 0.1, 3)
    per_class = tuple((0.4 + 0.03 * trial.arm + 0.005 * trial.epochs + noise).tolist())
    return Outcome(trial, float(np.mean(per_class)), per_class)


def diverging(phase: int, trial: Trial) -> Outcome:
    """Every other arm diverges; in the second phase all do."""
    return Outcome(trial, 0.0, diverged=True) if trial.arm % 2 or phase == 2 else noisy_rewards(phase, trial)


def history_of(policy: Policy, reward: Reward = noisy_rewards) -> History:
    """The trials and decisions of a policy in some phases; outcomes come one by one, the last first."""
    history: History = []
    for phase in range(1, PHASES + 1):
        policy.begin(phase)
        for _ in range(1000):
            if not (trials := policy.ask()):
                break
            outcome = reward(phase, trials[-1])
            policy.tell([outcome])
            history.append(Tried(phase, outcome))
        else:
            raise AssertionError("the policy asks for ever")
        history.append(Decided(phase, policy.decide()))
    return history


class PolicySuite:
    """The tests of one policy: subclass it, name the policy, and let pytest collect the class.

    Attributes:
        policy: its name, once it is registered.
        options: its own options, and those of wrappers.
    """

    policy: str
    options: ClassVar[Mapping[str, Any]] = {}

    def make(self, space: ActionSpace = SPACE) -> Policy:
        """The policy, before its first phase."""
        return make_policy(self.policy, Setup(space, short=SHORT, full=FULL, seed=5), dict(self.options))

    def test_trials_and_decisions_are_valid(self) -> None:
        """Arms of the space, lengths that fit, and no training twice."""
        for space in (SPACE, SINGLE):
            for reward in (noisy_rewards, diverging):
                history = history_of(self.make(space), reward)
                assert all(entry.arm in range(len(space)) for entry in history if isinstance(entry, Decided))
                for phase in range(1, PHASES + 1):
                    there = [each.outcome.trial for each in history if isinstance(each, Tried) and each.phase == phase]
                    _check_trials(sorted(there, key=lambda trial: trial.id), len(space))

    def test_the_seed_alone_decides_and_no_global_generator_is_used(self) -> None:
        """Global generators stay as they are."""
        first = history_of(self.make())
        np.random.random(3)  # noqa: NPY002
        random.random()
        moved = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        assert history_of(self.make()) == first
        assert (random.getstate(), repr(np.random.get_state())) == moved  # noqa: NPY002

    def test_outcomes_may_come_in_any_order(self) -> None:
        """Trials run side by side and end when they like."""
        forwards, backwards = self.make(), self.make()
        for phase in range(1, PHASES + 1):
            for policy in (forwards, backwards):
                policy.begin(phase)
            while trials := forwards.ask():
                assert backwards.ask() == trials
                forwards.tell([noisy_rewards(phase, trial) for trial in trials])
                for trial in reversed(trials):
                    assert trial in backwards.ask()
                    backwards.tell([noisy_rewards(phase, trial)])
            assert backwards.ask() == []
            assert forwards.decide() == backwards.decide()

    def test_asking_and_deciding_again_change_nothing(self) -> None:
        """`ask`, `decide` and `distribution` only look."""
        policy, quiet = self.make(), self.make()
        for phase in (1, 2):
            policy.begin(phase)
            quiet.begin(phase)
            while trials := quiet.ask():
                assert policy.ask() == policy.ask() == trials
                policy.decide()
                policy.distribution()
                for each in (policy, quiet):
                    each.tell([noisy_rewards(phase, trial) for trial in trials])
            assert policy.ask() == []
            assert policy.decide() == policy.decide() == quiet.decide()

    def test_its_chances_are_a_distribution(self) -> None:
        """If it has any."""
        policy = self.make()
        history_of(policy)
        if (chances := policy.distribution()) is not None:
            assert chances.shape == (len(SPACE),)
            assert (chances >= 0).all()
            assert abs(float(chances.sum()) - 1) < 1e-6

    def test_a_replayed_policy_goes_on_wherever_the_history_was_cut(self) -> None:
        """A policy that is replayed from each of three drawn places goes on as before."""
        policy = self.make()
        history = history_of(policy)
        for cut in draws.generator(len(history), "stops of a suite").integers(0, len(history), 3):
            resumed = replay(self.make(), history[:cut])
            for entry in history[cut:]:
                if entry.phase != resumed.phase:
                    resumed.begin(entry.phase)
                if isinstance(entry, Tried):
                    assert entry.outcome.trial in resumed.ask()
                    resumed.tell([entry.outcome])
                else:
                    assert resumed.ask() == []
                    assert resumed.decide() == entry.arm

    def test_a_changed_record_is_refused(self) -> None:
        """A record that the policy would not have asked for, or decided, is refused."""
        history = history_of(self.make())
        for number, entry in enumerate(history[:8]):
            changed = list(history)
            if isinstance(entry, Tried):
                trial = replace(entry.outcome.trial, epochs=entry.outcome.trial.epochs + 1)
                changed[number] = replace(entry, outcome=replace(entry.outcome, trial=trial))
            else:
                changed[number] = replace(entry, arm=(entry.arm + 1) % len(SPACE))
            try:
                replay(self.make(), changed)
            except Damaged:
                continue
            raise AssertionError(f"entry {number} was changed, and nobody noticed")


def _check_trials(trials: list[Trial], arms: int) -> None:
    assert [trial.id for trial in trials] == list(range(len(trials)))
    assert len({trial.wish for trial in trials}) == len(trials), "the same training twice"
    for trial in trials:
        assert trial.arm in range(arms)
        assert 1 <= trial.epochs <= (FULL if trial.full else SHORT)
