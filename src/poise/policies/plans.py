"""Which trials: a plan is a generator of batches, resumed once the belief has learned from the last batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from poise import draws
from poise.policies.base import Outcome, Policy, Setup, Wish
from poise.policies.beliefs import Belief, Exp3, Informed, Scores

B = TypeVar("B", bound=Belief)

#: (setup, phase, belief) → batches of wished trials.
TrialPlan = Callable[[Setup, int, B], Iterator[Sequence[Wish]]]


def every_arm(rounds: int) -> TrialPlan[Belief]:
    """Full feedback: every round tries every arm, on a split of its own."""

    def plan(setup: Setup, phase: int, belief: Belief) -> Iterator[Sequence[Wish]]:
        for split in range(rounds):
            yield [Wish(arm, setup.short, split) for arm in range(len(setup.space))]

    return plan


def some_arms(trials: int) -> TrialPlan[Belief]:
    """Arms drawn at random without replacement, all on one split."""

    def plan(setup: Setup, phase: int, belief: Belief) -> Iterator[Sequence[Wish]]:
        generator = draws.generator(setup.seed, "policy arms", phase)
        count = min(trials, len(setup.space))
        chosen = generator.choice(len(setup.space), size=count, replace=False)
        yield [Wish(arm, setup.short) for arm in sorted(chosen.tolist())]

    return plan


def one_by_one(iterations: int) -> TrialPlan[Exp3]:
    """Algorithm 1: in each iteration one arm drawn from the belief, on a fresh split."""

    def plan(setup: Setup, phase: int, belief: Exp3) -> Iterator[Sequence[Wish]]:
        for split in range(iterations):
            generator = draws.generator(setup.seed, "policy draw", phase, split)
            yield [Wish(belief.draw(generator), setup.short, split)]

    return plan


def race(rungs: int, finalists: int) -> TrialPlan[Scores]:
    """Successive halving on one split, within each learning rate.

    Every arm trains until epoch ⌈M₁ / 2^(rungs − 1)⌉. Within each learning rate, the better half then trains until
    twice that epoch, and so on up to M₁. Short trainings favour small learning rates, so arms of different rates are
    not compared before the end. The default is never dropped. With `finalists`, that number of arms of each learning
    rate, and the default, then train for the full length M₂.
    """

    def plan(setup: Setup, phase: int, belief: Scores) -> Iterator[Sequence[Wish]]:
        field: list[int] = list(range(len(setup.space)))
        lengths = rung_lengths(setup.short, rungs)
        for epochs in lengths:
            yield [Wish(arm, epochs) for arm in field]
            if epochs != lengths[-1]:
                field = best_of_each_rate(setup, field, belief, None)
        if finalists:
            field = best_of_each_rate(setup, field, belief, finalists)
            yield [Wish(arm, setup.full, full=True) for arm in field]

    return plan


def narrowing(fewest: int, again: int) -> TrialPlan[Informed]:
    """All arms in the first phase, then half as many from phase to phase, each trained for a whole short schedule.

    Those with the best gains so far stay, the default always, and at least `fewest` with it. In every `again`-th phase
    in which anything is tried, all arms are tried once more: what suits 20 old classes need not suit 80.
    """

    def plan(setup: Setup, phase: int, belief: Informed) -> Iterator[Sequence[Wish]]:
        gains, own = belief.gains(), setup.space.default
        halvings = 0 if belief.is_fresh else belief.phases % again
        count = max(fewest, -(-len(setup.space) // 2**halvings))
        best = sorted(range(len(setup.space)), key=lambda arm: (arm != own, -gains[arm], arm))
        yield [Wish(arm, setup.short) for arm in sorted(best[:count])]

    return plan


def rung_lengths(short: int, rungs: int) -> list[int]:
    """The epochs at which the race is halved.

    >>> rung_lengths(16, 4), rung_lengths(3, 3)
    ([2, 4, 8, 16], [1, 2, 3])
    """
    return sorted({-(-short // 2**step) for step in range(min(rungs, short.bit_length() + 1))})


def best_of_each_rate(setup: Setup, field: Iterable[int], belief: Scores, count: int | None) -> list[int]:
    """The best `count` arms (None: the better half) of each learning rate, and the default."""
    groups: dict[float, list[int]] = defaultdict(list)
    for arm in field:
        groups[setup.space.actions[arm].lr].append(arm)
    means = belief.means()
    kept = {setup.space.default}
    for group in groups.values():
        ranked = sorted(group, key=lambda arm: (-means[arm], arm))
        kept.update(ranked[: count or -(-len(group) // 2)])
    return sorted(kept)


# What a plan costs ----------------------------------------------------------------------------------------------------

_MOST: Final = 10_000  # trials that are played: a policy of one's own may wait for a reward that never comes


@dataclass(frozen=True)
class Planned:
    """What choosing the action of a phase is expected to cost.

    Attributes:
        trials: about how many there will be (of a tuner that is no policy: rounds or episodes).
        epochs: that they train, over the images of the phase.
        steps: of training that they take besides, of one batch each.
        full: whether one of them is as long as the phase.
    """

    trials: int = 0
    epochs: float = 0.0
    steps: int = 0
    full: bool = False


def plan_trials(policy: Policy, phase: int) -> Planned:
    """What a new policy asks for in this phase, the first tuned one being phase 1: played, without any training.

    Every trial of the default action fails, and all others are equally good: a policy that draws its arms may ask for
    a few trials more or less.
    """
    for number in range(1, phase + 1):  # what is tried in one may depend on all before it
        policy.begin(number)
        while len(policy.told) < _MOST and (asked := policy.ask()):
            rewards = [0.0 if trial.arm == policy.setup.space.default else 0.5 for trial in asked]
            policy.tell([Outcome(trial, each, (each, each)) for trial, each in zip(asked, rewards, strict=True)])
    return Planned(len(policy.told), policy.epochs, full=any(wish.full for wish in policy.told))
