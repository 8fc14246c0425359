"""The feed: batches of uint8 images on the device, from where they live.

Images that fit stay on the device and are gathered there by index. Others stay in host memory; the next
batches are gathered and sent ahead by one thread while the current one is trained on. Both give the same
batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from poise.data.images import ImageSet

AHEAD = 3  # batches prepared in advance when images stream from the host


class Feed:
    """Images with their labels, ready to be read in any order.

    `fresh` says which of them are new and not kept: from where, and up to where.
    """

    def __init__(
        self,
        images: ImageSet,
        device: torch.device,
        resident: bool | None = None,
        fresh: tuple[int, int] | None = None,
    ) -> None:
        self.device, self.fresh = device, fresh or (0, len(images))
        self.resident = fits(images.pixels.nbytes, device) if resident is None else resident
        self.labels = images.labels.to(device)
        self.pixels = images.pixels.to(device) if self.resident else images.pixels.cpu()

    def __len__(self) -> int:
        return len(self.labels)

    def images(self) -> ImageSet:
        """The images as a set, where they live; their origins are not known here."""
        labels = self.labels.to(self.pixels.device)
        return ImageSet(self.pixels, labels, torch.full_like(labels, -1))

    def selected(self, picks: Tensor) -> Feed:
        """Some of the images, where they live."""
        pixels, labels = self.pixels[picks.to(self.pixels.device)], self.labels[picks.to(self.device)]
        return Feed(ImageSet(pixels, labels.to(pixels.device), labels.to(pixels.device)), self.device, self.resident)

    def new_images(self) -> tuple[Tensor, Tensor]:
        """Pixels and labels of the new images, where they live."""
        return self.pixels[slice(*self.fresh)], self.labels[slice(*self.fresh)]

    def copy(self) -> Feed:
        """The same images in memory of their own."""
        copied = self.selected(torch.arange(len(self)))
        copied.fresh = self.fresh
        return copied

    def load(self, other: Feed) -> None:
        """Replace the images by an equal number of others, in place: a captured step keeps reading from here."""
        self.pixels.copy_(other.pixels)
        self.labels.copy_(other.labels)
        self.fresh = other.fresh

    def batches(self, order: Tensor, bounds: list[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Pixels and labels of `order[start:stop]` for each of `bounds`, on the device."""
        if self.resident:
            order = order.to(self.device)
            for start, stop in bounds:
                picks = order[start:stop]
                yield self.pixels.index_select(0, picks), self.labels.index_select(0, picks)
            return
        # On a stream of its own, the other thread would copy without ours waiting for it.
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        with ThreadPoolExecutor(max_workers=1) as ahead:
            waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
            for start, stop in bounds:
                waiting.append(ahead.submit(self._send, order[start:stop], stream))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _send(self, picks: Tensor, stream: torch.cuda.Stream | None) -> tuple[Tensor, Tensor]:
        pixels = self.pixels.index_select(0, picks)
        if self.device.type == "cuda":
            pixels = pixels.pin_memory()
        with torch.cuda.stream(stream):
            return pixels.to(self.device, non_blocking=True), self.labels.index_select(0, picks.to(self.device))


def fits(nbytes: int, device: torch.device) -> bool:
    """Whether images of this size should live on the device: in at most half of its free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return nbytes <= free // 2


def batch_bounds(count: int, size: int) -> list[tuple[int, int]]:
    """Where each batch of an epoch starts and stops. The last one is smaller where `size` does not divide.

    A last batch of a single image joins the one before: its batch statistics would mean nothing.

    >>> batch_bounds(5, 2)
    [(0, 2), (2, 5)]
    """
    bounds = [(start, min(start + size, count)) for start in range(0, count, size)]
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] == 1:
        bounds[-2:] = [(bounds[-2][0], count)]
    return bounds
