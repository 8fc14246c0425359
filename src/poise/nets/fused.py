"""Kernels of our own for a GPU: batch norm with what follows it (the shortcut's addition, ReLU), and thin convolutions.

A training step on small images is made of many short kernels. Batch norm, addition and ReLU are two of them forward and
two backward here; a 3×3 convolution of few channels is one (`thin.py`). Sums are taken in a fixed order, so
that the same input gives the same bytes. Imported only where a GPU is used: Triton comes with most of PyTorch's GPU
builds. Where it is missing, the networks use torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from poise.nets.thin import convolve_thin, convolve_thin_and_add, try_out

__all__ = ["convolve_thin", "convolve_thin_and_add", "normalise", "try_out"]

PARTIAL = 4096  # values of one sum that all programs together leave to be added up
TILE = 8192  # values a program holds at a time
# Of inputs with more values than `LARGE`, as those of ImageNet's images are, more programs take the sums, which would
# cost more to add up in each program of the next kernel than to merge into few before it.
LARGE = 2**23
LARGE_PARTIAL = 65536
MERGED = 4  # sums that are left of those of all programs


@triton.jit(do_not_specialize=["count"])
def _sum_forward(x, centre, sums, count, groups: tl.constexpr, width: tl.constexpr, rows: tl.constexpr):
    """Sums of x − centre and of its square over the rows of each program; the centre is copied behind the sums."""
    program = tl.program_id(0)
    columns = tl.arange(0, width)
    middle = tl.load(centre + columns)
    first = tl.zeros([rows, width], tl.float32)
    second = tl.zeros([rows, width], tl.float32)
    for begin in range(program * rows, count, groups * rows):
        at = begin + tl.arange(0, rows)
        inside = (at < count)[:, None]
        values = tl.load(x + at[:, None] * width + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        off = tl.where(inside, values - middle[None, :], 0.0)
        first += off
        second += off * off
    tl.store(sums + program * width + columns, tl.sum(first, 0))
    tl.store(sums + (groups + program) * width + columns, tl.sum(second, 0))
    if program == 0:
        tl.store(sums + 2 * groups * width + columns, middle)


@triton.jit
def _merge(sums, merged, groups: tl.constexpr, parts: tl.constexpr, width: tl.constexpr, centred: tl.constexpr):
    """Both sums over all programs as `parts` sums each, in a fixed order; if `centred`, what lies behind is kept."""
    program = tl.program_id(0)
    columns = tl.arange(0, width)
    each: tl.constexpr = groups // parts
    places = (program * each + tl.arange(0, each))[:, None] * width + columns[None, :]
    tl.store(merged + program * width + columns, tl.sum(tl.load(sums + places), 0))
    if centred:  # noqa: SIM102 - known when it is compiled, the other one is not
        if program == 0:
            tl.store(merged + 2 * parts * width + columns, tl.load(sums + 2 * groups * width + columns))


def _few_sums(sums: Tensor, groups: int, width: int, *, centred: bool) -> tuple[Tensor, int]:
    """The sums of so many programs, and how many there are: as they are, or merged where they are too many."""
    if groups * width <= PARTIAL:
        return sums, groups
    merged = torch.empty((2 * MERGED + centred) * width, dtype=torch.float32, device=sums.device)
    _merge[(2 * MERGED,)](sums, merged, groups, MERGED, width, centred)
    return merged, MERGED


def _groups(x: Tensor) -> int:
    """How many programs take the sums over the pixels of these images."""
    return (LARGE_PARTIAL if x.numel() > LARGE else PARTIAL) // x.shape[1]


@triton.jit
def _sum_over_programs(sums, groups: tl.constexpr, width: tl.constexpr, which: tl.constexpr):
    """One of the two sums over all programs."""
    places = (which * groups + tl.arange(0, groups))[:, None] * width + tl.arange(0, width)[None, :]
    return tl.sum(tl.load(sums + places), 0)


@triton.jit(do_not_specialize=["count", "adds", "relu"])
def _apply_forward(
    x,
    shortcut,
    y,
    sums,
    weight,
    bias,
    statistics,
    running_mean,
    running_variance,
    count,
    eps,
    momentum,
    adds,
    relu,
    groups: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """Normalise, add the shortcut, cut at zero; the first program leaves the statistics."""
    program = tl.program_id(0)
    columns = tl.arange(0, width)
    off = _sum_over_programs(sums, groups, width, 0) / count
    variance = tl.maximum(_sum_over_programs(sums, groups, width, 1) / count - off * off, 0.0)
    mean = tl.load(sums + 2 * groups * width + columns) + off
    inverse = 1.0 / tl.sqrt(variance + eps)
    if program == 0:
        tl.store(statistics + columns, mean)
        tl.store(statistics + width + columns, inverse)
        before = tl.load(running_mean + columns)
        tl.store(running_mean + columns, before + momentum * (mean - before))
        before = tl.load(running_variance + columns)
        unbiased = variance * (count / (count - 1))
        tl.store(running_variance + columns, before + momentum * (unbiased - before))
    scale = tl.load(weight + columns) * inverse
    shift = tl.load(bias + columns) - mean * scale
    at = program * rows + tl.arange(0, rows)
    inside = (at < count)[:, None]
    places = at[:, None] * width + columns[None, :]
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    values += tl.load(shortcut + places, mask=inside & (adds != 0), other=0.0).to(tl.float32)
    values = tl.where(relu != 0, tl.maximum(values, 0.0), values)
    tl.store(y + places, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _relu_backward(gradient, y, normal, weight, bias, places, inside, adds, relu):
    """The gradient behind the ReLU; without a shortcut its input is what was normalised."""
    values = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    out = tl.load(y + places, mask=inside & (adds != 0), other=0.0).to(tl.float32)
    out = tl.where(adds != 0, out, normal * weight[None, :] + bias[None, :])
    return tl.where((out > 0.0) | (relu == 0), values, 0.0)


@triton.jit(do_not_specialize=["count", "adds", "relu"])
def _sum_backward(
    gradient,
    y,
    x,
    statistics,
    weights,
    biases,
    sums,
    count,
    adds,
    relu,
    groups: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """Sums of the gradient and of its product with the normalised input over the rows of each program."""
    program = tl.program_id(0)
    columns = tl.arange(0, width)
    mean, inverse = tl.load(statistics + columns), tl.load(statistics + width + columns)
    weight, bias = tl.load(weights + columns), tl.load(biases + columns)
    first = tl.zeros([rows, width], tl.float32)
    second = tl.zeros([rows, width], tl.float32)
    for begin in range(program * rows, count, groups * rows):
        at = begin + tl.arange(0, rows)
        inside = (at < count)[:, None]
        places = at[:, None] * width + columns[None, :]
        values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        normal = (values - mean[None, :]) * inverse[None, :]
        passed = _relu_backward(gradient, y, normal, weight, bias, places, inside, adds, relu)
        first += passed
        second += passed * normal
    tl.store(sums + program * width + columns, tl.sum(first, 0))
    tl.store(sums + (groups + program) * width + columns, tl.sum(second, 0))


@triton.jit(do_not_specialize=["count", "adds", "relu"])
def _apply_backward(
    gradient,
    y,
    x,
    statistics,
    weights,
    biases,
    sums,
    to_x,
    to_shortcut,
    to_weight,
    to_bias,
    count,
    adds,
    relu,
    groups: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """The gradients of the input and, behind a ReLU, of the shortcut; the first program leaves those of the scales."""
    program = tl.program_id(0)
    columns = tl.arange(0, width)
    first, second = _sum_over_programs(sums, groups, width, 0), _sum_over_programs(sums, groups, width, 1)
    if program == 0:
        tl.store(to_bias + columns, first)
        tl.store(to_weight + columns, second)
    mean, inverse = tl.load(statistics + columns), tl.load(statistics + width + columns)
    weight, bias = tl.load(weights + columns), tl.load(biases + columns)
    at = program * rows + tl.arange(0, rows)
    inside = (at < count)[:, None]
    places = at[:, None] * width + columns[None, :]
    normal = (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    passed = _relu_backward(gradient, y, normal, weight, bias, places, inside, adds, relu)
    beside = inside & (adds != 0) & (relu != 0)
    tl.store(to_shortcut + places, passed.to(to_shortcut.dtype.element_ty), mask=beside)
    found = (passed - (first / count)[None, :] - normal * (second / count)[None, :]) * (weight * inverse)[None, :]
    tl.store(to_x + places, found.to(to_x.dtype.element_ty), mask=inside)


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,  # noqa: ANN401
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_variance: Tensor,
        eps: float,
        momentum: float,
        relu: bool,
    ) -> Tensor:
        width = x.shape[1]
        count, groups, rows = x.numel() // width, _groups(x), TILE // width
        sums = torch.empty((2 * groups + 1) * width, dtype=torch.float32, device=x.device)
        statistics = torch.empty(2, width, dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        _sum_forward[(groups,)](x, running_mean, sums, count, groups, width, rows // 2)
        sums, groups = _few_sums(sums, groups, width, centred=True)
        _apply_forward[(triton.cdiv(count, rows),)](
            x,
            x if shortcut is None else shortcut,
            y,
            sums,
            weight,
            bias,
            statistics,
            running_mean,
            running_variance,
            count,
            eps,
            momentum,
            int(shortcut is not None),
            int(relu),
            groups,
            width,
            rows,
        )
        context.adds, context.relu = shortcut is not None, relu
        context.save_for_backward(x, y if relu and shortcut is not None else None, weight, bias, statistics)
        return y

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, y, weight, bias, statistics = context.saved_tensors
        adds, relu = context.adds, context.relu
        gradient = gradient.to(x.dtype).contiguous(memory_format=torch.channels_last)
        width = x.shape[1]
        count, groups, rows = x.numel() // width, _groups(x), TILE // width
        sums = torch.empty(2 * groups * width, dtype=torch.float32, device=x.device)
        to_x, to_weight, to_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        to_shortcut = torch.empty_like(x) if adds and relu else gradient
        known = gradient, x if y is None else y, x, statistics, weight, bias
        _sum_backward[(groups,)](*known, sums, count, int(adds), int(relu), groups, width, rows // 2)
        sums, groups = _few_sums(sums, groups, width, centred=False)
        _apply_backward[(triton.cdiv(count, rows),)](
            *known, sums, to_x, to_shortcut, to_weight, to_bias, count, int(adds), int(relu), groups, width, rows
        )
        return to_x, to_shortcut if adds else None, to_weight, to_bias, None, None, None, None, None


def normalise(
    x: Tensor,
    shortcut: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    *,
    eps: float,
    momentum: float,
    relu: bool,
) -> Tensor:
    """Batch norm in training mode, plus `shortcut`, cut at zero if `relu`; moves the running statistics.

    For images [B, C, H, W] laid out channels last, C a power of two from 8 to 1024.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    if shortcut is not None:
        shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    statistics = running_mean, running_variance
    with torch.cuda.device_of(x):  # Triton launches on the current one; backward is on the right one anyway
        found: Tensor = _Normalised.apply(x, shortcut, weight, bias, *statistics, eps, momentum, relu)
    return found
