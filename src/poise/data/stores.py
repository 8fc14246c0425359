"""Pixel stores: where the pixels of images lie, and the one way to them, `gather`.

An image set (`poise.data.images`) has labels, origins and a store. Selecting, joining, splitting and drawing
environments make views: lists of indices into stores, which copy and read nothing. Pixels are read by the feed and by
few others (`Evaluator.extract`, digests, a learner's own exemplars when it is saved).

There are four kinds. `DenseStore` is one tensor [N, C, H, W], in memory or on a device. `FlatStore` is one long row
of bytes with the place, height and width of every image, [C, H, W] each, whose sizes may differ. `PackedStore`
(`poise.data.packs`) is mapped from files. `View` (`poise.data.views`) is a list of indices into others.

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
from collections.abc import Iterable, Iterator
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
        in_memory: whether the pixels take memory of the process already; if not, they are read when they are gathered.
        lasting: whether they are in a file of the user's: then whoever keeps some of them need not copy them.
        host: where the same images lie on the host, if these are a copy on a device. What is known of them, and what is
            sent to other processes, is of those.
    """

    shape: Shape
    in_memory: bool = True
    lasting: bool = False
    host: PixelStore | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where `gather` puts its result."""

    @property
    @abstractmethod
    def sizes(self) -> Tensor:
        """int64 [N, 2] on the host: height and width of every stored image."""

    @property
    def dtype(self) -> torch.dtype:
        """uint8; float32 where features stand for images."""
        return torch.uint8

    @abstractmethod
    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices; of each the part that `crops` says."""

    @abstractmethod
    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images, in memory of their own on the store's device."""

    def identity(self) -> Iterator[bytes]:
        """What these images are known by, for a digest: their pixels, or what a file says of them."""
        for start, stop in chunks(self):
            yield self.part(start, stop).cpu().contiguous().numpy().tobytes()

    @property
    def known_by_pixels(self) -> bool:
        """Whether `identity` reads pixels."""
        return True

    @property
    def nbytes(self) -> int:
        """The bytes of all whole images."""
        return int(self.sizes.prod(dim=1).sum()) * self.shape[0] * self.dtype.itemsize

    @property
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
        from poise.data.views import View  # which is made of stores

        return View.of([(self, indices.cpu())])

    def to(self, device: torch.device | str) -> PixelStore:
        """The same images on another device."""
        return self if self.lies_on(torch.device(device)) else resident(self, torch.device(device))

    def lies_on(self, device: torch.device) -> bool:
        """Whether the pixels are on this device; `cuda` is any of them."""
        return self.device.type == device.type and device.index in (None, self.device.index)

    def compacted(self) -> PixelStore:
        """The same images without holding others in memory."""
        return self


class _Held(PixelStore):
    """What has its bytes itself; on a device perhaps as a copy."""

    def identity(self) -> Iterator[bytes]:
        """What these images are known by on the host."""
        return super().identity() if self.host is None else self.host.identity()

    @property
    def known_by_pixels(self) -> bool:
        """Whether `identity` reads pixels."""
        return self.host is None or self.host.known_by_pixels

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to other processes, it is what lies on the host."""
        if self.device.type == "cpu":
            return super().__reduce__()  # type: ignore[return-value]
        return _itself, (self.host if self.host is not None else self.to("cpu"),)


def _itself(store: PixelStore) -> PixelStore:
    return store


class DenseStore(_Held):
    """Images of one size in a tensor, uint8 [N, C, H, W]; where features stand for images, float32 [N, d, 1, views]."""

    def __init__(self, pixels: Tensor) -> None:
        features = pixels.dtype == torch.float32 and pixels.ndim == 4 and pixels.shape[2] == 1
        if (pixels.dtype != torch.uint8 or pixels.ndim != 4) and not features:
            raise UserError(f"pixels must be uint8 [N, C, H, W], not {describe(pixels)}; see to_pixels")
        self.pixels = pixels
        channels, height, width = pixels.shape[1:]
        self.shape = channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def device(self) -> torch.device:
        """That of the tensor."""
        return self.pixels.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor."""
        return self.pixels.dtype

    @property
    def sizes(self) -> Tensor:
        """The same for every image."""
        return torch.tensor(self.shape[1:], device="cpu").expand(len(self), 2)

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return self.pixels.numel() * self.pixels.itemsize

    @property
    def is_even(self) -> bool:
        """They all have one size."""
        return True

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
        """The same images on another device."""
        return self if self.lies_on(torch.device(device)) else DenseStore(self.pixels.to(device))

    def picture(self, index: int) -> NDArray[np.uint8]:
        """One image in host memory, uint8 [C, H, W], not copied."""
        return self.pixels[index].numpy()

    def rows(self) -> Rows:
        """As those of a `FlatStore`."""
        channels, height, width = self.shape
        each = torch.arange(len(self), device=self.device)
        heights, widths = (torch.full_like(each, side) for side in (height, width))
        places = each * (channels * height * width)
        return Rows(self.pixels.reshape(-1), places, heights, widths, channels, max(height, width))


