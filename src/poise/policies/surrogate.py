"""A smooth surrogate over the grid: neighbouring actions have similar rewards, and phases resemble each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from poise.policies.base import Array, Outcome, Setup
from poise.policies.beliefs import Belief

KERNELS = ("matern", "quadratic")
AMPLITUDES = (0.02, 0.05, 0.15)  # standard deviation of the true rewards over the grid
LENGTHS = (0.4, 0.8, 1.6)  # how far rewards resemble each other, in units of an axis's whole range
ROUGHNESS = 0.1  # each arm's own deviation from the smooth surface, as a share of the amplitude
LEVEL, LEVEL_SPREAD = 0.5, 0.5  # prior of the phase's own level of reward
FAR_BELOW = 0.2  # a reward further below the best one is raised to this distance
LEAST_NOISE, FIRST_NOISE = 1e-3, 0.02  # standard deviations


@dataclass
class _Gaussian:
    """A Gaussian over (the effect of every arm, the level of this phase); an arm's reward is effect + level."""

    prior: Array  # covariance of the effects before anything was seen
    evidence: float = 0.0  # log probability of everything seen so far
    mean: Array = field(init=False)
    covariance: Array = field(init=False)

    def __post_init__(self) -> None:
        arms = len(self.prior)
        self.mean = np.zeros(arms + 1)
        self.covariance = np.zeros((arms + 1, arms + 1))
        self.covariance[:arms, :arms] = self.prior
        self._forget_level()

    def _forget_level(self) -> None:
        self.mean[-1] = LEVEL
        self.covariance[-1, :] = self.covariance[:, -1] = 0
        self.covariance[-1, -1] = LEVEL_SPREAD**2

    def drift(self, memory: float) -> None:
        """From one phase to the next: effects ← memory · effects + fresh ones; the level is new."""
        self.mean *= memory
        self.covariance *= memory**2
        self.covariance[:-1, :-1] += (1 - memory**2) * self.prior
        self._forget_level()

    def observe(self, arms: Sequence[int], rewards: Array, noise: float) -> None:
        """Condition on rewards with independent noise of the given variance."""
        cross = self.covariance[:, list(arms)] + self.covariance[:, -1:]
        gram = cross[list(arms)] + cross[-1] + noise * np.eye(len(arms))
        surprise = rewards - self.mean[list(arms)] - self.mean[-1]
        root = np.linalg.cholesky(gram)
        white = np.linalg.solve(root, surprise)
        shrink = np.linalg.solve(root, cross.T)
        self.evidence -= float(white @ white / 2 + np.log(np.diag(root)).sum() + len(arms) * math.log(2 * math.pi) / 2)
        self.mean = self.mean + shrink.T @ white
        self.covariance = self.covariance - shrink.T @ shrink


