"""Means, deviations and intervals over seeds, and the conclusions they allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: With fewer paired seeds nothing is called a gain or a loss.
ENOUGH: Final = 3


@dataclass(frozen=True)
class Spread:
    """Figures of several seeds: their mean and their sample deviation (None for a single figure)."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]

    @property
    def count(self) -> int:
        """How many seeds."""
        return len(self.values)

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean by Student's t; NaN for a single figure.

        >>> [round(end, 3) for end in spread([-1.0, 0.0, 1.0]).interval()]
        [-2.484, 2.484]
        """
        if self.deviation is None:
            return math.nan, math.nan
        from scipy.special import stdtrit  # scikit-learn brings scipy along

        half = float(stdtrit(self.count - 1, 0.975)) * self.deviation / math.sqrt(self.count)
        return self.mean - half, self.mean + half

    def verdict(self) -> str:
        """The verdict on a paired difference: `gain` or `loss` when it is certain, `few` seeds, or `open`.

        >>> spread([1.0, 1.1, 0.9]).verdict(), spread([1.0, -1.1, 0.9]).verdict(), spread([1.0, 1.1]).verdict()
        ('gain', 'open', 'few')
        """
        if self.count < ENOUGH:
            return "few"
        low, high = self.interval()
        return "gain" if low > 0 else "loss" if high < 0 else "open"


def spread(values: Sequence[float]) -> Spread:
    """Mean and deviation of at least one figure."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(float(np.mean(values)), deviation, tuple(values))


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Spread | None:
    """The differences one − other over the seeds that both have; None if they share none."""
    shared = [seed for seed in one if seed in other]
    return spread([one[seed] - other[seed] for seed in shared]) if shared else None
