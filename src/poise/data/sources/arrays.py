"""Arrays in memory as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise.data.augment import Augmentation, suitable_augmentation
from poise.data.images import ImageSet, image_digests
from poise.data.inputs import to_pixels
from poise.data.sources.base import Source, digest, suitable_net, warn_of_copies
from poise.errors import UserError

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
        self._test = (
            None
            if test_images is None
            else (test_images, _refuse_unknown(_values("test_labels", test_labels), classes))
        )
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


def _label(part: str, pixels: Tensor, labels: Sequence[Label], classes: Sequence[Label]) -> ImageSet:
    if len(pixels) != len(labels):
        raise UserError(f"{len(pixels)} {part} images came with {len(labels)} labels; give one label for each image")
    index = {value: number for number, value in enumerate(classes)}
    return ImageSet(pixels, torch.tensor([index[value] for value in labels]), torch.arange(len(labels)))


def _refuse_unknown(labels: Sequence[Label], classes: Sequence[Label]) -> Sequence[Label]:
    strangers = sorted({str(value) for value in labels if value not in set(classes)})
    if strangers:
        raise UserError(f"test_labels name classes that train_labels lack: {', '.join(strangers[:10])}")
    return labels


def _values(name: str, labels: Any) -> list[Label]:  # noqa: ANN401 - checked here
    """Labels from a list, an array or a tensor as plain numbers or strings, not both."""
    plain = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        raise UserError(f"{name} came as {type(labels).__name__}; give a list or array with one label for each image")
    values = [int(value) if isinstance(value, np.integer) else value for value in plain]
    if all(isinstance(value, str) for value in values):
        return values
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return values
    found = ", ".join(sorted({type(value).__name__ for value in values}))
    raise UserError(f"{name} contain {found}; labels must be all whole numbers or all strings")
