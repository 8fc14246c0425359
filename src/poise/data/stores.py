"""Pixel stores: where the pixels of images lie, and the one way to them, `gather`.

An image set (`poise.data.images`) has labels, origins and a store. Selecting, joining, splitting and drawing
environments make views: lists of indices into stores, which copy and read nothing. Pixels are read by the feed and by
few others (`Evaluator.extract`, digests, a learner's own exemplars when it is saved).

There are four kinds. `DenseStore` is one tensor [N, C, H, W], in memory or on a device. `FlatStore` is one long row
of bytes with the place, height and width of every image, [C, H, W] each, whose sizes may differ; `PackedStore`
(`poise.data.packs`) is mapped from files. `View` is a list of indices into others.

What a store must do:

- `gather(indices)` gives uint8 [n, C, H, W] of one size, the store's `shape`. Images of that size come as they are; of
  larger ones (the aspect was kept) the centre is cut out, and nothing is scaled.
- `gather(indices, crops)` gives the boxes of `crops`, entry i for image `indices[i]`, scaled to `crops.size` and
  mirrored where it says so. Boxes are in pixels of the whole stored image, whose heights and widths are `sizes`.
- Both give the result where the store lies (`device`), whatever the device of the indices.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise.data.crops import Crops, Rows, crop_batch, resize_box
from poise.errors import UserError

Shape = tuple[int, int, int]  # channels, height and width
_CHUNK: Final = 1 << 26  # bytes of images that are read at once where all are needed one after the other


class PixelStore(ABC):
    """The pixels of some images; see above for `gather`.

    Attributes:
        shape: channels, height and width of an image as `gather` gives it without crops.
        sizes: int64 [N, 2] on the host: height and width of every stored image.
        device: where `gather` puts its result.
        dtype: uint8; float32 where features stand for images.
        in_memory: whether the pixels take memory of the process already; if not, they are read when they are gathered.
        lasting: whether they are in a file of the user's: then whoever keeps some of them need not copy them.
        known_by_pixels: whether `identity` reads pixels.
        host: where the same images lie on the host, if these are a copy on a device. What is known of them, and what is
            sent to other processes, is of those.
    """

    shape: Shape
    sizes: Tensor
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.uint8
    in_memory: bool = True
    lasting: bool = False
    known_by_pixels: bool = True
    host: PixelStore | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices; of each the part that `crops` says."""

    @abstractmethod
    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images, in memory of their own on the store's device."""

    def identity(self) -> Iterator[bytes]:
        """The ids of these images for a digest: their pixels, or the digest that a file has of them."""
        if self.host is not None:
            yield from self.host.identity()
            return
        for start, stop in chunks(self):
            yield self.part(start, stop).cpu().contiguous().numpy().tobytes()

    @property
    def nbytes(self) -> int:
        """The bytes of all whole images."""
        return int(self.sizes.prod(dim=1).sum()) * self.shape[0] * self.dtype.itemsize

    @cached_property
    def is_even(self) -> bool:
        """Whether every stored image has the size of `shape`."""
        return bool((self.sizes == torch.tensor(self.shape[1:], device="cpu")).all())

    def part(self, start: int, stop: int) -> Tensor:
        """The images from `start` up to, not including, `stop`."""
        return self.gather(torch.arange(start, min(stop, len(self)), device="cpu"))

    def all(self) -> Tensor:
        """All images as one tensor: for few of them."""
        return self.part(0, len(self))

    def select(self, indices: Tensor) -> PixelStore:
        """The images at these indices, in this order, as a view."""
        return View.of([(self, indices.cpu())])

    def to(self, device: torch.device | str) -> PixelStore:
        """Copy the images to another device."""
        return self if self.lies_on(torch.device(device)) else resident(self, torch.device(device))

    def lies_on(self, device: torch.device) -> bool:
        """Whether the pixels are on this device; `cuda` is any of them."""
        return self.device.type == device.type and device.index in (None, self.device.index)

    def compacted(self) -> PixelStore:
        """A store that holds only these images in memory, not those that they were chosen from."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to other processes, it is what lies on the host."""
        if self.device.type == "cpu":
            return super().__reduce__()  # type: ignore[return-value]
        return copy, (self.host if self.host is not None else self.to("cpu"),)


