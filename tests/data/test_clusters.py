from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from poise.data import cluster_centres


def groups(sizes: list[int], width: int = 3) -> Tensor:
    """Points around far corners, in a random order."""
    rng = np.random.default_rng(0)
    corners = 10 * np.eye(len(sizes), width)
    points = np.concatenate(
        [corner + 0.1 * rng.normal(size=(n, width)) for corner, n in zip(corners, sizes, strict=True)]
    )
    return torch.from_numpy(rng.permutation(points)).float()


def test_the_centres_are_the_means_of_well_separated_groups() -> None:
    points = groups([30, 5, 12])
    expected = torch.stack([points[points.argmax(dim=1) == corner].mean(dim=0) for corner in range(3)])
    centres = cluster_centres(points, 3, seed=5)
    assert centres.dtype == points.dtype
    assert torch.allclose(centres[centres.argmax(dim=1).argsort()], expected, atol=1e-5)


def test_the_seed_is_the_only_chance() -> None:
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(200, 4)))
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    one = cluster_centres(points, 10, seed=1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    assert torch.equal(one, cluster_centres(points, 10, seed=1))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index] # noqa: NPY002
    assert not torch.equal(one, cluster_centres(points, 10, seed=2))


def test_the_number_of_threads_does_not_matter_and_is_as_before() -> None:
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(3000, 16)))
    found = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            before = threadpool_info()
            found.append(cluster_centres(points, 10, seed=0))
            assert threadpool_info() == before
    assert torch.equal(*found)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_points_take_turns(count: int) -> None:
    points = torch.eye(2).repeat(4, 1)  # two distinct ones
    centres = cluster_centres(points, count, seed=0)
    assert centres.shape == (count, 2)
    if count > 1:
        assert centres.tolist() == [points[(place + 1) % 2].tolist() for place in range(count)]


def test_points_that_all_but_coincide_are_no_trouble() -> None:
    points = torch.ones(30, 4, dtype=torch.float64) + 1e-17 * torch.arange(30)[:, None]
    nearly = points * (1 + 1e-16 * torch.arange(30)[:, None])
    assert torch.allclose(cluster_centres(nearly, 10, seed=0), torch.ones(10, 4, dtype=torch.float64))
