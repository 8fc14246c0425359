"""Boxes of images scaled to one size: bilinear, and antialiased where they shrink, as Pillow's `resize(box=…)` does it.

`resize_box` is the plain reading, image by image, on any device. What must be fast is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from poise.errors import UserError


@dataclass(frozen=True, eq=False)
class Crops:
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

    def __post_init__(self) -> None:
        if self.boxes.dtype != torch.float32 or self.boxes.ndim != 2 or self.boxes.shape[1] != 4:
            raise UserError(f"boxes must be float32 [n, 4], not {self.boxes.dtype} {list(self.boxes.shape)}")
        if self.mirrored.dtype != torch.bool or self.mirrored.shape != self.boxes.shape[:1]:
            raise UserError(f"{len(self.boxes)} boxes need as many truth values, not {list(self.mirrored.shape)}")

    def __len__(self) -> int:
        return len(self.boxes)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Crops:
        """The same with this done to each tensor; such as a selection of some entries."""
        return Crops(change(self.boxes), change(self.mirrored), self.size)

    def batch(self, start: int, stop: int) -> Crops:
        """Those of the images from `start` up to, not including, `stop`."""
        return self.changed(lambda values: values[start:stop])

    def to(self, device: torch.device | str) -> Crops:
        """The same on another device."""
        return self.changed(lambda values: values.to(device))


def resize_box(image: Tensor, box: tuple[float, float, float, float], size: tuple[int, int]) -> Tensor:
    """Scale the box (left, top, width, height) of a uint8 image [C, H, W] to this height and width.

    First rows, then columns, each rounded to bytes: within 1 of what Pillow's `resize` gives for the same box, and by 2
    off once in a million values, where both roundings fall otherwise.
    """
    left, top, width, height = box
    across = _weights(image.shape[2], left, width, size[1]).to(image.device)
    down = _weights(image.shape[1], top, height, size[0]).to(image.device)
    rows = (image.float() @ across.T + 0.5).floor().clamp(0, 255)
    return (down @ rows + 0.5).floor().clamp(0, 255).to(torch.uint8)


def resize_box_on_host(image: NDArray[np.uint8], box: tuple[float, ...], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The same by Pillow itself, which is ten times faster on a host: an image [C, H, W], plane by plane."""
    left, top, width, height = box
    inside = left, top, min(left + width, image.shape[2]), min(top + height, image.shape[1])
    planes = (Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR, box=inside) for plane in image)
    return np.stack([np.asarray(plane) for plane in planes])


def _weights(length: int, start: float, extent: float, count: int) -> Tensor:
    """[count, length]: how much of each stored pixel is in each of `count` pixels of [start, start + extent).

    A triangle around the centre of the new pixel, as wide as that pixel but at least as two stored ones.
    """
    scale = extent / count
    wide = max(scale, 1.0)
    centres = start + (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) * scale
    distances = torch.arange(length, dtype=torch.float64, device="cpu") + 0.5 - centres[:, None]
    weights = (1 - distances.abs() / wide).clamp(min=0)
    return (weights / weights.sum(dim=1, keepdim=True)).float()
