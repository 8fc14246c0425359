"""REINFORCE over an action space: the stochastic policy π(a|s) of row 6 of Table 3, as in RMM.

It is learned before a run, on episodes of pseudo tasks; during the run it only decides. This file is its arithmetic
and knows neither where episodes come from nor what a reward costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from poise.actions import ActionSpace
from poise.policies.base import Array

FEATURES: Final = 3  # of `state_of`
PER_CLASS: Final = 20  # exemplars of a class in the paper
BASELINE: Final = 0.9  # how much of a running mean stays when a new return arrives


def state_of(old: int, new: int, memory: int) -> Array:
    """The state of a phase: the numbers of classes and the memory's size, as in RMM; nothing about later phases.

    s = (1, log(new / old), log(1 + memory / old) / log(1 + 20)): a constant; the number of new classes relative to
    old ones (0 for equal numbers, −1.6 for 10 against 50); and the exemplars per old class (1 for the paper's 20).

    Args:
        old: classes known before this phase, at least one.
        new: classes that arrive; 0 (only new images of old classes arrive) is taken as 1.
        memory: kept images of all old classes together.
    """
    return np.array([1.0, math.log(max(new, 1) / old), math.log1p(memory / old) / math.log1p(PER_CLASS)])


class Reinforce:
    """π(a|s) = Π over axes of softmax(θ_axis s), trained by REINFORCE (Williams, 1992).

    The axes of the space are drawn independently of each other given the state, so that what is learned about a value
    applies to all arms that share it: Σ |axis| logits in place of Π |axis|. Before any episode π is uniform over the
    grid; a default action that is not on the grid is never drawn. Of a space of several grids, each arm has a logit.

    `rate` is α, the step of the gradient ascent; a large one settles on an arm before the others have been tried.
    """

    def __init__(self, space: ActionSpace, rate: float) -> None:
        self.space, self.rate = space, rate
        sizes = {axis: len(values) for axis, values in space.axes.items()} if space.is_product else {"arm": len(space)}
        self._shape = tuple(sizes.values())
        self._weights = {axis: np.zeros((size, FEATURES)) for axis, size in sizes.items()}  # θ
        self._means: list[float] = []  # the running mean of returns over 1, 2, … phases to go

    def probabilities(self, state: ArrayLike) -> Array:
        """π(·|s) over all arms; 0 for a default that is not on the grid."""
        joint = np.ones(1)
        for chances in self._axis_chances(state):
            joint = np.outer(joint, chances).ravel()  # the last axis runs fastest, as in the space
        return np.concatenate([joint, np.zeros(len(self.space) - len(joint))])

    def sample(self, state: ArrayLike, generator: np.random.Generator) -> int:
        """An arm drawn from π(·|s)."""
        return int(generator.choice(len(self.space), p=self.probabilities(state)))

    def decide(self, state: ArrayLike) -> int:
        """The most probable arm; the default, if it is among the most probable."""
        chances, own = self.probabilities(state), self.space.default
        return own if chances[own] == chances.max() else int(np.argmax(chances))

    def update(self, episode: Sequence[tuple[ArrayLike, int, float]]) -> None:
        """One step of gradient ascent after a whole episode, its phases in order.

        θ ← θ + α Σ_t (G_t − b) ∇ log π(a_t|s_t), by θ_axis (e_a − softmax(θ_axis s)) sᵀ with e_a the axis value of the
        arm. G_t = Σ_{k ≥ t} r_k is the sum over this and the later phases of
        the episode, and b is the running mean of earlier returns over the same number of phases: it does not depend on
        the action and removes most of the variance. The first return over a number of phases is its own baseline.
        """
        moves = {axis: np.zeros_like(weights) for axis, weights in self._weights.items()}
        gained = 0.0
        for left, (state, arm, reward) in enumerate(reversed(episode)):
            gained += float(reward)
            if left == len(self._means):
                self._means.append(gained)
            advantage = gained - self._means[left]
            self._means[left] += (1 - BASELINE) * advantage
            places = np.unravel_index(arm, self._shape)  # which value of each axis the arm has
            for axis, place, chances in zip(self._weights, places, self._axis_chances(state), strict=True):
                taken = np.arange(len(chances)) == place
                moves[axis] += advantage * np.outer(taken - chances, np.asarray(state))
        self._weights = {axis: weights + self.rate * moves[axis] for axis, weights in self._weights.items()}

    def _axis_chances(self, state: ArrayLike) -> list[Array]:
        """The chances of the values of each axis: softmax(θ_axis s)."""
        powers = [weights @ np.asarray(state, dtype=np.float64) for weights in self._weights.values()]
        powers = [np.exp(logits - logits.max()) for logits in powers]
        return [np.asarray(each / each.sum()) for each in powers]
