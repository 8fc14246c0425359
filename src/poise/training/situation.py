"""What a phase starts from: the last model, the new classes, and how to train on them. Trials start there too."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch

from poise.actions import Action
from poise.data import Feed, ImageSet, Preprocessing
from poise.methods import Arrivals, Growth, Method
from poise.nets import Model, torch_generator
from poise.training.backend import Backend
from poise.training.evaluate import extract
from poise.training.trainer import Schedule, Trainer


@dataclass(frozen=True)
class PhaseStart:
    """The situation when new classes have arrived and nothing was trained on yet.

    `model` is the one of the last phase, or one that has learned nothing if this is the first.
    """

    model: Model
    method: Method
    growth: Growth
    preprocessing: Preprocessing
    schedule: Schedule
    backend: Backend
    seed: int
    phase: int

    def grown(self, new: ImageSet) -> Model:
        """A copy of the model with rows for the new classes, imprinted from these images and no others."""
        model = copy.deepcopy(self.model)
        if self.growth.old:
            model.backbone = self.method.expanded(model.backbone)
        fresh = new.select((new.labels >= self.growth.old).nonzero().flatten())

        def features() -> tuple[torch.Tensor, torch.Tensor]:
            found = extract(self.model, fresh.pixels, self.preprocessing, self.backend)
            return found.features, fresh.labels.to(self.backend.device) - self.growth.old

        self.method.grow(model, Arrivals(self.growth, torch_generator(self.seed, "head", self.phase), features))
        return model.placed(self.backend.device)

    def teacher(self) -> Model | None:
        """The last phase's model, frozen; the first phase has none."""
        return self.model.teacher(self.backend.dtype) if self.growth.old else None

    def trainer(
        self,
        model: Model,
        teacher: Model | None,
        action: Action,
        feed: Feed,
        *,
        epochs: int | None = None,
        address: tuple[int | str, ...] = (),
    ) -> Trainer:
        """The training of a grown model with an action; `address` tells its draws from those of others."""
        return Trainer(
            model=model,
            teacher=teacher,
            method=self.method,
            action=action,
            growth=self.growth,
            feed=feed,
            preprocessing=self.preprocessing,
            schedule=self.lasting(epochs or action.epochs),
            backend=self.backend,
            seed=self.seed,
            phase=self.phase,
            address=address,
        )

    def lasting(self, epochs: float | None) -> Schedule:
        """The schedule with another number of epochs, if one is given."""
        return self.schedule if epochs is None else replace(self.schedule, epochs=max(1, round(epochs)))

    def feed(self, kept: ImageSet, new: ImageSet) -> Feed:
        """All images of a training, where they are trained on."""
        images = ImageSet.joined([kept, new])
        if len(images) == 1:  # a batch of two, for a single value has no batch statistics
            images = images.select(torch.zeros(2, dtype=torch.long))
        return Feed(images, self.backend.device)


def ceiling(epochs: float) -> int:
    """The next whole number of epochs, not led astray by rounding: 0.07 · 100 is 7."""
    return math.ceil(round(epochs, 6))
