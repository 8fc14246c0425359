"""From uint8 pixels to what a network reads: random crop, mirror, brightness and more, then normalisation.

The random choices of an epoch are drawn on the host, as plain tensors, before the epoch begins. Applying
them is arithmetic only: batched, with no random operation, no synchronisation and no branch on a value
of a tensor, so that a training step that contains it can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from poise.data.autoaugment import autoaugment, cut_out, draw_operations
from poise.data.crops import Choices, Crops, draw_boxes, usable_kernels
from poise.data.stores import PixelStore, as_store
from poise.errors import UserError, check_flag, check_number, check_whole, suggesting
from poise.settings import plain_copy

#: What can be done to images beyond the augmentation of their data set, by name.
STRONGER: Final[Mapping[str, Mapping[str, Any]]] = {
    "resized": {"resized": 0.08, "pad": 0},
    "autoaugment": {"autoaugment": True},
    "cutout": {"cutout": 0.5},
    "autoaugment+cutout": {"autoaugment": True, "cutout": 0.5},
}
_SMALLEST_STD = 1e-3  # a channel that never changes must not be divided by zero
_CHUNK = 2**24  # pixels read at once when a data set is measured


@dataclass(frozen=True, eq=False)
class Draws(Choices):
    """The random choices for a row of images, one entry for each image.

    Attributes:
        offsets: int64 [n, 2], row and column of the crop's corner in the padded image, each in 0..2·pad.
        mirrored: bool [n].
        brightness: float32 [n], the factor by which the image gets brighter.
        operations: int64 [n, 2], the numbers of AutoAugment's operations; None without it.
        holes: float32 [n, 2], the centre of Cutout's hole as a share of height and width; None without it.
        boxes: float32 [n, 4], left, top, width and height of a resized crop in stored pixels; None without it.
    """

    offsets: Tensor
    mirrored: Tensor
    brightness: Tensor
    operations: Tensor | None = None
    holes: Tensor | None = None
    boxes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def crops(self, size: tuple[int, int]) -> Crops | None:
        """Which part of each image is read, at this height and width; None where images are read as they are."""
        return None if self.boxes is None else Crops(self.boxes, self.mirrored, size)

    def load(self, other: Draws) -> None:
        """Replace the choices by as many others of their kinds, in place: a captured step keeps reading from here."""
        for mine, given in zip(vars(self).values(), vars(other).values(), strict=True):
            if mine is not None:
                mine.copy_(given)


@dataclass(frozen=True)
class Augmentation:
    """How training images of a data set may be varied.

    Attributes:
        pad: the image moves by up to this many pixels in each direction; black comes in at the border.
        flip: whether half of the images are mirrored left to right.
        brightness: the image is multiplied by a factor in [1 - brightness, 1 + brightness].
        autoaugment: whether the policy of AutoAugment that was published for CIFAR is applied after all that.
        cutout: at the end a square hole becomes black; this is its side, as a share of the image's shorter side.
        resized: a random part of the stored image, of at least this share of its area, is scaled to the size of the
            network's images (0: off). There are no shifts then.
    """

    pad: int = 4
    flip: bool = True
    brightness: float = 0.0
    autoaugment: bool = False
    cutout: float = 0.0
    resized: float = 0.0

    def __post_init__(self) -> None:
        for name in ("pad", "brightness", "cutout", "resized"):
            object.__setattr__(self, name, plain_copy(getattr(self, name)))
        check_whole("augmentation pad", self.pad, 0)
        for name in ("flip", "autoaugment"):
            check_flag(f"augmentation {name}", getattr(self, name))
        meanings = {
            "brightness": "",
            "cutout": ": the side of the hole as a share of the image's, 0.5 for 16 of 32 pixels",
            "resized": f", the least share of the image's area, and go with pad=0, not {self.pad}",
        }
        for name, meaning in meanings.items():
            value = getattr(self, name)
            check_number(f"augmentation {name}", value)
            if value > 1 or (name == "resized" and value and self.pad):
                raise UserError(f"augmentation {name}={value} must lie between 0 (off) and 1{meaning}")

    @property
    def name(self) -> str:
        """Its word in `STRONGER`, with Cutout's hole of any size; empty where it has neither."""
        parts = {"autoaugment": self.autoaugment, "cutout": self.cutout > 0}
        return "+".join(part for part, there in parts.items() if there)

    def stronger(self, name: str) -> Augmentation:
        """This augmentation with what the name in `STRONGER` adds to it."""
        return replace(self, **STRONGER[name])

    def draw(self, count: int, generator: np.random.Generator, sizes: Tensor | None = None) -> Draws:
        """Choices for `count` images, drawn on the host; resized crops need their heights and widths, [count, 2]."""
        offsets = generator.integers(0, 2 * self.pad + 1, size=(count, 2), dtype=np.int64)
        mirrored = generator.integers(0, 2, size=count).astype(bool) if self.flip else np.zeros(count, dtype=bool)
        factors = np.ones(count, dtype=np.float32)
        if self.brightness:
            factors += self.brightness * generator.uniform(-1, 1, size=count).astype(np.float32)
        found = Draws(torch.from_numpy(offsets), torch.from_numpy(mirrored), torch.from_numpy(factors))
        if self.autoaugment:
            found = replace(found, operations=torch.from_numpy(draw_operations(count, generator)))
        if self.cutout:
            found = replace(found, holes=torch.from_numpy(generator.random((count, 2), dtype=np.float32)))
        if self.resized:
            boxes = draw_boxes(_size_of_each(count, sizes).numpy(), self.resized, generator)
            found = replace(found, boxes=torch.from_numpy(boxes))
        return found

    def neutral(self, count: int, sizes: Tensor | None = None) -> Draws:
        """Choices of the kinds that `draw` makes, for images in the middle that stay as they are but for a hole.

        A resized crop is the whole image.
        """
        offsets = torch.full((count, 2), self.pad, dtype=torch.long)
        holes = torch.zeros(count, 2, dtype=torch.float32)
        corners = _size_of_each(count, sizes).flip(1) if self.resized else offsets  # width and height
        return Draws(
            offsets,
            torch.zeros(count, dtype=torch.bool),
            torch.ones(count, dtype=torch.float32),
            torch.zeros_like(offsets) if self.autoaugment else None,
            holes if self.cutout else None,
            torch.cat([holes, corners.to(torch.float32)], dim=1) if self.resized else None,
        )

    def as_json(self) -> dict[str, Any]:
        """A plain value for a JSON document; omits AutoAugment, Cutout and resized crops where they are off."""
        off = {name for name in ("autoaugment", "cutout", "resized") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in off}


