"""Image sets: uint8 pixels, labels, and where each image came from.

In front of a frozen network the features of an image stand for its pixels (`poise.data.features`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.errors import UserError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images that belong together, all of one size, on one device.

    Attributes:
        pixels: uint8 [N, C, H, W]; where features stand for them, float32 [N, d, 1, views].
        labels: int64 [N].
        origins: int64 [N], the index of each image in its source's own training (or test) images; -1 when unknown.
    """

    pixels: Tensor
    labels: Tensor
    origins: Tensor

    def __post_init__(self) -> None:
        stored = self.pixels.dtype == torch.float32 and self.pixels.ndim == 4 and self.pixels.shape[2] == 1
        if (self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4) and not stored:
            raise UserError(f"pixels must be uint8 [N, C, H, W], not {_describe(self.pixels)}; see to_pixels")
        for name, values in (("labels", self.labels), ("origins", self.origins)):
            if values.dtype != torch.int64 or values.ndim != 1:
                raise UserError(f"{name} must be int64 [N], not {_describe(values)}; convert them first")
            if len(values) != len(self.pixels):
                raise UserError(f"{len(self.pixels)} images came with {len(values)} {name}; give one for each image")
            if values.device != self.pixels.device:
                raise UserError(f"pixels are on {self.pixels.device}, {name} on {values.device}; move them together")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def select(self, indices: Tensor) -> ImageSet:
        """The images at these positions, in this order; an index may appear twice."""
        indices = indices.to(self.pixels.device)
        return ImageSet(self.pixels[indices], self.labels[indices], self.origins[indices])

    def of_labels(self, labels: Iterable[int]) -> ImageSet:
        """The images of these classes, in their present order."""
        wanted = torch.tensor(sorted(set(labels)), dtype=torch.int64, device=self.labels.device)
        return self.select(torch.isin(self.labels, wanted).nonzero().flatten())

    def first_of_each_label(self, count: int) -> ImageSet:
        """The first `count` images of each class, or all if there are fewer, in their present order."""
        picks = [(self.labels == label).nonzero().flatten()[:count] for label in torch.unique(self.labels).tolist()]
        nothing = torch.empty(0, dtype=torch.long, device=self.labels.device)
        return self.select(torch.cat([nothing, *picks]).sort().values)

    def relabelled(self, rows: Sequence[int]) -> ImageSet:
        """The images, each labelled with the position of its label in `rows`."""
        places = torch.full((max(rows) + 1,), -1, dtype=torch.long)
        places[torch.tensor(rows)] = torch.arange(len(rows))
        return ImageSet(self.pixels, places.to(self.labels.device)[self.labels], self.origins)

    def to(self, device: torch.device | str) -> ImageSet:
        """The same images on another device."""
        return ImageSet(self.pixels.to(device), self.labels.to(device), self.origins.to(device))

    @staticmethod
    def joined(sets: Sequence[ImageSet]) -> ImageSet:
        """All images of several sets, one set after the other."""
        shapes = sorted({images.shape for images in sets})
        if len(shapes) != 1:
            what = f"sets of images of different shapes ({shapes})" if shapes else "no image sets"
            raise UserError(f"cannot join {what}; give at least one set, all of the same channels, height and width")
        return ImageSet(
            torch.cat([images.pixels for images in sets]),
            torch.cat([images.labels for images in sets]),
            torch.cat([images.origins for images in sets]),
        )


def image_digest(image: NDArray[Any]) -> bytes:
    """What an image is known by, in a few bytes."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


def _describe(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
