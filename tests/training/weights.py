"""A method of two stages; the weights of a trainer's model, and whether they are those of another."""

from __future__ import annotations

import torch
from torch import Tensor

from poise.methods import Growth, ICaRL, Stage
from poise.training.trainer import Trainer


class TwoStages(ICaRL):
    """Its second stage is half as long and has a rate of its own."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return Stage(), Stage("tuning", share=0.5, milestones=())


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
