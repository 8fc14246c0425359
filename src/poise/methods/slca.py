"""SLCA (Zhang et al., ICCV 2023): a slow network, and a head that is aligned on features drawn from Gaussians."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from poise import losses
from poise.actions import Action
from poise.errors import check_number, check_whole
from poise.methods.base import Arrivals, Correction, Growth, Learned, Method, register
from poise.nets import GaussianHead, Model, Output

BATCH = 128
MOMENTUM = 0.9


@register
class SLCA(Method):
    """Cross-entropy, with the network's learning rate a hundredth of the head's (the axis `backbone_rate`).

    New images are told from new classes alone, kept ones (where there are any) from all. After a phase the Gaussian of
    each new class's features is stored, and the head is trained for `align_epochs` on `draws` features of every class,
    with logits z / (τ |z|), τ = `temperature`. Covariances are stored by their `rank` largest directions.
    """

    name = "slca"
    head = "gaussian"
    uses_maps = False
    default_action = Action(lr=0.01, backbone_rate=0.01, classifier="fc", old_rows="trained")
    choices: Mapping[str, tuple[str, ...]] = {"balance": ("none",)}  # it is balanced by its alignment
    options: Mapping[str, float | str] = {
        "align_epochs": 5,
        "align_lr": 0.01,
        "draws": 256,
        "rank": 64,
        "temperature": 0.1,
    }

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        for name in ("align_epochs", "draws", "rank"):
            check_whole(f"option {name}", self.settings[name], 0 if name == "align_epochs" else 1, 100_000)
        for name in ("align_lr", "temperature"):
            check_number(f"option {name}", self.settings[name], positive=True)

    def grow(self, model: Model, arrivals: Arrivals) -> None:
        """Add rows, and room for the Gaussians of their classes."""
        super().grow(model, arrivals)
        _gaussian_head(model).remember(sum(arrivals.growth), int(self.settings["rank"]))

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """Classification; the scores of old classes do not count for images of new ones."""
        return {"ce": losses.separated_cross_entropy(student.logits, labels, growth.old)}

    def conclude(self, model: Model, learned: Learned) -> None:
        """Remember the new classes' features; align the head on features of all classes."""
        head = _gaussian_head(model)
        head.describe(*learned.features())
        if learned.growth.old:
            self._align(head, learned.generator)

    def correct(self, model: Model, correction: Correction) -> None:
        """Measure the Gaussians of the classes that lose images anew, on those that are kept; add to those that gain.

        A single image cannot be taken out of a Gaussian. Where only one is left, it is the mean, and the spread stays.
        """
        head, stay = _gaussian_head(model), correction.after >= 0
        features, labels = correction.left()
        gains = ~torch.isin(correction.after, correction.before) & stay
        head.describe(correction.features()[gains], correction.after[gains])
        for row in torch.unique(correction.before).tolist():
            points = features[labels == row]
            if len(points) == 1:
                head.means[row], head.counts[row] = points[0], 1
            else:
                head.counts[row] = 0
                head.describe(points, labels[labels == row])

    @torch.enable_grad()
    def _align(self, head: GaussianHead, generator: torch.Generator) -> None:
        epochs, temperature = int(self.settings["align_epochs"]), float(self.settings["temperature"])
        trained: list[Tensor] = list(head.requires_grad_(True).parameters())
        momentum: list[Tensor | None] = [None for _ in trained]
        for epoch in range(epochs):
            rate = float(self.settings["align_lr"]) * (1 + math.cos(math.pi * epoch / epochs)) / 2
            features, labels = head.draw(int(self.settings["draws"]), generator)
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for picks in torch.split(order, BATCH):
                loss = losses.normalised_cross_entropy(head(features[picks])[1], labels[picks], temperature)
                _move(trained, list(torch.autograd.grad(loss, trained)), momentum, rate)


@torch.no_grad()
def _move(trained: list[Tensor], gradients: list[Tensor], momentum: list[Tensor | None], rate: float) -> None:
    """A step of SGD; by torch's function, since its class loads a compiler that nobody needs."""
    options: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
    sgd(trained, gradients, momentum, lr=rate, momentum=MOMENTUM, **options)


def _gaussian_head(model: Model) -> GaussianHead:
    assert isinstance(model.head, GaussianHead)
    return model.head
