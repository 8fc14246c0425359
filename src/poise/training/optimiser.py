"""The optimisers: what they keep for each parameter is there from the start, so that it can be saved and captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from poise.errors import LARGEST_NUMBER
from poise.training.schedule import Schedule

#: What an optimiser keeps for a parameter, by torch's names, and the names under which poise saves it.
_KEPT = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "square", "step": "steps"}


def make_optimiser(
    trained: Iterable[nn.Parameter],
    schedule: Schedule,
    lr: float,
    device: torch.device,
    *,
    slow: Iterable[nn.Parameter] = (),
    ratio: float = 1.0,
) -> torch.optim.Optimizer:
    """The optimiser that the schedule names. On a GPU the learning rate is a tensor there, for captured steps.

    Parameters that are `slow` learn at `ratio` times the rate of the others.
    """
    on_gpu = device.type == "cuda"
    parameters = list(trained)
    rate = torch.tensor(lr, device=device) if on_gpu else lr
    groups = _groups(parameters, {id(each) for each in slow}, ratio)
    for group in groups[1:]:  # a rate of its own to fill in
        group["lr"] = rate.clone() if isinstance(rate, Tensor) else rate
    if schedule.optimiser == "adamw":
        optimiser: torch.optim.Optimizer = torch.optim.AdamW(
            groups,
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
        groups, lr=rate, momentum=schedule.momentum, weight_decay=schedule.weight_decay, fused=on_gpu
    )
    for parameter in parameters if schedule.momentum else ():
        # momentum that starts at zero takes the same first step as none at all
        optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    return optimiser


def _groups(parameters: list[nn.Parameter], slow: set[int], ratio: float) -> list[dict[str, Any]]:
    """One group, or two where some are slow; the slow ones come later, so that the first rate is the head's."""
    if ratio == 1 or not slow:
        return [{"params": parameters}]
    parts = ([each for each in parameters if (id(each) in slow) is late] for late in (False, True))
    groups = [{"params": part, "ratio": each} for part, each in zip(parts, (1.0, ratio), strict=True)]
    return [group for group in groups if group["params"]]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place where it lives on a device; of slow parameters by their ratio to it."""
    for group in optimiser.param_groups:
        own = min(rate * group.get("ratio", 1.0), LARGEST_NUMBER)  # the product of two may not fit: it diverges anyway
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


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
