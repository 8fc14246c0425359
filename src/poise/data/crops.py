"""Random resized crops: which part of each image is shown, drawn on the host, and scaled to one size.

Bilinear, and antialiased where boxes shrink, as Pillow's `resize(box=…)` does it. On the host Pillow itself does it,
image by image; on a device one kernel for a batch (`poise.data.fused`) or, without Triton, torch's own operations.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from poise.errors import first_line

log = logging.getLogger(__name__)

#: Width by height of a crop, from the first to the second.
RATIOS: Final = (3 / 4, 4 / 3)
TRIES: Final = 10  # for a crop that lies inside of the image; after them its largest centre of such a ratio is taken
_CHUNK: Final = 1 << 16  # images drawn for at a time

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Choices:
    """Random choices for a row of images: each of its tensors has one entry for each image."""

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """These choices, with this done to each tensor; such as a selection of some entries."""
        tensors = {name: values for name, values in vars(self).items() if isinstance(values, Tensor)}
        return replace(self, **{name: change(values) for name, values in tensors.items()})

    def batch(self, start: int, stop: int) -> Self:
        """Those for the images from `start` up to, not including, `stop`."""
        return self.changed(lambda values: values[start:stop])

    def to(self, device: torch.device | str) -> Self:
        """The choices on another device."""
        return self.changed(lambda values: values.to(device))


@dataclass(frozen=True, eq=False)
class Crops(Choices):
    """Which part of each image is read, and at which size; one entry for each image.

    Attributes:
        boxes: float32 [n, 4]: left, top, width and height in pixels of the stored image, of which parts may be used.
            Box (0, 0, W, H) is the whole image.
        mirrored: bool [n]: whether left and right are exchanged.
        size: height and width of what comes out.
    """

    boxes: Tensor
    mirrored: Tensor
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.boxes)


def draw_boxes(sizes: Numbers, least: float, generator: np.random.Generator) -> Numbers:
    """For each height and width in `sizes` [n, 2] a box float32 [n, 4]: left, top, width, height, in whole pixels.

    Its area is a share of the image's between `least` and 1, the logarithm of its ratio is even between those of
    `RATIOS`, and it lies anywhere in the image, as Inception's training (Szegedy et al., CVPR 2015) has it.
    """
    parts = [_draw_some(sizes[at : at + _CHUNK], least, generator) for at in range(0, len(sizes), _CHUNK)]
    return np.concatenate([np.empty((0, 4), dtype=np.float32), *parts])


def _draw_some(sizes: Numbers, least: float, generator: np.random.Generator) -> Numbers:
    heights, widths = sizes.astype(np.float64).T
    areas = (heights * widths)[:, None] * generator.uniform(least, 1, (len(sizes), TRIES))
    ratios = np.exp(generator.uniform(math.log(RATIOS[0]), math.log(RATIOS[1]), (len(sizes), TRIES)))
    tried = np.rint(np.stack([np.sqrt(areas * ratios), np.sqrt(areas / ratios)], axis=-1))  # [n, tries, width height]
    most = np.stack([widths, heights], axis=-1)
    fits = ((tried > 0) & (tried <= most[:, None])).all(axis=-1)
    first = tried[np.arange(len(sizes)), fits.argmax(axis=1)]
    ratio = widths / heights  # where nothing fits: the largest box whose ratio is one of those that are drawn
    widest = np.where(ratio > RATIOS[1], np.rint(heights * RATIOS[1]), widths)
    highest = np.where(ratio < RATIOS[0], np.rint(widths / RATIOS[0]), heights)
    chosen = np.where(fits.any(axis=1, keepdims=True), first, np.stack([widest, highest], axis=-1))
    room = most - chosen
    corners = np.floor(generator.random((len(sizes), 2)) * (room + 1))
    corners = np.where(fits.any(axis=1, keepdims=True), np.minimum(corners, room), np.floor(room / 2))
    return np.concatenate([corners, chosen], axis=1).astype(np.float32)


def resize_box(image: NDArray[np.uint8], box: tuple[float, ...], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The box (left, top, width, height) of an image [C, H, W] scaled to this height and width, plane by plane."""
    left, top, width, height = box
    inside = left, top, min(left + width, image.shape[2]), min(top + height, image.shape[1])
    planes = (Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR, box=inside) for plane in image)
    return np.stack([np.asarray(plane) for plane in planes])


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


def crop_batch(rows: Rows, indices: Tensor, crops: Crops) -> Tensor:
    """The boxes of `crops` out of the images at these indices, uint8 [n, channels, *crops.size].

    There is no look at any value, so that it can be captured.
    """
    kernels = usable_kernels("poise.data.fused", rows.flat.device)
    if kernels is None:
        return crop_plainly(rows, indices, crops)
    found: Tensor = kernels.crop_boxes(rows, indices, crops)
    return found


def crop_plainly(rows: Rows, indices: Tensor, crops: Crops) -> Tensor:
    """Compute `crop_batch` by torch's own operations: a sum over all stored pixels that may be in a new one."""
    places, heights, widths = (values.index_select(0, indices) for values in (rows.places, rows.heights, rows.widths))
    left, top, wide, high = crops.boxes.unbind(1)
    height, width = crops.size
    columns = torch.arange(width, device=indices.device).expand(len(indices), width)
    columns = torch.where(crops.mirrored[:, None], width - 1 - columns, columns)
    lines = torch.arange(height, device=indices.device).expand(len(indices), height)
    across, across_sum = _taps(columns, left, wide / width, widths, rows.longest / width)
    down, down_sum = _taps(lines, top, high / height, heights, rows.longest / height)
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
    numbers: Tensor, start: Tensor, scale: Tensor, lengths: Tensor, largest: float
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Along one side, the stored pixels [n, size] that new pixels are made of, and how much of each.

    Beside them the sum of the weights. They lie around the centre of the new pixel, weighted by a triangle that is as
    wide as it to each side, and at least as wide as a stored pixel. `largest` is the largest `scale` of any image.
    """
    most = math.ceil(2 * max(largest, 1)) + 1
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


@cache
def usable_kernels(module: str, device: torch.device) -> ModuleType | None:
    """The kernels in this module; None if the GPU is too old for them, or a compiler is missing or fails.

    They are tried out when they are first asked for.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        kernels = importlib.import_module(module)  # Triton is not available everywhere
        kernels.try_out(device)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # from an import, a compiler, a driver
        log.warning("no fused kernels, training is slower without them: %s", first_line(error))
        return None
    return kernels
