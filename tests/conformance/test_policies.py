"""What every policy must hold, with every wrapper around it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from poise import draws
from poise.actions import Action
from poise.errors import Damaged, UserError
from poise.policies import (
    POLICIES,
    PRESETS,
    Decided,
    Outcome,
    Policy,
    Setup,
    Trial,
    Tried,
    Wish,
    make_policy,
    register,
    replay,
)
from poise.spaces import ActionSpace, make_space

BASE = Action(logit_kd=0, feature_kd=1, lr=0.1)
SPACE = make_space({"feature_kd": [0, 1, 2], "lr": [0.1, 0.05]}, BASE)
SINGLE = make_space({}, BASE)
PHASES = 4

Options = dict[str, Any]
Reward = Callable[[int, Trial], Outcome]
History = list[Tried | Decided]

VARIANTS: list[tuple[str, Options]] = [
    *((name, {}) for name in POLICIES),
    ("random", {"trials": 0}),
    ("grid", {"rounds": 2}),
    ("exp3", {"centred": True, "iterations": 8}),
    ("exp3", {"rule": "released", "iterations": 8}),
    ("race", {"finalists": 1, "rungs": 2}),
]
WRAPPERS: list[Options] = [{}, {"safe": 1.0}, {"every": 2}, {"safe": 0.0, "every": 3}]


@pytest.fixture(params=WRAPPERS, ids=lambda options: "+".join(options) or "bare")
def around(request: pytest.FixtureRequest) -> Options:
    return dict(request.param)


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join([variant[0], *variant[1]]))
def make(request: pytest.FixtureRequest, around: Options) -> Callable[..., Policy]:
    name, options = request.param
    if around and not PRESETS[name].tunes:
        pytest.skip("chooses nothing")

    def made(space: ActionSpace = SPACE, seed: int = 5) -> Policy:
        return make_policy(name, Setup(space, short=4, full=20, seed=seed), {**options, **around})

    return made


def rewarded(phase: int, trial: Trial) -> Outcome:
    """Noisy rewards of three classes, better for larger arms and longer trials."""
    noise = draws.generator(0, "rewards", phase, trial.arm, trial.round, trial.epochs).uniform(-0.1, 0.1, 3)
    per_class = tuple((0.4 + 0.03 * trial.arm + 0.005 * trial.epochs + noise).tolist())
    return Outcome(trial, float(np.mean(per_class)), per_class)


def diverged(phase: int, trial: Trial) -> Outcome:
    """Every other arm diverges; in the second phase all do."""
    return Outcome(trial, 0.0, diverged=True) if trial.arm % 2 or phase == 2 else rewarded(phase, trial)


def lived(policy: Policy, reward: Reward = rewarded) -> History:
    """The history of some phases; outcomes come one by one, the last first."""
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
            pytest.fail("the policy asks for ever")
        history.append(Decided(phase, policy.decide()))
    return history


def trials_of(history: History) -> Iterator[list[Trial]]:
    for phase in range(1, PHASES + 1):
        found = [entry.outcome.trial for entry in history if isinstance(entry, Tried) and entry.phase == phase]
        yield sorted(found, key=lambda trial: trial.id)


@pytest.mark.parametrize("space", [SPACE, SINGLE], ids=["grid", "single"])
@pytest.mark.parametrize("reward", [rewarded, diverged])
def test_trials_and_decisions_are_valid(make: Callable[..., Policy], space: ActionSpace, reward: Reward) -> None:
    history = lived(make(space), reward)
    assert all(entry.arm in range(len(space)) for entry in history if isinstance(entry, Decided))
    for trials in trials_of(history):
        assert [trial.id for trial in trials] == list(range(len(trials)))
        assert len({trial.wish for trial in trials}) == len(trials), "the same training twice"
        for trial in trials:
            assert trial.arm in range(len(space))
            assert 1 <= trial.epochs <= (20 if trial.full else 4)
            if trial.continues is not None:
                earlier = trials[trial.continues]
                assert earlier.id < trial.id
                assert (earlier.arm, earlier.round, earlier.full) == (trial.arm, trial.round, trial.full)
                assert earlier.epochs < trial.epochs


def test_the_same_seed_gives_the_same_trials_and_no_global_generator_is_used(make: Callable[..., Policy]) -> None:
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    first = lived(make())
    np.random.random(3)  # noqa: NPY002
    random.random()
    moved = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    assert lived(make()) == first
    assert (random.getstate(), repr(np.random.get_state())) == moved  # noqa: NPY002
    assert before != moved


def test_outcomes_may_come_in_any_order(make: Callable[..., Policy]) -> None:
    forwards, backwards = make(), make()
    for phase in range(1, PHASES + 1):
        for policy in (forwards, backwards):
            policy.begin(phase)
        while trials := forwards.ask():
            assert backwards.ask() == trials
            forwards.tell([rewarded(phase, trial) for trial in trials])
            for trial in reversed(trials):
                assert trial in backwards.ask()
                backwards.tell([rewarded(phase, trial)])
        assert backwards.ask() == []
        assert forwards.decide() == backwards.decide()


def test_deciding_and_asking_again_change_nothing(make: Callable[..., Policy]) -> None:
    policy, quiet = make(), make()
    for phase in (1, 2):
        policy.begin(phase)
        policy.begin(phase)
        quiet.begin(phase)
        while trials := quiet.ask():
            assert policy.ask() == policy.ask() == trials
            policy.decide()
            policy.distribution()
            policy.resolved()
            for each in (policy, quiet):
                each.tell([rewarded(phase, trial) for trial in trials])
        assert policy.ask() == []
        assert policy.decide() == policy.decide() == quiet.decide()


def test_the_distribution_is_one(make: Callable[..., Policy]) -> None:
    policy = make()
    lived(policy)
    chances = policy.distribution()
    if chances is not None:
        assert chances.shape == (len(SPACE),)
        assert (chances >= 0).all()
        assert chances.sum() == pytest.approx(1)


def test_what_it_turned_out_to_be_is_plain_values(make: Callable[..., Policy]) -> None:
    policy = make()
    lived(policy)
    assert json.loads(json.dumps(policy.resolved()))["name"] in POLICIES


def test_a_replayed_policy_is_the_original_wherever_the_history_was_cut(make: Callable[..., Policy]) -> None:
    policy = make()
    history = lived(policy)
    again = replay(make(), history)
    policy.begin(PHASES + 1)
    again.begin(PHASES + 1)
    assert again.ask() == policy.ask()
    assert again.decide() == policy.decide()
    for cut in {0, 1, len(history) // 3, len(history) // 2, len(history) - 1}:
        resumed = replay(make(), history[:cut])
        rest = history[cut:]
        for entry in rest:
            if entry.phase != resumed.phase:
                resumed.begin(entry.phase)
            if isinstance(entry, Tried):
                assert entry.outcome.trial in resumed.ask()
                resumed.tell([entry.outcome])
            else:
                assert resumed.ask() == []
                assert resumed.decide() == entry.arm


def test_a_tampered_record_is_refused(make: Callable[..., Policy]) -> None:
    history = lived(make())
    for place, entry in enumerate(history):
        changed = list(history)
        if isinstance(entry, Tried):
            trial = replace(entry.outcome.trial, epochs=entry.outcome.trial.epochs + 1)
            changed[place] = replace(entry, outcome=replace(entry.outcome, trial=trial))
        else:
            changed[place] = replace(entry, arm=(entry.arm + 1) % len(SPACE))
        with pytest.raises(Damaged, match=f"phase {entry.phase}"):
            replay(make(), changed)
        if place > 6:
            break


def test_going_back_or_telling_the_unasked_is_refused(make: Callable[..., Policy]) -> None:
    policy = make()
    lived(policy)
    with pytest.raises(ValueError, match="fresh policy"):
        policy.begin(PHASES - 1)
    with pytest.raises(ValueError, match="no open trial"):
        policy.tell([Outcome(Trial(99, 0, 4), 0.5)])


@pytest.mark.parametrize("reward", [-0.1, 1.1, float("nan")])
def test_a_reward_outside_0_to_1_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Outcome(Trial(0, 0, 4), reward)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Outcome(Trial(0, 0, 4), 0.5, (0.5, reward))


class Newest(Policy):
    """A policy of one's own: tries the last arms, keeps the best one."""

    def __init__(self, setup: Setup, *, last: int = 2) -> None:
        super().__init__(setup)
        self.last = last

    def propose(self) -> list[Wish]:
        arms = len(self.setup.space)
        return [] if self.told else [Wish(arm, self.setup.short) for arm in range(max(0, arms - self.last), arms)]

    def learn(self, outcomes: Any) -> None:
        """Everything is in `told`."""

    def decide(self) -> int:
        return max(self.told.values(), key=lambda outcome: outcome.reward).trial.arm


