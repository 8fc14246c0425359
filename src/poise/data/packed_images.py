"""The images of a pack as a learner sees them: each one like a photo from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from poise.data.inputs import Size, decode_all, decode_store, suitable_square
from poise.data.packs import TEST, TRAIN, Pack, PackedStore
from poise.data.stores import PixelStore


class PackedImage(NamedTuple):
    """Which image of a pack it is, and of which file it was made.

    Attributes:
        part: `train` or `test`.
        name: of its class.
        number: among the packed images of its class in this part, which are sorted by file name; from 0.
        source: the BLAKE2b digest of the file, in hexadecimal: what `b2sum -l 128 FILE` prints.
    """

    part: str
    name: str
    number: int
    source: str


@dataclass(frozen=True)
class PackedPart:
    """One part of a pack, seen in one way.

    Attributes:
        pack: the pack.
        part: `train` or `test`.
        size: height and width that are cut out of the centre.
        channels: 3, or 1 for grey images.
        short_side: to how many pixels the short side is scaled before that.
    """

    pack: Pack
    part: str
    size: Size
    channels: int
    short_side: int

    @staticmethod
    def of(pack: Pack, size: Size | None, channels: int, short_side: int | None, *, held_out: bool) -> PackedPart:
        """The training part or, with `held_out`, the test part where there is one.

        Without a `short_side`, images of a `size` that is given are not scaled; see `poise.data.labelled.Wanted`.
        """
        chosen = size or suitable_square(pack.size)
        scaled = short_side or (chosen[0] if size is None else max(chosen[0], pack.size))
        return PackedPart(pack, TEST if held_out and pack.has_test else TRAIN, chosen, channels, scaled)

    def labels(self) -> list[str]:
        """The name of the class of every image."""
        return [self.pack.class_names[label] for label in self.pack.labels(self.part).tolist()]

    def read(self) -> PixelStore:
        """All images: mapped where nothing is to be scaled, else scaled once, as photos are that come from files."""
        if self._is_mapped:
            return self.pack.store(self.part, self.size[0])
        photos = _Photos(self.pack.store(self.part))
        return decode_store(photos, self.size, self.channels, self.short_side)

    def stream(self, count: int) -> Iterator[Tensor]:
        """The same images in order, uint8 [n, C, H, W], so many at a time; no others are held."""
        store = self.pack.store(self.part, self.size[0] if self._is_mapped else None)
        for start in range(0, len(store), count):
            places = range(start, min(start + count, len(store)))
            if self._is_mapped:
                yield store.part(places.start, places.stop)
            else:
                yield decode_all(_Photos(store, places), self.size, self.channels, self.short_side)

    def describe(self) -> Iterator[PackedImage]:
        """Which image each one is."""
        sources = iter(self.pack.described(self.part).sources)
        for name, count in zip(self.pack.class_names, self.pack.counts(self.part), strict=True):
            for number in range(count):
                yield PackedImage(self.part, name, number, next(sources).tobytes().hex())

    @property
    def _is_mapped(self) -> bool:
        pack, (height, width) = self.pack, self.size
        return self.short_side == pack.size and height == width and self.channels == pack.channels


class _Photos(Sequence[Any]):
    """Whole images of a pack as PIL images, one at a time: all of them, or those at some places."""

    def __init__(self, store: PackedStore, places: range | None = None) -> None:
        self._store = store
        self._places = range(len(store)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - the number of an image, and a PIL image
        chosen = torch.tensor([self._places[place]], device="cpu")
        pixels = self._store.loaded(chosen).image(0).numpy()
        return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
