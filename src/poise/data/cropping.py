"""Boxes of many images at once, out of one row of bytes: what a training step does on a device.

It gives what `resize_box` gives image by image, without a look at any value, so that it can be captured: in one kernel
(`poise.data.fused`), or by torch's own operations where there is no Triton.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from poise.data.kernels import usable_kernels
from poise.data.resampling import Crops


class Rows(NamedTuple):
    """Images of any size in one row of bytes, each [channels, height, width].

    Attributes:
        flat: uint8 [bytes].
        places: int64 [N], where each image begins.
        heights: int64 [N].
        widths: int64 [N].
        channels: of every image.
        longest: the longest side of any of them.
    """

    flat: Tensor
    places: Tensor
    heights: Tensor
    widths: Tensor
    channels: int
    longest: int


@cache
def _kernels(device: torch.device) -> ModuleType | None:
    return usable_kernels("poise.data.fused", device)


def crop_batch(rows: Rows, indices: Tensor, crops: Crops) -> Tensor:
    """The boxes of `crops` out of the images at these indices, uint8 [n, channels, *crops.size]."""
    kernels = _kernels(rows.flat.device)
    if kernels is None:
        return crop_plainly(rows, indices, crops)
    found: Tensor = kernels.crop_boxes(rows, indices, crops)
    return found


def crop_plainly(rows: Rows, indices: Tensor, crops: Crops) -> Tensor:
    """The same by torch's own operations: a sum over all stored pixels that a new one may be made of."""
    places, heights, widths = (values.index_select(0, indices) for values in (rows.places, rows.heights, rows.widths))
    left, top, wide, high = crops.boxes.unbind(1)
    height, width = crops.size
    columns = torch.arange(width, device=indices.device).expand(len(indices), width)
    columns = torch.where(crops.mirrored[:, None], width - 1 - columns, columns)
    lines = torch.arange(height, device=indices.device).expand(len(indices), height)
    across, across_sum = _taps(columns, left, wide / width, widths, _most_taps(rows.longest, width))
    down, down_sum = _taps(lines, top, high / height, heights, _most_taps(rows.longest, height))
    planes = torch.arange(rows.channels, device=indices.device) * (heights * widths)[:, None]
    starts = (places[:, None] + planes)[:, :, None, None]
    total = torch.zeros(len(indices), rows.channels, height, width, dtype=torch.float32, device=indices.device)
    for y, down_weights in down:
        begins = starts + (y * widths[:, None])[:, None, :, None]
        line = torch.zeros_like(total)
        for x, across_weights in across:
            line += across_weights[:, None, None, :] * rows.flat.take(begins + x[:, None, None, :])
        total += down_weights[:, None, :, None] * (line / across_sum[:, None, None, :] + 0.5).floor()
    return (total / down_sum[:, None, :, None] + 0.5).floor().clamp(0, 255).to(torch.uint8)


def _taps(
    numbers: Tensor, start: Tensor, scale: Tensor, lengths: Tensor, most: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Along one side, the stored pixels [n, size] that new pixels are made of, and how much of each; `most` of them.

    Beside them the sum of the weights. They lie around the centre of the new pixel, weighted by a triangle that is as
    wide as it to each side, and at least as wide as a stored pixel.
    """
    support = scale.clamp(min=1)[:, None]
    centres = start[:, None] + (numbers.to(torch.float32) + 0.5) * scale[:, None]
    first = (centres - support + 0.5).floor()
    weights = []
    for number in range(most):
        weight = (1 - (first + number + 0.5 - centres).abs() / support).clamp(min=0)
        inside = (first + number >= 0) & (first + number < lengths[:, None])
        weights.append(weight * inside)
    most_at = (lengths[:, None] - 1).expand_as(numbers)
    places = [torch.minimum((first.long() + number).clamp(min=0), most_at) for number in range(most)]
    return list(zip(places, weights, strict=True)), torch.stack(weights).sum(dim=0)


def _most_taps(longest: int, size: int) -> int:
    """The most stored pixels that a new pixel is made of."""
    return math.ceil(2 * max(longest / size, 1)) + 1