class DenseStore(PixelStore):
    """Images of one size in a tensor, uint8 [N, C, H, W]; where features stand for images, float32 [N, d, 1, views]."""

    def __init__(self, pixels: Tensor) -> None:
        features = pixels.dtype == torch.float32 and pixels.ndim == 4 and pixels.shape[2] == 1
        if (pixels.dtype != torch.uint8 or pixels.ndim != 4) and not features:
            raise UserError(f"pixels must be uint8 [N, C, H, W], not {describe(pixels)}; see to_pixels")
        self.pixels, self.device, self.dtype = pixels, pixels.device, pixels.dtype
        channels, height, width = pixels.shape[1:]
        self.shape = channels, height, width
        self.sizes = torch.tensor([height, width], device="cpu").expand(len(pixels), 2)

    def __len__(self) -> int:
        return len(self.pixels)

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices; of each the part that `crops` says."""
        indices = indices.to(self.device)
        if crops is None:
            return self.pixels.index_select(0, indices)
        return gather_boxes(self, indices, crops)

    def part(self, start: int, stop: int) -> Tensor:
        """The images from `start` up to, not including, `stop`, not copied."""
        return self.pixels[start:stop]

    def loaded(self, indices: Tensor) -> DenseStore:
        """A copy of some images."""
        return DenseStore(self.gather(indices))

    def to(self, device: torch.device | str) -> DenseStore:
        """Copy the images to another device."""
        return self if self.lies_on(torch.device(device)) else DenseStore(self.pixels.to(device))

    def picture(self, index: int) -> NDArray[np.uint8]:
        """One image in host memory, uint8 [C, H, W], not copied."""
        return self.pixels[index].numpy()

    def rows(self) -> Rows:
        """All bytes and the layout of the images, as `FlatStore.rows` gives them."""
        channels, height, width = self.shape
        each = torch.arange(len(self), device=self.device)
        heights, widths = (torch.full_like(each, side) for side in (height, width))
        places = each * (channels * height * width)
        return Rows(self.pixels.reshape(-1), places, heights, widths, channels, max(height, width))


class PictureStore(PixelStore):
    """Images of different sizes in host memory or a file, read one after the other.

    In numpy, whose loops over many small images are short, and leave other threads alone while they copy.
    """

    @abstractmethod
    def picture(self, index: int) -> NDArray[np.uint8]:
        """One whole image in host memory, uint8 [C, H, W], not copied."""

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices: their centre, or the part that `crops` says."""
        if crops is not None:
            return gather_boxes(self, indices, crops)
        found = torch.empty(len(indices), *self.shape, dtype=torch.uint8, device="cpu")
        images, (_, height, width) = found.numpy(), self.shape
        for place, picture in enumerate(map(self.picture, indices.tolist())):
            top, left = (picture.shape[1] - height) // 2, (picture.shape[2] - width) // 2
            images[place] = picture[:, top : top + height, left : left + width]
        return found

    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images in memory of their own; a `DenseStore` where all have one size."""
        if self.is_even:
            return DenseStore(self.gather(indices))
        sizes = self.sizes[indices.cpu()]
        places, lengths = in_a_row(sizes, self.shape[0])
        flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device="cpu")
        into = flat.numpy()
        for start, picture in zip(places.tolist(), map(self.picture, indices.tolist()), strict=True):
            into[start : start + picture.size] = picture.reshape(-1)
        return FlatStore(flat, places, sizes, self.shape)


class FlatStore(PictureStore):
    """Images of different sizes in one row of bytes.

    Args:
        flat: uint8 [bytes], in memory or on a device.
        places: int64 [N]: where each image begins in it.
        sizes: int64 [N, 2]: height and width of each image; its bytes are [channels, height, width].
        shape: of what `gather` gives without crops; no image may be smaller.
    """

    def __init__(self, flat: Tensor, places: Tensor, sizes: Tensor, shape: Shape) -> None:
        self.flat, self.shape, self.device = flat, shape, flat.device
        self.sizes = sizes.cpu()
        self._places = places.cpu()
        if bool((self.sizes < torch.tensor(shape[1:], device="cpu")).any()):
            raise UserError(f"an image is smaller than {shape[1]}×{shape[2]} pixels; gather needs crops for it")
        self._rows: Rows | None = None

    def __len__(self) -> int:
        return len(self._places)

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices: their centre, or the part that `crops` says."""
        if crops is None and self.device.type != "cpu":
            return self._gather_centres(indices.to(self.device))
        return super().gather(indices, crops)

    def picture(self, index: int) -> NDArray[np.uint8]:
        """One whole image, not copied."""
        height, width = self.sizes[index].tolist()
        start = int(self._places[index])
        flat: NDArray[np.uint8] = self.flat.numpy()
        return flat[start : start + self.shape[0] * height * width].reshape(self.shape[0], height, width)

    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images in memory of their own; a `DenseStore` where all have one size."""
        if self.is_even or self.device.type == "cpu":
            return super().loaded(indices)
        indices = indices.cpu()
        sizes = self.sizes[indices]
        places, lengths = in_a_row(sizes, self.shape[0])
        starts = self._places[indices].tolist()
        parts = [self.flat[start : start + length] for start, length in zip(starts, lengths.tolist(), strict=True)]
        return FlatStore(torch.cat(parts) if parts else self.flat[:0], places, sizes, self.shape)

    def rows(self) -> Rows:
        """All bytes, and of every image the place, height and width, on the store's device: for what must be fast."""
        if self._rows is None:
            heights, widths = self.sizes.to(self.device).T.contiguous()
            longest = int(self.sizes.max()) if len(self.sizes) else max(self.shape[1:])
            self._rows = Rows(self.flat, self._places.to(self.device), heights, widths, self.shape[0], longest)
        return self._rows

    def _gather_centres(self, indices: Tensor) -> Tensor:
        """The centres on a device, without a look at any value, as a captured step needs it."""
        flat, places, heights, widths = self.rows()[:4]
        channels, height, width = self.shape
        places, heights, widths = (values.index_select(0, indices) for values in (places, heights, widths))
        tops, lefts = (heights - height) // 2, (widths - width) // 2
        rows = tops[:, None] + torch.arange(height, device=self.device)
        columns = lefts[:, None] + torch.arange(width, device=self.device)
        inside = rows[:, :, None] * widths[:, None, None] + columns[:, None, :]
        planes = places[:, None] + torch.arange(channels, device=self.device) * (heights * widths)[:, None]
        return flat.take(planes[:, :, None, None] + inside[:, None])


