"""Tables of rewards to replay policies on."""

from __future__ import annotations

import numpy as np

from poise import draws
from poise.policies.simulate import Table
from poise.spaces import ActionSpace


def smooth_table(
    space: ActionSpace,
    *,
    phases: int = 5,
    classes: int = 60,
    images: int = 10,
    depth: float = 0.15,
    seed: int = 0,
) -> Table:
    """A smooth bowl over the coordinates, the same in every phase.

    The optimum lies at a random place of the grid; the worst arm is `depth` below it. Classes differ in difficulty.
    The trials tell the truth, but for their noise.
    """
    generator = draws.generator(seed, "smooth table")
    places = space.coordinates()
    centre = places[generator.integers(len(space))]
    distance = (((places - centre) / np.ptp(places, axis=0)) ** 2).sum(axis=1)
    truth = 0.65 - depth * distance / distance.max()
    difficulty = generator.uniform(-0.2, 0.2, size=classes)
    rewards = truth[:, None] + difficulty - difficulty.mean()
    return Table(space, (rewards[None],) * phases, (16,), np.tile(rewards.mean(axis=1), (phases, 1)), images)