class FlatStore(_Held):
    """Images of different sizes in one row of bytes.

    Args:
        flat: uint8 [bytes], in memory or on a device.
        places: int64 [N]: where each image begins in it.
        sizes: int64 [N, 2]: height and width of each image; its bytes are [channels, height, width].
        shape: of what `gather` gives without crops; no image may be smaller.
    """

    def __init__(self, flat: Tensor, places: Tensor, sizes: Tensor, shape: Shape) -> None:
        self.flat, self.shape = flat, shape
        self._sizes = sizes.cpu()
        self._places = places.cpu()
        self._even = bool((self._sizes == torch.tensor(shape[1:], device="cpu")).all())
        if not self._even and bool((self._sizes < torch.tensor(shape[1:], device="cpu")).any()):
            raise UserError(f"an image is smaller than {shape[1]}×{shape[2]} pixels; gather needs crops for it")
        self._rows: Rows | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def device(self) -> torch.device:
        """That of the bytes."""
        return self.flat.device

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image."""
        return self._sizes

    @property
    def is_even(self) -> bool:
        """Whether every image has the size of `shape`."""
        return self._even

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices: their centre, or the part that `crops` says."""
        if crops is not None:
            return gather_boxes(self, indices, crops)
        if self.device.type != "cpu":
            return self._gather_centres(indices.to(self.device))
        return copy_centres(map(self.picture, indices.tolist()), len(indices), self.shape)

    def picture(self, index: int) -> NDArray[np.uint8]:
        """One whole image in host memory, uint8 [C, H, W], not copied."""
        height, width = self._sizes[index].tolist()
        start = int(self._places[index])
        flat: NDArray[np.uint8] = self.flat.numpy()
        return flat[start : start + self.shape[0] * height * width].reshape(self.shape[0], height, width)

    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images in memory of their own; a `DenseStore` where all have one size."""
        if self._even:
            return DenseStore(self.gather(indices))
        indices = indices.cpu()
        sizes = self._sizes[indices]
        if self.device.type == "cpu":
            return lay_out(map(self.picture, indices.tolist()), sizes, self.shape)
        places, lengths = in_a_row(sizes, self.shape[0])
        starts = self._places[indices].tolist()
        parts = [self.flat[start : start + length] for start, length in zip(starts, lengths.tolist(), strict=True)]
        return FlatStore(torch.cat(parts) if parts else self.flat[:0], places, sizes, self.shape)

    def rows(self) -> Rows:
        """All bytes, and of every image the place, height and width, on the store's device: for what must be fast."""
        if self._rows is None:
            heights, widths = self._sizes.to(self.device).T.contiguous()
            longest = int(self._sizes.max()) if len(self._sizes) else max(self.shape[1:])
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


def copy_centres(pictures: Iterable[NDArray[np.uint8]], count: int, shape: Shape) -> Tensor:
    """The centres of `count` pictures, uint8 [count, *shape].

    In numpy, whose loops over many small images are short, and leave other threads alone while they copy.
    """
    found = torch.empty(count, *shape, dtype=torch.uint8, device="cpu")
    images = found.numpy()
    for place, picture in enumerate(pictures):
        top, left = (picture.shape[1] - shape[1]) // 2, (picture.shape[2] - shape[2]) // 2
        images[place] = picture[:, top : top + shape[1], left : left + shape[2]]
    return found


def lay_out(pictures: Iterable[NDArray[np.uint8]], sizes: Tensor, shape: Shape) -> FlatStore:
    """A store in memory of whole pictures of these heights and widths [N, 2], copied one after the other."""
    places, lengths = in_a_row(sizes, shape[0])
    flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device="cpu")
    into = flat.numpy()
    for start, picture in zip(places.tolist(), pictures, strict=True):
        into[start : start + picture.size] = picture.reshape(-1)
    return FlatStore(flat, places, sizes, shape)


def as_store(pixels: Tensor | PixelStore) -> PixelStore:
    """A store of these pixels."""
    return DenseStore(pixels) if isinstance(pixels, Tensor) else pixels


def resident(store: PixelStore, device: torch.device) -> DenseStore | FlatStore:
    """All images of a store on a device, sent there piece by piece: the host holds no second copy of them."""
    found = _resident(store, device)
    if device.type != "cpu" and store.device.type == "cpu":
        found.host = store
    return found


def _resident(store: PixelStore, device: torch.device) -> DenseStore | FlatStore:
    if store.is_even:
        pixels = torch.empty(len(store), *store.shape, dtype=store.dtype, device=device)
        for start, stop in chunks(store):
            pixels[start:stop] = store.part(start, stop)
        return DenseStore(pixels)
    sizes = store.sizes
    places, lengths = in_a_row(sizes, store.shape[0])
    flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=device)
    for start, stop in chunks(store):
        piece = store.loaded(torch.arange(start, stop, device="cpu")).rows().flat
        first = int(places[start])
        flat[first : first + len(piece)] = piece
    return FlatStore(flat, places, sizes, store.shape)


def in_a_row(sizes: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Where images of these heights and widths begin, one after the other, and how many bytes each has."""
    lengths = sizes.prod(dim=1) * channels
    return lengths.cumsum(0) - lengths, lengths


def chunks(store: PixelStore, most: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Where pieces of a store start and stop that are small enough to be held in memory: of so many bytes at most."""
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