def test_a_policy_of_ones_own_is_one_short_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.policies.catalog.POLICIES", dict(POLICIES))
    monkeypatch.setattr("poise.policies.catalog.PRESETS", dict(PRESETS))
    register("newest")(Newest)
    setup = Setup(SPACE, short=4, full=20, seed=0)
    history = lived(make_policy("newest", setup, {"last": 3, "safe": 1.0}))
    assert {entry.outcome.trial.arm for entry in history if isinstance(entry, Tried)} == {3, 4, 5, SPACE.default}
    replay(make_policy("newest", setup, {"last": 3, "safe": 1.0}), history)


def own_policy(**answers: Any) -> Newest:
    """A policy of one's own in its first phase, with other answers."""
    policy = Newest(Setup(SPACE, short=4, full=20, seed=0))
    for name, answer in answers.items():
        setattr(policy, name, lambda answer=answer: answer)
    policy.begin(1)
    return policy


@pytest.mark.parametrize("answer", [None, 0.5, -1, len(SPACE), True, "best"])
def test_a_decision_that_is_no_arm_is_refused(answer: object) -> None:
    with pytest.raises(UserError, match="policy newest: decide returned"):
        own_policy(decide=answer).decide_checked()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (None, "propose must return a list of Wish"),
        ([0, 1], "propose must return a list of Wish"),
        ([Wish(len(SPACE), 4)], f"arm={len(SPACE)}, not a whole number from 0 to {len(SPACE) - 1}"),
        ([Wish(0, 5)], "epochs=5, not a whole number from 1 to 4"),
        ([Wish(0, 4), Wish(0, 4)], "twice in a phase"),
    ],
)
def test_a_proposal_that_is_none_is_refused(answer: object, line: str) -> None:
    with pytest.raises(UserError, match=f"policy newest: .*{line}"):
        own_policy(propose=answer).ask()


def test_whole_numbers_of_numpy_become_plain_ones() -> None:
    arm, epochs = np.argmax([0, 1]), np.int32(4)
    policy = own_policy(decide=arm, propose=[Wish(arm, epochs)])  # type: ignore[arg-type]
    (trial,) = policy.ask()
    assert json.dumps([asdict(trial), policy.decide_checked()])
