"""Batch statistics of the whole batch, where each rank has a part of it: for every network, whoever made it.

With these, a step on several ranks is the step of one process, to within rounding; without them (the usual way) each
rank normalises by the statistics of its own part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from poise.nets import BatchNorm, Model
from poise.training.world import World


def moving_statistics(model: Model) -> list[Tensor]:
    """The running statistics that a training step of this model moves."""
    norms = [each for each in model.modules() if isinstance(each, _NormBase) and each.training]
    found = [value for norm in norms for value in (norm.running_mean, norm.running_var)]
    return [value for value in found if value is not None]


def unfuse(model: Model) -> None:
    """Let batch norms be computed by torch's own function, which `WholeBatch` replaces."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.fuses = False


class WholeBatch(TorchFunctionMode):
    """Inside of it, batch norm in training mode is that of the whole batch: this rank's part weighs `weight` in it."""

    def __init__(self, world: World, weight: float, images: int) -> None:
        super().__init__()
        self._world, self._weight, self._images = world, weight, images

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Batch norm in training mode, or the function as it is."""
        if func is F.batch_norm:
            given = inspect.signature(F.batch_norm).bind(*args, **(kwargs or {}))
            given.apply_defaults()
            if given.arguments.pop("training"):
                return self._normalise(**given.arguments)
        return func(*args, **(kwargs or {}))

    def _normalise(
        self,
        input: Tensor,  # noqa: A002 - the names of torch's function
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """(x − μ) / √(σ² + ε) · weight + bias: μ = Σ w_r μ_r, σ² = Σ w_r (σ_r² + (μ_r − μ)²), over ranks r."""
        values, shape = input.float(), (1, -1, *(1,) * (input.ndim - 2))
        variance, mean = torch.var_mean(values, (0, *range(2, input.ndim)), correction=0)
        own = torch.stack([mean, variance, torch.full_like(mean, self._weight)])
        before = own.new_zeros(self._world.rank, *own.shape)
        after = own.new_zeros(self._world.size - self._world.rank - 1, *own.shape)
        everybody: Tensor = _Summed.apply(torch.cat([before, own[None], after]), self._world)  # type: ignore[no-untyped-call]
        means, variances, weights = everybody.unbind(1)
        mean = (weights * means).sum(dim=0)
        variance = (weights * (variances + (means - mean).square())).sum(dim=0)
        if running_mean is not None and running_var is not None:
            count = self._images * input[0, 0].numel()
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((variance * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
        scale = torch.rsqrt(variance + eps)
        y = (values - mean.view(shape)) * (scale if weight is None else scale * weight).view(shape)
        return (y if bias is None else y + bias.view(shape)).to(input.dtype)


class _Summed(torch.autograd.Function):
    """A sum over all ranks. The loss is one too, so the gradient of a rank's own part is summed in the same way."""

    @staticmethod
    def forward(context: Any, values: Tensor, world: World) -> Tensor:  # noqa: ANN401 - torch's own
        context.world = world
        found = values.clone()
        world.sum_(found)
        return found

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's own
        found = gradient.contiguous().clone()
        context.world.sum_(found)
        return found, None
