"""How long and how hard a phase trains: its schedule, and the optimiser that moves the weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from poise.errors import LARGEST_NUMBER
from poise.methods import Method, Stage
from poise.settings import ScheduleKeys, ceiling

MAIN, BALANCE = Stage().name, Method.balancing.name

#: What an optimiser keeps for a parameter, by torch's names, and the names under which poise saves it.
_KEPT = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "square", "step": "steps"}


class Schedule(ScheduleKeys):
    """How long and how hard a phase trains, whatever the action: the keys of `poise.settings`, and what they mean."""

    def apply_to(self, stage: Stage) -> Stage:
        """A stage of the method with what the schedule says of its length, its milestones and its learning rate.

        >>> Schedule(balance_share=2 / 9).apply_to(Stage("balance", share=1 / 8)).epochs(90)
        20
        """
        if stage.name == BALANCE:
            share = stage.share if self.balance_share is None else self.balance_share
            return replace(stage, share=share, lr=stage.lr if self.balance_lr is None else self.balance_lr)
        if stage.name == MAIN and self.milestones is not None and not stage.keeps_milestones:
            stage = replace(stage, milestones=self.milestones, cosine=False)
        return stage

    def with_epochs(self, epochs: float | None) -> Schedule:
        """The schedule with another number of epochs, if one is given."""
        return self if epochs is None else self.replace(epochs=max(1, round(epochs)))

    def scaled_to(self, images: int) -> Schedule:
        """The schedule of a phase of so many images: with a quarter of them twice the epochs, and so half the steps.

        >>> Schedule(epochs=60, images=200).scaled_to(800).epochs, Schedule(epochs=60).scaled_to(800).epochs
        (30, 60)
        """
        if self.images is None:
            return self
        paced = min(2.0, math.sqrt(self.images / max(images, 1))) * self.epochs
        return self.with_epochs(max(paced, min(self.epochs, 30)))

    def rate(self, stage: Stage, epoch: int, epochs: int, lr: float) -> float:
        """The learning rate in `epoch` (from 0) of `epochs` of a stage, which starts at `lr` or at its own.

        >>> [round(Schedule().rate(Stage(), epoch, 160, 0.1), 3) for epoch in (0, 79, 80, 119, 120)]
        [0.1, 0.1, 0.01, 0.01, 0.001]
        >>> rates = Schedule(decay="cosine", warmup=0.2)
        >>> [round(rates.rate(Stage(), epoch, 10, 1.0), 2) for epoch in (0, 1, 2, 9)]
        [0.33, 0.65, 0.9, 0.02]
        """
        always = self.decay == "cosine"  # and then without milestones
        passed = sum(epoch >= ceiling(share * epochs) for share in stage.milestones if not always)
        wave = (1 + math.cos(math.pi * epoch / epochs)) / 2 if always or stage.cosine else 1.0
        rise = min(1.0, (epoch + 1) / ceiling(stage.warmup * epochs)) if stage.warmup else 1.0
        start = lr if stage.lr is None else stage.lr
        rising = ceiling(self.warmup * epochs)
        return float(start * 0.1**passed * wave * rise) * min(1.0, (epoch + 1) / (rising + 1))


class Optimiser:
    """Moves parameters along their gradients: by SGD with momentum, or by AdamW where the schedule says so.

    SGD: m ← µ m + g + λ θ, θ ← θ - η m; momentum that starts at zero takes the first step that torch's takes without.
    AdamW (Loshchilov and Hutter, ICLR 2019) has the schedule's momentum as β₁.

    What it keeps for each parameter is there from the start, so that it can be saved and captured. It calls the
    functions that `torch.optim` has for each algorithm. Its classes load PyTorch's compiler as soon as one of them is
    made, which takes longer than a short training.

    Args:
        parameters: those of a model; only those that need a gradient are trained.
        schedule: the algorithm, its momentum and its weight decay,
        weight_decay: replaces the schedule's, if it is given.
        lr: the learning rate. On a GPU it is a tensor there, for captured steps.
        device: where the parameters are.
        parts: by name, parameters that may learn at a rate of their own.

    Attributes:
        param_groups: parameters (`params`) with the name of their part (`part`) and their learning rate (`lr`).
        state: what is kept for each parameter, by torch's names.
        ratios: the learning rates of parts as multiples of the others'.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        schedule: Schedule,
        lr: float,
        device: torch.device,
        *,
        weight_decay: float | None = None,
        parts: Mapping[str, Iterable[nn.Parameter]] = MappingProxyType({}),
    ) -> None:
        self._on_gpu, self._adam = device.type == "cuda", schedule.optimiser == "adamw"
        self._momentum = schedule.momentum
        self._keys = ("step", "exp_avg", "exp_avg_sq") if self._adam else ("momentum_buffer",) * bool(self._momentum)
        self._decay = schedule.weight_decay if weight_decay is None else weight_decay
        self.ratios: Mapping[str, float] = {}
        part_of, members = dict[int, str](), defaultdict[str, list[nn.Parameter]](list)
        for part, others in parts.items():
            part_of.update(dict.fromkeys(map(id, others), part))
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            members[part_of.get(id(parameter), "")].append(parameter)
            kept = self.state[parameter] = {}
            for key in self._keys:
                like = torch.empty((), dtype=torch.float32, device=parameter.device) if key == "step" else parameter
                kept[key] = torch.zeros_like(like, requires_grad=False)
        self.param_groups: list[dict[str, Any]] = []
        for part, found in members.items():
            rate = torch.tensor(lr, dtype=torch.float32, device=device) if self._on_gpu else lr
            self.param_groups.append({"params": found, "part": part, "lr": rate})

    def set_rate(self, rate: float) -> None:
        """Set the learning rate, in place where it lives on a device; of some parts to a multiple of it."""
        for group in self.param_groups:
            # of two large numbers the product may not fit into float32
            own = min(rate * self.ratios.get(group["part"], 1.0), LARGEST_NUMBER)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.state:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients: list[Tensor] = [parameter.grad for parameter in trained]
            kept: dict[str, Any] = {key: [self.state[each][key] for each in trained] for key in self._keys}
            common: dict[str, Any] = {"lr": group["lr"], "weight_decay": self._decay, "maximize": False}
            if self._adam:
                moments = kept["exp_avg"], kept["exp_avg_sq"]
                common |= {"beta1": self._momentum, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
                adamw(trained, gradients, *moments, [], kept["step"], fused=True, capturable=self._on_gpu, **common)
            else:
                common |= {"momentum": self._momentum, "dampening": 0.0, "nesterov": False}
                sgd(trained, gradients, kept.get("momentum_buffer", []), fused=self._on_gpu, **common)

    def tensors(self) -> list[Tensor]:
        """All tensors that the optimiser keeps besides the parameters."""
        return [value for kept in self.state.values() for value in kept.values()]

    def named(self, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
        """The optimiser's state by parameter: the kind under which it is saved, the parameter's name, the value."""
        for name, parameter in model.named_parameters():
            for key, value in self.state.get(parameter, {}).items():
                yield _KEPT[key], name, value

    def forget(self) -> None:
        """Begin again: nothing is kept of earlier steps."""
        for value in self.tensors():
            value.zero_()
