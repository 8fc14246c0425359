"""AutoAugment with the policy published for CIFAR, and Cutout: for whole batches, from choices drawn beforehand.

Cubuk, Zoph, Mané, Vasudevan and Le: AutoAugment: Learning Augmentation Strategies from Data, CVPR 2019. For each image
one of 25 pairs of operations is chosen. Each of the two is applied with a probability and at a level of its own; where
it has two directions, one of them is chosen, too.

Results are those of Pillow's operations. Which operation an image gets is a value on the device, so all images go
through the same three steps: pixels move, values are looked up in a table, and the image is mixed with a plainer one.
In the two steps that are not its own an image stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

#: What comes in where pixels have moved away.
FILL: Final = 128
#: Each operation has so many levels, counted from 0.
LEVELS: Final = 10
#: Shares of red, green and blue in the grey value of a pixel (ITU-R 601).
_GREY: Final = (19595 / 65536, 38470 / 65536, 7471 / 65536)
_MOVES: Final = ("rotate", "shear_y", "translate_x", "translate_y")
_MIXES: Final = ("colour", "contrast", "sharpness", "brightness")
_TABLES: Final = ("invert", "solarize", "posterize", "autocontrast", "equalize")
#: Every operation of the policy.
OPERATIONS: Final = (*_MOVES, *_MIXES, *_TABLES)
#: Those that go in two directions.
SIGNED: Final = (*_MOVES, *_MIXES)


class Operation(NamedTuple):
    """One of `OPERATIONS` at one of the levels; where it has two directions, `sign` is 1 or -1."""

    name: str
    level: int
    sign: int = 1

    @property
    def strength(self) -> float:
        """What the level means: a share of the side, degrees, a factor, a threshold or a number of bits.

        >>> round(Operation("rotate", 9).strength), Operation("solarize", 9).strength
        (30, 0.0)
        >>> Operation("posterize", 7).strength, round(Operation("colour", 9, -1).strength, 3)
        (5, 0.1)
        """
        share = self.level / (LEVELS - 1)
        if self.name in _MIXES:
            return 1 + self.sign * 0.9 * share
        if self.name == "posterize":
            return round(8 - 4 * share)
        if self.name == "solarize":
            return 256 - 256 * share
        most = {"rotate": 30.0, "shear_y": 0.3, "translate_x": 150 / 331, "translate_y": 150 / 331}
        return self.sign * share * most.get(self.name, 0.0)


Part = tuple[str, float, int]  # an operation, its probability and its level

#: The policy that was found on CIFAR-10: 25 pairs.
CIFAR_POLICY: Final[tuple[tuple[Part, Part], ...]] = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("colour", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("colour", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("colour", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("colour", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)


# Choices, drawn on the host -------------------------------------------------------------------------------------------


@cache
def operations(place: int) -> tuple[Operation, ...]:
    """The different operations that the policy has first (`place` 0) or second (1) in its pairs."""
    parts = sorted({(name, level) for name, _, level in (pair[place] for pair in CIFAR_POLICY)})
    signs = {name: (1, -1) if name in SIGNED else (1,) for name in OPERATIONS}
    return tuple(Operation(name, level, sign) for name, level in parts for sign in signs[name])


@cache
def _numbers() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each pair and place: the number of the operation in either direction [25, 2, 2], and its probability."""
    numbers = np.zeros((len(CIFAR_POLICY), 2, 2), dtype=np.int64)
    probabilities = np.zeros((len(CIFAR_POLICY), 2))
    for row, pair in enumerate(CIFAR_POLICY):
        for place, (name, probability, level) in enumerate(pair):
            signs = (1, -1) if name in SIGNED else (1, 1)
            known = operations(place)
            numbers[row, place] = [1 + known.index(Operation(name, level, sign)) for sign in signs]
            probabilities[row, place] = probability
    return numbers, probabilities


