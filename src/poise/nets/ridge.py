"""The head of RanPAC: ridge regression on randomly projected features, from sums over all images seen so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot, relu

from poise.nets.heads import HEADS, ScaledHead
from poise.nets.layers import FULL
from poise.nets.systems import LARGEST, System, reduce_system, solve
from poise.schema import check

#: The strengths κ that are compared on held-out images.
RIDGES: Final = tuple(10.0**power for power in range(-8, 9))
_ROUNDING = 1e-6  # of features of single precision, computed in batches of another size
_SCALE = 10.0  # scores lie about between 0 and 1: with it, a softmax of the logits says something


class RidgeHead(ScaledHead):
    """scores = h (G + κI)⁻¹ C with h = relu(f P), G = Σ hᵀh and C = Σ hᵀy over all images seen so far.

    P [d, M] is drawn once and not saved: its address is. G is kept as its lower triangle, M (M + 1) / 2 numbers of
    double precision. Both sums do not depend on the order of the images, so the scores do not either, up to rounding.
    They are replaced and never written into, so that copies share them.
    `held_out` is the squared error of every κ on held-out images, summed over phases.
    """

    breadth: int = 0  # M
    address: Tensor
    gram: Tensor
    sums: Tensor
    held_out: Tensor
    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("address", torch.zeros(2, dtype=torch.int64))  # of P: the seed of its draw, and M
        self.register_buffer("gram", torch.empty(0, dtype=torch.float64))
        self.register_buffer("sums", torch.empty(0, 0, dtype=torch.float64))
        self.register_buffer("held_out", torch.zeros(len(RIDGES), dtype=torch.float64))
        self.register_buffer("projection", torch.empty(width, 0, dtype=FULL), persistent=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The weights of a class: one for each projected feature."""
        return (self.breadth,)

    def draw_projection(self, seed: int, breadth: int) -> None:
        """Draw P, before the first class is known."""
        self._draw(seed, breadth)
        device = self.old.device
        self.gram = torch.zeros(breadth * (breadth + 1) // 2, dtype=torch.float64, device=device)
        self.sums = torch.zeros(0, breadth, dtype=torch.float64, device=device)
        self.old, self.new = (torch.nn.Parameter(torch.empty(0, breadth, dtype=FULL, device=device)) for _ in range(2))
        with torch.no_grad():
            self.scale.fill_(_SCALE)

    def _draw(self, seed: int, breadth: int) -> None:
        generator, device = torch.Generator().manual_seed(seed), self.old.device
        self.breadth, self.address = breadth, torch.tensor([seed, breadth], device=device)
        self.projection = torch.randn(self.width, breadth, generator=generator, dtype=FULL).to(device)

    def first_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """New classes score 0 until their images were added."""
        return torch.zeros(count, self.breadth, dtype=FULL)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add rows, and sums for them."""
        super().grow(count, generator)
        self.sums = torch.cat([self.sums, self.sums.new_zeros(count, self.breadth)])

    def keep(self, rows: Tensor) -> None:
        """Keep these classes; the images of the others stay in G, as images of none of them."""
        super().keep(rows)
        self.sums = self.sums[rows.to(self.sums.device)]

    def drop_unused(self) -> None:
        """Drop both sums, which are most of a saved learner."""
        self.gram, self.sums = self.gram.new_zeros(0), self.sums.new_zeros(0, 0)

    def shared(self) -> list[Tensor]:
        """P and both sums."""
        return [self.projection, self.gram, self.sums]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *more: object) -> None:
        for name in ("gram", "sums"):  # another head may have the present ones, too
            given, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if given is not None and given.shape == own.shape:
                setattr(self, name, given.to(own))
        super()._load_from_state_dict(state_dict, prefix, *more)

    def widen(self, width: int) -> None:
        """Features of another width would need another P."""
        if width != self.width:
            raise ValueError("a ridge head is for a frozen network, whose features keep their width")

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved values; P is drawn again."""
        super().adopt(state)
        seed, breadth = self.address.tolist()
        count, columns = breadth * (breadth + 1) // 2, {self.old.shape[1], self.new.shape[1]}
        check(columns == {breadth}, "tensor head.address", f"about rows of {sorted(columns)} numbers", breadth)
        check(len(self.gram) in (0, count), "tensor head.gram", f"{count} numbers", len(self.gram))
        whole = [self.classes, breadth] if len(self.gram) else [0, 0]
        check(list(self.sums.shape) == whole, "tensor head.sums", f"{whole}", list(self.sums.shape))
        if breadth:
            self._draw(seed, breadth)

    def scores(self, features: Tensor) -> Tensor:
        """Estimates of one-hot labels."""
        return relu(features @ self.projection) @ self.rows().T

    # Closed form ------------------------------------------------------------------------------------------------

    def _project(self, features: Tensor) -> Tensor:
        return relu(features @ self.projection).double()

    @torch.no_grad()
    def sums_with(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums, these images added: G as its lower triangle, and C."""
        projected = self._project(features)
        gram = self.gram + (projected.T @ projected)[self._triangle]
        return gram, self.sums.index_add(0, labels, projected)

    @torch.no_grad()
    def sums_corrected(self, features: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums, with images of the rows `before` moved to the rows `after`, or taken out where that is −1."""
        projected, stay = self._project(features), after >= 0
        gone = projected[~stay]
        sums = self.sums.index_add(0, before, -projected).index_add(0, after[stay], projected[stay])
        return self.gram - (gone.T @ gone)[self._triangle], sums

    @torch.no_grad()
    def held_out_errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """The squared error of every κ on each class's every fifth image, after a regression on the others alone.

        Which images these are does not depend on the phase in which they came. All 0: there were too few.
        """
        nothing = torch.zeros_like(self.held_out)
        if not len(labels):
            return nothing
        targets = one_hot(torch.unique(labels, return_inverse=True)[1])
        places = (targets.cumsum(dim=0) * targets).sum(dim=1)  # of every image in its class, from 1
        is_held = places % 5 == 0
        if not bool(is_held.any()):
            return nothing
        projected, targets = self._project(features), targets.double()
        held, fitted, wanted, given = projected[is_held], projected[~is_held], targets[is_held], targets[~is_held]
        if len(fitted) < self.breadth:  # (HᵀH + κI)⁻¹ Hᵀ = Hᵀ (HHᵀ + κI)⁻¹, the smaller one to solve
            matrix, right, left = fitted @ fitted.T, given, held @ fitted.T
        else:
            matrix, right, left = fitted.T @ fitted, fitted.T @ given, held
        errors = [(left @ solve(matrix, right, ridge) - wanted).square().sum() for ridge in RIDGES]
        return torch.stack(errors).nan_to_num(LARGEST).clamp(max=LARGEST)

    @torch.no_grad()
    def system(self, *, reduce: bool = False) -> System:
        """(G + κI) W = C, from which rows follow for any κ; made smaller if wanted, where there were few images."""
        gram = self.gram.new_zeros(self.breadth, self.breadth)
        gram[self._triangle] = self.gram
        gram += gram.tril(-1).T
        return reduce_system(gram, self.sums.T) if reduce else System(gram, self.sums.T)

    @staticmethod
    @torch.no_grad()
    def rows_of(system: System, ridge: float) -> Tensor:
        """All rows for this κ."""
        return system.solve(ridge).T.float()

    @torch.no_grad()
    def set_rows(self, rows: Tensor) -> None:
        """Take over these rows."""
        self.old.copy_(rows[: len(self.old)])
        self.new.copy_(rows[len(self.old) :])

    def best_ridge(self) -> float:
        """The κ with the smallest error so far; where none was measured, about the mean of the eigenvalues of G."""
        if bool(self.held_out.any()):
            return RIDGES[int(self.held_out.argmin())]
        mean = float(self._diagonal.mean())
        return min(RIDGES, key=lambda ridge: abs(ridge - mean))

    def least_ridge(self) -> float:
        """The smallest κ that hides what rounding leaves in G of images that were taken out of it."""
        return _ROUNDING * float(self._diagonal.max())

    @property
    def _diagonal(self) -> Tensor:
        places = torch.arange(1, self.breadth + 1, device=self.gram.device)
        return self.gram[places * (places + 1) // 2 - 1]

    @property
    def _triangle(self) -> Tensor:
        return torch.ones(self.breadth, self.breadth, dtype=torch.bool, device=self.gram.device).tril()


HEADS["ridge"] = RidgeHead
