"""What the tests of single methods share: three phases of two classes, and learners of short trainings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poise import Learner
from poise.data import ImageSet

SETTINGS: dict[str, Any] = {"policy": "fixed", "net": "small", "epochs": 2, "batch": 8, "memory": 3, "device": "cpu"}


@pytest.fixture
def arriving(make_images: Callable[..., ImageSet]) -> list[ImageSet]:
    return [make_images(classes * 6, seed=number) for number, classes in enumerate(([0, 1], [2, 3], [4, 5]))]


def learned(learner: Learner, *phases: ImageSet) -> Learner:
    for images in phases:
        learner.partial_fit(images.pixels, images.labels)
    return learner
