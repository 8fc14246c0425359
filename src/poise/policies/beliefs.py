"""How weights move: what a policy makes of the rewards it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from poise.policies.base import Array, Outcome, Setup


class Belief(ABC):
    """An estimate of the arms, learned from rewards."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.arms = len(setup.space)

    def begin(self) -> None:  # noqa: B027 - a hook
        """Begin a phase: decide what to keep of earlier ones; here everything."""

    @abstractmethod
    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes of one batch of trials."""

    @abstractmethod
    def values(self) -> Array:
        """How good each arm seems, on any scale; −inf for an arm that must not be chosen."""

    def best(self) -> int:
        """The arm that seems best; the default, if it is among the best."""
        values, own = self.values(), self.setup.space.default
        return own if values[own] == values.max() else int(np.argmax(values))

    def distribution(self) -> Array | None:
        """The probability of each arm, for a belief that has one."""
        return None


class Scores(Belief):
    """The gain over the default (over the mean of all, where the default was not tried) in the last trials of a phase.

    Short trainings favour small learning rates, so gains are compared only between trainings of equal length: only
    the arms that were trained last, and longest, can be chosen.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._gains: dict[int, float] = {}

    def begin(self) -> None:
        """Forget the last phase."""
        self._gains = {}

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Compare trials of the same split and length."""
        rewards = {outcome.trial.arm: outcome.reward for outcome in outcomes}
        reference = rewards.get(self.setup.space.default, float(np.mean(list(rewards.values()))))
        self._gains = {arm: reward - reference for arm, reward in rewards.items()}

    def values(self) -> Array:
        """The gains of the arms that were tried last."""
        return np.array([self._gains.get(arm, -np.inf) for arm in range(self.arms)])

    def distribution(self) -> Array | None:
        """Uniform as long as nothing was tried; None afterwards."""
        return None if self._gains else np.full(self.arms, 1 / self.arms)


class Informed(Belief):
    """The mean gain over the default, starting from what is known: the space's favourite has a head start.

    Where the space has none, that is the default itself.

    Every phase counts by the number of classes that were validated, and the head start like `KNOWN` of them: where
    little can be seen it decides, where much can it hardly matters.
    """

    HEAD_START: ClassVar[float] = 0.05
    KNOWN: ClassVar[float] = 20.0
    #: The weight of each phase relative to the one after it.
    CARRY: ClassVar[float] = 0.8
    #: The extra gain that each halving of the learning rate, from 1 on, needs: short trials favour small rates.
    HANDICAP: ClassVar[float] = 0.03

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._handicaps = self.HANDICAP * -np.log2([action.lr for action in setup.space.actions])
        self._sums, self.counts = np.zeros(self.arms), np.zeros(self.arms)  # of gains, and of validated classes
        self._prior = np.zeros(self.arms)
        self._prior[setup.space.default if setup.space.favourite is None else setup.space.favourite] = self.HEAD_START
        self._tried = np.zeros(self.arms, dtype=bool)  # in this phase
        self.phases = 0  # that something was learned in

    def begin(self) -> None:
        """Let earlier phases fade."""
        self._sums, self.counts = self.CARRY * self._sums, self.CARRY * self.counts
        self._tried = np.zeros(self.arms, dtype=bool)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Compare all trials with the default's."""
        (own,) = [outcome.reward for outcome in outcomes if outcome.trial.arm == self.setup.space.default]
        weight = max(1, *(len(outcome.per_class) for outcome in outcomes))  # the classes that were validated
        for outcome in outcomes:
            arm = outcome.trial.arm
            self._sums[arm] += weight * (outcome.reward - own)
            self.counts[arm] += weight
            self._tried[arm] = True
        self.phases += 1

    def gains(self) -> Array:
        """The gain to expect of every arm, tried or not."""
        return (self._sums + self.KNOWN * self._prior) / (self.counts + self.KNOWN) - self._handicaps

    def values(self) -> Array:
        """The gain to expect of the arms that were tried in this phase."""
        return np.where(self._tried, self.gains(), -np.inf)


