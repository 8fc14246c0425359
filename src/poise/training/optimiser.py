"""The optimisers: what they keep for each parameter is there from the start, so that it can be saved and captured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    parts: Mapping[str, Iterable[nn.Parameter]] | None = None,
) -> torch.optim.Optimizer:
    """The optimiser that the schedule names. On a GPU the learning rate is a tensor there, for captured steps.

    Every one of these `parts` may learn at a rate of its own, see `set_rate`.
    """
    on_gpu = device.type == "cuda"
    parameters = list(trained)
    rate = torch.tensor(lr, dtype=torch.float32, device=device) if on_gpu else lr
    groups = _groups(parameters, parts or {})
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
                "step": torch.zeros((), dtype=torch.float32, device=device),
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


def _groups(parameters: list[nn.Parameter], parts: Mapping[str, Iterable[nn.Parameter]]) -> list[dict[str, Any]]:
    """A group for what belongs to no part, and one for each part that is trained."""
    part_of = {id(each): name for name, members in parts.items() for each in members}
    members: dict[str, list[nn.Parameter]] = {name: [] for name in ("", *parts)}
    for each in parameters:
        members[part_of.get(id(each), "")].append(each)
    return [{"params": found, "part": name} for name, found in members.items() if found]


def set_rate(optimiser: torch.optim.Optimizer, rate: float, ratios: Mapping[str, float] | None = None) -> None:
    """Set the learning rate, in place where it lives on a device; of parts by their ratio to it, where one is given."""
    for group in optimiser.param_groups:
        product = rate * (ratios or {}).get(group["part"], 1.0)
        own = min(product, LARGEST_NUMBER)  # of two large numbers the product may not fit into float32
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
