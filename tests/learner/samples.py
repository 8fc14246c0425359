"""Small images, and small learners that have learned some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from poise import Learner
from poise.data import ALL_IMAGES
from poise.errors import PoiseError, UserError
from poise.learner.phase import Phase
from poise.methods import make_method

Pixels = NDArray[np.uint8]
_BUNCH = load_digits()
_PIXELS = np.rint(_BUNCH.images * (255 / 16)).astype(np.uint8)


def digits(*classes: int, count: int = 12, first: int = 0) -> tuple[Pixels, list[int]]:
    """Some images of each of these digits, [N, 8, 8]."""
    picks = [np.flatnonzero(_BUNCH.target == label)[first : first + count] for label in classes]
    return _PIXELS[np.concatenate(picks)], [label for label in classes for _ in range(count)]


def learner(**settings: Any) -> Learner:
    return Learner(**{"policy": "fixed", "net": "small", "epochs": 1, "batch": 8, "memory": 4, **settings})


def begun(learner: Learner, images: Pixels, labels: list[int]) -> Phase:
    """The phase that these images begin, which is given up at once."""
    with closing(learner.fitting(images, labels)) as events:
        phases = (learner.phase_under_way for _ in events)
        return next(phase for phase in phases if phase is not None)


def memory_for(method: str) -> dict[str, Any]:
    """What a learner of this method is told about memory where that is not one of the samples: nothing, or all."""
    return {"memory": None} if make_method(method).own_memory == ALL_IMAGES else {}


def grown(**settings: Any) -> Learner:
    """A learner after two phases."""
    return learner(**settings).partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))


def state_bytes(learned: Learner, folder: Path) -> bytes:
    learned.save(folder / "state.safetensors")
    return (folder / "state.safetensors").read_bytes()


def keys(images: Tensor) -> set[bytes]:
    """Something to recognise each image by."""
    return {image.numpy().tobytes() for image in images}


@contextmanager
def refused(line: str, kind: type[PoiseError] = UserError) -> Iterator[None]:
    """What is done in here is refused in one line, of which this is a part."""
    with pytest.raises(kind) as error:
        yield
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


class Flat(nn.Module):
    """The smallest backbone that a user could write."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.map = nn.Linear(64, width)

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.map(images.flatten(1)))
