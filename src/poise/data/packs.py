"""Packs: images that were decoded once, in one file, which is mapped and not read when it is opened.

A pack has a training and perhaps a test part, and in each the images of one class after the other. Only the part that
is asked for is mapped. The index is checked when a pack is opened; the bytes of an image when it is first read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise import files, store
from poise.data.packfile import PAGE, Footer, read_footer
from poise.data.resampling import Crops
from poise.data.stores import DenseStore, FlatStore, Shape, in_a_row
from poise.errors import Damaged, UserError
from poise.quiet import without_warnings
from poise.schema import contents_of, fitting_together, keyed, listed, text, truth, whole

DIGEST: Final = 16  # bytes
MOST_SIDE: Final = 2**16  # of an image in pixels: the bytes of all that an index can have are still counted in int64
FORMAT: Final = 1  # of packs; others are refused
TRAIN, TEST = "train", "test"
_BLOCK = keyed(
    {"part": text, "class": text, "place": whole(PAGE), "length": whole(1), "images": whole(1), "digest": text}
)
_INDEX = keyed(
    {"format": whole(1), "size": whole(1), "square": truth, "channels": whole(1, 4), "blocks": listed(_BLOCK)},
    {"skipped": whole()},
)


@dataclass(frozen=True)
class Block:
    """The images of one class in one part."""

    part: str
    name: str
    place: int
    length: int
    images: int
    digest: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        values = dict(vars(self))
        return {"part": values.pop("part"), "class": values.pop("name"), **values}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Block:
        """The block that `as_json` described."""
        return Block(*(value[key] for key in ("part", "class", "place", "length", "images", "digest")))


@dataclass(frozen=True, eq=False)
class Described:
    """What an index says of each image, in the order of the blocks.

    Attributes:
        sizes: int32 [N, 2]: height and width.
        pixels: uint8 [N, 16]: digests of the stored bytes.
        sources: uint8 [N, 16]: digests of the image files that they were made of.
    """

    sizes: NDArray[np.int32]
    pixels: NDArray[np.uint8]
    sources: NDArray[np.uint8]

    def part(self, start: int, stop: int) -> Described:
        """That of the images from `start` up to, not including, `stop`."""
        return Described(self.sizes[start:stop], self.pixels[start:stop], self.sources[start:stop])

    @staticmethod
    def joined(parts: Sequence[Described]) -> Described:
        """One after the other."""
        arrays = zip(*((each.sizes, each.pixels, each.sources) for each in parts), strict=True)
        return Described(*(np.concatenate(array) for array in arrays))

    def as_bytes(self) -> bytes:
        """As bytes."""
        return self.sizes.astype("<i4").tobytes() + self.pixels.tobytes() + self.sources.tobytes()

    @staticmethod
    def from_bytes(data: bytes, count: int) -> Described:
        """What `as_bytes` made of so many images."""
        if len(data) != count * (8 + 2 * DIGEST):
            raise ValueError("its arrays have another length")
        sizes = np.frombuffer(data, "<i4", 2 * count).reshape(count, 2)
        rest = np.frombuffer(data, np.uint8, offset=8 * count).reshape(2, count, DIGEST)
        return Described(sizes, rest[0], rest[1])


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack: its index. No pixel was read.

    Attributes:
        path: of the file.
        size: the short side of its images in pixels.
        square: whether they are square, and so all of one size.
        channels: of every image.
        blocks: the training classes by name, then those of the test part.
        images: what is known of each image.
        skipped: how many files could not be decoded and were left out.
    """

    path: Path
    size: int
    square: bool
    channels: int
    blocks: tuple[Block, ...]
    images: Described
    skipped: int = 0

    @staticmethod
    def open(path: Path) -> Pack:
        """Read and check the index; a file that is no pack, is cut off or has a damaged index is refused."""
        footer = read_footer(path)
        with files.naming(path), files.open_plain(path) as file:
            file.seek(footer.place)
            data = file.read(footer.length)
        if digest_of(data) != footer.digest:
            raise Damaged(f"{path} has a damaged index; copy it again, or pack the folder again")
        with contents_of(path, "pack the folder again"), fitting_together():
            return _from_index(path, data, footer)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Of the training part, sorted; a label is an index into it."""
        return tuple(block.name for block in self.blocks if block.part == TRAIN)

    @property
    def has_test(self) -> bool:
        """Whether there is a test part."""
        return any(block.part == TEST for block in self.blocks)

    @cached_property
    def fingerprint(self) -> str:
        """A stable id of the training part: of classes, sizes and contents."""
        return self.identity(TRAIN)

    def identity(self, part: str) -> str:
        """A stable id of a part: of classes, sizes and contents."""
        total = hashlib.blake2b(digest_size=DIGEST)
        chosen = [block for block in self.blocks if block.part == part]
        plain = [[block.name, block.images, block.digest] for block in chosen]
        total.update(json.dumps([self.size, self.square, self.channels, plain]).encode())
        return total.hexdigest()

    def counts(self, part: str = TRAIN) -> list[int]:
        """How many images of each class a part has."""
        found = {block.name: block.images for block in self.blocks if block.part == part}
        return [found.get(name, 0) for name in self.class_names]

    def labels(self, part: str) -> Tensor:
        """Of every image of a part."""
        names = {name: label for label, name in enumerate(self.class_names)}
        chosen = [block for block in self.blocks if block.part == part]
        values = torch.tensor([names[block.name] for block in chosen], dtype=torch.int64, device="cpu")
        counts = torch.tensor([block.images for block in chosen], dtype=torch.int64, device="cpu")
        return values.repeat_interleave(counts)

    def store(self, part: str, side: int | None = None) -> PackedStore:
        """The images of a part; the centre of so many pixels, unscaled, is gathered where nothing else is asked for."""
        side = side or self.size
        if side > self.size:
            raise UserError(
                f"{self.path} has images of {self.size} pixels, fewer than image_size={side}; use at most {self.size}, "
                f"or pack them again with --size {side}"
            )
        return PackedStore(self, part, (self.channels, side, side))

    def described(self, part: str) -> Described:
        """What is known of each image of a part."""
        start = 0 if part == TRAIN else sum(self.counts(TRAIN))
        return self.images.part(start, start + sum(self.counts(part)))

    def copies(self) -> int:
        """How many images of the test part were made of the same file as one of the training part."""
        trained = {row.tobytes() for row in self.described(TRAIN).sources}
        return sum(row.tobytes() in trained for row in self.described(TEST).sources)


class PackedStore(FlatStore):
    """The images of one part of a pack, mapped from the file. It knows nothing of the other part."""

    lasting = True

    def __init__(self, pack: Pack, part: str, shape: Shape) -> None:
        self._path, self._part, self._known_as = pack.path, part, pack.identity(part)
        self._blocks = blocks = [block for block in pack.blocks if block.part == part]
        self._described = pack.described(part)
        self._first, self._stop = blocks[0].place, blocks[-1].place + blocks[-1].length
        self._file = files.open_plain(pack.path)  # stays open, so that it is seen whether it changes
        weakref.finalize(self, self._file.close)
        self._refuse_shorter(os.fstat(self._file.fileno()))  # than its index said a moment ago
        self._map = mmap.mmap(
            self._file.fileno(), self._stop - self._first, access=mmap.ACCESS_READ, offset=self._first
        )
        sizes = torch.from_numpy(self._described.sizes.astype(np.int64))
        with without_warnings():  # that it must not be written to, which nobody does
            flat = torch.frombuffer(self._map, dtype=torch.uint8)
        super().__init__(flat, in_a_row(sizes, pack.channels)[0], sizes, shape, in_memory=False)
        self._checked = np.zeros(len(sizes), dtype=bool)
        self._written = 0  # when the file was last written to, when an image was last checked

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path, self._part, self.shape, self._known_as)

    @property
    def known_by_pixels(self) -> bool:
        """The index knows them."""
        return False

    def identity(self) -> Iterator[bytes]:
        """What the index says of this part."""
        yield f"{self._part} {self.shape} {self._known_as}".encode()

    def gather(self, indices: Tensor, crops: Crops | None = None) -> Tensor:
        """The images at these indices, checked when they are first read."""
        self._check(indices)
        return super().gather(indices, crops)

    def loaded(self, indices: Tensor) -> DenseStore | FlatStore:
        """Whole images in memory, checked when they are first read."""
        self._check(indices)
        return super().loaded(indices)

    def expect(self, indices: Tensor) -> None:
        """Let the system read these images ahead."""
        for index in indices.tolist():
            start, stop = self._place(index)
            aligned = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, aligned, stop - aligned)

    def _place(self, index: int) -> tuple[int, int]:
        start = int(self._places[index])
        height, width = self._described.sizes[index].tolist()
        return start, start + self.shape[0] * height * width

    def _check(self, indices: Tensor) -> None:
        """Compare the bytes of images with their digests, unless they were read before and not written to since."""
        found = os.fstat(self._file.fileno())
        self._refuse_shorter(found)
        if found.st_mtime_ns != self._written:
            self._checked = np.zeros_like(self._checked)
            self._written = found.st_mtime_ns
        wanted, checked = np.unique(indices.cpu().numpy()), self._checked
        for index in wanted[~checked[wanted]].tolist():
            if digest_of(self._read(index)) != self._described.pixels[index].tobytes():
                stops = np.cumsum([block.images for block in self._blocks])
                name = self._blocks[int(np.searchsorted(stops, index, side="right"))].name
                raise Damaged(
                    f"{self._path} is damaged: image {index} of its {self._part} part, of class '{name}', is not as it "
                    "was packed; copy it again, or pack the folder again"
                )
            checked[index] = True

    def _read(self, index: int) -> memoryview:
        """The bytes of an image by an ordinary read: where the disk fails, a look at the map would end the process."""
        start, stop = self._place(index)
        data, done = np.empty(stop - start, dtype=np.uint8).data, 0
        with files.naming(self._path):
            while done < len(data):
                count = os.preadv(self._file.fileno(), [data[done:]], self._first + start + done)
                if not count:  # it was longer a moment ago
                    raise self._cut_off()
                done += count
        return data

    def _refuse_shorter(self, found: os.stat_result) -> None:
        """Refuse a file that has lost its end since it was opened: a look at the map there would end the process."""
        if found.st_size < self._stop:
            raise self._cut_off()

    def _cut_off(self) -> Damaged:
        return Damaged(f"{self._path} was cut off or written anew while it was used; put it back as it was")


def _reopen(path: Path, part: str, shape: Shape, identity: str) -> PackedStore:
    """The store of a pack elsewhere: refused where the file there is another one."""
    pack = Pack.open(path)
    if pack.identity(part) != identity:
        raise UserError(f"{path} is another pack than the one that this work was begun with; copy that one there")
    return PackedStore(pack, part, shape)


def digest_of(data: bytes | memoryview) -> bytes:
    """What bytes are known by in a pack."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def block_digest(images: Described) -> str:
    """Of a class block: of the sizes and digests of its images, each of which is checked when it is first read."""
    return digest_of(images.as_bytes()).hex()


