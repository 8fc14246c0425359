"""Images that arrive in batches, put into one store: however many there are, no second copy of all lies in memory."""

from __future__ import annotations

from collections import deque
from typing import Final

from torch import Tensor

from poise.data.arrays import other_shape
from poise.data.inputs import empty_store
from poise.data.stores import DenseStore
from poise.errors import UserError

BLOCK: Final = 1 << 26  # bytes of images that get a place at once where nobody knows how many will come


class Collecting:
    """A store that is filled batch by batch.

    Args:
        expected: how many images will come, if that is known: then they get their place at once. If not, or if more
            come, they are put into blocks, which are moved into the store at the end one by one.
    """

    def __init__(self, expected: int = 0) -> None:
        self._expected = expected
        self._blocks: deque[DenseStore] = deque()
        self._free = 0  # places left in the last block
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pixels: Tensor) -> None:
        """Put a batch, uint8 [n, C, H, W], behind those before; images of another shape are refused."""
        if self._blocks and self._blocks[0].shape != tuple(pixels.shape[1:]):
            raise other_shape(self._blocks[0].shape, tuple(pixels.shape[1:]), 0, self._count)
        while len(pixels):
            if not self._free:
                self._add_block(pixels)
            block = self._blocks[-1].pixels
            start, some = len(block) - self._free, min(self._free, len(pixels))
            block[start : start + some] = pixels[:some]
            pixels, self._free, self._count = pixels[some:], self._free - some, self._count + some

    def _add_block(self, pixels: Tensor) -> None:
        first = self._expected if not self._blocks else 0
        self._free = first or max(1, BLOCK // pixels[0].numel())
        self._blocks.append(empty_store((self._free, *pixels.shape[1:])))

    def store(self) -> DenseStore:
        """All of them; those that were added are no longer held."""
        if not self._blocks:
            raise UserError("there are no images; give at least one")
        if len(self._blocks) == 1:
            only = self._blocks.popleft()
            return DenseStore(only.pixels[: self._count], mapped=not only.in_memory)
        whole, start = empty_store((self._count, *self._blocks[0].shape)), 0
        while self._blocks:  # each is given back as soon as it was moved
            block = self._blocks.popleft().pixels[: self._count - start]
            whole.pixels[start : start + len(block)] = block
            start += len(block)
        return whole
