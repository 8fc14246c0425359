"""The optimisers: what they keep for each parameter is there from the start, so that it can be saved and captured.

They call the functions that `torch.optim` has for each algorithm. Its classes load PyTorch's compiler as soon as one of
them is made, which takes longer than a short training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from poise.errors import LARGEST_NUMBER
from poise.training.schedule import Schedule

#: What an optimiser keeps for a parameter, by torch's names, and the names under which poise saves it.
_KEPT = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "square", "step": "steps"}


class Optimiser(ABC):
    """Moves parameters along their gradients.

    Attributes:
        param_groups: parameters (`params`) with the name of their part (`part`) and their learning rate (`lr`).
        state: what is kept for each parameter, by torch's names.
    """

    def __init__(self, groups: list[dict[str, Any]], schedule: Schedule, device: torch.device) -> None:
        self.param_groups, self._schedule, self._on_gpu = groups, schedule, device.type == "cuda"
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {
            parameter: self._kept_at_first(parameter) for group in groups for parameter in group["params"]
        }

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            self._move([parameter for parameter in group["params"] if parameter.grad is not None], group["lr"])

    def _kept_values(self, name: str, trained: list[nn.Parameter]) -> list[Any]:
        return [self.state[parameter][name] for parameter in trained]

    @abstractmethod
    def _kept_at_first(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What is kept for a parameter, before the first step."""

    @abstractmethod
    def _move(self, trained: list[nn.Parameter], rate: Any) -> None:  # noqa: ANN401 - torch names one of its two types
        """Move these parameters, which have gradients, at this learning rate: a number, or a tensor on the device."""


class SGD(Optimiser):
    """SGD with momentum: m ← µ m + g + λ θ, θ ← θ - η m. Momentum that starts at zero takes the same first step."""

    def _kept_at_first(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return {"momentum_buffer": _zeros_like(parameter)} if self._schedule.momentum else {}

    def _move(self, trained: list[nn.Parameter], rate: Any) -> None:  # noqa: ANN401
        sgd(
            [*trained],
            _gradients(trained),
            self._kept_values("momentum_buffer", trained) if self._schedule.momentum else [],
            fused=self._on_gpu,
            weight_decay=self._schedule.weight_decay,
            momentum=self._schedule.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class AdamW(Optimiser):
    """AdamW (Loshchilov and Hutter, ICLR 2019), with the schedule's momentum as β₁."""

    def _kept_at_first(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": _zeros_like(parameter),
            "exp_avg_sq": _zeros_like(parameter),
        }

    def _move(self, trained: list[nn.Parameter], rate: Any) -> None:  # noqa: ANN401
        adamw(
            [*trained],
            _gradients(trained),
            self._kept_values("exp_avg", trained),
            self._kept_values("exp_avg_sq", trained),
            [],
            self._kept_values("step", trained),
            fused=True,
            capturable=self._on_gpu,
            amsgrad=False,
            beta1=self._schedule.momentum,
            beta2=0.999,
            lr=rate,
            weight_decay=self._schedule.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def _zeros_like(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _gradients(trained: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in trained if parameter.grad is not None]


def make_optimiser(
    trained: Iterable[nn.Parameter],
    schedule: Schedule,
    lr: float,
    device: torch.device,
    *,
    parts: Mapping[str, Iterable[nn.Parameter]] | None = None,
) -> Optimiser:
    """The optimiser that the schedule names. On a GPU the learning rate is a tensor there, for captured steps.

    Every one of these `parts` may learn at a rate of its own, see `set_rate`.
    """
    groups = _groups(list(trained), parts or {})
    for group in groups:
        group["lr"] = torch.tensor(lr, dtype=torch.float32, device=device) if device.type == "cuda" else lr
    return (AdamW if schedule.optimiser == "adamw" else SGD)(groups, schedule, device)


def _groups(parameters: list[nn.Parameter], parts: Mapping[str, Iterable[nn.Parameter]]) -> list[dict[str, Any]]:
    """A group for what belongs to no part, and one for each part that is trained."""
    part_of = {id(each): name for name, members in parts.items() for each in members}
    members: dict[str, list[nn.Parameter]] = {name: [] for name in ("", *parts)}
    for each in parameters:
        members[part_of.get(id(each), "")].append(each)
    return [{"params": found, "part": name} for name, found in members.items() if found]


def set_rate(optimiser: Optimiser, rate: float, ratios: Mapping[str, float] | None = None) -> None:
    """Set the learning rate, in place where it lives on a device; of parts by their ratio to it, where one is given."""
    for group in optimiser.param_groups:
        product = rate * (ratios or {}).get(group["part"], 1.0)
        own = min(product, LARGEST_NUMBER)  # of two large numbers the product may not fit into float32
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def kept_tensors(optimiser: Optimiser) -> list[Tensor]:
    """All that it keeps besides the parameters."""
    return [value for state in optimiser.state.values() for value in state.values()]


def named_tensors(optimiser: Optimiser, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """What it keeps for each parameter: the kind under which it is saved, the parameter's name, the value."""
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            yield _KEPT[key], name, value


def forget(optimiser: Optimiser) -> None:
    """Begin again: nothing is kept of earlier steps."""
    for value in kept_tensors(optimiser):
        value.zero_()
