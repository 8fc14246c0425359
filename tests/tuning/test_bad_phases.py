"""A phase whose labels or images are bad must not make `online` worse than the fixed action.

Five paired seeds for each case, from the same first phase: the mean difference in accuracy, over the bad phase and a
good one after it, must not be below zero by more than two standard errors. The network and the phases are as small as
they can be, so that the whole file takes less than a minute of one processor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Learner, draws
from poise.data.sources import DigitsSource
from poise.learner import LearnerState, Runtime, Settings

SEEDS = range(5)
FIRST, BAD, LATER = (0, 1, 2, 3), (4, 5), (6,)
SMALL: dict[str, Any] = {"method": "lucir", "epochs": 10, "batch": 32, "memory": 6}

Arrivals = tuple[Tensor, Tensor]


def tiny() -> nn.Module:
    """Two linear layers."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))


def digits(labels: tuple[int, ...], count: int, first: int = 0) -> Arrivals:
    images = DigitsSource().train()
    chosen = [(images.labels == label).nonzero().flatten()[first : first + count] for label in labels]
    return images.pixels[torch.cat(chosen)], images.labels[torch.cat(chosen)]


def wrong_labels(seed: int) -> Arrivals:
    """Two of five images are labelled as the other new class."""
    pixels, labels = digits(BAD, 20)
    picks = draws.generator(seed, "wrong labels").permutation(len(labels))[: 2 * len(labels) // 5]
    labels[picks] = sum(BAD) - labels[picks]
    return pixels, labels


def two_images(seed: int) -> Arrivals:
    """Two images of each new class, others for each seed."""
    return digits(BAD, 2, first=2 * seed)


Case = Callable[[int], Arrivals]
CASES = (wrong_labels, two_images)


def settings(seed: int, policy: str) -> Settings:
    return Settings.resolve(**SMALL, seed=seed, policy=policy)


@cache
def start(seed: int) -> LearnerState:
    """A learner after its first phase, in which nothing is tuned."""
    untuned = settings(seed, policy="fixed")
    around = Runtime.of(untuned, "cpu", net=tiny(), augmentation=DigitsSource.augmentation)
    learner = Learner.from_settings(untuned, around, DigitsSource.preprocessing)
    return learner.partial_fit(*digits(FIRST, 40)).state()


def accuracy(learner: Learner, *classes: int) -> float:
    images = DigitsSource().test().of_labels(classes)
    return 100 * float((learner.predict(images.pixels) == images.labels.numpy()).mean())


def learned(seed: int, case: Case, policy: str) -> float:
    """The mean accuracy after the bad phase, and after a good one."""
    learner = Learner.from_state(start(seed).started_with(settings(seed, policy)), device="cpu", net=tiny())
    after_bad = accuracy(learner.partial_fit(*case(seed)), *FIRST, *BAD)
    return (after_bad + accuracy(learner.partial_fit(*digits(LATER, 20)), *FIRST, *BAD, *LATER)) / 2


@pytest.mark.parametrize("case", CASES)
def test_online_is_not_worse_than_the_fixed_action_after_a_bad_phase(case: Case) -> None:
    gains = [learned(seed, case, policy="online") - learned(seed, case, policy="fixed") for seed in SEEDS]
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) >= -2 * error, f"{np.mean(gains):+.2f} ± {error:.2f}, by seed {np.round(gains, 1)}"
