"""How weights move: what a policy makes of the rewards it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from poise.policies.base import Array, Outcome, Setup

Length = tuple[bool, int]  # of a trial: whether it is a finalist, and its epochs


class Belief(ABC):
    """What the rewards have taught about the arms."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.arms = len(setup.space)

    @abstractmethod
    def begin(self) -> None:
        """Begin a phase: decide what to keep of earlier ones."""

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
    """The mean gain over the default (or over the round's mean, where the default was not tried), in this phase.

    Short trainings favour small learning rates, so gains are compared only between trainings of equal length: only
    the arms that were trained longest can be chosen.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._gains: dict[Length, dict[tuple[int, int], float]] = {}  # length → (round, arm) → gain

    def begin(self) -> None:
        """Forget the last phase."""
        self._gains = {}

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Compare trials of the same round and length."""
        alike: dict[tuple[int, Length], list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            alike[outcome.trial.round, (outcome.trial.full, outcome.trial.epochs)].append(outcome)
        for (split, length), group in alike.items():
            own = [outcome.reward for outcome in group if outcome.trial.arm == self.setup.space.default]
            reference = own[0] if own else float(np.mean([outcome.reward for outcome in group]))
            gains = self._gains.setdefault(length, {})
            gains.update({(split, outcome.trial.arm): outcome.reward - reference for outcome in group})

    def means(self) -> Array:
        """The mean gain of every arm after the longest trials; 0 where there were none."""
        return self._longest()[0]

    def values(self) -> Array:
        """The mean gain of the arms that were trained longest."""
        means, counts = self._longest()
        return np.where(counts > 0, means, -np.inf)

    def _longest(self) -> tuple[Array, Array]:
        """Of the longest trials, the mean gain of every arm and how many there were."""
        sums, counts = np.zeros(self.arms), np.zeros(self.arms)
        if self._gains:
            for (_, arm), gain in self._gains[max(self._gains)].items():
                sums[arm] += gain
                counts[arm] += 1
        return sums / np.maximum(counts, 1), counts

    def distribution(self) -> Array | None:
        """Uniform as long as nothing was tried; None afterwards."""
        return None if self._gains else np.full(self.arms, 1 / self.arms)


class Informed(Belief):
    """The mean gain over the default, starting from what is known: the space's favourite has a head start.

    Where the space has none, that is the default itself.

    Every phase counts by the number of classes that were validated, and the head start like `KNOWN` of them: where
    little can be seen it decides, where much can it hardly matters. `carry` is the weight of each earlier phase
    relative to the one after it. `handicap` is the extra gain that each halving of the learning rate needs.
    """

    KNOWN: ClassVar[float] = 20.0

    def __init__(self, setup: Setup, carry: float, handicap: float, head_start: float) -> None:
        super().__init__(setup)
        self.carry = carry
        # short trials favour small rates: each halving of the learning rate, from 1 on, costs so much
        self._handicaps = handicap * -np.log2([action.lr for action in setup.space.actions])
        self._sums, self.counts = np.zeros(self.arms), np.zeros(self.arms)  # of gains, and of validated classes
        self._prior = np.zeros(self.arms)
        self._prior[setup.space.default if setup.space.favourite is None else setup.space.favourite] = head_start
        self._tried = np.zeros(self.arms, dtype=bool)  # in this phase
        self.phases = 0  # that something was learned in

    def begin(self) -> None:
        """Let earlier phases fade."""
        self._sums, self.counts = self.carry * self._sums, self.carry * self.counts
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

    As printed: w = 1 before the first tuned phase, carried over from then on. Two options deviate:

    * `centred`: R minus the mean of this phase's rewards so far (its own included) in place of R;
    * `released`: the rule of the paper's released code: p = (1 − η) w/‖w‖₁ + η/K with η = 0.1,
      w(a) ← w(a)·exp(100 R η / K) without division by p, w = 1 at the start of every phase, decision by the
      distribution before the last update.
    """

    def __init__(self, setup: Setup, xi: float, *, centred: bool = False, released: bool = False) -> None:
        super().__init__(setup)
        self.xi, self.centred, self.released = xi, centred, released
        self.mixing = 0.1 if released else 0.0  # η
        self.log_weights = np.zeros(self.arms)
        self._before = self.log_weights
        self._rewards: list[float] = []

    def begin(self) -> None:
        """Carry the weights over; the released rule resets them."""
        self._rewards = []
        if self.released:
            self._before = self.log_weights = np.zeros(self.arms)

    def _probabilities(self, log_weights: Array) -> Array:
        weights = np.exp(log_weights - log_weights.max())
        return np.asarray((1 - self.mixing) * weights / weights.sum() + self.mixing / self.arms)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One update per outcome."""
        for outcome in outcomes:
            self._rewards.append(outcome.reward)
            reward = outcome.reward - (float(np.mean(self._rewards)) if self.centred else 0.0)
            chance = self._probabilities(self.log_weights)[outcome.trial.arm]
            self._before, self.log_weights = self.log_weights, self.log_weights.copy()
            step = 100 * reward * self.mixing / self.arms if self.released else self.xi * reward / chance
            self.log_weights[outcome.trial.arm] += step

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

    def begin(self) -> None:
        """Carry the losses over."""

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
