"""What the tests of commands share: how a command ended, and folders of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from poise import Learner

TINY = ("groups=[2,1]", "epochs=1", "batch=64")  # a run of two short phases


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


def pictures(folder: Path, names: str, count: int = 5, first: int = 0) -> Path:
    """A folder of class folders with small pictures, each class of its own colour."""
    random = np.random.default_rng(first)
    for name in names.split():
        (folder / name).mkdir(parents=True, exist_ok=True)
        base = random.integers(0, 200, 3)
        for number in range(first, first + count):
            noisy = base + random.integers(0, 50, (16, 16, 3))
            Image.fromarray(noisy.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def digits(*classes: int, count: int = 12) -> tuple[Any, list[int]]:
    """Some images of each of these digits, [N, 8, 8]."""
    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    picks = [np.flatnonzero(labels == label)[:count] for label in classes]
    return pixels[np.concatenate(picks)], [label for label in classes for _ in range(count)]


def learner(**settings: Any) -> Learner:
    """A small learner that has learned nothing."""
    return Learner(**{"policy": "fixed", "net": "small", "epochs": 1, "batch": 8, "memory": 4, **settings})
