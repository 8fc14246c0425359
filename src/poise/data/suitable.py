"""What suits images of a given size: a network and an augmentation; and the sizes that are allowed."""

from __future__ import annotations

import math
from typing import Final

from poise.data.augment import Augmentation
from poise.errors import UserError
from poise.ram import free_memory

#: For at most so many images a small network is chosen.
FEW_IMAGES: Final = 20_000
#: Up to this side an image counts as tiny, such as a digit of 8 pixels.
TINY: Final = 12
WIDE_FROM: Final = 200  # tiny images, from which on the small network has twice the channels


def check_room(count: int, shape: tuple[int, int, int], todo: str = "use a smaller image_size") -> None:
    """Refuse so many images of this shape, if decoded they take more memory than is free, and say what to do."""
    needed, there = count * math.prod(shape), free_memory()
    if needed > there:
        raise UserError(
            f"{count} images of {shape[1]}×{shape[2]} pixels take {needed / 1e9:.3g} GB, and this machine has "
            f"{there / 1e9:.3g} GB of memory free; {todo}"
        )


def suitable_net(side: int, images: int | None = None) -> str:
    """The backbone for images whose shorter side has this many pixels, and for so many of them if that is known.

    Where only a few pixels are looked at, twice as many channels cost little, and pay once there are some images.

    >>> suitable_net(32), suitable_net(8, 500), suitable_net(32, 500), suitable_net(96, 500), suitable_net(224, 500)
    ('resnet32', 'small-wide', 'small', 'small2', 'small4')
    """
    if images is not None and images <= FEW_IMAGES:
        if side <= TINY:
            return "small-wide" if images >= WIDE_FROM else "small"
        return "small" if side <= 64 else "small2" if side <= 128 else "small4"
    return "small" if side <= TINY else "resnet32" if side <= 64 else "resnet18"


def suitable_augmentation(side: int) -> Augmentation:
    """Mirroring, and shifts by up to an eighth of the shorter side (4 of 32 pixels)."""
    return Augmentation(pad=max(1, side // 8), flip=True)
