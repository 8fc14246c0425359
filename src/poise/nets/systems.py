"""Ridge regression as a system of linear equations, (G + κI) W = C, that is solved for one κ or for several."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

LARGEST: Final = 1e12  # of a κ, and of an error that could not be computed any better


class System(NamedTuple):
    """(A + κI) X = B for any κ, and what makes the W of the regression of X: U X, where it is not X itself."""

    matrix: Tensor
    right: Tensor
    left: Tensor | None = None

    def solve(self, ridge: float) -> Tensor:
        """W for this κ."""
        found = solve(self.matrix, self.right, ridge)
        return found if self.left is None else self.left @ found


def solve(matrix: Tensor, right: Tensor, ridge: float) -> Tensor:
    """(A + κI)⁻¹ B; where that is singular to rounding, with ten times the κ, until it is not."""
    regular = matrix.clone()
    regular.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(regular)
    if int(failed) and ridge < LARGEST:
        return solve(matrix, right, 10 * ridge)
    return torch.cholesky_solve(right, factor)


def reduce_system(gram: Tensor, sums: Tensor) -> System:
    """The system with this G [M, M] and C [M, classes], made smaller where fewer than half of M images are in them.

    G = UUᵀ with U [M, r], of which r rows R are triangular, by a Cholesky factorisation with pivots; C = UB is a sum of
    the same images. So W = U (UᵀU + κI)⁻¹ B with B = R⁻¹C_r: an r × r matrix to factorise for each κ. It is the same
    solution up to rounding. The factorisation costs about as much as one κ without it.
    """
    found = _low_rank(gram) if gram.device.type == "cpu" else None
    if found is None:
        return System(gram, sums)
    factor, order = found
    rank, left = factor.shape[1], torch.empty_like(factor)
    left[order] = factor
    right = torch.linalg.solve_triangular(factor[:rank], sums[order[:rank]], upper=False)
    return System(factor.T @ factor, right, left)


def _low_rank(gram: Tensor) -> tuple[Tensor, Tensor] | None:
    """L [M, r] with LLᵀ = G in this order of rows and columns; None where r is more than half of M, or 0.

    Any half of random features has the rank of all, up to its size: so one of them says first whether it is worth it.
    """
    from scipy.linalg.lapack import dpstrf  # it takes a while to import, and only this needs it
    from threadpoolctl import threadpool_limits

    half, matrix = len(gram) // 2, gram.numpy().T  # in the layout of LAPACK
    with threadpool_limits(limits=1):  # the same bytes on any number of threads
        if dpstrf(matrix[:half, :half], lower=1)[2] == half:
            return None
        lower, pivots, rank, _ = dpstrf(matrix, lower=1)
    if not 0 < rank <= half:
        return None
    return torch.from_numpy(lower[:, :rank]).tril(), torch.from_numpy(pivots).long() - 1