class View(PixelStore):
    """Images of other stores in any order: for each which store, and its index there."""

    def __init__(self, bases: Sequence[PixelStore], which: Tensor, index: Tensor) -> None:
        self.bases, self.which, self.index = tuple(bases), which, index
        first = self.bases[0]
        self.shape, self.device, self.dtype = first.shape, first.device, first.dtype
        self.in_memory = all(base.in_memory for base in self.bases)
        self.known_by_pixels = len(self.bases) > 1 or first.known_by_pixels
        self._there: dict[torch.device, Tensor] = {}  # `index` where the indices into it are

    @staticmethod
    def of(parts: Sequence[tuple[PixelStore, Tensor]]) -> PixelStore:
        """The images at some indices of several stores, one part after the other: a view of no view.

        It holds only the stores that its images are in, and is a store itself where it would be all of one.
        """
        bases: dict[int, PixelStore] = {}
        which, index = list[Tensor](), list[Tensor]()
        for store, indices in parts:
            inner = store.bases if isinstance(store, View) else (store,)
            bases.update((id(base), base) for base in inner)
            numbers = torch.tensor([list(bases).index(id(base)) for base in inner], device="cpu")
            which.append(numbers[store.which[indices] if isinstance(store, View) else torch.zeros_like(indices)])
            index.append(store.index[indices] if isinstance(store, View) else indices)
        every, places = torch.cat(index), torch.cat(which)
        known = list[PixelStore](bases.values())
        if not len(every):  # which holds no store at all
            return DenseStore(torch.empty(0, *known[0].shape, dtype=known[0].dtype, device=known[0].device))
        used, places = torch.unique(places, return_inverse=True)
        kept: list[PixelStore] = [known[number] for number in used.tolist()]
        if len(kept) == 1 and torch.equal(every, torch.arange(len(kept[0]), device="cpu")):
            return kept[0]
        return View(kept, places, every)

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def sizes(self) -> Tensor:  # type: ignore[override]  # found when first asked for
        """Height and width of every image."""
        starts = torch.tensor([0, *accumulate(map(len, self.bases))], device="cpu")
        return torch.cat([base.sizes for base in self.bases])[starts[self.which] + self.index]

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices; of each the part that `crops` says."""
        if len(self.bases) == 1:
            if indices.device not in self._there:  # a captured step must not copy it
                self._there[indices.device] = self.index.to(indices.device)
            return self.bases[0].gather(self._there[indices.device].index_select(0, indices), crops)
        indices = indices.cpu()
        shape = self.shape if crops is None else (self.shape[0], *crops.size)
        found = torch.empty(len(indices), *shape, dtype=self.dtype, device=self.device)
        for base, places in self._parts(indices):
            some = None if crops is None else crops.changed(lambda values, at=places: values[at.to(values.device)])  # type: ignore[misc]
            found[places.to(self.device)] = base.gather(self.index[indices[places]], some)
        return found

    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images in memory of their own."""
        indices = indices.cpu()
        if len(self.bases) == 1:
            return self.bases[0].loaded(self.index[indices])
        chosen = View.of([(self, indices)])
        if chosen.is_even:
            return DenseStore(chosen.all())
        sizes = self.sizes[indices]
        places, lengths = in_a_row(sizes, self.shape[0])
        flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=self.device)
        for base, where in self._parts(indices):
            row, starts = base.loaded(self.index[indices[where]]).rows()[:2]
            for source, place in zip(starts.tolist(), where.tolist(), strict=True):
                start, length = int(places[place]), int(lengths[place])
                flat[start : start + length] = row[source : source + length]
        return FlatStore(flat, places, sizes, self.shape)

    def identity(self) -> Iterator[bytes]:
        """The ids of these images: their pixels, or the digest that their file has of them."""
        first = self.bases[0]
        if len(self.bases) == 1 and first.host is not None:
            yield from first.host.select(self.index).identity()
        elif self.known_by_pixels:
            yield from super().identity()
        else:  # all of them are of one file
            yield from first.identity()
            yield self.index.numpy().tobytes()

    def compacted(self) -> PixelStore:
        """A store of only these images; lasting ones stay, others are copied, so that the rest can be freed."""
        bases, index = list(self.bases), self.index.clone()
        for number, base in enumerate(bases):
            places = (self.which == number).nonzero().flatten()
            if not base.lasting and len(places) < len(base):
                bases[number] = base.loaded(self.index[places])
                index[places] = torch.arange(len(places), device="cpu")
        return View.of([(View(bases, self.which, index), torch.arange(len(index), device="cpu"))])

    def _parts(self, indices: Tensor) -> Iterator[tuple[PixelStore, Tensor]]:
        """Every store that some of these images are in, and which of `indices` that is."""
        numbers = self.which[indices]
        for number, base in enumerate(self.bases):
            places = (numbers == number).nonzero().flatten()
            if len(places):
                yield base, places

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self.bases, self.which, self.index)


