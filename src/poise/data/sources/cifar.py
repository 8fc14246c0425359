"""CIFAR-10 and CIFAR-100 from their standard python folders, every file checked before it is used.

The files are pickles, which can run code when they are opened. Each is read once, its md5 compared with
that of the published file, and only those same bytes are unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from poise.data.augment import Augmentation, Preprocessing
from poise.data.images import ImageSet
from poise.data.sources.base import Source, digest
from poise.data.sources.registry import Release
from poise.errors import UserError

_AUGMENTATION = Augmentation(pad=4, flip=True)
PREPROCESSING = {
    "cifar10": Preprocessing((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), _AUGMENTATION),
    # LUCIR's constants: the standard deviations are smaller than those of the pixels.
    "cifar100": Preprocessing((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023), _AUGMENTATION),
}


class CifarSource(Source):
    """One of the two CIFAR data sets in its standard folder."""

    augmentation = _AUGMENTATION
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
