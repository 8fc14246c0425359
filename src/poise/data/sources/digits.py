"""The embedded data set: scikit-learn's 1,797 handwritten digits of 8×8 pixels."""

from __future__ import annotations

from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from poise import draws
from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest

#: Where scikit-learn keeps them.
FILE = "datasets/data/digits.csv.gz"
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
    pixels, labels = _all_digits()
    wanted = np.flatnonzero(_is_test(labels) == test)
    return ImageSet(torch.from_numpy(pixels[wanted]), torch.from_numpy(labels[wanted]), torch.arange(len(wanted)))


@cache
def _all_digits() -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Pixels and labels in scikit-learn's order; read once in a process."""
    rows = _rows()
    pixels = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, rows[:, -1].astype(np.int64)


def _rows() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """64 pixels and the label of each digit.

    They are read from the file that `load_digits` reads: importing scikit-learn takes about a second, longer than a
    phase of digits is trained. Where a version of it keeps them elsewhere, it is asked.
    """
    found = find_spec("sklearn")
    file = Path(found.origin).parent / FILE if found and found.origin else None
    if file is not None and file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _is_test(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        shuffled = draws.generator(_SPLIT_SEED, "digits test", label).permutation(members)
        chosen[shuffled[: len(members) // 3]] = True
    return chosen
