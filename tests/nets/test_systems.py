"""Ridge regression for several κ: the reduced equations give what the plain ones give."""

from __future__ import annotations

import pytest
import torch
from poise.nets.systems import System, reduce_system
from torch import Tensor

FEATURES, CLASSES = 120, 3
RIDGES = (1e-8, 1e-4, 1e-2, 1.0, 1e4, 1e8)


def lifted(count: int) -> Tensor:
    """Random features of so many images, not negative, as a head has them."""
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(40, FEATURES, generator=generator)
    return torch.relu(torch.randn(count, 40, generator=generator) @ projection).double()


def targets(count: int) -> Tensor:
    return torch.eye(CLASSES, dtype=torch.float64)[torch.arange(count) % CLASSES]


def both(rows: Tensor) -> tuple[System, System]:
    gram, sums = rows.T @ rows, rows.T @ targets(len(rows))
    return System(gram, sums), reduce_system(gram, sums)


@pytest.mark.parametrize("count", [1, 7, 50, 60, 61, 119, 300])
def test_the_reduced_equations_have_the_same_solution(count: int) -> None:
    rows = lifted(count)
    plain, small = both(rows)
    assert len(small.matrix) == (count if count < FEATURES // 2 else FEATURES)
    for ridge in RIDGES[2:]:
        assert torch.allclose(small.solve(ridge), plain.solve(ridge), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("ridge", RIDGES)
def test_few_images_are_solved_as_precisely_as_by_their_kernel(ridge: float) -> None:
    """W = Hᵀ (HHᵀ + κI)⁻¹ Y, from the images themselves, which the sums no longer have."""
    rows = lifted(40)
    kernel = rows @ rows.T + ridge * torch.eye(40, dtype=torch.float64)
    wanted = rows.T @ torch.linalg.solve(kernel, targets(40))
    assert torch.allclose(both(rows)[1].solve(ridge), wanted, rtol=1e-7, atol=1e-12)


def test_the_same_image_many_times_counts_as_one() -> None:
    rows = lifted(10).repeat(20, 1)
    plain, small = both(rows)
    assert len(small.matrix) == 10
    assert torch.allclose(small.solve(1.0), plain.solve(1.0), atol=1e-9)


def test_features_that_are_always_zero_do_no_harm() -> None:
    rows = lifted(300)
    rows[:, : FEATURES // 2 + 1] = 0
    plain, small = both(rows)
    assert torch.allclose(small.solve(1.0), plain.solve(1.0), atol=1e-9)


def test_without_any_image_the_solution_is_zero() -> None:
    _, small = both(lifted(0))
    assert torch.equal(small.solve(1.0), torch.zeros(FEATURES, CLASSES, dtype=torch.float64))


def test_threads_change_no_byte() -> None:
    rows, before = lifted(50), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            system = both(rows)[1]
            assert system.left is not None
            found.append(system.left)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