@dataclass(frozen=True)
class Preprocessing:
    """What is done to an image before the network: in training augmentation, then (x/255 - mean) / std per channel.

    A grey image is repeated where there are constants for more channels than one.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, tuple(map(float, given)))
            except (TypeError, ValueError) as error:
                raise UserError(f"{name}={given!r} must be a list of numbers, one for each channel") from error
        if not isinstance(self.augmentation, Augmentation):
            raise UserError(f"augmentation={self.augmentation!r} must be a poise.Augmentation")
        if not self.mean or len(self.mean) != len(self.std):
            raise UserError(f"mean {self.mean} and std {self.std} must have one number for each channel")
        if not all(math.isfinite(value) for value in self.mean) or not all(0 < value < math.inf for value in self.std):
            raise UserError(f"mean {self.mean} must be finite and std {self.std} above 0")
        if self.augmentation.autoaugment and len(self.mean) not in (1, 3):
            raise UserError(f"AutoAugment is for grey or RGB images, not for {len(self.mean)} channels; leave it out")

    @classmethod
    def measured(cls, images: Tensor | PixelStore, augmentation: Augmentation) -> Preprocessing:
        """Mean and standard deviation of each channel of these uint8 images, [N, C, H, W] or a store.

        They follow from how often each of the 256 values occurs, so the result is exact and does not
        depend on the device or on how the images are divided into chunks.
        """
        store = as_store(images)
        if not len(store) or 0 in store.shape:
            raise UserError("no images to measure mean and standard deviation on; give at least one")
        per_chunk = max(1, _CHUNK // math.prod(store.shape))
        counts = np.zeros((store.shape[0], 256), dtype=np.int64)
        for start in range(0, len(store), per_chunk):  # added up at once: see `Evaluator.extract`
            channels = store.part(start, start + per_chunk).unbind(1)
            counts += torch.stack([torch.bincount(each.flatten(), minlength=256) for each in channels]).cpu().numpy()
        shares = counts / counts.sum(axis=1, keepdims=True)
        values = np.arange(256) / 255
        mean = shares @ values
        variance = (shares * (values - mean[:, None]) ** 2).sum(axis=1)
        std = np.maximum(np.sqrt(variance), _SMALLEST_STD)
        return cls(tuple(mean.tolist()), tuple(std.tolist()), augmentation)

    def training(self, pixels: Tensor, draws: Draws) -> Tensor:
        """The images as the network sees them in training: augmented, normalised float32.

        Augmentation is in this order: crop, mirror, brightness, AutoAugment, Cutout. Resized crops, mirrored or not,
        were made where the pixels were gathered (`Draws.crops`).
        """
        if len(draws.offsets) != len(pixels):
            raise UserError(f"{len(pixels)} images came with {len(draws.offsets)} draws; draw once for each image")
        if draws.boxes is draws.operations is draws.holes is None and pixels.numel() and pixels.dtype == torch.uint8:
            kernels = usable_kernels("poise.data.fused", pixels.device)
            if kernels is not None:
                choices, normalising = (draws.offsets, draws.mirrored, draws.brightness), self._normalising(pixels)
                found: Tensor = kernels.shift_and_normalise(pixels, choices, normalising, self.augmentation.pad)
                return found
        cropped = (_crop(pixels, draws, self.augmentation.pad) if draws.boxes is None else pixels).float()
        if self.augmentation.brightness:
            cropped = (cropped * draws.brightness.view(-1, 1, 1, 1)).clamp(0, 255)
        if draws.operations is not None:
            cropped = autoaugment(cropped.to(torch.uint8), draws.operations).float()
        if draws.holes is not None:
            cropped = cut_out(cropped, draws.holes, self.augmentation.cutout)
        return self.plain(cropped)

    def plain(self, pixels: Tensor) -> Tensor:
        """The images as the network sees them in evaluation: normalised float32, nothing else."""
        scale, shift = self._normalising(pixels)
        return torch.addcmul(shift, pixels.float(), scale)

    def _normalising(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift of each channel of these images."""
        if pixels.ndim != 4 or pixels.shape[1] not in (1, len(self.mean)):
            raise UserError(f"images must be [N, {len(self.mean)}, H, W], not {list(pixels.shape)}; convert them first")
        return scale_and_shift(self.mean, self.std, pixels.device)


