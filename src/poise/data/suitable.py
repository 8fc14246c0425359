"""What suits images of a given size: a network and an augmentation; and the smallest size allowed."""

from __future__ import annotations

from typing import Final

from poise.data.augment import Augmentation

#: The smallest side of an image that the backbones can take: they halve it twice.
LEAST_SIZE: Final = 8


def suitable_net(side: int) -> str:
    """The backbone for images whose shorter side has this many pixels."""
    return "small" if side <= 12 else "resnet32" if side <= 64 else "resnet18"


def suitable_augmentation(side: int) -> Augmentation:
    """Mirroring, and shifts by up to an eighth of the shorter side (4 of 32 pixels)."""
    return Augmentation(pad=max(1, side // 8), flip=True)
