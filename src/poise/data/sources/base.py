"""What a data source is."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.stores import PixelStore

log = logging.getLogger(__name__)

#: The most images for which a small network is chosen.
FEW_IMAGES: Final = 20_000
#: Up to this side an image counts as tiny, such as a digit of 8 pixels.
TINY: Final = 12
WIDE_FROM: Final = 200  # tiny images, from which on the small network has twice the channels


def suitable_net(side: int, images: int | None = None) -> str:
    """The backbone for images with that many pixels on their shorter side, and for their number if that is known.

    Where only a few pixels are looked at, twice as many channels cost little, and pay once there are some images.

    >>> suitable_net(32), suitable_net(8, 500), suitable_net(32, 500), suitable_net(96, 500), suitable_net(224, 500)
    ('resnet32', 'small-wide', 'small', 'small2', 'small4')
    """
    if images is not None and images <= FEW_IMAGES:
        if side <= TINY:
            return "small-wide" if images >= WIDE_FROM else "small"
        return "small" if side <= 64 else "small2" if side <= 128 else "small4"
    return "small" if side <= TINY else "resnet32" if side <= 64 else "resnet18"


class Source(ABC):
    """A data set with a training and a test part.

    Only `test` opens files of the test part, so an exam on training images can promise that the test images
    were never read.

    Attributes:
        name: what the data set is called in tables and messages.
        class_names: the name of each class; a label is an index into it.
        preprocessing: constants of the data set; None: measured on the images of the first phase.
        augmentation: how training images may be varied.
        net: the backbone that suits the images.
        notes: lines for the user about what was chosen.
        is_here: whether there are images; if not, blank ones stand for them, to estimate with.
    """

    name: str
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None = None
    augmentation: Augmentation
    net: str
    notes: tuple[str, ...] = ()
    is_here: bool = True

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A stable id of the training data: different images, labels or classes give a different id."""

    @abstractmethod
    def train(self) -> ImageSet:
        """The training images."""

    @abstractmethod
    def test(self) -> ImageSet:
        """The test images."""

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape."""
        train = self.train()
        return torch.bincount(train.labels, minlength=len(self.class_names)).tolist(), train.shape


def warn_of_copies(copies: int, tests: int, example: str = "") -> None:
    """Say that the exam holds images that were trained on."""
    log.warning(
        "%d of the %d test images are copies of training images%s; the exam says too much: keep each in one part",
        copies,
        tests,
        example,
    )


def digest(parts: Iterable[str | bytes | Tensor | PixelStore]) -> str:
    """A short hash of all parts, each with its length or shape, so that no two lists of parts look alike."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, PixelStore):
            total.update(f"{part.dtype} {(len(part), *part.shape)}\n".encode())
            for each in part.identity():
                total.update(each)
        elif isinstance(part, Tensor):
            total.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            total.update(part.cpu().contiguous().numpy().data)
        else:
            data = part.encode(errors="backslashreplace") if isinstance(part, str) else part
            total.update(f"{len(data)}\n".encode())
            total.update(data)
    return total.hexdigest()
