"""Data sets of one's own: arrays in memory, any folder of class folders, a pack."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise.data.augment import Augmentation, suitable_augmentation
from poise.data.decode import Decoder, FileContent, check_room, median_side, suitable_size
from poise.data.images import ImageSet, image_digests
from poise.data.inputs import to_pixels
from poise.data.packs import TEST, TRAIN, Pack
from poise.data.sources.base import Source, digest, suitable_net, warn_of_copies
from poise.data.sources.layout import PACK, Files, list_files, scan
from poise.data.sources.registry import own_name
from poise.errors import UserError, check_whole
from poise.settings import LARGEST_SIZE, LEAST_SIZE

Label = int | str


class ArraySource(Source):
    """Images and labels that are already in memory, in any form that `to_pixels` accepts.

    Labels are whole numbers or strings; the classes are their sorted distinct values. Without test images
    only an exam on training images is possible.
    """

    def __init__(
        self,
        train_images: Any,  # noqa: ANN401 - checked by to_pixels
        train_labels: Any,  # noqa: ANN401 - checked by _values
        test_images: Any = None,  # noqa: ANN401 - checked by to_pixels
        test_labels: Any = None,  # noqa: ANN401 - checked by _values
        *,
        name: str = "arrays",
        augmentation: Augmentation | None = None,
    ) -> None:
        labels = _values("train_labels", train_labels)
        classes = sorted(set(labels), key=lambda value: (isinstance(value, str), value))
        if len(classes) < 2:
            raise UserError(f"train_labels have {len(classes)} class; at least 2 are needed")
        self.name = name
        self.class_names = tuple(str(value) for value in classes)
        self._train = _label("train", to_pixels(train_images), labels, classes)
        self._test = None if test_images is None else (test_images, _values("test_labels", test_labels))
        strangers = sorted(map(str, {*self._test[1]} - {*classes})) if self._test is not None else []
        if strangers:
            raise UserError(f"test_labels name classes that train_labels lack: {', '.join(strangers[:10])}")
        self._classes = classes
        side = min(self._train.shape[1:])
        self.net = suitable_net(side)
        self.augmentation = augmentation or suitable_augmentation(side)
        _, height, width = self._train.shape
        self.notes = (f"size {height}×{width}; net {self.net}; flip {'on' if self.augmentation.flip else 'off'}",)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the class names, training pixels and labels."""
        return digest([*self.class_names, self._train.store, self._train.labels])

    def train(self) -> ImageSet:
        """The training images in the order in which they were given."""
        return self._train

    def test(self) -> ImageSet:
        """The test images in the order in which they were given."""
        if self._test is None:
            raise UserError(f"{self.name} came without test images; give test_images and test_labels, or set exam=dev")
        images, labels = self._test
        tests = _label("test", to_pixels(images, self._train.shape[1:]), labels, self._classes)
        if tests.shape != self._train.shape:
            raise UserError(f"test images have {tests.shape[0]} channels, training images {self._train.shape[0]}")
        trained = set(image_digests(self._train.store))
        copies = sum(each in trained for each in image_digests(tests.store))
        if copies:
            warn_of_copies(copies, len(tests))
        return tests


class FolderSource(Source):
    """Images in class folders, decoded to one square size."""

    def __init__(self, folder: Path, *, name: str | None = None, size: int | None = None) -> None:
        self.name = name or own_name(folder.resolve())
        self._folder = folder
        self._layout = scan(folder)
        self.class_names = tuple(self._layout.train)
        if size is None:
            files = [file for _, file in list_files(self._layout.train)]
            median = median_side(len(files), files.__getitem__)
            self._side, reason = suitable_size(median), f"median shorter side {median}"
        else:
            check_whole("image_size", size, LEAST_SIZE, LARGEST_SIZE)
            self._side, reason = size, "as asked"
        self.net = suitable_net(self._side)
        self.augmentation = suitable_augmentation(self._side)
        self.notes = (f"size {self._side}×{self._side} ({reason}); net {self.net}",)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the size in pixels and of the classes, names, lengths and contents of the training files."""
        ids = [
            f"{name}/{file.name} {size} {content.hex()}"
            for (name, file), (size, content) in zip(list_files(self._layout.train), self._train[1], strict=True)
        ]
        return digest([str(self._side), *ids])

    @cached_property
    def _train(self) -> tuple[ImageSet, list[FileContent]]:
        """The training images and what their files are known by: both are read once."""
        return self._read(self._layout.train)

    def train(self) -> ImageSet:
        """The training images, class by class, file names in order."""
        return self._train[0]

    def test(self) -> ImageSet:
        """The test images, class by class, file names in order; copies of training files are warned of."""
        tests = self._layout.test
        if tests is None:
            raise UserError(f"{self._folder} has no test folder; add test/CLASS/* (or val/CLASS/*) or set exam=dev")
        images, contents = self._read(tests)
        trained = dict(zip(self._train[1], (file for _, file in list_files(self._layout.train)), strict=True))
        listed = zip(contents, (file for _, file in list_files(tests)), strict=True)
        copies = [(file, trained[content]) for content, file in listed if content in trained]
        if copies:
            warn_of_copies(len(copies), len(images), f" ({copies[0][0]} is {copies[0][1]})")
        return images

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape; no image is decoded for it."""
        return [len(files) for files in self._layout.train.values()], (3, self._side, self._side)

    def _read(self, files: Files) -> tuple[ImageSet, list[FileContent]]:
        listed = list(list_files(files))
        name = shlex.quote(f"{self._folder.resolve().name}{PACK}")
        pack = f"pack them once: poise data pack {shlex.quote(str(self._folder))} --out {name}"
        todo = f"{pack} --size {self._side}, then use data={name}; or use a smaller image_size"
        check_room(len(listed), (3, self._side, self._side), todo)
        contents: list[FileContent] = []
        pixels = Decoder((self._side, self._side)).decode_all([file for _, file in listed], contents=contents)
        index = {name: number for number, name in enumerate(self.class_names)}
        labels = torch.tensor([index[name] for name, _ in listed])
        return ImageSet(pixels, labels, torch.arange(len(listed))), contents


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
        """The digest of classes, sizes and contents of the training part, from the pack's index."""
        whole = self.pack.identity(TRAIN)
        return whole if self._side == self.pack.size else f"{whole}-{self._side}"

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


# Labels of arrays -----------------------------------------------------------------------------------------------------


def _label(part: str, pixels: Tensor, labels: Sequence[Label], classes: Sequence[Label]) -> ImageSet:
    if len(pixels) != len(labels):
        raise UserError(f"{len(pixels)} {part} images came with {len(labels)} labels; give one label for each image")
    index = {value: number for number, value in enumerate(classes)}
    return ImageSet(pixels, torch.tensor([index[value] for value in labels]), torch.arange(len(labels)))


def _values(name: str, labels: Any) -> list[Label]:  # noqa: ANN401 - checked here
    """Labels from a list, an array or a tensor as plain numbers or strings, not both."""
    plain = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        raise UserError(f"{name} came as {type(labels).__name__}; give a list or array with one label for each image")
    values = [int(value) if isinstance(value, np.integer) else value for value in plain]
    kinds = {type(value) for value in values}
    if not (all(issubclass(kind, str) for kind in kinds) or kinds == {int}):
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"{name} contain {found}; labels must be all whole numbers or all strings")
    return values