class Surrogate(Belief):
    """A Gaussian process, or Bayesian linear regression on quadratic features, over the coordinates of the space.

    Both are a Gaussian over the arms; they differ in the prior covariance. The posterior of the last phase is the prior
    of the next, weakened by `memory` ρ: effects ← ρ · effects + √(1 − ρ²) · fresh ones, while each phase has
    its own level. Amplitude and length scale are chosen from a small bank: those under which everything seen so far
    is most probable. The noise is estimated from how much classes disagree about the arms of a phase.

    `explore` says how the next arms are drawn: `ucb`, the largest mean + κ standard deviations, each new arm of a batch
    treated as observed at its mean; or `thompson`, the best arm of a sample from the posterior.
    """

    def __init__(self, setup: Setup, kernel: str, explore: str, memory: float, kappa: float) -> None:
        super().__init__(setup)
        self.explore, self.memory, self.kappa = explore, memory, kappa
        self._bank = [_Gaussian(prior) for prior in _priors(setup, kernel)]
        self._tried: set[int] = set()  # in any phase
        self._seen: list[Outcome] = []  # in this phase
        self._begun = False

    @property
    def _best(self) -> _Gaussian:
        return max(self._bank, key=lambda model: model.evidence)

    def begin(self) -> None:
        """Make the posterior the prior, slightly weakened."""
        for model in self._bank if self._begun else ():
            model.drift(self.memory)
        self._begun, self._seen = True, []

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Condition on a batch of rewards."""
        self._seen += outcomes
        arms = [outcome.trial.arm for outcome in outcomes]
        self._tried.update(arms)
        floor = max(outcome.reward for outcome in self._seen) - FAR_BELOW
        rewards = np.array([max(outcome.reward, floor) for outcome in outcomes])
        noise = noise_variance(self._seen)
        for model in self._bank:
            model.observe(arms, rewards, noise)

    def values(self) -> Array:
        """The posterior mean of every arm that was tried in any phase."""
        return self._of_tried(self._best.mean[:-1], self._tried)

    def draw(self, count: int, tried: Collection[int], generator: np.random.Generator) -> list[int]:
        """The most promising arms not yet tried in this phase."""
        left = np.ones(self.arms, dtype=bool)
        left[list(tried)] = False
        chosen: list[int] = []
        mean, covariance = self._best.mean[:-1], self._best.covariance[:-1, :-1].copy()
        root = np.linalg.cholesky(covariance + 1e-9 * np.eye(self.arms)) if self.explore == "thompson" else covariance
        noise = noise_variance(self._seen)
        for _ in range(min(count, int(left.sum()))):
            if self.explore == "thompson":
                hoped = mean + root @ generator.standard_normal(self.arms)
            else:
                hoped = mean + self.kappa * np.sqrt(np.maximum(np.diag(covariance), 0))
            arm = int(np.where(left, hoped, -np.inf).argmax())
            left[arm] = False
            chosen.append(arm)
            covariance -= np.outer(covariance[arm], covariance[arm]) / (covariance[arm, arm] + noise)
        return chosen


def _priors(setup: Setup, kernel: str) -> list[Array]:
    """The covariances of the bank: over amplitudes, and over length scales where the kernel has one."""
    places = setup.space.coordinates()
    low, high = (places.min(axis=0), places.max(axis=0)) if places.size else (0.0, 1.0)
    places = (places - low) / np.maximum(high - low, 1e-12)
    if kernel == "matern":
        distance = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=-1))
        shapes = [_matern(distance / length) for length in LENGTHS]
    else:
        features = _quadratic(2 * places - 1)
        shapes = [features @ features.T / max(1, features.shape[1])]
    own = ROUGHNESS**2 * np.eye(len(places))
    return [amplitude**2 * (shape + own) for amplitude in AMPLITUDES for shape in shapes]


def _matern(distance: Array) -> Array:
    """The Matérn kernel of smoothness 5/2: (1 + √5 d + 5/3 d²) exp(−√5 d)."""
    scaled = math.sqrt(5) * distance
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))


def _quadratic(places: Array) -> Array:
    """Every coordinate, every product of two, every square."""
    first, second = np.triu_indices(places.shape[1])
    return np.concatenate([places, places[:, first] * places[:, second]], axis=1)


def noise_variance(outcomes: Sequence[Outcome]) -> float:
    """The noise variance of a reward: what remains per class after arm and class effects, which cannot rank arms.

    With accuracies x(a, c) of A arms and C classes on one split and the residuals e = x − x̄(a) − x̄(c) + x̄, it is
    Σ e² / ((A − 1)(C − 1)) / C.
    """
    kept = [outcome.per_class for outcome in outcomes if outcome.per_class and not outcome.diverged]
    table = np.array([classes for classes in kept if len(classes) == len(kept[0])])
    if len(table) < 2 or table.shape[1] < 2:
        return FIRST_NOISE**2
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    arms, classes = table.shape
    return max(LEAST_NOISE**2, float((rest**2).sum() / ((arms - 1) * (classes - 1)) / classes))