def draw_operations(count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """For each image [count, 2]: which of `operations(place)` it gets, counted from 1; 0 is none."""
    numbers, probabilities = _numbers()
    pairs = generator.integers(0, len(CIFAR_POLICY), size=count)
    applied = generator.random((count, 2)) < probabilities[pairs]
    directions = generator.integers(0, 2, size=(count, 2))
    return np.where(applied, numbers[pairs[:, None], [[0, 1]], directions], 0)


# On the device --------------------------------------------------------------------------------------------------------


def autoaugment(pixels: Tensor, chosen: Tensor) -> Tensor:
    """The uint8 images [N, C, H, W], grey or RGB, after the operations that were drawn for them [N, 2]."""
    for place in (0, 1):
        tensors = operation_tensors(operations(place), (pixels.shape[2], pixels.shape[3]), pixels.device)
        pixels = apply(pixels, tensors, chosen[:, place])
    return pixels


def apply(pixels: Tensor, tensors: OperationTensors, chosen: Tensor) -> Tensor:
    """The images after one operation each: the one with this number [N], counted from 1, or none (0)."""
    moved = _move(pixels, tensors, chosen)
    return _mix(_look_up(moved, tensors, chosen), tensors, chosen)


@dataclass(frozen=True, eq=False)
class OperationTensors:
    """Some operations as tensors, for images of one size. Row 0 of each is no operation at all.

    Attributes:
        moves: int64 [operations + 1], the row of `sources` and `weights` by which the pixels move.
        sources: int64 [moves, H·W] or, where pixels are interpolated, [moves, 4·H·W]: where each pixel comes from;
            H·W is the fill. Of four sources the first is the one at or before the exact place.
        weights: float32 [moves, 3, H·W], the weights of the other three; None where nothing is interpolated.
        tables: float32 [operations + 1, 256], what becomes of each value.
        evens: bool [2, operations + 1], whether each channel is stretched to the whole range, or its histogram
            made even.
        mixes: float32 [operations + 1, 4], how much of the image there is in a mix, and with what it is mixed: with
            its grey values, their mean, or its smoothed self; with black where none of these is 1.
        greys: float32 [1, 3, 1, 1], the shares of red, green and blue in a grey value.
    """

    moves: Tensor
    sources: Tensor
    weights: Tensor | None
    tables: Tensor
    evens: Tensor
    mixes: Tensor
    greys: Tensor


@cache  # for ever: captured steps read from it. Making it copies from the host, which they must not do
def operation_tensors(known: tuple[Operation, ...], size: tuple[int, int], device: torch.device) -> OperationTensors:
    """These operations for images of this height and width."""
    every = (None, *known)
    moving = (None, *(operation for operation in known if operation.name in _MOVES))
    found = [_origins(operation, *size) for operation in moving]
    sources, weights = (np.stack(part) for part in zip(*found, strict=True))
    names = [operation.name if operation is not None else "" for operation in every]
    with torch.inference_mode(False):
        return OperationTensors(
            torch.tensor([moving.index(each) if each in moving else 0 for each in every], device=device),
            torch.from_numpy(sources if weights.any() else sources[:, :1]).flatten(1).to(device),
            torch.from_numpy(weights).float().to(device) if weights.any() else None,
            torch.tensor(np.stack([_table(each) for each in every]), dtype=torch.float32, device=device),
            torch.tensor([[name == word for name in names] for word in ("autocontrast", "equalize")], device=device),
            torch.tensor([_mixture(each) for each in every], dtype=torch.float32, device=device),
            torch.tensor(_GREY, dtype=torch.float32, device=device).view(1, 3, 1, 1),
        )


# Pixels that move -----------------------------------------------------------------------------------------------------


def _move(pixels: Tensor, tensors: OperationTensors, chosen: Tensor) -> Tensor:
    """Every pixel from where it comes from. Interpolated values are cut off, not rounded."""
    channels, places = pixels.shape[1], pixels.shape[2] * pixels.shape[3]
    row = tensors.moves.index_select(0, chosen)
    index = tensors.sources.index_select(0, row)[:, None].expand(-1, channels, -1)
    found = pad(pixels.flatten(2), (0, 1), value=FILL).gather(2, index)
    if tensors.weights is not None:
        weights = tensors.weights.index_select(0, row)[:, None]
        found = found.view(-1, channels, 4, places).float()
        first, others = found[:, :, 0], found[:, :, 1:]
        found = (first + ((others - first[:, :, None]) * weights).sum(dim=2)).clamp(0, 255).to(torch.uint8)
    return found.view_as(pixels)


def _origins(operation: Operation | None, height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where each pixel comes from [4, H·W], and the weights [3, H·W] of all but the first of these places."""
    rows, columns = np.indices((height, width))
    weights = np.zeros((3, height, width))
    inside = np.ones((height, width), dtype=bool)
    sources: Sequence[NDArray[Any]] = (rows,) * 4
    if operation is not None and operation.name == "shear_y":
        exact = rows + 0.5 + operation.strength * (columns + 0.5)
        inside = (exact >= 0) & (exact < height)
        first = np.floor(exact - 0.5).astype(np.int64)
        sources = [np.clip(first + step, 0, height - 1) for step in (0, -1, 1, 2)]
        after = (
            exact - 0.5 - first
        )  # cubic weights (a = -1) of the pixels one before, one after and two after the first
        square, cube = after**2, after**3
        weights = np.stack([-after + 2 * square - cube, after + square - cube, cube - square]) * inside
    elif operation is not None:
        if operation.name == "rotate":
            rows, columns = _rotate(operation, rows, columns)
        elif operation.name == "translate_x":  # the nearest pixels of a shifted image
            columns = np.floor(columns + 0.5 + operation.strength * width).astype(np.int64)
        else:
            rows = np.floor(rows + 0.5 + operation.strength * height).astype(np.int64)
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        sources = (rows,) * 4
    places = np.stack([np.where(inside, row * width + columns, height * width) for row in sources])
    return places.reshape(4, -1).astype(np.int64), weights.reshape(3, -1)


def _rotate(operation: Operation, rows: NDArray[Any], columns: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The nearest pixels of an image that is rotated about its centre, in 65,536ths of a pixel as Pillow counts."""
    height, width = rows.shape
    angle = -math.radians(operation.strength)
    cosine, sine = math.cos(angle), math.sin(angle)
    middle_x, middle_y = width / 2, height / 2
    start_x = middle_x - cosine * (middle_x - 0.5) - sine * (middle_y - 0.5)
    start_y = middle_y + sine * (middle_x - 0.5) - cosine * (middle_y - 0.5)
    along, across, x, y = (math.floor(65536 * value + 0.5) for value in (cosine, sine, start_x, start_y))
    return (y - across * columns + along * rows) >> 16, (x + along * columns + across * rows) >> 16


# Values that are looked up --------------------------------------------------------------------------------------------


def _table(operation: Operation | None) -> NDArray[np.float64]:
    """What becomes of each value, where that does not depend on the image."""
    levels = np.arange(256.0)
    if operation is None or operation.name not in ("invert", "solarize", "posterize"):
        return levels
    if operation.name == "posterize":
        unit = 2 ** (8 - operation.strength)
        return np.floor(levels / unit) * unit
    return np.where(levels < (0 if operation.name == "invert" else operation.strength), levels, 255 - levels)


def _look_up(pixels: Tensor, tensors: OperationTensors, chosen: Tensor) -> Tensor:
    """Every value replaced by what the table of its image and channel says, as float32."""
    stretches, equalizes = tensors.evens.index_select(1, chosen)[:, :, None, None]
    ordered = pixels.flatten(2).sort(dim=2).values
    levels = torch.arange(256, device=pixels.device)
    table = tensors.tables.index_select(0, chosen)[:, None]
    table = _stretch(ordered, levels, table, stretches)
    table = _equalize(ordered, levels, table, equalizes)
    return table.gather(2, pixels.flatten(2).long()).view_as(pixels)


def _stretch(ordered: Tensor, levels: Tensor, table: Tensor, wanted: Tensor) -> Tensor:
    """Where wanted, a table that stretches values to the range from 0 to 255, unless all are the same."""
    low, high = ordered[:, :, :1].double(), ordered[:, :, -1:].double()
    scale = torch.full_like(high, 255) / (high - low)  # a plain 255 would be divided less exactly; 0 is seen to below
    stretched = (levels * scale - low * scale).clamp(0, 255).floor().float()
    return torch.where(wanted & (high > low), stretched, table)


def _equalize(ordered: Tensor, levels: Tensor, table: Tensor, wanted: Tensor) -> Tensor:
    """Where wanted, a table that makes all values about equally frequent, unless nearly all pixels are alike."""
    every = levels.to(torch.uint8).expand(*ordered.shape[:2], -1).contiguous()
    below = torch.searchsorted(ordered, every, out_int32=True)  # how many pixels are darker than each level
    unit = below.gather(2, ordered[:, :, -1:].long()) // 255
    equalized = ((unit // 2 + below) // unit.clamp(min=1)).clamp(max=255).float()
    return torch.where(wanted & (unit > 0), equalized, table)


# Images that are mixed with plainer ones ------------------------------------------------------------------------------


def _mixture(operation: Operation | None) -> tuple[float, float, float, float]:
    """A row of `OperationTensors.mixes`."""
    if operation is None or operation.name not in _MIXES:
        return 1.0, 0.0, 0.0, 0.0
    grey, mean, smooth = (float(operation.name == name) for name in ("colour", "contrast", "sharpness"))
    return operation.strength, grey, mean, smooth


def _mix(images: Tensor, tensors: OperationTensors, chosen: Tensor) -> Tensor:
    """The images mixed with grey, with black, or with what they look like smoothed; cut off, not rounded."""
    mixes = tensors.mixes.index_select(0, chosen)[:, :, None, None, None]
    factor, grey, mean, smooth = mixes.unbind(1)
    greys = images
    if images.shape[1] == 3:  # in 65,536ths all sums are below 2²⁴, so that float32 is exact
        greys = ((images * tensors.greys).sum(dim=1, keepdim=True) + 0.5).floor()
    middle = (greys.mean(dim=(2, 3), keepdim=True) + 0.5).floor()
    plainer = torch.addcmul(torch.addcmul(middle * mean, greys, grey), _smooth(images), smooth)
    return (plainer + factor * (images - plainer)).clamp(0, 255).to(torch.uint8)


def _smooth(images: Tensor) -> Tensor:
    """Each pixel five times and its eight neighbours once, over 13, rounded; the border stays as it is."""
    if min(images.shape[2:]) < 3:
        return images
    inner = (..., slice(1, -1), slice(1, -1))
    sums = avg_pool2d(images, 3, stride=1, divisor_override=1).add(images[inner], alpha=4)
    smoothed = images.clone()
    smoothed[inner] = (sums / 13).round()
    return smoothed


# Cutout ---------------------------------------------------------------------------------------------------------------


def cut_out(images: Tensor, holes: Tensor, share: float) -> Tensor:
    """The images with a black square each, whose side is this share of the shorter side.

    DeVries and Taylor: Improved Regularization of Convolutional Neural Networks with Cutout, 2017. The centre of the
    square is any pixel, by its place [N, 2] as a share of height and width; so part of the square may lie outside.
    """
    side, inside = round(share * min(images.shape[2:])), list[Tensor]()
    for place, size in enumerate(images.shape[2:]):
        first = (holes[:, place] * size).floor() - side // 2
        along = torch.arange(size, device=images.device) - first[:, None]
        inside.append((along >= 0) & (along < side))
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None])[:, None], 0)
