"""SLCA (Zhang et al., ICCV 2023): a slow network, and a head that is aligned on features drawn from Gaussians."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from poise import losses
from poise.actions import Action
from poise.methods.base import Growth, GrowthInputs, Method, TrainedPhase, register
from poise.nets import FULL, LinearHead, Model, Output

# The alignment of the head, as released: 5 epochs of 256 drawn features of each class, of cosine-annealed SGD.
EPOCHS: Final = 5
DRAWS: Final = 256
BATCH: Final = 128
LR: Final = 0.01
MOMENTUM: Final = 0.9
TEMPERATURE: Final = 0.1
#: Of a covariance, the largest directions that are kept: of 1,280 features 0.3 MB a class, in place of 6.5 MB.
RANK: Final = 64


class GaussianHead(LinearHead):
    """A linear head with N(μ_c, Σ_c) of the features of every class.

    Σ = FᵀF + diag(r): the `rank` largest principal directions F [rank, d] as they are, the rest by its variances r.
    That is all of Σ where a class has at most `rank` + 1 images, or features at most `rank` values.
    """

    means: Tensor
    factors: Tensor
    rest: Tensor
    counts: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        for name, shape in self._shapes(0, 0).items():
            self.register_buffer(name, torch.empty(shape, dtype=FULL))

    def _shapes(self, classes: int, rank: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the buffers for this number of classes."""
        rows = (classes, self.width)
        return {"means": rows, "factors": (classes, rank, self.width), "rest": rows, "counts": (classes,)}

    def remember(self, classes: int, rank: int = RANK) -> None:
        """Make room for the Gaussians of so many classes."""
        kept = self.factors.shape[1] if len(self.factors) else min(rank, self.width)
        for name, shape in self._shapes(classes - len(self.counts), kept).items():
            before: Tensor = getattr(self, name)
            added = before.new_zeros(shape)
            setattr(self, name, torch.cat([before, added]) if len(before) else added)

    def keep(self, rows: Tensor) -> None:
        """Keep these classes and their Gaussians."""
        super().keep(rows)
        for name in self._shapes(0, 0):
            values: Tensor = getattr(self, name)
            setattr(self, name, values[rows.to(values.device)])

    def drop_unused(self) -> None:
        """Drop the Gaussians."""
        for name in self._shapes(0, 0):
            setattr(self, name, getattr(self, name)[:0])

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
        """Draw features of every class from its Gaussian, on the host; returns them with their labels."""
        classes, rank, width = self.factors.shape
        along = torch.randn(classes, count, rank, generator=generator, dtype=FULL).to(self.means.device)
        noise = torch.randn(classes, count, width, generator=generator, dtype=FULL).to(self.means.device)
        drawn = self.means[:, None] + along @ self.factors + noise * self.rest.sqrt()[:, None]
        return drawn.flatten(0, 1), torch.arange(classes, device=self.means.device).repeat_interleave(count)


@register
class SLCA(Method):
    """Cross-entropy, with the network's learning rate a hundredth of the head's (the axis `backbone_rate`).

    New images are told from new classes alone, kept ones (where there are any) from all. After a phase the Gaussian of
    each new class's features is stored, and the head is trained on features of every class that are drawn from them,
    with logits z / (τ |z|).
    """

    name = "slca"
    head = "gaussian"
    own_head = GaussianHead
    uses_maps = False
    default_action = Action(lr=0.01, backbone_rate=0.01, classifier="fc", old_rows="trained")
    choices: Mapping[str, tuple[str, ...]] = {"balance": ("none",)}  # it is balanced by its alignment

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Add rows, and room for the Gaussians of their classes."""
        super().grow(model, inputs)
        assert isinstance(model.head, GaussianHead)
        model.head.remember(sum(inputs.growth))

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification; the scores of old classes do not count for images of new ones."""
        return {"ce": losses.separated_cross_entropy(student.logits, labels, growth.old)}

    def fit_head(self, model: Model, trained: TrainedPhase) -> None:
        """Remember the new classes' features; align the head on features of all classes."""
        assert isinstance(model.head, GaussianHead)
        model.head.describe(*trained.features())
        if trained.growth.old:
            align(model.head, trained.generator)


@torch.enable_grad()
def align(head: GaussianHead, generator: torch.Generator) -> None:
    """Train a head on features of all of its classes, drawn from their Gaussians."""
    trained: list[Tensor] = list(head.requires_grad_(True).parameters())
    momentum: list[Tensor | None] = [None for _ in trained]
    options: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
    for epoch in range(EPOCHS):
        rate = LR * (1 + math.cos(math.pi * epoch / EPOCHS)) / 2
        features, labels = head.draw(DRAWS, generator)
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        for picks in torch.split(order, BATCH):
            loss = losses.normalised_cross_entropy(head(features[picks])[1], labels[picks], TEMPERATURE)
            gradients = list(torch.autograd.grad(loss, trained))
            with torch.no_grad():  # torch's function: its class loads a compiler that nobody needs
                sgd(trained, gradients, momentum, lr=rate, momentum=MOMENTUM, **options)
