"""ImageNet and what is made of it, by name: folders, numbers of classes and images, and which classes they have.

Two different sets of 100 classes go by the name of ImageNet-Subset. Results on them cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from poise.errors import UserError

#: Of ImageNet (ILSVRC 2012).
IMAGENET_CLASSES: Final = 1000
_SEED = 1993


@dataclass(frozen=True)
class Collection:
    """A data set of ImageNet's line.

    Attributes:
        name: what to write after `data=`.
        title: what it is called in messages.
        folder: its folder in POISE_DATA, with `train/CLASS/*` and `val/CLASS/*`.
        classes: how many there are.
        images: how many training images there are.
        tests: how many images the exam has.
        size: height and width of an image as networks see it.
        stored: the shorter side of an image as it is stored; the centre of it is what an exam shows.
        part: how it is chosen of ImageNet's sorted classes: those of a seeded `draw`, or the `first` ones; empty: it is
            a data set of its own.
        known: names of some of its classes, by their places among all of them in sorted order.
    """

    name: str
    title: str
    folder: str
    classes: int
    images: int
    tests: int
    size: int
    stored: int
    part: str = ""
    known: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def chosen(self) -> tuple[int, ...]:
        """The places of its classes among ImageNet's, sorted.

        >>> COLLECTIONS["imagenet-subset-lucir"].chosen[:5], COLLECTIONS["imagenet-subset-podnet"].chosen[-1]
        ((7, 11, 14, 44, 54), 99)
        """
        places = np.arange(IMAGENET_CLASSES)
        if self.part == "draw":  # numpy's legacy generator, as the literature has it
            places = np.sort(np.random.RandomState(_SEED).permutation(IMAGENET_CLASSES)[: self.classes])
        return tuple(places[: self.classes].tolist())

    @property
    def needs_pack(self) -> bool:
        """Whether its images are too many and too large to be decoded at each start: class folders will not do."""
        return self.size < self.stored

    def sizes(self) -> list[int]:
        """About how many training images each class has, where they are not counted: the same of each."""
        each, rest = divmod(self.images, self.classes)
        return [each + (number < rest) for number in range(self.classes)]

    def select(self, names: Sequence[str], where: str) -> list[str]:
        """Those of the sorted class names of a folder that belong to it; refuses a folder that holds something else."""
        found = list(names)
        if self.part and len(found) == IMAGENET_CLASSES:
            found = [found[place] for place in self.chosen]
        if len(found) != self.classes:
            whole = f" (or the {IMAGENET_CLASSES} of ImageNet)" if self.part and self.classes < IMAGENET_CLASSES else ""
            raise UserError(
                f"{where} has {len(names)} classes, {self.title} has {self.classes}{whole}; check the folder"
            )
        for place, name in self.known.items():
            if found[place] != name:
                raise UserError(f"{where} is not {self.title}: class {place} is {found[place]}, expected {name}")
        return found


_FIRST_100 = {
    0: "n01440764",
    8: "n01514859",
    56: "n01734418",
    68: "n01756291",
    78: "n01776313",
    99: "n01855672",
}
_DRAWN_100 = {
    8: "n01806567",
    23: "n02107574",
    56: "n03089624",
    65: "n03657121",
    68: "n03710193",
    74: "n03942813",
    76: "n04026417",
    78: "n04152593",
    84: "n04409515",
    90: "n04599235",
}

COLLECTIONS: Final[dict[str, Collection]] = {
    each.name: each
    for each in (
        Collection("tinyimagenet", "Tiny-ImageNet-100", "tiny-imagenet-100", 100, 50_000, 5_000, 64, 64),
        Collection("imagenet", "ImageNet", "imagenet", 1000, 1_281_167, 50_000, 224, 256, "first", _FIRST_100),
        Collection(
            "imagenet-subset-lucir",
            "ImageNet-Subset as LUCIR has it",
            "imagenet-subset-lucir",
            100,
            128_856,
            5_000,
            224,
            256,
            "draw",
            _DRAWN_100,
        ),
        Collection(
            "imagenet-subset-podnet",
            "ImageNet-Subset as PODNet has it",
            "imagenet-subset-podnet",
            100,
            130_000,  # 1,300 of each class; a few have less
            5_000,
            224,
            256,
            "first",
            _FIRST_100,
        ),
    )
}
