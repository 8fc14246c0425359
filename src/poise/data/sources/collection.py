"""Tiny-ImageNet-100 and ImageNet's own data sets: class folders or packs with constants of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source
from poise.data.sources.folder import FolderSource
from poise.errors import UserError
from poise.places import Collection, explain_collection

#: Mean and standard deviation of ImageNet's channels.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
#: For images of 64 pixels: shifts by up to an eighth of the side, as for CIFAR's.
SHIFTED: Final = Augmentation(pad=8, flip=True)
#: For larger ones: random resized crops of at least 8 % of the area.
RESIZED: Final = Augmentation(pad=0, flip=True, resized=0.08)


def own_preprocessing(collection: Collection) -> Preprocessing:
    """The constants of such a data set: ImageNet's, and random resized crops where images are larger than 64 pixels."""
    return Preprocessing(MEAN, STD, SHIFTED if collection.size <= 64 else RESIZED)


def own_net(collection: Collection) -> str:
    """ResNet-18: for images of 64 pixels without pooling, else with LUCIR's stem."""
    return "cifar-resnet18" if collection.size <= 64 else "resnet18"


def open_collection(collection: Collection, place: Path | None) -> Source:
    """The data set from where it lies."""
    if place is None:
        raise UserError(f"{collection.name} was not found; {explain_collection(collection)}")
    return TinySource(collection, place)


class TinySource(FolderSource):
    """A collection whose images are small and fit into memory, from its class folders."""

    def __init__(self, collection: Collection, folder: Path) -> None:
        super().__init__(folder, name=collection.name, size=collection.size)
        self.class_names = tuple(collection.select(self.class_names, str(folder)))
        self.preprocessing = own_preprocessing(collection)
        self.augmentation = self.preprocessing.augmentation
        self.net = own_net(collection)
        self.notes = (f"size {collection.size}×{collection.size}; net {self.net}",)


class OutlinedSource(Source):
    """A collection that is not here: its numbers of classes and images, for an estimate, and no image."""

    def __init__(self, collection: Collection) -> None:
        self.name = collection.name
        self.class_names = tuple(f"class {place}" for place in range(collection.classes))
        self.preprocessing = own_preprocessing(collection)
        self.augmentation = self.preprocessing.augmentation
        self.net = own_net(collection)
        self.notes = (f"{collection.title} is not here: counted as published, about {collection.images:,} images",)
        self._collection = collection

    @property
    def fingerprint(self) -> str:
        """Nothing is known of its images."""
        raise UserError(explain_collection(self._collection))

    def train(self) -> ImageSet:
        """As many blank images as it has, which take no memory."""
        return _blank(self._collection.sizes(), self.outline()[1])

    def test(self) -> ImageSet:
        """As many blank images as its exam has."""
        each = self._collection.tests // self._collection.classes
        return _blank([each] * self._collection.classes, self.outline()[1])

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """The published numbers."""
        return self._collection.sizes(), (3, self._collection.size, self._collection.size)


def _blank(sizes: list[int], shape: tuple[int, int, int]) -> ImageSet:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    pixels = torch.zeros(1, *shape, dtype=torch.uint8).expand(len(labels), *shape)
    return ImageSet(pixels, labels, torch.arange(len(labels)))
