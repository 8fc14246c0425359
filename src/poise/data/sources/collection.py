"""Tiny-ImageNet-100 and ImageNet's own data sets: class folders or packs with constants of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source
from poise.data.sources.folder import FolderSource
from poise.data.stores import FlatStore
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
        return self._blank(self._collection.sizes())

    def test(self) -> ImageSet:
        """As many blank images as its exam has."""
        return self._blank([self._collection.tests // self._collection.classes] * self._collection.classes)

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """The published numbers."""
        return self._collection.sizes(), (3, self._collection.size, self._collection.size)

    def _blank(self, counts: list[int]) -> ImageSet:
        """One black image many times, as large as most are when they are stored: 4 to 3 where the aspect is kept."""
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        short, shape = self._collection.stored, self.outline()[1]
        long = short if short == shape[1] else short * 4 // 3
        nothing = torch.zeros(3 * short * long, dtype=torch.uint8)
        sizes = torch.tensor([short, long]).expand(len(labels), 2)
        return ImageSet(FlatStore(nothing, torch.zeros_like(labels), sizes, shape), labels, torch.arange(len(labels)))
