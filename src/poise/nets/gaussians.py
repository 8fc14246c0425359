"""The head of SLCA: a linear one that remembers a Gaussian of each class's features, to draw features from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from poise.nets.heads import HEADS, LinearHead
from poise.nets.layers import FULL
from poise.schema import check

_GAUSSIANS: Final = ("means", "factors", "rest", "counts")  # what is remembered of each class


class GaussianHead(LinearHead):
    """A linear head with N(μ_c, Σ_c) of the features of every class.

    Σ = FᵀF + diag(r): the `rank` largest principal directions F [rank, d] as they are, the rest by its variances r.
    That is all of Σ where a class has at most `rank` + 1 images, or features at most `rank` values. A full Σ of 1,280
    features would take 6.5 MB a class; with 64 directions it is 0.3 MB.
    """

    means: Tensor
    factors: Tensor
    rest: Tensor
    counts: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("means", torch.empty(0, width, dtype=FULL))
        self.register_buffer("factors", torch.empty(0, 0, width, dtype=FULL))
        self.register_buffer("rest", torch.empty(0, width, dtype=FULL))
        self.register_buffer("counts", torch.empty(0, dtype=FULL))

    def remember(self, classes: int, rank: int) -> None:
        """Make room for the Gaussians of so many classes."""
        more, kept = classes - len(self.counts), self.factors.shape[1] if len(self.factors) else min(rank, self.width)
        shapes = {"means": (self.width,), "factors": (kept, self.width), "rest": (self.width,), "counts": ()}
        for name, shape in shapes.items():
            before: Tensor = getattr(self, name)
            added = before.new_zeros(more, *shape)
            setattr(self, name, torch.cat([before, added]) if len(before) else added)

    def keep(self, rows: Tensor) -> None:
        """Keep these classes and their Gaussians."""
        super().keep(rows)
        for name in _GAUSSIANS:
            values: Tensor = getattr(self, name)
            setattr(self, name, values[rows.to(values.device)])

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved values: the Gaussians of all classes, or of none."""
        super().adopt(state)
        count = len(self.counts)
        for name in _GAUSSIANS:
            found = len(getattr(self, name))
            check(count in (0, self.classes) and found == count, f"tensor head.{name}", "one a class", found)
        variances = not bool((self.rest < 0).any()) and not bool((self.counts < 0).any())
        check(variances, "tensor head.rest", "variances", "negative numbers")

    def drop_unused(self) -> None:
        """Drop the Gaussians."""
        for name in _GAUSSIANS:
            setattr(self, name, getattr(self, name)[:0])

    def widen(self, width: int) -> None:
        """Rows are 0 in added features, and so is what the Gaussians know of them."""
        more = width - self.width
        super().widen(width)
        for name in ("means", "factors", "rest"):
            setattr(self, name, torch.nn.functional.pad(getattr(self, name), (0, more)))

    @torch.no_grad()
    def describe(self, features: Tensor, labels: Tensor) -> None:
        """Measure the Gaussians of these classes; where a class had one, that of all of its images so far."""
        for label in torch.unique(labels).tolist():
            points = features[labels == label].double()
            before, count = float(self.counts[label]), len(points)
            share, mean = before / (before + count), points.mean(dim=0)
            apart = self.means[label].double() - mean
            spread = [
                share**0.5 * self.factors[label].double(),
                ((1 - share) / count) ** 0.5 * (points - mean),
                (share * (1 - share)) ** 0.5 * apart[None],
            ]
            stacked = torch.cat(spread)
            directions = torch.linalg.svd(stacked, full_matrices=False)
            found = (directions.S[:, None] * directions.Vh)[: self.factors.shape[1]]
            kept = found.new_zeros(self.factors.shape[1:])
            kept[: len(found)] = found
            total = stacked.square().sum(dim=0) + share * self.rest[label].double()
            self.means[label] = (mean + share * apart).float()
            self.factors[label] = kept.float()
            self.rest[label] = (total - kept.square().sum(dim=0)).clamp(min=0).float()
            self.counts[label] = before + count

    @torch.no_grad()
    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """So many features of every class, drawn on the host from its Gaussian, and their labels."""
        classes, rank, width = self.factors.shape
        along = torch.randn(classes, count, rank, generator=generator, dtype=FULL).to(self.means.device)
        noise = torch.randn(classes, count, width, generator=generator, dtype=FULL).to(self.means.device)
        drawn = self.means[:, None] + along @ self.factors + noise * self.rest.sqrt()[:, None]
        return drawn.flatten(0, 1), torch.arange(classes, device=self.means.device).repeat_interleave(count)


HEADS["gaussian"] = GaussianHead
