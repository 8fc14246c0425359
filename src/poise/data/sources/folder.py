"""Any folder of class folders as a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import torch

from poise import draws
from poise.data.images import ImageSet
from poise.data.inputs import decode_all, median_side, suitable_size
from poise.data.sources.base import Source, digest
from poise.data.suitable import LEAST_SIZE, suitable_augmentation, suitable_net
from poise.errors import UserError

ENDINGS: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_SPLIT_SEED = 1993

Files = Mapping[str, tuple[Path, ...]]  # the image files of each class


@dataclass(frozen=True)
class Layout:
    """Which files are the training and which the test part; `test` is None when the folder has none."""

    train: Files
    test: Files | None


def scan(folder: Path) -> Layout:
    """The layout of a data set: `train/CLASS/*` and `test/CLASS/*` (or `val`), or `CLASS/*` with a fixed seeded split.

    Only names are read, no file is opened.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder with one folder of images for each class")
    # A folder named train that holds images itself is a class of that name.
    if (folder / "train").is_dir() and not _image_files(folder / "train"):
        named = (folder / name for name in ("test", "val"))  # some data sets publish no labels of their test part
        return _read_parts(folder / "train", next((part for part in named if part.is_dir()), folder / "test"))
    return _split(folder, _classes(folder))


def labelled_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image file in `folder/CLASS/*`, and its class: what one phase brings."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder with one folder of images for each class")
    listed = list(_list_files(_classes(folder, least=1)))
    return [file for _, file in listed], [name for name, _ in listed]


def image_files(path: Path) -> list[Path]:
    """The file itself; for a folder, the image files in it and below it, sorted by path."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not found:
        raise UserError(f"{path} has no image; give image files ({_endings()}) or a folder of them")
    return found


class FolderSource(Source):
    """Images in class folders, decoded to one square size."""

    def __init__(self, folder: Path, *, name: str | None = None, size: int | None = None) -> None:
        self.name = name or folder.resolve().name
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
        return digest([str(self._side), *_file_ids(self._layout.train)])

    def train(self) -> ImageSet:
        """The training images, class by class, file names in order."""
        return self._images(self._layout.train)

    def test(self) -> ImageSet:
        """The test images, class by class, file names in order."""
        if self._layout.test is None:
            raise UserError(f"{self._folder} has no test folder; add test/CLASS/* (or val/CLASS/*) or set exam=dev")
        return self._images(self._layout.test)

    def _images(self, files: Files) -> ImageSet:
        listed = list(_list_files(files))
        pixels = decode_all([file for _, file in listed], (self._side, self._side))
        index = {name: number for number, name in enumerate(self.class_names)}
        labels = torch.tensor([index[name] for name, _ in listed])
        return ImageSet(pixels, labels, torch.arange(len(listed)))


def _read_parts(train: Path, test: Path) -> Layout:
    known = _classes(train)
    if not test.is_dir():
        return Layout(known, None)
    examined = _classes(test, least=1)
    strangers = sorted(set(examined) - set(known))
    if strangers:
        raise UserError(f"{test} has classes that {train} lacks: {', '.join(strangers)}; add them there or remove them")
    return Layout(known, examined)


def _split(folder: Path, classes: Files) -> Layout:
    train: dict[str, tuple[Path, ...]] = {}
    test: dict[str, tuple[Path, ...]] = {}
    for name, files in classes.items():
        if len(files) < 2:
            raise UserError(
                f"class '{name}' in {folder} has a single image, too few for a training and a test part; "
                "add images or use train/ and test/ folders"
            )
        shuffled = draws.generator(_SPLIT_SEED, "folder test", name).permutation(len(files))
        chosen = set(shuffled[: max(1, len(files) // 5)].tolist())
        train[name] = tuple(file for index, file in enumerate(files) if index not in chosen)
        test[name] = tuple(file for index, file in enumerate(files) if index in chosen)
    return Layout(train, test)


def _classes(folder: Path, least: int = 2) -> Files:
    """The image files of each class folder, classes and files sorted by name."""
    classes = {entry.name: _image_files(entry) for entry in _entries(folder) if entry.is_dir()}
    for name, files in classes.items():
        if not files:
            raise UserError(f"class folder {folder / name} has no image; add some ({_endings()}) or remove the folder")
    if len(classes) < least:
        found = f"only one class folder, {next(iter(classes))}" if classes else "no class folder"
        raise UserError(f"{folder} has {found}; put the images of each class in a folder of its own, at least {least}")
    return classes


def _image_files(folder: Path) -> tuple[Path, ...]:
    return tuple(entry for entry in _entries(folder) if entry.suffix.lower() in ENDINGS and entry.is_file())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error


def _endings() -> str:
    return ", ".join(sorted(ENDINGS))


def _list_files(files: Files) -> Iterator[tuple[str, Path]]:
    return ((name, file) for name, members in files.items() for file in members)


def _file_ids(files: Files) -> Iterator[str]:
    for name, file in _list_files(files):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UserError(f"image {file} cannot be read ({error.strerror}); check its permissions") from error
        yield f"{name}/{file.name} {len(content)} {hashlib.blake2b(content, digest_size=16).hexdigest()}"


def _choose_size(files: Files) -> tuple[int, str]:
    side = median_side([file for _, file in _list_files(files)])
    return suitable_size(side), f"median shorter side {side}"


def _check_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < LEAST_SIZE:
        raise UserError(f"size={size} must be a whole number of pixels, at least {LEAST_SIZE}")
    return size
