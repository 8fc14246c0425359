"""Replay any policy on a table of rewards, thousands of times in seconds, to see what it would have decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poise import draws
from poise.errors import UserError
from poise.policies.base import Array, Outcome, Policy, Setup, Trial
from poise.policies.forecast import new_epochs
from poise.spaces import ActionSpace

BELOW = 0.003  # "below the default" means by more than 0.3 points


@dataclass(frozen=True)
class Table:
    """The rewards that trials of every arm would show, and what each arm is truly worth. Accuracies in [0, 1].

    Attributes:
        space: the arms.
        rewards: for each phase, checkpoints × arms × classes: expected accuracy on the local validation part.
        epochs: the checkpoints, ascending; the last one is M₁.
        truth: phases × arms: the accuracy by which decisions are judged.
        images: validation images per class: one number for all, or one per class for each phase.
        full: for each phase, arms × classes, after M₂ epochs; None: finalists cannot be replayed.
        weights: for each phase, the weight of each class in the reward; None: all the same.
    """

    space: ActionSpace
    rewards: tuple[Array, ...]
    epochs: tuple[int, ...]
    truth: Array
    images: int | tuple[tuple[int, ...], ...] = 10
    full: tuple[Array, ...] | None = None
    weights: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        phases, arms = self.truth.shape
        shapes = [table.shape[:2] for table in self.rewards]
        if arms != len(self.space) or shapes != [(len(self.epochs), arms)] * phases:
            raise UserError("the reward table needs, for each phase, checkpoints × arms × classes, and a truth per arm")
        counts = [self.counts(phase) for phase in range(1, phases + 1)]
        if any(
            len(found) != table.shape[2] or found.min() < 1 for found, table in zip(counts, self.rewards, strict=True)
        ):
            raise UserError("the reward table needs, for each phase, at least one validation image of each class")

    @property
    def phases(self) -> int:
        """The number of tuned phases."""
        return len(self.rewards)

    def expected(self, phase: int, epochs: int, full: bool) -> Array:
        """Arms × classes: expected accuracies after `epochs`; phases are numbered from 1, as for policies."""
        if full:
            if self.full is None:
                raise UserError("the table has no trial of full length, which this policy asks for; probe with --full")
            return self.full[phase - 1]
        passed = sum(checkpoint <= epochs for checkpoint in self.epochs)
        return np.asarray(self.rewards[phase - 1][max(0, passed - 1)])

    def counts(self, phase: int) -> NDArray[np.int64]:
        """Validation images of each class in that phase."""
        if isinstance(self.images, int):
            return np.full(self.rewards[phase - 1].shape[-1], self.images)
        return np.array(self.images[phase - 1])


@dataclass(frozen=True)
class Simulation:
    """What a policy decided in many runs over one table.

    Attributes:
        table: the table it was replayed on.
        decided: runs × phases: the chosen arms.
        trials: runs × phases: the number of trials.
        epochs: runs × phases: the number of epochs they took, without counting continued epochs twice.
        ranks: runs × phases: rank correlation of reward and truth among the ten arms with the best reward (NaN
            where fewer than three arms were trained equally long).
    """

    table: Table
    decided: NDArray[np.int64]
    trials: NDArray[np.int64]
    epochs: NDArray[np.int64]
    ranks: Array

    @property
    def truth(self) -> Array:
        """Runs × phases: what the decided arm is worth."""
        return np.take_along_axis(self.table.truth, self.decided.T, axis=1).T

    def below_default(self) -> Array:
        """For each phase, the chance of choosing an arm more than 0.3 points below the default."""
        own = self.table.truth[:, self.table.space.default]
        return np.asarray((self.truth < own - BELOW).mean(axis=0))

    def regret(self) -> Array:
        """For each phase, how far the decided arm lies below the best one, on average."""
        return np.asarray(self.table.truth.max(axis=1) - self.truth.mean(axis=0))

    def summary(self) -> dict[str, Any]:
        """Plain values, accuracies in percent; lists have one entry per phase."""
        own = self.table.truth[:, self.table.space.default]
        arms, counts = np.unique(self.decided[:, -1], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        ranks = self.ranks[np.isfinite(self.ranks)]
        return {
            "runs": len(self.decided),
            "truth": _percent(self.truth.mean(axis=0)),
            "spread": _percent(self.truth.std(axis=0)),
            "default": _percent(own),
            "best": _percent(self.table.truth.max(axis=1)),
            "regret": _percent(self.regret()),
            "below_default": [round(float(chance), 4) for chance in self.below_default()],
            "last_decided": {
                str(self.table.space.actions[arms[place]]): round(float(counts[place] / len(self.decided)), 4)
                for place in order
            },
            "rank_correlation_of_ten_best": round(float(ranks.mean()), 4) if len(ranks) else None,
            "trials": [round(float(count), 1) for count in self.trials.mean(axis=0)],
            "epochs": [round(float(count), 1) for count in self.epochs.mean(axis=0)],
        }


def replay_on_table(
    make: Callable[[Setup], Policy],
    table: Table,
    runs: int,
    seed: int = 0,
    *,
    full: int | None = None,
    paired: bool = False,
) -> Simulation:
    """Replay a policy `runs` times, each time with a seed and binomial validation noise of its own.

    In each round an arm is scored on the number of images of each class that the table gives, the same images after
    every epoch. The noise of different arms is independent or, if `paired`, as similar as possible (an image is easy or
    hard for all arms). Reality lies in between: arms share the images but not the training. `full` is M₂, by default
    ten times M₁.
    """
    shape = (runs, table.phases)
    decided, trials, epochs = (np.zeros(shape, np.int64) for _ in range(3))
    ranks = np.full(shape, np.nan)
    for run in range(runs):
        own_seed = draws.key(seed, "simulated run", run) % 2**63
        policy = make(Setup(table.space, table.epochs[-1], full or 10 * table.epochs[-1], own_seed))
        for phase in range(1, table.phases + 1):
            policy.begin(phase)
            noisy = _Noisy(table, phase, own_seed, paired)
            while asked := policy.ask():
                policy.tell(noisy.outcomes(asked))
            told, place = list(policy.told.values()), (run, phase - 1)
            decided[place], trials[place] = policy.decide_checked(), len(told)
            epochs[place] = sum(new_epochs(outcome.trial for outcome in told).values())
            ranks[place] = _ten_best(told, table.truth[phase - 1])
    return Simulation(table, decided, trials, epochs, ranks)


class _Noisy:
    """The trials of one phase of one run: an image is a hit where its own draw lies below the expected accuracy."""

    def __init__(self, table: Table, phase: int, seed: int, paired: bool) -> None:
        self.table, self.phase, self.paired = table, phase, paired
        self._counts = table.counts(phase)
        self._missing = np.arange(self._counts.max())[:, None] >= self._counts  # images × classes
        self._generator = draws.generator(seed, "simulated images", phase)
        self._draws: dict[tuple[int, int], NDArray[np.float32]] = {}  # by (round, arm): images × classes

    def outcomes(self, trials: list[Trial]) -> list[Outcome]:
        """The outcomes of a batch of trials."""
        keys = [(trial.round, 0 if self.paired else trial.arm) for trial in trials]
        fresh = [key for key in dict.fromkeys(keys) if key not in self._draws]
        luck = self._generator.random((len(fresh), *self._missing.shape), dtype=np.float32)
        luck[:, self._missing] = 1  # never below an accuracy
        self._draws.update(zip(fresh, luck, strict=True))
        if fresh != keys:
            luck = np.stack([self._draws[key] for key in keys])
        accuracies = (luck < self._expected_accuracies(trials)[:, None]).sum(axis=1, dtype=np.uint16) / self._counts
        weights = self.table.weights
        means = accuracies.mean(axis=1) if weights is None else accuracies @ np.array(weights[self.phase - 1])
        rewards = means.tolist()
        return [
            Outcome(trial, min(1.0, reward), tuple(per_class))
            for trial, reward, per_class in zip(trials, rewards, accuracies.tolist(), strict=True)
        ]

    def _expected_accuracies(self, trials: list[Trial]) -> Array:
        """Trials × classes."""
        arms = np.array([trial.arm for trial in trials])
        lengths = {(trial.epochs, trial.full) for trial in trials}
        tables = {length: self.table.expected(self.phase, *length) for length in lengths}
        if len(tables) == 1:
            return np.asarray(next(iter(tables.values()))[arms])
        return np.stack([tables[trial.epochs, trial.full][trial.arm] for trial in trials])


def _ten_best(outcomes: list[Outcome], truth: Array) -> float:
    """Spearman's correlation of mean reward and truth, over the ten best of the arms that were trained longest."""
    furthest = max(((each.trial.full, each.trial.epochs) for each in outcomes), default=None)
    last = [each for each in outcomes if (each.trial.full, each.trial.epochs) == furthest]
    arms, places = np.unique([each.trial.arm for each in last], return_inverse=True)
    if len(arms) < 3:
        return float("nan")
    means = np.bincount(places, [each.reward for each in last]) / np.bincount(places)
    ten = np.argsort(-means, kind="stable")[:10]
    return rank_correlation(means[ten], truth[arms[ten]])


def rank_correlation(one: Array, other: Array) -> float:
    """Spearman's correlation; NaN where one of the two does not vary.

    >>> round(rank_correlation(np.array([1.0, 2, 3]), np.array([10.0, 30, 20])), 3)
    0.5
    """
    first, second = _ranks(one), _ranks(other)
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Array) -> Array:
    """Ranks from 0, ties sharing their mean."""
    below = (values[:, None] > values).sum(axis=1)
    return np.asarray(below + ((values[:, None] == values).sum(axis=1) - 1) / 2)


def _percent(values: Array) -> list[float]:
    return [round(100 * float(value), 3) for value in values]
