"""Views of pixel stores: lists of indices into them. Nothing is copied or read when one is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from poise.data.crops import Crops
from poise.data.stores import DenseStore, FlatStore, PixelStore, in_a_row


class View(PixelStore):
    """Images of other stores in any order: for each which store, and its index there."""

    def __init__(self, bases: Sequence[PixelStore], which: Tensor, index: Tensor) -> None:
        self.bases, self.which, self.index = tuple(bases), which, index
        self.shape = self.bases[0].shape
        self.in_memory = all(base.in_memory for base in self.bases)
        self._there: dict[torch.device, Tensor] = {}

    @staticmethod
    def of(parts: Sequence[tuple[PixelStore, Tensor]]) -> PixelStore:
        """The images at some indices of several stores, one part after the other. A view of views is one of stores."""
        bases: list[PixelStore] = []
        which, index = [], []
        for store, indices in parts:
            if isinstance(store, View):
                numbers = torch.tensor([_number(bases, base) for base in store.bases], device="cpu")
                which.append(numbers[store.which[indices]])
                index.append(store.index[indices])
            else:
                which.append(torch.full_like(indices, _number(bases, store)))
                index.append(indices)
        return _without_unused(bases, torch.cat(which), torch.cat(index))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def device(self) -> torch.device:
        """That of the stores."""
        return self.bases[0].device

    @property
    def dtype(self) -> torch.dtype:
        """That of the stores."""
        return self.bases[0].dtype

    @property
    def sizes(self) -> Tensor:
        """Height and width of every image."""
        found = torch.empty(len(self), 2, dtype=torch.int64, device="cpu")
        for base, places in self._parts(torch.arange(len(self), device="cpu")):
            found[places] = base.sizes[self.index[places]]
        return found

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices; of each the part that `crops` says."""
        if len(self.bases) == 1:
            return self.bases[0].gather(self._index_on(indices.device).index_select(0, indices), crops)
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
        parts = [(base.select(self.index[indices[places]]), places) for base, places in self._parts(indices)]
        return _in_a_row(parts, len(indices))

    def identity(self) -> Iterator[bytes]:
        """What these images are known by: pixels, or what the file that they are in says of them."""
        host = self.bases[0].host if len(self.bases) == 1 else None
        if host is not None:
            yield from host.select(self.index).identity()
        elif self.known_by_pixels:
            yield from super().identity()
        else:
            yield from self.bases[0].identity()
            yield self.index.numpy().tobytes()

    @property
    def known_by_pixels(self) -> bool:
        """Whether `identity` reads pixels: unless all of them are of one file."""
        return len(self.bases) > 1 or self.bases[0].known_by_pixels

    def compacted(self) -> PixelStore:
        """The same images; but for lasting ones they are copied, so that others of their stores can be forgotten."""
        bases, index = list(self.bases), self.index.clone()
        for number, base in enumerate(bases):
            places = (self.which == number).nonzero().flatten()
            if not base.lasting and len(places) < len(base):
                bases[number] = base.loaded(self.index[places])
                index[places] = torch.arange(len(places), device="cpu")
        return _without_unused(bases, self.which, index)

    def _parts(self, indices: Tensor) -> Iterator[tuple[PixelStore, Tensor]]:
        """Every store that some of these images are in, and which of `indices` that is."""
        numbers = self.which[indices]
        for number, base in enumerate(self.bases):
            places = (numbers == number).nonzero().flatten()
            if len(places):
                yield base, places

    def _index_on(self, device: torch.device) -> Tensor:
        """The list of indices where the indices into it are: a captured step must not copy it."""
        if device.type == "cpu":
            return self.index
        if device not in self._there:
            self._there[device] = self.index.to(device)
        return self._there[device]

    def __reduce__(self) -> tuple[Any, ...]:
        return View, (self.bases, self.which, self.index)


def join_stores(stores: Sequence[PixelStore]) -> PixelStore:
    """The images of several stores, one store after the other."""
    filled = [store for store in stores if len(store)] or stores[:1]
    if len(filled) == 1:
        return filled[0]
    return View.of([(store, torch.arange(len(store), device="cpu")) for store in filled])


def _number(bases: list[PixelStore], store: PixelStore) -> int:
    """The place of a store in a list, to which it is added where it is not there yet."""
    for number, base in enumerate(bases):
        if base is store:
            return number
    bases.append(store)
    return len(bases) - 1


def _without_unused(bases: Sequence[PixelStore], which: Tensor, index: Tensor) -> PixelStore:
    """A view that holds only the stores that its images are in: a store itself, where it is all of one."""
    if not len(index):  # which holds no store at all
        return DenseStore(torch.empty(0, *bases[0].shape, dtype=bases[0].dtype, device=bases[0].device))
    used: list[int] = torch.unique(which).tolist()
    numbers = torch.zeros(len(bases), dtype=torch.int64, device="cpu")
    numbers[used] = torch.arange(len(used), device="cpu")
    kept = [bases[number] for number in used]
    if len(kept) == 1 and len(index) == len(kept[0]) and torch.equal(index, torch.arange(len(index), device="cpu")):
        return kept[0]
    return View(kept, numbers[which], index)


def _in_a_row(parts: Sequence[tuple[PixelStore, Tensor]], count: int) -> FlatStore:
    """The images of several stores one after the other, in the order of the places that come with each store."""
    sizes = torch.empty(count, 2, dtype=torch.int64, device="cpu")
    for store, where in parts:
        sizes[where] = store.sizes
    places, lengths = in_a_row(sizes, parts[0][0].shape[0])
    flat = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=parts[0][0].device)
    for store, where in parts:
        row, starts = store.loaded(torch.arange(len(store), device="cpu")).rows()[:2]
        for source, place in zip(starts.tolist(), where.tolist(), strict=True):
            start, length = int(places[place]), int(lengths[place])
            flat[start : start + length] = row[source : source + length]
    return FlatStore(flat, places, sizes, parts[0][0].shape)
