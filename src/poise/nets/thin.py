"""Kernels of our own for a GPU: 3×3 convolutions of few channels, where cuDNN's are slow.

Sums are taken in a fixed order, so that the same input gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


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
ROWS = {16: 128, 32: 64, 64: 64}
WARPS = {16: 2, 32: 2, 64: 4}
GROUPS = {16: 128, 32: 64, 64: 32}


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
    _convolve[(triton.cdiv(count, rows),)](
        x,
        weight,
        weight if bias is None else bias,
        x if shortcut is None else shortcut,
        y,
        count,
        int(mirrored),
        int(bias is not None),
        int(shortcut is not None),
        int(relu),
        height,
        length,
        width,
        rows,
        num_warps=WARPS[width],
    )
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
