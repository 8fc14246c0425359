"""Wrappers around any policy: tune only in some phases; leave the default only for a significant gain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from poise import draws
from poise.policies.base import Array, Outcome, Policy, Wish

FLIPS = 500  # random sign flips where there are too many classes to try every combination
CLEARLY_WORSE = 2.0  # arms this many standard errors below the default are no rivals: luck cannot make them win


class Wrapper(Policy):
    """Forwards everything to the inner policy; the same trial is never run twice."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner.setup)
        self.inner = inner

    def start(self) -> None:
        """Begin the inner policy too."""
        self.inner.begin(self.phase)

    def propose(self) -> Sequence[Wish]:
        """The trials that the inner policy asks for or the wrapper adds, without those already run."""
        while trials := self.inner.ask():
            wishes = self.completed([trial.wish for trial in trials])
            if fresh := [wish for wish in wishes if wish not in self.told]:
                return fresh
            self.learn(())
        return ()

    def completed(self, wishes: list[Wish]) -> list[Wish]:
        """The wishes, with those that the wrapper adds."""
        return wishes

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Tell the inner policy the outcomes it asked for."""
        self.inner.tell([replace(self.told[trial.wish], trial=trial) for trial in self.inner.ask()])

    def decide(self) -> int:
        """The inner policy's decision."""
        return self.inner.decide_checked()

    def distribution(self) -> Array | None:
        """The inner policy's distribution."""
        return self.inner.distribution()


class Every(Wrapper):
    """Tune in the first tuned phase and every `period`-th after it; in between, repeat the last decision."""

    def __init__(self, inner: Policy, period: int) -> None:
        super().__init__(inner)
        self.period = period
        self._first: int | None = None

    def start(self) -> None:
        """Begin the inner policy only when this phase is tuned."""
        self._first = self.phase if self._first is None else self._first
        if (self.phase - self._first) % self.period == 0:
            super().start()

    def propose(self) -> Sequence[Wish]:
        """Ask for nothing in phases that are not tuned."""
        return super().propose() if self.inner.phase == self.phase else ()


