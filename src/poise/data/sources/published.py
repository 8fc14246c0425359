"""Published data sets: the embedded digits, CIFAR, Tiny-ImageNet-100 and ImageNet's own.

The files of CIFAR are pickles, which can run code when they are opened. Each is read once, its md5 compared with that
of the published file, and only those same bytes are unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
import shlex
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from poise import draws
from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest
from poise.data.sources.layout import PACK, is_pack, scan
from poise.data.sources.own import FolderSource, PackSource
from poise.data.sources.registry import Collection, Release, explain_missing
from poise.data.stores import FlatStore
from poise.errors import UserError

#: Where scikit-learn keeps the digits.
DIGITS: Final = "datasets/data/digits.csv.gz"
_SPLIT_SEED: Final = 1993
_CIFAR: Final = Augmentation(pad=4, flip=True)
PREPROCESSING: Final = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _CIFAR),
    # LUCIR's constants: the standard deviations are smaller than those of the pixels.
    "cifar100": Preprocessing((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023), _CIFAR),
}
#: Mean and standard deviation of ImageNet's channels.
MEAN: Final = (0.485, 0.456, 0.406)
STD: Final = (0.229, 0.224, 0.225)
#: For images of 64 pixels: shifts by up to an eighth of the side, as for CIFAR's.
SHIFTED: Final = Augmentation(pad=8, flip=True)
#: For larger ones: random resized crops of at least 8 % of the area.
RESIZED: Final = Augmentation(pad=0, flip=True, resized=0.08)


class DigitsSource(Source):
    """Ten classes of handwritten digits; a fixed third of each class is the test part."""

    name = "digits"
    class_names = tuple(str(digit) for digit in range(10))
    augmentation = Augmentation(pad=1, flip=False)
    preprocessing = Preprocessing(mean=(0.3063,), std=(0.3764,), augmentation=augmentation)
    net = "small"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the training pixels and labels."""
        images = self.train()
        return digest(["digits", images.store, images.labels])

    def train(self) -> ImageSet:
        """Two thirds of each class, in scikit-learn's order."""
        return _digits(test=False)

    def test(self) -> ImageSet:
        """The other third of each class."""
        return _digits(test=True)


def _digits(*, test: bool) -> ImageSet:
    pixels, labels, tested = _all_digits()
    wanted = np.flatnonzero(tested == test)
    return ImageSet(torch.from_numpy(pixels[wanted]), torch.from_numpy(labels[wanted]), torch.arange(len(wanted)))


