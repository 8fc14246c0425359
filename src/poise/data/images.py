"""Image sets: labels, where each image came from, and a store of their pixels (`poise.data.stores`).

In front of a frozen network the features of an image stand for its pixels (`poise.data.features`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.data.stores import DenseStore, PixelStore, View, chunks, describe
from poise.errors import UserError


@dataclass(frozen=True, eq=False, init=False)
class ImageSet:
    """Images that belong together: their labels, where each came from, and a store that has their pixels.

    What selects and joins makes views of the store: no pixel is copied or read for it.

    Attributes:
        store: of the N images; all of them have one shape where they are gathered.
        labels: int64 [N].
        origins: int64 [N], the index of each image in its source's own training (or test) images; -1 when unknown.
    """

    store: PixelStore
    labels: Tensor
    origins: Tensor

    def __init__(self, store: Tensor | PixelStore, labels: Tensor, origins: Tensor) -> None:
        together = isinstance(store, Tensor)
        store = DenseStore(store) if isinstance(store, Tensor) else store
        for name, values in (("labels", labels), ("origins", origins)):
            if values.dtype != torch.int64 or values.ndim != 1:
                raise UserError(f"{name} must be int64 [N], not {describe(values)}; convert them first")
            if len(values) != len(store):
                raise UserError(f"{len(store)} images came with {len(values)} {name}; give one for each image")
            if together and values.device != store.device:
                raise UserError(f"pixels are on {store.device}, {name} on {values.device}; move them together")
        for name, value in (("store", store), ("labels", labels), ("origins", origins)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image as it is gathered."""
        return self.store.shape

    @property
    def pixels(self) -> Tensor:
        """All pixels as one tensor [N, C, H, W], gathered anew each time: for few images."""
        return self.store.all()

    def select(self, indices: Tensor) -> ImageSet:
        """The images at these positions, in this order; an index may appear twice."""
        indices = indices.to(self.labels.device)
        return ImageSet(self.store.select(indices), self.labels[indices], self.origins[indices])

    def of_labels(self, labels: Iterable[int]) -> ImageSet:
        """The images of these classes, in their present order."""
        wanted = torch.tensor(sorted(set(labels)), dtype=torch.int64, device=self.labels.device)
        return self.select(torch.isin(self.labels, wanted).nonzero().flatten())

    def first_of_each_label(self, count: int) -> ImageSet:
        """The first `count` images of each class, or all if there are fewer, in their present order."""
        picks = [(self.labels == label).nonzero().flatten()[:count] for label in torch.unique(self.labels)]
        return self.select(torch.cat([self.labels.new_empty(0), *picks]).sort().values)

    def relabelled(self, rows: Sequence[int]) -> ImageSet:
        """The images, each labelled with the position of its label in `rows`."""
        places = torch.full((max(rows) + 1,), -1, dtype=torch.long)
        places[torch.tensor(rows)] = torch.arange(len(rows))
        return ImageSet(self.store, places.to(self.labels.device)[self.labels], self.origins)

    def to(self, device: torch.device | str) -> ImageSet:
        """The images on another device."""
        return ImageSet(self.store.to(device), self.labels.to(device), self.origins.to(device))

    def compacted(self) -> ImageSet:
        """The images without others of their stores in memory: what is kept when the rest is forgotten."""
        return ImageSet(self.store.compacted(), self.labels, self.origins)

    @staticmethod
    def joined(sets: Sequence[ImageSet]) -> ImageSet:
        """All images of several sets, one set after the other."""
        shapes = sorted({images.shape for images in sets})
        if len(shapes) != 1:
            what = f"sets of images of different shapes ({shapes})" if shapes else "no image sets"
            raise UserError(f"cannot join {what}; give at least one set, all of the same channels, height and width")
        return ImageSet(
            View.of([(images.store, torch.arange(len(images), device="cpu")) for images in sets]),
            torch.cat([images.labels for images in sets]),
            torch.cat([images.origins for images in sets]),
        )


def all_but(count: int, picks: Tensor | list[int]) -> Tensor:
    """The indices below `count` that were not picked."""
    free = torch.ones(count, dtype=torch.bool)
    free[picks] = False
    return free.nonzero().flatten()


def digest_images(store: PixelStore, labels: Sequence[int | str]) -> str:
    """A digest of these images with these labels, in this order."""
    found = hashlib.blake2b(digest_size=16)
    for part in store.identity():
        found.update(part)
    found.update(json.dumps(labels).encode())
    return found.hexdigest()


def image_digests(store: PixelStore) -> Iterator[bytes]:
    """A digest of a few bytes for each of these images."""
    for start, stop in chunks(store):
        for image in store.part(start, stop).cpu().numpy():
            yield hashlib.blake2b(image.tobytes(), digest_size=16).digest()
