"""How many trials a policy will ask for, before it is told a single reward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from poise.policies.base import Outcome, Policy, Trial

_MOST: Final = 10_000  # trials that are played; a policy of one's own may wait for a reward that never comes


@dataclass(frozen=True)
class Forecast:
    """What choosing an action is expected to cost.

    Attributes:
        trials: how many there will be, or at most.
        exact: whether there will be exactly so many.
        epochs: that they train, over the images of the phase.
        steps: of training that they take besides, of one batch each.
        full: whether one of them is as long as the phase.
    """

    trials: int = 0
    exact: bool = True
    epochs: float = 0.0
    steps: int = 0
    full: bool = False


def forecast(make: Callable[[], Policy], phase: int) -> Forecast:
    """What a policy asks for in this phase, the first tuned one being phase 1.

    It is played twice without any training: the default wins once and loses once. Where both ask for as many trials,
    there will be so many; else the larger number is told, which a policy that draws its arms may still exceed.
    """
    played = [_play(make(), phase, reward) for reward in (1.0, 0.0)]
    trials, exact = max(map(len, played)), len({len(each) for each in played}) == 1
    full = all(any(trial.full for trial in each) for each in played)
    return Forecast(trials, exact, max(sum(new_epochs(each).values()) for each in played), full=full)


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


def _play(policy: Policy, phase: int, own: float) -> list[Trial]:
    """The trials of the phase where the default's reward is `own` and that of every other arm is one half."""
    trials: list[Trial] = []
    for number in range(1, phase + 1):  # what is tried in one may depend on all before it
        policy.begin(number)
        trials = []
        while len(trials) < _MOST and (asked := policy.ask()):
            trials += asked
            rewards = [own if trial.arm == policy.setup.space.default else 0.5 for trial in asked]
            policy.tell([Outcome(trial, each, (each, each)) for trial, each in zip(asked, rewards, strict=True)])
    return trials
