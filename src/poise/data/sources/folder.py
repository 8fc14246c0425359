"""Any folder of class folders as a data set."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path

import torch

from poise.data.augment import suitable_augmentation
from poise.data.decode import Decoder, FileContent, check_room, median_side, suitable_size
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest, suitable_net, warn_of_copies
from poise.data.sources.layout import PACK, Files, list_files, scan
from poise.data.sources.registry import own_name
from poise.errors import UserError, check_whole
from poise.settings import LARGEST_SIZE, LEAST_SIZE


class FolderSource(Source):
    """Images in class folders, decoded to one square size."""

    def __init__(self, folder: Path, *, name: str | None = None, size: int | None = None) -> None:
        self.name = name or own_name(folder.resolve())
        self._folder = folder
        self._layout = scan(folder)
        self.class_names = tuple(self._layout.train)
        if size is None:
            median = median_side([file for _, file in list_files(self._layout.train)])
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