@cache
def _all_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Pixels, labels and which of them are the test part, in scikit-learn's order; read once in a process.

    They are in the file that `load_digits` reads: importing scikit-learn takes about a second, longer than a phase of
    digits is trained. Where a version of it keeps them elsewhere, it is asked.
    """
    found = find_spec("sklearn")
    file = Path(found.origin).parent / DIGITS if found and found.origin else None
    if file is not None and file.is_file():
        rows = np.loadtxt(file, delimiter=",")
    else:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        rows = np.column_stack([bunch.data, bunch.target])
    pixels, labels = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8), rows[:, -1].astype(int)
    tested = np.zeros(len(labels), dtype=np.bool_)
    for label in range(10):
        members = np.flatnonzero(labels == label)
        shuffled = draws.generator(_SPLIT_SEED, "digits test", label).permutation(members)
        tested[shuffled[: len(members) // 3]] = True
    return pixels, labels, tested


class CifarSource(Source):
    """One of the two CIFAR data sets in its standard folder."""

    augmentation = _CIFAR
    net = "resnet32"

    def __init__(self, release: Release, folder: Path) -> None:
        self.name = release.name
        self.preprocessing = PREPROCESSING[release.name]
        self._release = release
        self._folder = folder
        (meta,) = (self._unpickle(file, md5) for file, md5 in release.meta.items())
        self.class_names = tuple(meta[release.names_key])

    @property
    def fingerprint(self) -> str:
        """A hash of the md5 sums of the training files, which `train` verifies."""
        return digest([self.name, *self._release.train.values()])

    @cached_property
    def _train(self) -> ImageSet:
        """The training images, read once for all runs of these data."""
        return self._images(self._release.train)

    def train(self) -> ImageSet:
        """The training images in the order of the files."""
        return self._train

    def test(self) -> ImageSet:
        """The test images in the order of the file."""
        return self._images(self._release.test)

    def verify(self) -> None:
        """Check the md5 of every file, including the test part, and unpickle none."""
        for file, md5 in {**self._release.train, **self._release.test}.items():
            self._read_verified(file, md5)

    def _images(self, files: Mapping[str, str]) -> ImageSet:
        parts = [self._unpickle(file, md5) for file, md5 in files.items()]
        pixels = torch.cat([torch.from_numpy(np.asarray(part["data"])).view(-1, 3, 32, 32) for part in parts])
        labels = [label for part in parts for label in part[self._release.labels_key]]
        return ImageSet(pixels, torch.tensor(labels), torch.arange(len(labels)))

    def _unpickle(self, file: str, md5: str) -> dict[str, Any]:
        data = self._read_verified(file, md5)
        with warnings.catch_warnings():  # numpy warns about pickles as old as these
            warnings.simplefilter("ignore")
            content: dict[str, Any] = pickle.loads(data, encoding="latin1")
        return content

    def _read_verified(self, file: str, md5: str) -> bytes:
        """The bytes of a file; refused unless they are the published ones."""
        path = self._folder / file
        origin = "get the python version from the CIFAR page and unpack it again"
        try:
            data = path.read_bytes()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UserError(
                f"{path} of {self._release.title} (md5 {md5}) cannot be read ({reason}); {origin}"
            ) from error
        found = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if found != md5:
            raise UserError(f"{path} is not the file of {self._release.title}: md5 {found}, expected {md5}; {origin}")
        return data


# ImageNet and its parts ----------------------------------------------------------------------------------------------


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
    source = FolderSource(place, name=collection.name, size=collection.size)
    source.class_names = tuple(collection.select(source.class_names, str(place)))
    _give_constants(source, collection)
    source.notes = (f"size {collection.size}×{collection.size}; net {source.net}",)
    return source


def _give_constants(source: Source, collection: Collection) -> None:
    """Prepare images as ImageNet's, with random resized crops where they are stored larger, and choose the network.

    It is ResNet-18: with LUCIR's stem, for small images with one that keeps their resolution.
    """
    source.augmentation = RESIZED if collection.needs_pack else SHIFTED
    source.preprocessing = Preprocessing(MEAN, STD, source.augmentation)
    source.net = "resnet18" if collection.needs_pack else "cifar-resnet18"


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
        self._rows = [everything.index(name) for name in self.class_names]
        _give_constants(self, collection)
        self.notes = (f"pack {path}, {collection.size}×{collection.size} of its images; net {self.net}",)

    @property
    def fingerprint(self) -> str:
        """The digest of the pack and of the classes that are used of it."""
        return digest([super().fingerprint, *self.class_names])

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape."""
        counts, shape = super().outline()
        return [counts[row] for row in self._rows], shape

    def _images(self, part: str) -> ImageSet:
        """The images of the collection's classes, under its own labels."""
        images = super()._images(part)
        if len(self._rows) == len(self.pack.class_names):
            return images
        chosen = images.of_labels(self._rows).relabelled(self._rows)
        return ImageSet(chosen.store, chosen.labels, torch.arange(len(chosen), device="cpu"))


class OutlinedSource(Source):
    """A collection that is not here, or not packed: its numbers of classes and images, for an estimate, and no image.

    The files in its class folders are counted; without a folder the numbers are the published ones.
    """

    is_here = False

    def __init__(self, collection: Collection, folder: Path | None) -> None:
        self.name, self._collection, self._folder = collection.name, collection, folder
        _give_constants(self, collection)
        if folder is None:
            self.class_names = tuple(f"class {place}" for place in range(collection.classes))
            self._sizes, tests = collection.sizes(), collection.tests // collection.classes
            self._tests = [tests] * collection.classes
            count = f"{collection.images:,} images"
            self.notes = (f"{collection.title} is not here: counted as published, about {count}",)
        else:
            layout = scan(folder)
            self.class_names = tuple(collection.select(sorted(layout.train), str(folder)))
            self._sizes = [len(layout.train[name]) for name in self.class_names]
            self._tests = [len(layout.test.get(name, ())) for name in self.class_names] if layout.test else []
            count = f"its {sum(self._sizes):,} images were counted"
            self.notes = (f"{collection.title} in {folder} is not packed: {count}, none was read",)

    @property
    def fingerprint(self) -> str:
        """None: nothing is known of its images."""
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
        store = _BlankStore(nothing, torch.zeros_like(labels), sizes, shape)
        return ImageSet(store, labels, torch.arange(len(labels), device="cpu"))


class _BlankStore(FlatStore):
    """Images that are not looked at: a digest of them reads none."""

    in_memory = False
    known_by_pixels = False

    def identity(self) -> Iterator[bytes]:
        yield f"{len(self)} blank images of {self.shape}".encode()
