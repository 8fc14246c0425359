"""A pack as a data set."""

from __future__ import annotations

from pathlib import Path

import torch

from poise.data.augment import suitable_augmentation
from poise.data.images import ImageSet
from poise.data.packs import TEST, TRAIN, Pack
from poise.data.sources.base import Source, suitable_net, warn_of_copies
from poise.data.sources.registry import own_name
from poise.errors import UserError


class PackSource(Source):
    """The images of a pack, mapped from its file. Opening it reads its index and no pixel.

    Networks see the centre of `size` pixels of each image, at most the short side that it was packed with.
    """

    def __init__(self, path: Path, *, name: str | None = None, size: int | None = None) -> None:
        self.name = name or own_name(path.resolve())
        self.path = path
        self.pack = Pack.open(path)
        self.class_names = self.pack.class_names
        self._side = size or self.pack.size
        self.net = suitable_net(self._side)
        self.augmentation = suitable_augmentation(self._side)
        packed = f"{self.pack.size}×{self.pack.size}" if self.pack.square else f"short side {self.pack.size}"
        self.notes = (f"pack {path} ({packed}), size {self._side}×{self._side}; net {self.net}",)

    @property
    def fingerprint(self) -> str:
        """What the index says of classes, sizes and contents of the training part."""
        return self.pack.fingerprint if self._side == self.pack.size else f"{self.pack.fingerprint}-{self._side}"

    def train(self) -> ImageSet:
        """The training images, class by class, in the order of their files."""
        return self._images(TRAIN)

    def test(self) -> ImageSet:
        """The test images, class by class, in the order of their files; copies of training files are warned of."""
        if not self.pack.has_test:
            raise UserError(f"{self.path} has no test part; pack a folder with test (or val) folders, or set exam=dev")
        if copies := self.pack.copies():
            warn_of_copies(copies, sum(self.pack.counts(TEST)))
        return self._images(TEST)

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape."""
        return self.pack.counts(), (self.pack.channels, self._side, self._side)

    def _images(self, part: str) -> ImageSet:
        labels = self.pack.labels(part)
        return ImageSet(self.pack.store(part, self._side), labels, torch.arange(len(labels), device="cpu"))
