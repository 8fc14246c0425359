"""The embedded data set: scikit-learn's 1,797 handwritten digits of 8×8 pixels."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from poise import draws
from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest

_SPLIT_SEED = 1993


class DigitsSource(Source):
    """Ten classes of handwritten digits; a fixed third of each class is the test part."""

    name = "digits"
    class_names = tuple(str(digit) for digit in range(10))
    augmentation = Augmentation(pad=1, flip=False)
    preprocessing = Preprocessing(mean=(0.3063,), std=(0.3764,), augmentation=augmentation)
    net = "small"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training pixels and labels."""
        images = self.train()
        return digest(["digits", images.store, images.labels])

    def train(self) -> ImageSet:
        """Two thirds of each class, in scikit-learn's order."""
        return _digits(test=False)

    def test(self) -> ImageSet:
        """The other third of each class."""
        return _digits(test=True)


def _digits(*, test: bool) -> ImageSet:
    from sklearn.datasets import load_digits  # half of the start-up time of a command, so only when used

    bunch = load_digits()
    labels = bunch.target.astype(np.int64)
    wanted = np.flatnonzero(_is_test(labels) == test)
    pixels = np.rint(bunch.images[wanted] * (255 / 16)).astype(np.uint8)[:, None]
    return ImageSet(torch.from_numpy(pixels), torch.from_numpy(labels[wanted]), torch.arange(len(wanted)))


def _is_test(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        shuffled = draws.generator(_SPLIT_SEED, "digits test", label).permutation(members)
        chosen[shuffled[: len(members) // 3]] = True
    return chosen
