"""The feed: batches of uint8 images on the device, from where they live.

Images that fit stay on the device and are gathered there by index. Others stay in host memory or in their file; the
next batches are gathered and sent ahead by other threads while the current one is trained on. Both give the same
batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from poise.data.augment import Augmentation, Draws
from poise.data.crops import Crops
from poise.data.decode import map_ahead
from poise.data.images import ImageSet
from poise.data.stores import DenseStore, FlatStore, PixelStore, View, free_memory, resident

AHEAD: Final = 3  # batches that are ready, or nearly, besides one in every thread, when images stream from the host
COPY_SHARE: Final = 0.25  # of the free memory: images that take more are not copied beside others
LITTLE: Final = 1 << 26  # bytes of images that any machine has room for twice
MOST_THREADS: Final = 8  # that read images from a file

Batch = tuple[Tensor, Tensor]  # pixels and labels


class Feed:
    """Images with their labels, ready to be read in any order.

    `fresh` says which of them are new and not kept: from where, and up to where.

    On a device the images are a copy of the feed's own, or `index` says which ones of a store that others read, too.
    """

    def __init__(
        self,
        images: ImageSet,
        device: torch.device,
        resident: bool | None = None,
        fresh: tuple[int, int] | None = None,
    ) -> None:
        self.device, self.fresh = device, fresh or (0, len(images))
        self.resident = stays_on(images.store, device) if resident is None else resident
        self.labels = images.labels.to(device)
        self.index: Tensor | None = None
        self.store = images.store
        if self.resident:
            self.store, self.index = _place_images(images.store, device)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as it is gathered."""
        return self.store.shape

    def gather(self, picks: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these places, where they live; of each the part that `crops` says."""
        return self.store.gather(picks if self.index is None else self.index.index_select(0, picks), crops)

    def draw(self, augmentation: Augmentation, order: Tensor, generator: np.random.Generator) -> Draws:
        """The random choices of an epoch in this order."""
        sizes = self.sizes[order] if augmentation.resized else None
        return augmentation.draw(len(order), generator, sizes)

    @property
    def sizes(self) -> Tensor:
        """int64 [n, 2] on the host: height and width of every image as it is stored."""
        return self.store.sizes if self.index is None else self.store.sizes[self.index.cpu()]

    def images(self) -> ImageSet:
        """The images as a set, where they live; their origins are not known here."""
        store = self.store if self.index is None else self.store.select(self.index)
        return ImageSet(store, self.labels.cpu(), torch.full((len(self),), -1, device="cpu"))

    def select(self, picks: Tensor) -> Feed:
        """Some of the images, where they live."""
        return Feed(self.images().select(picks.cpu()), self.device, self.resident)

    def new_images(self) -> tuple[PixelStore, Tensor]:
        """The new images, where they live, and their labels."""
        places = torch.arange(*self.fresh, device="cpu")
        return self.images().select(places).store, self.labels[slice(*self.fresh)]

    def copy(self) -> Feed:
        """A feed of these images for another reader, which may replace them by others."""
        everything = torch.arange(len(self), device="cpu")
        copied = self.select(everything)
        if self.resident and self.index is None:  # pixels of its own, which `load` writes over
            copied.store, copied.index = self.store.loaded(everything), None
        copied.labels, copied.fresh = self.labels.clone(), self.fresh
        return copied

    @property
    def kind(self) -> tuple[object, ...]:
        """A key of shape and place: feeds with equal keys can be loaded into each other."""
        return (len(self), self.resident, *(() if self.index is None else (id(self.store),)))

    def load(self, other: Feed) -> None:
        """Replace the images by an equal number of others, in place: a captured step keeps reading from here."""
        if self.index is not None and other.index is not None:
            self.index.copy_(other.index)
        elif isinstance(self.store, DenseStore) and self.resident and self.device.type != "cpu":
            self.store.pixels.copy_(other.store.all())
        else:
            self.store = other.store
        self.labels.copy_(other.labels)
        self.fresh = other.fresh

    def batches(self, order: Tensor, bounds: list[tuple[int, int]], crops: Crops | None = None) -> Iterator[Batch]:
        """Pixels and labels of `order[start:stop]` for each of `bounds`, on the device.

        `crops` has one entry for each place in the order, as an epoch's draws have.
        """
        if not self.resident:
            yield from self._stream_batches(order, bounds, crops)
            return
        order, crops = order.to(self.device), crops.to(self.device) if crops is not None else None
        for start, stop in bounds:
            picks = order[start:stop]
            some = crops.batch(start, stop) if crops is not None else None
            yield self.gather(picks, some), self.labels.index_select(0, picks)

    def _stream_batches(self, order: Tensor, bounds: list[tuple[int, int]], crops: Crops | None) -> Iterator[Batch]:
        ours = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        begun = ours.record_event() if ours is not None else None
        workers = 1 if self.store.in_memory else min(MOST_THREADS, os.cpu_count() or 1)

        def send(ends: tuple[int, int]) -> _Sent:
            return self._send(order[slice(*ends)], crops.batch(*ends) if crops is not None else None, begun)

        with (
            ThreadPoolExecutor(max_workers=workers) as pool,
            closing(map_ahead(pool, send, bounds, AHEAD + workers)) as sent,
        ):
            for each in sent:
                yield each.receive(ours)

    def _send(self, picks: Tensor, crops: Crops | None, begun: torch.cuda.Event | None) -> _Sent:
        """A batch on the device. What is cropped is cropped there, of whole images: the host only copies bytes.

        Each on a stream of its own, so that nothing waits for the training that goes on meanwhile.
        """
        if self.device.type != "cuda" or begun is None:
            return _Sent(self.store.gather(picks, crops), self.labels.index_select(0, picks.to(self.device)))
        found = DenseStore(self.store.gather(picks)) if crops is None else self.store.loaded(picks)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            stream.wait_event(begun)
            sent: DenseStore | FlatStore  # while the host goes on
            if isinstance(found, DenseStore):
                sent = DenseStore(found.pixels.pin_memory().to(self.device, non_blocking=True))
            else:
                flat = found.flat.pin_memory().to(self.device, non_blocking=True)
                sent = FlatStore(flat, found.rows().places.cpu(), found.sizes, found.shape)
            labels = self.labels.index_select(0, picks.to(self.device))
            if crops is None:
                pixels = sent.all()
            else:
                pixels = sent.gather(torch.arange(len(picks), device=self.device), crops.to(self.device))
            return _Sent(pixels, labels, stream.record_event())


class _Sent(NamedTuple):
    """A batch on its way to a device, and what says that it is there."""

    pixels: Tensor
    labels: Tensor
    done: torch.cuda.Event | None = None

    def receive(self, stream: torch.cuda.Stream | None) -> Batch:
        """Pixels and labels, for which this stream waits."""
        if self.done is not None and stream is not None:
            stream.wait_event(self.done)
            for tensor in (self.pixels, self.labels):
                tensor.record_stream(stream)  # its memory is not used again before that stream is done with it
        return self.pixels, self.labels


def stays_on(store: PixelStore, device: torch.device) -> bool:
    """Whether images should live on the device: where they fit; on a CPU, where they are in memory already.

    Some of the images in memory are copied there, unless the copy would take much of what is free.
    """
    if device.type != "cpu":
        return store.lies_on(device) or fits(store.nbytes, device)
    copied = store.nbytes if isinstance(store, View) else 0
    return store.in_memory and (copied <= LITTLE or copied <= COPY_SHARE * free_memory())


def _place_images(store: PixelStore, device: torch.device) -> tuple[PixelStore, Tensor | None]:
    """The images on the device; and which ones, where others read the same store."""
    base = store.bases[0] if isinstance(store, View) and len(store.bases) == 1 else store
    if base.lies_on(device) and device.type == "cpu" and isinstance(store, DenseStore):
        return store, None
    if not base.lies_on(device) or (device.type == "cpu" and not isinstance(base, FlatStore)):
        base = store = resident(store, device)
        if isinstance(base, DenseStore):
            return base, None
    chosen = store.index if isinstance(store, View) and base is not store else torch.arange(len(store), device="cpu")
    return base, chosen.to(device, copy=True)


def fits(nbytes: int, device: torch.device) -> bool:
    """Whether images of this size should live on the device: in at most half of its free memory."""
    return device.type != "cuda" or nbytes <= free_on(device) // 2


def free_on(device: torch.device) -> int:
    """Bytes of a GPU available to a new piece of work: those that are free, and those torch holds but does not use.

    Memory in the pool of a captured step is not available to others, used or not.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    idle = sum(
        segment["total_size"] - segment["active_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index and tuple(segment["segment_pool_id"]) == (0, 0)
    )
    return int(torch.cuda.mem_get_info(device)[0]) + idle


def batch_bounds(count: int, size: int) -> list[tuple[int, int]]:
    """Where each batch of an epoch starts and stops. The last one is smaller where `size` does not divide.

    A last batch of less than a quarter of the others joins the one before: its batch statistics would mean little, and
    its few images would pull as hard as a whole batch.

    >>> batch_bounds(40, 16), batch_bounds(35, 16)
    ([(0, 16), (16, 32), (32, 40)], [(0, 16), (16, 35)])
    """
    bounds = [(start, min(start + size, count)) for start in range(0, count, size)]
    left = count % size
    if len(bounds) > 1 and 0 < left < max(2, size / 4):
        bounds[-2:] = [(bounds[-2][0], count)]
    return bounds
