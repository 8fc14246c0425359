"""What the memory must pass with every method, and every method with the memory: all stored images are counted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise import Budget, Learner
from poise.data import ALL_IMAGES, ImageSet
from poise.methods import METHODS

MakeImages = Callable[..., ImageSet]
Arrays = tuple[NDArray[np.uint8], list[int]]
PHASES = ([0, 1, 2], [3, 4], [5, 6], [7])
EACH = 10  # images of a class
QUOTA = 3
RMM = Budget(per_class=QUOTA, rule="rmm", allocation=(0.2, 0.6, 0.9))


OF_METHODS = sorted(name for name, method in METHODS.items() if method.own_memory != ALL_IMAGES)


@pytest.fixture
def arriving(make_images: MakeImages) -> list[Arrays]:
    """What a caller has: arrays, no two images alike."""
    made = [make_images(classes * EACH, seed=phase) for phase, classes in enumerate(PHASES)]
    return [(images.pixels.permute(0, 2, 3, 1).numpy().copy(), images.labels.tolist()) for images in made]


def learner_of(method: str, memory: int | Budget = RMM, **changes: Any) -> Learner:
    settings: dict[str, Any] = {"policy": "fixed", "net": "small", "epochs": 1, "batch": 16, "device": "cpu", **changes}
    return Learner(method, memory=memory, **settings)


@pytest.fixture
def only_newer_objects() -> None:
    """What was there before is left out of every search: it cannot be the learner's, and there is much of it."""
    gc.collect()
    gc.freeze()


def live_images() -> set[bytes]:
    """Every image in any tensor that is alive anywhere; the caller's own are no tensors."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is Tensor and each.dtype == torch.uint8]
    return {image.tobytes() for each in tensors if each.ndim == 4 for image in each.cpu().numpy()}


def as_bytes(arrays: Arrays) -> set[bytes]:
    return {image.transpose(2, 0, 1).tobytes() for image in arrays[0]}


TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"allocation": [0.3, 0.9]},
    "trials": {"environment": "both", "length": 0.5, "validation": 2},
}


@pytest.mark.usefixtures("only_newer_objects")
@pytest.mark.parametrize(
    ("method", "changes", "reserve"),
    [
        *(pytest.param(method, {}, 0, id=method) for method in OF_METHODS),
        *(
            pytest.param(method, TRYING, 1, id=f"{method}, trying")
            for method in ("lucir", "aanets", "foster", "ranpac")
        ),
    ],
)
def test_every_image_that_is_stored_is_counted_at_every_moment(
    method: str, arriving: list[Arrays], changes: dict[str, Any], reserve: int
) -> None:
    """Tensors anywhere in the process count, those of trials too; what was discarded is nowhere."""
    learner = learner_of(method, Budget(per_class=QUOTA, reserve=reserve, rule="rmm", allocation=0.9), **changes)
    ours = set().union(*map(as_bytes, arriving))
    gone: set[bytes] = set()
    most, known = 0, 0
    for (pixels, labels), classes in zip(arriving, PHASES, strict=True):
        budget = QUOTA * known + len(labels)
        moments = [live_images() & ours for _ in learner.fitting(pixels, labels)]
        after = live_images() & ours
        assert max(map(len, moments)) == learner.held_ <= learner.budget_ == budget
        gone |= as_bytes((pixels, labels)) - moments[0]
        assert not gone & set().union(*moments, after)
        known += len(classes)
        assert learner.memory_ is not None
        assert len(after) == len(learner.memory_) <= budget
        most = max(most, len(after) - QUOTA * known)
    assert gone
    assert most > 0  # more exemplars than the plain rule stores


def test_without_an_allocation_it_is_the_plain_rule_to_the_bit(arriving: list[Arrays]) -> None:
    plain, none = learner_of("lucir", QUOTA), learner_of("lucir", Budget(per_class=QUOTA, rule="rmm", allocation=0.0))
    for images in arriving:
        plain.partial_fit(*images)
        none.partial_fit(*images)
        assert (plain.held_, plain.budget_) == (none.held_, none.budget_)
    one, other = plain.state().tensors(images=True)[0], none.state().tensors(images=True)[0]
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
