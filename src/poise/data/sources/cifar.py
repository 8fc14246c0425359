"""CIFAR-10 and CIFAR-100 from their standard python folders, every file checked before it is used.

The files are pickles, which can run code when they are opened. Each is read once, its md5 compared with
that of the published file, and only those same bytes are unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest
from poise.errors import UserError

_AUGMENTATION = Augmentation(pad=4, flip=True)


@dataclass(frozen=True)
class Release:
    """The published files of one data set: where they are, their md5 sums and what their entries are called."""

    name: str
    title: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels_key: str
    names_key: str
    preprocessing: Preprocessing

    def found_in(self, folder: Path) -> Path | None:
        """The standard folder: `folder` itself, or below it."""
        candidates = (folder, folder / self.folder, folder / self.name, folder / self.name / self.folder)
        return next((candidate for candidate in candidates if self._is_at(candidate)), None)

    def _is_at(self, folder: Path) -> bool:
        # A folder that lacks some of its files is found too: reading it says which file is missing.
        return any((folder / file).is_file() for file in self.meta) or (folder.name == self.folder and folder.is_dir())


RELEASES: Final[Mapping[str, Release]] = {
    release.name: release
    for release in (
        Release(
            name="cifar10",
            title="CIFAR-10",
            folder="cifar-10-batches-py",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
            meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
            labels_key="labels",
            names_key="label_names",
            preprocessing=Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _AUGMENTATION),
        ),
        Release(
            name="cifar100",
            title="CIFAR-100",
            folder="cifar-100-python",
            train={"train": "16019d7e3df5f24257cddd939b257f8d"},
            test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
            labels_key="fine_labels",
            names_key="fine_label_names",
            # LUCIR's constants: the standard deviations are smaller than those of the pixels.
            preprocessing=Preprocessing((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023), _AUGMENTATION),
        ),
    )
}


class CifarSource(Source):
    """One of the two CIFAR data sets in its standard folder."""

    augmentation = _AUGMENTATION
    net = "resnet32"

    def __init__(self, release: Release, folder: Path) -> None:
        self.name = release.name
        self.preprocessing = release.preprocessing
        self._release = release
        self._folder = folder
        (meta,) = (self._unpickle(file, md5) for file, md5 in release.meta.items())
        self.class_names = tuple(meta[release.names_key])

    @property
    def fingerprint(self) -> str:
        """A hash of the md5 sums of the training files, which `train` verifies."""
        return digest([self.name, *self._release.train.values()])

    def train(self) -> ImageSet:
        """The training images in the order of the files."""
        return self._images(self._release.train)

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
