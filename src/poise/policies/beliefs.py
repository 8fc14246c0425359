"""How weights move: what a policy makes of the rewards it is told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
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

    def _of_tried(self, values: Array, tried: Collection[int]) -> Array:
        """These values for the arms that were tried; the others must not be chosen."""
        return np.where(np.isin(np.arange(self.arms), sorted(tried)), values, -np.inf)

    def best(self) -> int:
        """The arm that seems best; the default, if it is among the best."""
        values, own = self.values(), self.setup.space.default
        return own if values[own] == values.max() else int(np.argmax(values))

    def distribution(self) -> Array | None:
        """The probability of each arm, for a belief that has one."""
        return None

    def draw(self, count: int, tried: Collection[int], generator: np.random.Generator) -> list[int]:
        """The next `count` arms to try, where the belief has a preference; `tried` were tried in this phase."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to try next")


class Scores(Belief):
    """The mean gain over the default (or over the round's mean, where the default was not tried).

    Gains are compared only between trainings of equal length, within a phase and over phases, because short trainings
    favour small learning rates. Only the longest trials of the phase so far are compared, and only their arms can be
    chosen. An arm that was dropped earlier is given the worst gain among the longer-trained arms of its learning rate
    (the default is never dropped).

    `carry` is the weight of each earlier phase relative to the one after it: 0 forgets, 1 weighs all phases alike.
    `handicap` is the extra gain that each halving of the learning rate needs to be chosen after short trials; it does
    not apply to finalists.
    """

    def __init__(self, setup: Setup, carry: float, handicap: float = 0.0) -> None:
        super().__init__(setup)
        self.carry = carry
        self._rates = [action.lr for action in setup.space.actions]
        self._handicaps = _handicaps(setup, handicap)
        self._past: dict[Length, tuple[Array, Array]] = {}  # sum and number of gains, for every arm
        self._gains: dict[Length, dict[tuple[int, int], float]] = {}  # length → (round, arm) → gain, in this phase

    def begin(self) -> None:
        """Fold the last phase into the past."""
        totals = {length: self._totals(length) for length in {*self._past, *self._gains}}
        self._past = {length: (self.carry * sums, self.carry * counts) for length, (sums, counts) in totals.items()}
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

    @property
    def _longest(self) -> Length:
        return max(self._gains, default=(False, 0))

    def _totals(self, length: Length) -> tuple[Array, Array]:
        """Sum and number of the gains after trials of this length, for every arm, this phase included."""
        sums, counts = (values.copy() for values in self._past.get(length, (np.zeros(self.arms), np.zeros(self.arms))))
        for (_, arm), gain in self._final_gains(length).items():
            sums[arm] += gain
            counts[arm] += 1
        return sums, counts

    def _final_gains(self, length: Length) -> dict[tuple[int, int], float]:
        """The gains after trials of this length in this phase; arms dropped earlier get a substitute."""
        reached = self._gains.get(length, {})
        found = dict(reached)
        for split, arm in {key for shorter in self._gains if shorter < length for key in self._gains[shorter]}:
            rate = self._rates[arm]
            rivals = [gain for (other, one), gain in reached.items() if other == split and self._rates[one] == rate]
            if rivals:
                found.setdefault((split, arm), min(rivals))
        return found

    def means(self) -> Array:
        """The mean gain of every arm after trials as long as the longest of this phase; 0 where there were none."""
        sums, counts = self._totals(self._longest)
        return sums / np.maximum(counts, 1e-12)

    def values(self) -> Array:
        """The mean gain of the arms that were trained longest in this phase."""
        full, _ = self._longest
        went = {arm for _, arm in self._gains.get(self._longest, {})}
        return self._of_tried(self.means() - (0 if full else self._handicaps), went)

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
        self._handicaps = _handicaps(setup, handicap)
        self._sums, self._counts = np.zeros(self.arms), np.zeros(self.arms)
        self._prior = np.zeros(self.arms)
        space = setup.space
        self._prior[space.default if space.favourite is None else space.favourite] = head_start
        self._tried: set[int] = set()  # in this phase
        self.phases = 0  # that something was learned in

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is known yet but the head start."""
        return not self._counts.any()

    def begin(self) -> None:
        """Let earlier phases fade."""
        self._sums, self._counts, self._tried = self.carry * self._sums, self.carry * self._counts, set()

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Compare all trials with the default's."""
        (own,) = [outcome.reward for outcome in outcomes if outcome.trial.arm == self.setup.space.default]
        weight = _classes_seen(outcomes)
        for outcome in outcomes:
            arm = outcome.trial.arm
            self._sums[arm] += weight * (outcome.reward - own)
            self._counts[arm] += weight
            self._tried.add(arm)
        self.phases += 1

    def gains(self) -> Array:
        """The gain to expect of every arm, tried or not."""
        return (self._sums + self.KNOWN * self._prior) / (self._counts + self.KNOWN) - self._handicaps

    def values(self) -> Array:
        """The same for the arms that were tried in this phase."""
        return self._of_tried(self.gains(), self._tried)