# What stores are made of ----------------------------------------------------------------------------------------------


def as_store(pixels: Tensor | PixelStore) -> PixelStore:
    """A store of these pixels."""
    return DenseStore(pixels) if isinstance(pixels, Tensor) else pixels


def resident(store: PixelStore, device: torch.device) -> DenseStore | FlatStore:
    """All images of a store on a device, sent there piece by piece: the host holds no second copy of them."""
    found: DenseStore | FlatStore
    if store.is_even:
        pixels = torch.empty(len(store), *store.shape, dtype=store.dtype, device=device)
        for start, stop in chunks(store):
            pixels[start:stop] = store.part(start, stop)
        found = DenseStore(pixels)
    else:
        sizes = store.sizes
        places, lengths = in_a_row(sizes, store.shape[0])
        flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=device)
        for start, stop in chunks(store):
            piece = store.loaded(torch.arange(start, stop, device="cpu")).rows().flat
            flat[int(places[start]) :][: len(piece)] = piece
        found = FlatStore(flat, places, sizes, store.shape)
    if device.type != "cpu" and store.device.type == "cpu":
        found.host = store
    return found


def in_a_row(sizes: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Where images of these heights and widths begin, one after the other, and how many bytes each has."""
    lengths = sizes.prod(dim=1) * channels
    return lengths.cumsum(0) - lengths, lengths


def chunks(store: PixelStore, most: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Bounds of pieces of a store that fit into memory: of at most this number of bytes."""
    step = max(1, most * len(store) // max(store.nbytes, 1))
    return ((start, min(start + step, len(store))) for start in range(0, len(store), step))


def gather_boxes(store: Any, indices: Tensor, crops: Crops) -> Tensor:  # noqa: ANN401 - what has `picture`, or `rows`
    """The boxes of `crops` out of the images at these indices: on a device all at once, else one after the other."""
    if len(crops) != len(indices):
        raise UserError(f"{len(indices)} images came with {len(crops)} crops; give one for each image")
    if store.device.type != "cpu":
        return crop_batch(store.rows(), indices.to(store.device), crops)
    found = torch.empty(len(indices), store.shape[0], *crops.size, dtype=torch.uint8, device="cpu")
    images = found.numpy()  # torch would wake its threads for every image, and wait for them on a busy machine
    boxes, mirrored = crops.boxes.tolist(), crops.mirrored.tolist()
    for row, index in enumerate(indices.tolist()):
        scaled = resize_box(store.picture(index), tuple(boxes[row]), crops.size)
        images[row] = scaled[..., ::-1] if mirrored[row] else scaled
    return found


def describe(values: Tensor) -> str:
    """Type and shape, as messages show them."""
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"


def free_memory() -> int:
    """How many bytes of memory the system says are available; where it does not say it, all there are."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