class Exp3(Belief):
    """The paper's Eq. 7 and 8: p = w / ‖w‖₁ and w(a) ← w(a)·exp(ξ R / p(a)), with log w in place of w.

    As printed: w = 1 before the first tuned phase, carried over from then on. The rule of the paper's `released` code:
    p = (1 − η) w/‖w‖₁ + η/K with η = 0.1, w(a) ← w(a)·exp(100 R η / K) without division by p, w = 1 at the start of
    every phase, decision by the distribution before the last update.
    """

    def __init__(self, setup: Setup, xi: float, *, released: bool = False) -> None:
        super().__init__(setup)
        self.xi, self.released = xi, released
        self.mixing = 0.1 if released else 0.0  # η
        self.log_weights = np.zeros(self.arms)
        self._before = self.log_weights

    def begin(self) -> None:
        """Carry the weights over; the released rule resets them."""
        if self.released:
            self._before = self.log_weights = np.zeros(self.arms)

    def _probabilities(self, log_weights: Array) -> Array:
        weights = np.exp(log_weights - log_weights.max())
        return np.asarray((1 - self.mixing) * weights / weights.sum() + self.mixing / self.arms)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One update per outcome."""
        for outcome in outcomes:
            arm, reward = outcome.trial.arm, outcome.reward
            chance = self._probabilities(self.log_weights)[arm]
            self._before, self.log_weights = self.log_weights, self.log_weights.copy()
            step = 100 * reward * self.mixing / self.arms if self.released else self.xi * reward / chance
            self.log_weights[arm] += step

    def draw(self, generator: np.random.Generator) -> int:
        """An arm drawn from the current weights."""
        (arm,) = generator.choice(self.arms, size=1, p=self._probabilities(self.log_weights))
        return int(arm)

    def distribution(self) -> Array:
        """The distribution that the decision is drawn from."""
        return self._probabilities(self._before if self.released else self.log_weights)

    def values(self) -> Array:
        """The probabilities, to find the most probable arm."""
        return self.distribution()


class AdaHedge(Belief):
    """Hedge with full feedback and a rate that needs no tuning (De Rooij, Van Erven, Grünwald, Koolen, JMLR 2014).

    With losses ℓ = 1 − R and their sums L: w ∝ exp(−η L), where η = ln K / Δ and Δ is the sum of the mixability gaps
    δ = w·ℓ + (1/η) ln Σ w e^(−ηℓ); as long as Δ = 0, w is uniform over the leaders. Its regret is at most
    2 √(V ln K) + 4/3 ln K + 2 for losses in [0, 1], V being the sum of the variances of ℓ under w.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.losses, self.gap = np.zeros(self.arms), 0.0

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One round of full feedback: every arm once, in their order, on the same split."""
        loss = 1 - np.array([outcome.reward for outcome in outcomes])
        mix = self._potential(self.losses + loss) - self._potential(self.losses)
        gap = float(self.distribution() @ loss) - mix
        self.losses = self.losses + loss
        self.gap += max(0.0, gap) if self.arms > 1 else 0.0

    def _potential(self, losses: Array) -> float:
        """−(1/η) ln Σ e^(−ηL), whose steps are the mix losses −(1/η) ln Σ w e^(−ηℓ); min L for η = ∞."""
        least = float(losses.min())
        if self.gap == 0:
            return least
        rate = np.log(self.arms) / self.gap
        return least - float(np.log(np.exp(-rate * (losses - least)).sum()) / rate)

    def distribution(self) -> Array:
        """The weights of the arms."""
        behind = self.losses - self.losses.min()
        weights = np.exp(-np.log(self.arms) / self.gap * behind) if self.gap else (behind == 0).astype(np.float64)
        return np.asarray(weights / weights.sum())

    def values(self) -> Array:
        """Minus the sum of losses: the leader has the smallest sum."""
        return -self.losses
