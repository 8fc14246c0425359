"""The optimisers take the steps of those of `torch.optim`, to the byte, and load no compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from poise.training.optimiser import Optimiser, Schedule

SCHEDULES = {
    "sgd": Schedule(),
    "plain sgd": Schedule(momentum=0, weight_decay=0),
    "adamw": Schedule(optimiser="adamw", weight_decay=0.01),
}
RATES = (0.1, 0.1, 0.05, 0.0, 0.01, 0.01)
CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

# Phases with either optimiser, and with trials; then what was loaded.
PHASES = """
import sys
import numpy as np
from poise import Learner

images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
for settings in {"policy": "fixed"}, {"policy": "online", "optimiser": "adamw"}:
    learner = Learner("lucir", net="small", epochs=1, batch=8, memory=2, device="cpu", **settings)
    for first in (0, 2):
        learner.partial_fit(images, [first, first + 1] * 12)
print(*(name for name in ("torch", "torch._dynamo", "torch._inductor", "sympy") if name in sys.modules))
"""


def network(device: str) -> nn.Module:
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    for number, parameter in enumerate(made.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
    return made.to(device)


def torchs(trained: list[nn.Parameter], schedule: Schedule, device: str) -> torch.optim.Optimizer:
    """The same of `torch.optim`, made as it was before poise had its own."""
    on_gpu = device == "cuda"
    lr: Any = torch.tensor(1.0, device=device) if on_gpu else 1.0
    if schedule.optimiser == "adamw":
        betas = schedule.momentum, 0.999
        return torch.optim.AdamW(
            trained, lr, betas=betas, weight_decay=schedule.weight_decay, fused=True, capturable=on_gpu
        )
    return torch.optim.SGD(trained, lr, schedule.momentum, weight_decay=schedule.weight_decay, fused=on_gpu)


def add_gradients(model: nn.Module, step: int) -> None:
    """Those of a batch; in every third step the last parameter has none."""
    batch = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(step))
    *_, last = model.parameters()
    model(batch.to(last.device)).square().mean().backward()
    if step % 3 == 1:
        last.grad = None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_its_steps_are_those_of_torch(schedule: Schedule, device: str) -> None:
    mine, other = network(device), network(device)
    own = Optimiser(list(mine.parameters()), schedule, 1.0, torch.device(device))
    reference = torchs(list(other.parameters()), schedule, device)
    for step, rate in enumerate(RATES):
        own.set_rate(rate)
        for group in reference.param_groups:
            group["lr"] = group["lr"].fill_(rate) if device == "cuda" else rate
        for model, optimiser in ((mine, own), (other, reference)):
            optimiser.zero_grad()
            add_gradients(model, step)
            optimiser.step()
        for found, wanted in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(found, wanted), step
            kept = {name: value for name, value in reference.state[wanted].items() if value is not None}
            assert own.state[found].keys() == kept.keys()
            assert all(torch.equal(own.state[found][name], value) for name, value in kept.items()), step
    own.forget()
    assert not any(value.any() for value in own.tensors())


def test_training_loads_no_compiler() -> None:
    """It takes over a second, in every process that trains, and nothing is compiled."""
    done = subprocess.run([sys.executable, "-c", PHASES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch\n"
