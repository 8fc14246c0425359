"""Features in the place of images: what is stored of each is the feature vector that a frozen network gave for it.

They have the layout of images, float32 [N, d, 1, views]: column 0 holds the features of the image, column 1 (where
images are mirrored in training) those of its mirror image. So a mirror of the columns is still a mirror of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from poise.data.augment import Augmentation, Draws, Preprocessing


@dataclass(frozen=True)
class FeatureViews(Preprocessing):
    """What a head reads of stored features: in training either view, by the draw of the image; else the first."""

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
