"""Watches the batches that the stages of a phase draw, so that other code can train on the same ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from poise import Learner
from poise.data import ImageSet
from poise.nets import Model
from poise.training.events import StageDone


class Batch(NamedTuple):
    """What a step was given, and the model before it."""

    images: Tensor
    labels: Tensor
    model: Model


@dataclass
class Watched:
    """The steps of the stages of one phase."""

    stages: dict[str, list[Batch]] = field(default_factory=dict)
    _now: list[Batch] = field(default_factory=list)
    _given: tuple[Tensor, Model] | None = None

    def forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, Model) and torch.is_grad_enabled():
            self._given = inputs[0].clone(), copy.deepcopy(module)

    def labelled(self, labels: Tensor) -> None:
        assert self._given is not None
        images, model = self._given
        self._now.append(Batch(images, labels.clone(), model))

    def learn(self, learner: Learner, images: ImageSet) -> None:
        self._now = []
        for event in learner.fitting(images.pixels, images.labels):
            if isinstance(event, StageDone):
                self.stages[event.stage], self._now = self._now, []
