"""Random resized crops: which part of an image of any size is shown, drawn on the host."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Width by height of a crop, from the first to the second.
RATIOS: Final = (3 / 4, 4 / 3)
TRIES: Final = 10  # for a crop that lies inside of the image; after them its largest centre of such a ratio is taken
_CHUNK: Final = 1 << 16  # images drawn for at a time

Numbers = NDArray[Any]


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
    chosen = np.where(fits.any(axis=1, keepdims=True), first, _largest_centres(most))
    room = most - chosen
    corners = np.floor(generator.random((len(sizes), 2)) * (room + 1))
    corners = np.where(fits.any(axis=1, keepdims=True), np.minimum(corners, room), np.floor(room / 2))
    return np.concatenate([corners, chosen], axis=1).astype(np.float32)


def _largest_centres(most: Numbers) -> Numbers:
    """Width and height of the largest box in each image whose ratio is one of those that are drawn."""
    widths, heights = most.T
    ratio = widths / heights
    return np.stack(
        [
            np.where(ratio > RATIOS[1], np.rint(heights * RATIOS[1]), widths),
            np.where(ratio < RATIOS[0], np.rint(widths / RATIOS[0]), heights),
        ],
        axis=-1,
    )