class Safe(Wrapper):
    """Leave the default only when the paired gain of the decided arm exceeds z standard errors.

    The gain is the mean over classes, rounds and phases of the difference in accuracy to the default, on the same
    split after the same number of epochs (only the longest trial of each round). Where the inner policy does not try
    the default, this wrapper adds it. The standard error is clustered by class: it comes from the sum of differences of
    each class, so that seeing the same class repeatedly is not mistaken for more classes.

    The decided arm was picked because it looked good, and the best of fifty equal arms nearly always exceeds one
    standard error. So the best of all compared arms must also reach this gain by luck no more often than Φ(−z), 16 %
    for z = 1: the signs of the differences are flipped at random, class by class and for all
    arms together, and the largest ratio of gain to error is noted each time (max-T, Westfall and Young 1993); arms
    two standard errors below the default are left out (Hansen 2005).

    The tests do not see luck that a whole training has in all classes at once, nor what changes between M₁ and M₂. For
    an arm that a race dropped they see only its short training, which favours small learning rates.
    """

    def __init__(self, inner: Policy, z: float) -> None:
        super().__init__(inner)
        self.z = z
        arms = len(self.setup.space)
        self._sums, self._counts = np.zeros((arms, 0)), np.zeros((arms, 0))  # arms × classes, past phases

    def begin(self, phase: int) -> None:
        """Keep the differences of the previous phase."""
        self._sums, self._counts = self._differences()
        super().begin(phase)

    def completed(self, wishes: list[Wish]) -> list[Wish]:
        """Add the default wherever another arm is tried."""
        return list(dict.fromkeys([*wishes, *(wish._replace(arm=self.setup.space.default) for wish in wishes)]))

    def _differences(self) -> tuple[Array, Array]:
        """Sum and number of paired differences for every arm and class, this phase included."""
        longest_last = sorted(self.told, key=lambda wish: (wish.full, wish.epochs))
        latest = {(wish.arm, wish.round): self.told[wish] for wish in longest_last}
        classes = max([self._sums.shape[1], *(len(outcome.per_class) for outcome in self.told.values())])
        wider = ((0, 0), (0, classes - self._sums.shape[1]))
        sums, counts = np.pad(self._sums, wider), np.pad(self._counts, wider)
        for (arm, _), outcome in latest.items():
            own = self.told.get(outcome.trial.wish._replace(arm=self.setup.space.default))
            seen = max(len(outcome.per_class), len(own.per_class) if own else 0)
            if own is None or arm == self.setup.space.default or not seen:
                continue
            sums[arm, :seen] += _per_class(outcome, seen) - _per_class(own, seen)
            counts[arm, :seen] += 1
        return sums, counts

    def evidence(self, arm: int) -> tuple[float, float, float]:
        """An arm's mean paired gain in accuracy, the standard error, and the chance that luck gives as much.

        That is how often the best of all arms compared would look at least as good if none were better; 1 where the
        gain is too small to ask.
        """
        sums, counts = self._differences()
        compared = np.flatnonzero(counts.sum(axis=1))
        if arm not in compared:
            return 0.0, math.inf, 1.0
        gain, error = (values[0] for values in _gains(np.ones((1, sums.shape[1])), sums[compared], counts[compared]))
        ratio, chance = _ratio(gain, error), 1.0
        (mine,) = np.flatnonzero(compared == arm)
        if ratio[mine] > self.z:
            rivals = compared[ratio > -CLEARLY_WORSE]
            signs = self._signs(np.flatnonzero(counts[rivals].any(axis=0)), sums.shape[1])
            best = _ratio(*_gains(signs, sums[rivals], counts[rivals])).max(axis=1)
            chance = float((best >= ratio[mine] - 1e-9).mean())
        return float(gain[mine]), float(error[mine]), chance

    def _signs(self, seen: NDArray[np.intp], classes: int) -> Array:
        """Every way to flip the signs of the classes seen, or many at random; the first flips none."""
        signs = np.ones((FLIPS, classes))
        if 2 ** len(seen) <= FLIPS:
            signs = np.ones((2 ** len(seen), classes))
            signs[:, seen] = list(itertools.product((1, -1), repeat=len(seen)))
        else:
            generator = draws.generator(self.setup.seed, "policy safe", self.phase)
            signs[1:] = generator.integers(0, 2, size=(FLIPS - 1, classes)) * 2 - 1
        return signs

    def decide(self) -> int:
        """The inner policy's decision where it is no luck, else the default."""
        arm, own = self.inner.decide_checked(), self.setup.space.default
        luck = math.erfc(self.z / math.sqrt(2)) / 2  # Φ(−z)
        return arm if arm == own or self.evidence(arm)[-1] <= luck else own


def _per_class(outcome: Outcome, classes: int) -> Array:
    """Accuracies of a trial; zeros if it diverged, the reward for every class if accuracies are unknown."""
    known = outcome.per_class or (outcome.reward,) * classes
    return np.zeros(classes) if outcome.diverged else np.array(known)


def _gains(signs: Array, sums: Array, counts: Array) -> tuple[Array, Array]:
    """Mean difference and its standard error, clustered by class: one row per row of signs, one column per arm."""
    total, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    gain = signs @ sums.T / total
    squares = (sums**2).sum(axis=1) - 2 * gain * (signs @ (sums * counts).T) + gain**2 * (counts**2).sum(axis=1)
    error = np.sqrt(np.maximum(squares, 0) * classes / np.maximum(classes - 1, 1)) / total
    return gain, np.where(classes > 1, error, np.inf)


def _ratio(gain: Array, error: Array) -> Array:
    return np.asarray(gain / np.maximum(error, 1e-9))
