"""What suits images of a size: a network, an augmentation, and the smallest size there is."""

from __future__ import annotations

from typing import Final

from poise.data.augment import Augmentation

LEAST_SIZE: Final = 8  # two halvings in the backbones must leave something


def suitable_net(side: int) -> str:
    """The backbone for images whose shorter side has this many pixels."""
    return "small" if side <= 12 else "resnet32" if side <= 64 else "resnet18"


def suitable_augmentation(side: int) -> Augmentation:
    """Shifts by an eighth of the shorter side, as 4 pixels are of 32, and mirror images."""
    return Augmentation(pad=max(1, side // 8), flip=True)
