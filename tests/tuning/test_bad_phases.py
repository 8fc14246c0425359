"""A phase whose labels or images are bad must not make `online` worse than the fixed action.

Five paired seeds for each case: the mean difference in accuracy, over the bad phase and a good one after it, must not
be below zero by more than two standard errors. The network and the phases are as small as they can be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from poise import Learner, draws
from poise.data.sources import DigitsSource

from .learners import SETTINGS, digits, tiny_net

FIRST, BAD, LATER = [0, 1, 2, 3], [4, 5], [6]
Arrivals = tuple[Tensor, Tensor]


def wrong_labels(seed: int) -> Arrivals:
    """Two of five images are labelled as the other new class."""
    pixels, labels = digits(BAD, 20)
    picks = draws.generator(seed, "wrong labels").permutation(len(labels))[: 2 * len(labels) // 5]
    labels[picks] = sum(BAD) - labels[picks]
    return pixels, labels


def two_images(seed: int) -> Arrivals:
    """Two images of each new class, others for each seed."""
    return digits(BAD, 2, first=2 * seed)


def learned(seed: int, bad: Arrivals, policy: str) -> float:
    """The mean accuracy after the bad phase, and after a good one."""
    made = {**SETTINGS, "net": tiny_net(32), "epochs": 10, "batch": 32, "memory": 6}
    learner = Learner("lucir", seed=seed, policy=policy, **made).partial_fit(*digits(FIRST, 40))
    found, test = list[float](), DigitsSource().test()
    for images, classes in ((bad, [*FIRST, *BAD]), (digits(LATER, 20), [*FIRST, *BAD, *LATER])):
        exam = test.of_labels(classes)
        found.append(100 * learner.partial_fit(*images).score(exam.pixels, exam.labels))
    return sum(found) / 2


@pytest.mark.parametrize("case", [wrong_labels, two_images])
def test_online_is_not_worse_than_the_fixed_action_after_a_bad_phase(case: Callable[[int], Arrivals]) -> None:
    gains = [learned(seed, case(seed), "online") - learned(seed, case(seed), "fixed") for seed in range(5)]
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) >= -2 * error, f"{np.mean(gains):+.2f} ± {error:.2f}, by seed {np.round(gains, 1)}"