def write_index(values: Mapping[str, Any], blocks: Sequence[Block], images: Described) -> bytes:
    """An index as bytes."""
    document = json.dumps({**values, "blocks": [block.as_json() for block in blocks]}, ensure_ascii=True).encode()
    return len(document).to_bytes(8, "little") + document + images.as_bytes()


def _from_index(path: Path, data: bytes, footer: Footer) -> Pack:
    """A pack of its index, whose values are checked: a file may have been made by anybody."""
    length = int.from_bytes(data[:8], "little")
    values = json.loads(data[8 : 8 + length])
    if isinstance(values, dict) and isinstance(values.get("format"), int):
        store.check_format(path, values["format"], FORMAT)
    _INDEX(values, "")
    blocks = tuple(map(Block.from_json, values["blocks"]))
    images = Described.from_bytes(data[8 + length :], sum(block.images for block in blocks))
    pack = Pack(path, values["size"], values["square"], values["channels"], blocks, images, values.get("skipped", 0))
    _check_blocks(pack, footer.place)
    return pack


def _check_blocks(pack: Pack, end: int) -> None:
    """Refuse blocks that overlap, leave the file, are out of order, or do not fit what is said of their images."""
    parts = [block.part for block in pack.blocks]
    if not pack.class_names or parts != sorted(parts, reverse=True) or not set(parts) <= {TRAIN, TEST}:
        raise ValueError("its parts are not train, then test")
    for part in (TRAIN, TEST):
        names = [block.name for block in pack.blocks if block.part == part]
        if names != sorted(set(names)) or not set(names) <= set(pack.class_names):
            raise ValueError("its classes are not sorted, or not all of them are in the training part")
    sides = pack.images.sizes
    if len(sides) and (sides.min() < pack.size or sides.max() > MOST_SIDE):
        raise ValueError(f"an image has sides of less than {pack.size} or more than {MOST_SIDE} pixels")
    first, place, before = 0, PAGE, ""
    for block in pack.blocks:
        place = place if block.part == before else -(-place // PAGE) * PAGE
        described = pack.images.part(first, first + block.images)
        length = int(described.sizes.astype(np.int64).prod(axis=1).sum()) * pack.channels
        if (block.place, block.length) != (place, length) or block_digest(described) != block.digest:
            raise ValueError(f"the block of class {block.name} is not as its images are")
        first, place, before = first + block.images, place + length, block.part
    if place > end:
        raise ValueError("a block lies outside of it")