class Paired(Informed):
    """The same, with arms compared in pairs: by the phases in which both were tried.

    An arm is worth its smallest lead over any other one. So an arm that was tried only where the default did badly does
    not seem better than it is. `stay` is the lead that another arm needs over the best one of the phase before; with
    `carry` 0, too.
    """

    def __init__(self, setup: Setup, carry: float, handicap: float, head_start: float, stay: float) -> None:
        super().__init__(setup, carry, handicap, head_start)
        self.stay = stay
        self._weights = np.zeros(0)  # of the phases, the last one included
        self._rewards = np.zeros((0, self.arms))  # phases × arms, NaN where an arm was not tried
        self._before: int | None = None  # the best arm of the last phase in which anything was tried

    def begin(self) -> None:
        """Let earlier phases fade, and remember which arm was best in the last one."""
        if self._tried:
            self._before = self.best()
        self._weights = self.carry * self._weights
        super().begin()

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Note the rewards of a phase, by the number of classes that they were seen on."""
        super().learn(outcomes)
        rewards = np.full((1, self.arms), np.nan)
        for outcome in outcomes:
            rewards[0, outcome.trial.arm] = outcome.reward
        self._rewards = np.concatenate([self._rewards, rewards])
        self._weights = np.append(self._weights, _classes_seen(outcomes))

    def gains(self) -> Array:
        """The smallest lead of every arm, tried or not, over any other one."""
        return self._smallest_leads(range(self.arms))

    def values(self) -> Array:
        """The same for the arms that were tried in this phase, compared with each other."""
        return self._of_tried(self._smallest_leads(sorted(self._tried)), self._tried)

    def _smallest_leads(self, rivals: Sequence[int]) -> Array:
        bonus = -self._handicaps
        if self._before is not None:
            bonus[self._before] += self.stay
        found = np.full(self.arms, np.inf)
        for rival in rivals:
            lead = self._lead(rival) + bonus - bonus[rival]
            lead[rival] = np.inf  # over itself
            found = np.minimum(found, lead)
        return np.where(np.isinf(found), 0.0, found)

    def _lead(self, rival: int) -> Array:
        """How far every arm is ahead of the rival in the phases in which both were tried, and before any trial."""
        ahead = self._rewards - self._rewards[:, [rival]]
        weights = self._weights[:, None] * ~np.isnan(ahead)
        sums = (weights * np.nan_to_num(ahead)).sum(axis=0) + self.KNOWN * (self._prior - self._prior[rival])
        return np.asarray(sums / (weights.sum(axis=0) + self.KNOWN))


def _classes_seen(outcomes: Sequence[Outcome]) -> int:
    """On how many classes these trials were validated, at least 1."""
    return max(1, *(len(outcome.per_class) for outcome in outcomes))


def _handicaps(setup: Setup, handicap: float) -> Array:
    """What is taken off the gain of every arm: so much for each halving of the learning rate, from 1 on."""
    return handicap * -np.log2([action.lr for action in setup.space.actions])


class Exp3(Belief):
    """The paper's Eq. 7 and 8: p = w / ‖w‖₁ and w(a) ← w(a)·exp(ξ R / p(a)), with log w in place of w.

    As printed: w = 1 before the first tuned phase, carried over from then on. The options are deviations:

    * `mixing` η: p = (1 − η) w/‖w‖₁ + η/K;
    * `reset`: w = 1 at the start of every phase;
    * `centred`: R minus the mean of this phase's rewards so far (its own included) in place of R;
    * `released`: the rule of the paper's released code: η = 0.1 unless given, w(a) ← w(a)·exp(100 R η / K) without
      division by p, reset in every phase, decision by the distribution before the last update.
    """

    def __init__(
        self,
        setup: Setup,
        xi: float,
        mixing: float = 0.0,
        *,
        reset: bool = False,
        centred: bool = False,
        released: bool = False,
    ) -> None:
        super().__init__(setup)
        self.xi, self.centred, self.released = xi, centred, released
        self.mixing = mixing if mixing or not released else 0.1
        self.reset = reset or released
        self.log_weights = np.zeros(self.arms)
        self._before = self.log_weights
        self._rewards: list[float] = []

    def begin(self) -> None:
        """Carry the weights over, or reset them if asked to."""
        self._rewards = []
        if self.reset:
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

    def draw(self, count: int, tried: Collection[int], generator: np.random.Generator) -> list[int]:
        """Arms drawn from the current weights."""
        return [int(arm) for arm in generator.choice(self.arms, size=count, p=self._probabilities(self.log_weights))]

    def distribution(self) -> Array:
        """The distribution that the decision is drawn from."""
        return self._probabilities(self._before if self.released else self.log_weights)

    def values(self) -> Array:
        """The same probabilities, to find the most probable arm."""
        return self.distribution()


class AdaHedge(Belief):
    """Hedge with full feedback and a rate that needs no tuning (De Rooij, Van Erven, Grünwald, Koolen, JMLR 2014).

    With losses ℓ = 1 − R and their sums L: w ∝ exp(−η L), where η = ln K / Δ and Δ is the sum of the mixability gaps
    δ = w·ℓ + (1/η) ln Σ w e^(−ηℓ); as long as Δ = 0, w is uniform over the leaders. Its regret is at most
    2 √(V ln K) + 4/3 ln K + 2 for losses in [0, 1], V being the sum of the variances of ℓ under w.
    """

    def __init__(self, setup: Setup, *, reset: bool = False) -> None:
        super().__init__(setup)
        self.reset = reset
        self.losses, self.gap = np.zeros(self.arms), 0.0

    def begin(self) -> None:
        """Carry the losses over, or reset them if asked to."""
        if self.reset:
            self.losses, self.gap = np.zeros(self.arms), 0.0

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """One round of full feedback: every arm once, on the same split."""
        loss = np.full(self.arms, np.nan)
        for outcome in outcomes:
            loss[outcome.trial.arm] = 1 - outcome.reward
        if np.isnan(loss).any():
            raise ValueError("AdaHedge needs the reward of every arm in each round")
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
