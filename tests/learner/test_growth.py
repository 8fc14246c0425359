"""What a phase costs after many others: it may grow with the memory, and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor, nn

from .samples import learner


class Counting(nn.Module):
    """A backbone that counts the images it is shown, with all its copies."""

    seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 6)

    def forward(self, images: Tensor) -> Tensor:
        Counting.seen += len(images)
        features: Tensor = self.map(images.flatten(1))
        return features


@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_a_phase_shows_the_network_as_many_more_images_as_are_kept(method: str) -> None:
    mine, counts = learner(net=Counting(), method=method, memory=2, batch=64), list[int]()
    for label in range(24):
        images = np.random.default_rng(label).integers(0, 256, (5, 8, 8), dtype=np.uint8)
        Counting.seen = 0
        mine.partial_fit(images, [label] * 5)
        counts.append(Counting.seen)
    steps = np.diff(counts[2:])
    assert (steps == steps[0]).all(), counts
    assert 0 < steps[0] <= 10 * 2  # passes over the two images that each class keeps
