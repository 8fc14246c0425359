"""Resized crops, AutoAugment and Cutout with every method; a run is resumed anywhere to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poise import Augmentation, Learner
from poise.data import ALL_IMAGES, ImageSet
from poise.methods import METHODS

STRONG = Augmentation(pad=0, autoaugment=True, cutout=0.5, resized=0.08)


def learner_of(name: str, augmentation: Augmentation) -> Learner:
    memory = 3 if METHODS[name].own_memory != ALL_IMAGES else None
    settings = {"policy": "fixed", "net": "small", "epochs": 2, "batch": 8, "memory": memory, "device": "cpu"}
    return Learner(name, augmentation=augmentation, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_trains_with_it_and_is_resumed_anywhere(
    name: str,
    make_images: Callable[..., ImageSet],
    stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
    tmp_path: Path,
) -> None:
    first, second = make_images([0, 1] * 6), make_images([2, 3] * 6, seed=1)
    plain, strong = (
        learner_of(name, each).partial_fit(first.pixels, first.labels) for each in (Augmentation(1), STRONG)
    )
    for learner, file in ((plain, "plain"), (strong, "strong")):
        learner.save(tmp_path / file, memory=False)
    assert (tmp_path / "plain").read_bytes() != (tmp_path / "strong").read_bytes()
    assert strong.preprocessing is not None
    assert strong.preprocessing.augmentation.name == "autoaugment+cutout"
    stop_learners_anywhere(strong, second, 5)
