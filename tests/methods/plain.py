"""What whole phases in plain loops need: the batches that a phase drew, and torch's own steps and schedules.

The loops are written from the published descriptions with torch's own layers, losses, optimiser and schedules. What a
phase draws at random (batches, augmentation, new rows) is watched and given to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler

from poise.nets import Model

from .conftest import SETTINGS
from .watching import Batch

EPOCHS, RATE, DECAY = 17, 0.02, 0.05  # a tenth of the released epochs
PLAIN: dict[str, Any] = {"optimiser": "sgd", "decay": "steps", "warmup": 0, "precision": "fp32"}
LONG: dict[str, Any] = {**SETTINGS, **PLAIN, "epochs": EPOCHS, "momentum": 0.9, "weight_decay": DECAY}
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 5e-4}  # a wrong factor changes weights by 1e-2


def epochs_of(batches: list[Batch], epochs: int, schedule: LRScheduler) -> Iterator[Batch]:
    """The batches; after each epoch the learning rate goes on."""
    per_epoch, rest = divmod(len(batches), epochs)
    assert rest == 0
    for number, batch in enumerate(batches):
        yield batch
        if (number + 1) % per_epoch == 0:
            schedule.step()


def step(optimiser: SGD, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def trained(*modules: nn.Module) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def features(backbone: nn.Module, batch: Batch) -> Tensor:
    found: Tensor = backbone(batch.images)[0]
    return found


def linear(head: nn.Module) -> nn.Linear:
    """The rows of a head, and its biases if it has some, as one layer of torch's."""
    state = head.state_dict()
    rows = torch.cat([state["old"], state["new"]])
    layer = nn.Linear(rows.shape[1], len(rows), bias="new_bias" in state)
    layer.weight.data.copy_(rows)
    if "new_bias" in state:
        layer.bias.data.copy_(torch.cat([state["old_bias"], state["new_bias"]]))
    return layer


def same(found: nn.Module, wanted: nn.Module) -> None:
    torch.testing.assert_close(dict(found.state_dict()), dict(wanted.state_dict()), **CLOSE)


def same_rows(found: Model | None, wanted: nn.Linear) -> None:
    rows = linear(found.head)
    torch.testing.assert_close(rows.weight, wanted.weight, **CLOSE)
    torch.testing.assert_close(rows.bias, wanted.bias, **CLOSE)
