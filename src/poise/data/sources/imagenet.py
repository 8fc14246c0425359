"""Tiny-ImageNet-100 and ImageNet's own data sets: class folders or packs with constants of their own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest
from poise.data.sources.folder import FolderSource
from poise.data.sources.layout import PACK, is_pack, scan
from poise.data.sources.pack import PackSource
from poise.data.sources.registry import Collection, explain_missing
from poise.data.stores import FlatStore
from poise.errors import UserError

#: Mean and standard deviation of ImageNet's channels.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
#: For images of 64 pixels: shifts by up to an eighth of the side, as for CIFAR's.
SHIFTED: Final = Augmentation(pad=8, flip=True)
#: For larger ones: random resized crops of at least 8 % of the area.
RESIZED: Final = Augmentation(pad=0, flip=True, resized=0.08)


def own_preprocessing(collection: Collection) -> Preprocessing:
    """The constants of such a data set: ImageNet's, and random resized crops where images are stored larger."""
    return Preprocessing(MEAN, STD, RESIZED if collection.needs_pack else SHIFTED)


def own_net(collection: Collection) -> str:
    """ResNet-18: with LUCIR's stem, for small images with one that keeps their resolution."""
    return "resnet18" if collection.needs_pack else "cifar-resnet18"


def open_collection(collection: Collection, place: Path) -> Source:
    """The data set from where it lies: a pack, or class folders where its images are small."""
    if is_pack(place):
        return PackedCollection(collection, place)
    if collection.needs_pack:
        collection.select(sorted(scan(place).train), str(place))
        only = f" --classes {collection.name}" if collection.name != "imagenet" else ""
        pack = shlex.quote(f"{place.parent / collection.folder}{PACK}")
        raise UserError(
            f"{collection.title} in {place} is too large to be decoded at each start; pack it once: poise data pack "
            f"{shlex.quote(str(place))} --out {pack}{only}, then poise data add {collection.name} --from {pack}"
        )
    return TinySource(collection, place)


class PackedCollection(PackSource):
    """A collection in a pack of its own, or in one of all of ImageNet. Exams show the centre of each image."""

    def __init__(self, collection: Collection, path: Path) -> None:
        super().__init__(path, name=collection.name, size=collection.size)
        if self.pack.size != collection.stored:
            raise UserError(
                f"{path} has images with a short side of {self.pack.size} pixels, {collection.title} needs "
                f"{collection.stored}; pack it with --size {collection.stored}"
            )
        everything = self.pack.class_names
        self.class_names = tuple(collection.select(everything, str(path)))
        places = {name: label for label, name in enumerate(everything)}
        self._rows = [places[name] for name in self.class_names]
        self.preprocessing = own_preprocessing(collection)
        self.augmentation = self.preprocessing.augmentation
        self.net = own_net(collection)
        self.notes = (f"pack {path}, {collection.size}×{collection.size} of its images; net {self.net}",)

    @property
    def fingerprint(self) -> str:
        """That of the pack and of the classes that are used of it."""
        return digest([super().fingerprint, *self.class_names])

    def train(self) -> ImageSet:
        """The training images, class by class, in the order of their files."""
        return self._of_classes(super().train())

    def test(self) -> ImageSet:
        """The test images, class by class, in the order of their files."""
        return self._of_classes(super().test())

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape."""
        counts, shape = super().outline()
        return [counts[row] for row in self._rows], shape

    def _of_classes(self, images: ImageSet) -> ImageSet:
        """Those of the collection's classes, under its own labels."""
        if len(self._rows) == len(self.pack.class_names):
            return images
        chosen = images.of_labels(self._rows).relabelled(self._rows)
        return ImageSet(chosen.store, chosen.labels, torch.arange(len(chosen), device="cpu"))


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
    """A collection that is not here, or not packed: its numbers of classes and images, for an estimate, and no image.

    The files in its class folders are counted; without a folder the numbers are the published ones.
    """

    is_here = False

    def __init__(self, collection: Collection, folder: Path | None) -> None:
        self.name = collection.name
        self._collection = collection
        if folder is None:
            self._count_as_published()
        else:
            self._count_files(folder)
        self.preprocessing = own_preprocessing(collection)
        self.augmentation = self.preprocessing.augmentation
        self.net = own_net(collection)

    def _count_as_published(self) -> None:
        collection = self._collection
        self.class_names = tuple(f"class {place}" for place in range(collection.classes))
        self._sizes, self._tests = collection.sizes(), [collection.tests // collection.classes] * collection.classes
        self.notes = (f"{collection.title} is not here: counted as published, about {collection.images:,} images",)

    def _count_files(self, folder: Path) -> None:
        layout = scan(folder)
        self.class_names = tuple(self._collection.select(sorted(layout.train), str(folder)))
        self._sizes = [len(layout.train[name]) for name in self.class_names]
        self._folder, tests = folder, layout.test
        self._tests = [len(tests.get(name, ())) for name in self.class_names] if tests is not None else []
        title, count = self._collection.title, sum(self._sizes)
        self.notes = (f"{title} in {folder} is not packed: its {count:,} images were counted, none was read",)

    @property
    def fingerprint(self) -> str:
        """Nothing is known of its images."""
        raise UserError(explain_missing(self.name))

    def train(self) -> ImageSet:
        """As many blank images as it has, which take no memory."""
        return self._blank_images(self._sizes)

    def test(self) -> ImageSet:
        """As many blank images as its exam has."""
        if not self._tests:
            raise UserError(f"{self._folder} has no test folder; add test/CLASS/* (or val/CLASS/*) or set exam=dev")
        return self._blank_images(self._tests)

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """The numbers that were counted, or published."""
        return self._sizes, (3, self._collection.size, self._collection.size)

    def _blank_images(self, counts: list[int]) -> ImageSet:
        """One black image many times, as large as most are when they are stored: 4 to 3 where the aspect is kept."""
        labels = torch.arange(len(counts), device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))
        short, shape = self._collection.stored, self.outline()[1]
        long = short if short == shape[1] else short * 4 // 3
        nothing = torch.zeros(3 * short * long, dtype=torch.uint8, device="cpu")
        sizes = torch.tensor([short, long], device="cpu").expand(len(labels), 2)
        store = _BlankStore(nothing, torch.zeros_like(labels), sizes, shape, in_memory=False)
        return ImageSet(store, labels, torch.arange(len(labels), device="cpu"))


class _BlankStore(FlatStore):
    """Images that are not looked at: a digest of them reads none."""

    @property
    def known_by_pixels(self) -> bool:
        return False

    def identity(self) -> Iterator[bytes]:
        yield f"{len(self)} blank images of {self.shape}".encode()