Augmentation.__init__ = suggesting(Augmentation.__init__)  # type: ignore[method-assign]
Preprocessing.__init__ = suggesting(Preprocessing.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class FeatureViews(Preprocessing):
    """Features in the place of images: in training either view, by the draw of the image; else the first.

    What is stored is the feature vector that a frozen network gave for an image. Features have the layout of images,
    float32 [N, d, 1, views]: column 0 holds those of the image, column 1 (where images are mirrored in training) those
    of its mirror image. So a mirror of the columns is still a mirror of the image.
    """

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> Self:
        """The views that are needed where images would be prepared like this: crops and brightness are left out."""
        return cls((0.0,), (1.0,), Augmentation(pad=0, flip=preprocessing.augmentation.flip, brightness=0.0))

    def training(self, pixels: Tensor, draws: Draws) -> Tensor:
        """The features [N, d, 1, 1] of every image or, where it is mirrored, of its mirror image."""
        if not self.augmentation.flip:
            return self.plain(pixels)
        return torch.where(draws.mirrored.view(-1, 1, 1, 1), pixels[..., 1:], pixels[..., :1])

    def plain(self, pixels: Tensor) -> Tensor:
        """The features [N, d, 1, 1] of every image."""
        return pixels[..., :1]


def suitable_augmentation(side: int) -> Augmentation:
    """Mirroring, and shifts by up to an eighth of the shorter side (4 of 32 pixels)."""
    return Augmentation(pad=max(1, side // 8), flip=True)


def _size_of_each(count: int, sizes: Tensor | None) -> Tensor:
    """The heights and widths of so many images, which resized crops cannot be drawn without."""
    if sizes is None or sizes.shape != (count, 2):
        raise UserError(f"resized crops of {count} images need the height and width of each")
    return sizes.cpu()


def _crop(pixels: Tensor, draws: Draws, pad: int) -> Tensor:
    """A crop of the image's size out of the zero-padded image, mirrored where drawn.

    Every output pixel gathers its input pixel by index. Where the index leaves the image, a pixel inside
    is read instead and then made 0, so no padded copy is needed.
    """
    count, channels, height, width = pixels.shape
    rows = draws.offsets[:, :1] - pad + torch.arange(height, device=pixels.device)
    across = torch.arange(width, device=pixels.device)
    columns = draws.offsets[:, 1:] - pad + torch.where(draws.mirrored[:, None], width - 1 - across, across)
    outside = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None, :]
    index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = index.view(count, 1, height * width).expand(-1, channels, -1)
    gathered = pixels.reshape(count, channels, height * width).gather(2, index)
    return gathered.view(count, channels, height, width).masked_fill(outside[:, None], 0)


@lru_cache(maxsize=64)
def scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """A normalisation as scale · x + shift, each [1, C, 1, 1]."""
    # Kept per device: making them copies from the host, which a step being captured must not do.
    # Not in inference mode: gradients could not pass through its tensors later.
    with torch.inference_mode(False):
        scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32, device=device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32, device=device)
        return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)
