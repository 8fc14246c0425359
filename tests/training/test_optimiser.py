"""The optimisers take the steps of those of `torch.optim`, to the byte, and load no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from poise.training import Schedule
from poise.training.optimiser import Optimiser

SCHEDULES = {
    "sgd": Schedule(),
    "plain sgd": Schedule(momentum=0, weight_decay=0),
    "adamw": Schedule(optimiser="adamw", weight_decay=0.01),
}
RATES = (0.1, 0.1, 0.05, 0.0, 0.01, 0.01)
CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

# Runs with either optimiser and with trials, each stopped in its second phase and resumed; then what was loaded.
RUNS = """
import sys
from contextlib import suppress
from pathlib import Path
from poise.errors import Interrupted
from poise.runs import Run, RunFolder, load_recipe, make_plan
from poise.runs.stopping import Stop

def run(stop, *words):
    recipe = load_recipe("digits/lucir", ["groups=[2,1]", "epochs=1", "batch=64", *words])
    return Run(make_plan("digits/lucir", recipe), RunFolder(Path(words[0])), stop=stop)

for words in ("policy=fixed",), ("policy=online", "optimiser=adamw"):
    first = run(Stop(), *words)
    with suppress(Interrupted):
        for images in first.starting():
            if first.findings.exams and images:
                first.stop.set()
    assert not Path(words[0], "result.json").exists()
    assert run(Stop(), *words).resume()
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


def test_without_a_gradient_nothing_moves() -> None:
    model = network("cpu")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for schedule in SCHEDULES.values():
        optimiser = Optimiser(list(model.parameters()), schedule, 0.1, CPU)
        add_gradients(model, 0)
        optimiser.zero_grad()
        optimiser.step()
        assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_what_is_forgotten_is_as_at_the_beginning(schedule: Schedule) -> None:
    model, again = network("cpu"), network("cpu")
    optimiser = Optimiser(list(model.parameters()), schedule, 0.1, CPU)
    saved = sorted((kind, name) for kind, name, _ in optimiser.named(model))
    add_gradients(model, 0)
    optimiser.step()
    assert any(value.any() for value in optimiser.tensors()) == (schedule.momentum > 0)
    optimiser.forget()
    assert not any(value.any() for value in optimiser.tensors())
    assert sorted((kind, name) for kind, name, _ in optimiser.named(model)) == saved
    model.load_state_dict(again.state_dict())
    for each, its_own in ((model, optimiser), (again, Optimiser(list(again.parameters()), schedule, 0.1, CPU))):
        its_own.zero_grad()
        add_gradients(each, 1)
        its_own.step()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), again.parameters(), strict=True))


def test_training_loads_no_compiler(tmp_path: Path) -> None:
    """It takes over a second, in every process that trains, and nothing is compiled."""
    done = subprocess.run([sys.executable, "-c", RUNS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch\n"
