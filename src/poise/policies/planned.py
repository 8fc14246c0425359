"""How many trials a policy will ask for, before it is told a single reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from poise.policies.base import Outcome, Policy, Trial

_MOST: Final = 10_000  # trials that are played; a policy of one's own may wait for a reward that never comes


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
    trials = list[Trial]()
    for number in range(1, phase + 1):  # what is tried in one may depend on all before it
        policy.begin(number)
        trials = []
        while len(trials) < _MOST and (asked := policy.ask()):
            trials += asked
            rewards = [0.0 if trial.arm == policy.setup.space.default else 0.5 for trial in asked]
            policy.tell([Outcome(trial, each, (each, each)) for trial, each in zip(asked, rewards, strict=True)])
    return Planned(len(trials), sum(new_epochs(trials).values()), full=any(trial.full for trial in trials))


def new_epochs(trials: Iterable[Trial], known: Mapping[int, int] | None = None) -> dict[int, int]:
    """By id, the epochs that each trial trains itself: without those of the trial that it continues.

    `known` are the lengths of earlier trials.

    >>> new_epochs([Trial(0, 3, 2), Trial(1, 3, 6, continues=0)])
    {0: 2, 1: 4}
    """
    reached, found = dict(known or {}), dict[int, int]()
    for trial in trials:
        start = 0 if trial.continues is None else reached.get(trial.continues, 0)
        reached[trial.id], found[trial.id] = trial.epochs, trial.epochs - start
    return found
