"""The optimisers: what they keep for each parameter is there from the start, so that it can be saved and captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from poise.training.schedule import Schedule

#: What an optimiser keeps for a parameter, by torch's names, and the names under which poise saves it.
_KEPT = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "square", "step": "steps"}


def make_optimiser(
    trained: Iterable[nn.Parameter], schedule: Schedule, lr: float, device: torch.device
) -> torch.optim.Optimizer:
    """The optimiser that the schedule names. On a GPU the learning rate is a tensor there, for captured steps."""
    on_gpu = device.type == "cuda"
    parameters = list(trained)
    rate = torch.tensor(lr, device=device) if on_gpu else lr
    if schedule.optimiser == "adamw":
        optimiser: torch.optim.Optimizer = torch.optim.AdamW(
            parameters,
            lr=rate,
            betas=(schedule.momentum, 0.999),
            weight_decay=schedule.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        for parameter in parameters:
            optimiser.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
        return optimiser
    optimiser = torch.optim.SGD(
        parameters, lr=rate, momentum=schedule.momentum, weight_decay=schedule.weight_decay, fused=on_gpu
    )
    for parameter in parameters if schedule.momentum else ():
        # momentum that starts at zero takes the same first step as none at all
        optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place where it lives on a device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def kept_tensors(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """All that it keeps besides the parameters."""
    return [value for state in optimiser.state.values() for value in state.values() if isinstance(value, Tensor)]


def named_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """What it keeps for each parameter: the kind under which it is saved, the parameter's name, the value."""
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield _KEPT[key], name, value


def forget(optimiser: torch.optim.Optimizer) -> None:
    """Begin again: nothing is kept of earlier steps."""
    for value in kept_tensors(optimiser):
        value.zero_()
