"""Any folder of class folders as a data set."""

from __future__ import annotations

import hashlib
import shlex
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import torch

from poise.data.images import ImageSet
from poise.data.inputs import decode_all, median_side, suitable_size
from poise.data.sources.base import Source, digest, warn_of_copies
from poise.data.sources.layout import Files, list_files, scan
from poise.data.sources.registry import own_name
from poise.data.suitable import check_room, suitable_augmentation, suitable_net
from poise.errors import UserError, check_whole
from poise.files import MOST_IMAGE, file_word, read_bytes
from poise.settings import LARGEST_SIZE, LEAST_SIZE


class FolderSource(Source):
    """Images in class folders, decoded to one square size."""

    def __init__(self, folder: Path, *, name: str | None = None, size: int | None = None) -> None:
        self.name = name or own_name(folder.resolve())
        self._folder = folder
        self._layout = scan(folder)
        self.class_names = tuple(self._layout.train)
        self._side, reason = _choose_size(self._layout.train) if size is None else (_check_size(size), "as asked")
        self.net = suitable_net(self._side)
        self.augmentation = suitable_augmentation(self._side)
        self.notes = (f"size {self._side}×{self._side} ({reason}); net {self.net}",)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the size in pixels and of the classes, names, lengths and contents of the training files."""
        ids = [
            f"{name}/{file.name} {size} {content.hex()}"
            for (name, file), (size, content) in zip(list_files(self._layout.train), self._contents, strict=True)
        ]
        return digest([str(self._side), *ids])

    @cached_property
    def _contents(self) -> list[FileContent]:
        """Of the training files."""
        return _read_contents(self._layout.train)

    def train(self) -> ImageSet:
        """The training images, class by class, file names in order."""
        return self._images(self._layout.train)

    def test(self) -> ImageSet:
        """The test images, class by class, file names in order; copies of training files are warned of."""
        if self._layout.test is None:
            raise UserError(f"{self._folder} has no test folder; add test/CLASS/* (or val/CLASS/*) or set exam=dev")
        self._warn_of_copies(self._layout.test)
        return self._images(self._layout.test)

    def _warn_of_copies(self, tests: Files) -> None:
        """Say how many test files have the same bytes as a training file."""
        trained = dict(zip(self._contents, (file for _, file in list_files(self._layout.train)), strict=True))
        listed = zip(_read_contents(tests), (file for _, file in list_files(tests)), strict=True)
        copies = [(file, trained[content]) for content, file in listed if content in trained]
        if copies:
            warn_of_copies(len(copies), sum(map(len, tests.values())), f" ({copies[0][0]} is {copies[0][1]})")

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape; no image is decoded for it."""
        return [len(files) for files in self._layout.train.values()], (3, self._side, self._side)

    def _images(self, files: Files) -> ImageSet:
        listed = list(list_files(files))
        name = shlex.quote(f"{file_word(self._folder.resolve().name)}.pack")
        pack = f"pack them once: poise data pack {shlex.quote(str(self._folder))} --out {name}"
        todo = f"{pack} --size {self._side}, then use data={name}; or use a smaller image_size"
        check_room(len(listed), (3, self._side, self._side), todo)
        pixels = decode_all([file for _, file in listed], (self._side, self._side))
        index = {name: number for number, name in enumerate(self.class_names)}
        labels = torch.tensor([index[name] for name, _ in listed])
        return ImageSet(pixels, labels, torch.arange(len(listed)))


FileContent = tuple[int, bytes]  # how many bytes a file has, and their hash


def _read_contents(files: Files) -> list[FileContent]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_read_content, (file for _, file in list_files(files))))


def _read_content(file: Path) -> FileContent:
    try:
        content = read_bytes(file, MOST_IMAGE)
    except FileNotFoundError as error:
        raise UserError(f"image {file} is gone, or a broken link; mend or remove it") from error
    except OSError as error:
        raise UserError(f"image {file} cannot be read ({error.strerror}); check its permissions") from error
    except UserError as error:
        raise UserError(f"image {error}") from error
    return len(content), hashlib.blake2b(content, digest_size=16).digest()


def _choose_size(files: Files) -> tuple[int, str]:
    side = median_side([file for _, file in list_files(files)])
    return suitable_size(side), f"median shorter side {side}"


def _check_size(size: int) -> int:
    check_whole("image_size", size, LEAST_SIZE, LARGEST_SIZE)
    return size
