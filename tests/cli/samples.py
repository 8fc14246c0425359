"""What the tests of commands share: how a command ended, and folders of pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

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
