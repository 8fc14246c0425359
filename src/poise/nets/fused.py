"""Kernels of our own for a GPU: batch norm with what follows it (the shortcut's addition, ReLU), and thin convolutions.

A training step on small images is made of many short kernels. Batch norm, addition and ReLU are two of them forward and
two backward here; a 3×3 convolution of few channels, where cuDNN's are slow, is one. Sums are taken in a fixed order,
so that the same input gives the same bytes. Imported only where a GPU is used: Triton comes with most of PyTorch's GPU
builds. Where it is missing, the networks use torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

# Batch norm and what follows it ---------------------------------------------------------------------------------------

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
        moved, numbers = (statistics, running_mean, running_variance), (count, eps, momentum)
        images, flags = (x, x if shortcut is None else shortcut, y), (int(shortcut is not None), int(relu))
        _apply_forward[(triton.cdiv(count, rows),)](
            *images, sums, weight, bias, *moved, *numbers, *flags, groups, width, rows
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


# Thin convolutions ----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["count", "mirrored", "biased", "adds", "relu"])
def _convolve(
    x,
    weights,
    biases,
    shortcut,
    y,
    count,
    mirrored,
    biased,
    adds,
    relu,
    height: tl.constexpr,
    length: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """A 3×3 convolution, nine products of a tile of pixels with one tap; `mirrored`: its gradient by the input.

    `biased`: with bias; `adds`: plus the shortcut; `relu`: cut at zero.
    """
    at = tl.program_id(0) * rows + tl.arange(0, rows)
    row, column = (at // length) % height, at % length
    channels = tl.arange(0, width)
    total = tl.zeros([rows, width], tl.float32)
    by_input = tl.where(mirrored != 0, 9 * width, 1)
    by_output = tl.where(mirrored != 0, 1, 9 * width)
    first = weights + channels[:, None] * by_input + channels[None, :] * by_output
    for down in tl.static_range(3):
        for right in tl.static_range(3):
            there_row, there_column = row + (down - 1), column + (right - 1)
            inside = (there_row >= 0) & (there_row < height) & (there_column >= 0) & (there_column < length)
            inside = inside & (at < count)
            there = at + (down - 1) * length + (right - 1)
            values = tl.load(x + there[:, None] * width + channels[None, :], mask=inside[:, None], other=0.0)
            tap = tl.where(mirrored != 0, 8 - 3 * down - right, 3 * down + right)
            total = tl.dot(values, tl.load(first + tap * width), total)
    places = at[:, None] * width + channels[None, :]
    known = (at < count)[:, None]
    total += tl.load(biases + channels, mask=(channels < width) & (biased != 0), other=0.0).to(tl.float32)[None, :]
    total += tl.load(shortcut + places, mask=known & (adds != 0), other=0.0).to(tl.float32)
    total = tl.where(relu != 0, tl.maximum(total, 0.0), total)
    tl.store(y + places, total.to(y.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["count"])
def _convolve_weights(
    x,
    gradient,
    sums,
    count,
    groups: tl.constexpr,
    height: tl.constexpr,
    length: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """The gradient of three taps over the pixels of each program."""
    program, down = tl.program_id(0), tl.program_id(1)
    channels = tl.arange(0, width)
    left = tl.zeros([width, width], tl.float32)
    middle = tl.zeros([width, width], tl.float32)
    right = tl.zeros([width, width], tl.float32)
    for begin in range(program * rows, count, groups * rows):
        at = begin + tl.arange(0, rows)
        row, column = (at // length) % height + (down - 1), at % length
        known = at < count
        inside = known & (row >= 0) & (row < height)
        there = (at + (down - 1) * length)[:, None] * width + channels[None, :]
        given = tl.load(gradient + at[:, None] * width + channels[None, :], mask=known[:, None], other=0.0)
        given = tl.trans(given)
        values = tl.load(x + there - width, mask=(inside & (column > 0))[:, None], other=0.0)
        left = tl.dot(given, values, left)
        values = tl.load(x + there, mask=inside[:, None], other=0.0)
        middle = tl.dot(given, values, middle)
        values = tl.load(x + there + width, mask=(inside & (column < length - 1))[:, None], other=0.0)
        right = tl.dot(given, values, right)
    places = sums + program * (9 * width * width) + channels[:, None] * (9 * width) + channels[None, :]
    tl.store(places + (3 * down) * width, left)
    tl.store(places + (3 * down + 1) * width, middle)
    tl.store(places + (3 * down + 2) * width, right)


@triton.jit
def _add_up(sums, y, groups: tl.constexpr, size: tl.constexpr, columns: tl.constexpr):
    """The sum over all programs, in their order."""
    at = tl.program_id(0) * columns + tl.arange(0, columns)
    inside = at < size
    places = tl.arange(0, groups)[:, None] * size + at[None, :]
    total = tl.sum(tl.load(sums + places, mask=inside[None, :], other=0.0), 0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


# By width, as measured on an H200: pixels of a tile, warps of a program, programs that share a weight's gradient.
ROWS = {16: 128, 32: 64}
WARPS = {16: 2, 32: 2}
GROUPS = {16: 128, 32: 64}


def _convolution(
    x: Tensor,
    weight: Tensor,
    *,
    mirrored: bool = False,
    bias: Tensor | None = None,
    shortcut: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    batch, width, height, length = x.shape
    y, count = torch.empty_like(x), batch * height * length
    rows = ROWS[width]
    tensors = x, weight, weight if bias is None else bias, x if shortcut is None else shortcut, y
    flags = int(mirrored), int(bias is not None), int(shortcut is not None), int(relu)
    sizes = height, length, width, rows
    _convolve[(triton.cdiv(count, rows),)](*tensors, count, *flags, *sizes, num_warps=WARPS[width])
    return y


class _Convolved(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401
        context.save_for_backward(x, weight)
        return _convolution(x, weight)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:  # noqa: ANN401
        x, weight = context.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        to_x = _convolution(gradient, weight, mirrored=True) if context.needs_input_grad[0] else None
        to_weight = None
        if context.needs_input_grad[1]:
            batch, width, height, length = x.shape
            groups, size = GROUPS[width], weight.numel()
            sums = torch.empty(groups * size, dtype=torch.float32, device=x.device)
            count = batch * height * length
            _convolve_weights[(groups, 3)](
                x, gradient, sums, count, groups, height, length, width, ROWS[width], num_warps=WARPS[width]
            )
            to_weight = torch.empty_like(weight)
            _add_up[(triton.cdiv(size, 64),)](sums, to_weight, groups, size, 64)
        return to_x, to_weight


def convolve_thin(x: Tensor, weight: Tensor) -> Tensor:
    """A 3×3 convolution of stride 1 that keeps the size, from C channels to as many; everything channels last."""
    layout = torch.channels_last
    with torch.cuda.device_of(x):
        found: Tensor = _Convolved.apply(x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout))
    return found


def convolve_thin_and_add(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor:
    """A 3×3 convolution with bias, plus `shortcut`, cut at zero if `relu`, in one kernel; without gradients."""
    layout = torch.channels_last
    with torch.cuda.device_of(x):
        return _convolution(
            x.contiguous(memory_format=layout),
            weight.contiguous(memory_format=layout),
            bias=bias,
            shortcut=None if shortcut is None else shortcut.contiguous(memory_format=layout),
            relu=relu,
        )


def try_out(device: torch.device) -> None:
    """Compile and launch the smallest kernel; raises where this machine cannot, say for lack of a C compiler."""
    with torch.cuda.device(device):
        values = torch.zeros(32 * 64, dtype=torch.float32, device=device)
        _add_up[(1,)](values, torch.empty(64, dtype=torch.float32, device=device), 32, 64, 64)
