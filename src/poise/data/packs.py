"""Packs: folders of images that were decoded once.

    NAME.pack/index.jsonl       a line about the pack, a line for each class of each part, and a last one
    NAME.pack/train-00000.bin   the images of one class one after the other, uint8 [channels, height, width] each

Opening a pack reads its index. A class file is mapped, and compared with its digest, when it is first used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from poise.data.decode import Decoder, suitable_size
from poise.data.sources.layout import INDEX
from poise.data.stores import DenseStore, PictureStore, PixelStore, Shape
from poise.errors import Damaged, UserError

DIGEST: Final = 16  # bytes
FORMAT: Final = 2  # of packs; others are refused
TRAIN, TEST = "train", "test"


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


@dataclass(frozen=True, eq=False)
class Block:
    """The images of one class in one part.

    Attributes:
        part: `train` or `test`.
        name: of the class.
        file: the name of the class file.
        digest: of the class file, and of the sizes and sources.
        sizes: int32 [N, 2]: height and width of each image.
        sources: uint8 [N, 16]: digests of the image files that they were made of.
        listing: what the names, sizes and times of those files are known by.
        skipped: how many files could not be decoded and were left out.
    """

    part: str
    name: str
    file: str
    digest: str
    sizes: NDArray[np.int32]
    sources: NDArray[np.uint8]
    listing: str
    skipped: int

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def pixels(self) -> int:
        """How many pixels its images have together."""
        return int(self.sizes.prod(axis=1, dtype=np.int64).sum())

    @staticmethod
    def begun(part: str, name: str, listing: str) -> Block:
        """A block without images, of files that are known by `listing`."""
        file = f"{part}-{_hash(os.fsencode(name))[:16]}.bin"  # any name can be a class's
        return Block(part, name, file, "", np.empty((0, 2), np.int32), np.empty((0, DIGEST), np.uint8), listing, 0)

    def extended(self, sizes: Sequence[tuple[int, ...]], sources: Sequence[bytes], skipped: int) -> Block:
        """The block with more images, of which the class file has the pixels."""
        more = np.array(sizes, np.int32).reshape(-1, 2)
        digests = np.frombuffer(b"".join(sources), np.uint8).reshape(-1, DIGEST)
        return replace(
            self,
            sizes=np.concatenate([self.sizes, more]),
            sources=np.concatenate([self.sources, digests]),
            skipped=self.skipped + skipped,
        )

    def as_line(self) -> dict[str, Any]:
        """The values of its line in the index."""
        arrays = {name: base64.b64encode(getattr(self, name).tobytes()).decode() for name in ("sizes", "sources")}
        return {**vars(self), **arrays}

    @staticmethod
    def from_line(line: Mapping[str, Any]) -> Block:
        """The block of a line; `KeyError`, `TypeError` or `ValueError` where the line is no block's."""
        sizes = np.frombuffer(base64.b64decode(line["sizes"]), "<i4").reshape(-1, 2)
        sources = np.frombuffer(base64.b64decode(line["sources"]), np.uint8).reshape(len(sizes), DIGEST)
        return Block(**{**line, "sizes": sizes, "sources": sources})

    def digest_of(self, pixels: NDArray[np.uint8]) -> str:
        """The digest that it has if these are the bytes of its class file."""
        total = hashlib.blake2b(pixels.data, digest_size=DIGEST)
        total.update(self.sizes.tobytes() + self.sources.tobytes())
        return total.hexdigest()


@dataclass(frozen=True, eq=False)
class Pack:
    """An opened pack: its index. No pixel was read.

    Attributes:
        path: of the folder.
        size: the short side of its images in pixels.
        square: whether they are square, and so all of one size.
        channels: of every image.
        blocks: the training classes by name, then those of the test part.
    """

    path: Path
    size: int
    square: bool
    channels: int
    blocks: tuple[Block, ...]

    @staticmethod
    def open(path: Path) -> Pack:
        """Read and check the index; refuses what is no pack, a damaged index, and a class file that is cut off."""
        try:
            data = (path / INDEX).read_bytes()
        except OSError as error:
            raise UserError(f"{path} is no pack; make one with 'poise data pack FOLDER --out FILE.pack'") from error
        try:
            head, *lines, end = map(json.loads, data.splitlines())
            if head["format"] != FORMAT:
                raise UserError(f"{path} has format {head['format']}, this poise reads {FORMAT}; pack the folder again")
            if end["end"] != _hash(data[: data.rindex(b"\n", 0, -1) + 1]):
                raise ValueError("it ends with the digest of another one")
            pack = Pack(path, head["size"], head["square"], head["channels"], tuple(map(Block.from_line, lines)))
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{path} has a damaged index; copy it again, or pack the folder again") from error
        for block in pack.blocks:
            file = path / block.file
            if not file.is_file() or file.stat().st_size != block.pixels * pack.channels:
                raise Damaged(f"{file} is gone or cut off; copy the pack again, or pack the folder again")
        return pack

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the training part, sorted; a label is an index into it."""
        return tuple(block.name for block in self.blocks_of(TRAIN))

    @property
    def has_test(self) -> bool:
        """Whether there is a test part."""
        return bool(self.blocks_of(TEST))

    @property
    def exam_part(self) -> str:
        """The part to judge by: the test part, or the training part where there is no other."""
        return TEST if self.has_test else TRAIN

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return sum(block.pixels for block in self.blocks) * self.channels

    @property
    def skipped(self) -> int:
        """How many files could not be decoded and were left out."""
        return sum(block.skipped for block in self.blocks)

    def blocks_of(self, part: str) -> list[Block]:
        """The blocks of a part that have images, by class name."""
        return [block for block in self.blocks if block.part == part and len(block)]

    def identity(self, part: str) -> str:
        """A stable id of a part: of classes, sizes and contents."""
        plain = [[block.name, len(block), block.digest] for block in self.blocks_of(part)]
        return _hash(json.dumps([self.size, self.square, self.channels, plain]).encode())

    def counts(self, part: str = TRAIN) -> list[int]:
        """How many images of each class a part has."""
        found = {block.name: len(block) for block in self.blocks_of(part)}
        return [found.get(name, 0) for name in self.class_names]

    def labels(self, part: str) -> Tensor:
        """The label of every image of a part."""
        labels = torch.arange(len(self.class_names), device="cpu")
        return labels.repeat_interleave(torch.tensor(self.counts(part), device="cpu"))

    def names(self, part: str) -> list[str]:
        """The class name of every image of a part."""
        return [self.class_names[label] for label in self.labels(part).tolist()]

    def describe(self, part: str) -> Iterator[PackedImage]:
        """Which image each one of a part is."""
        for block in self.blocks_of(part):
            for number, source in enumerate(block.sources):
                yield PackedImage(part, block.name, number, source.tobytes().hex())

    def copies(self) -> int:
        """How many images of the test part were made of a file with the same bytes as one of the training part."""
        trained, tests = ({image.source for image in self.describe(part)} for part in (TRAIN, TEST))
        return sum(image.source in trained for image in self.describe(TEST)) if trained & tests else 0

    def store(self, part: str, side: int | None = None) -> PackedStore:
        """The images of a part; the centre of `side` pixels, unscaled, is gathered where nothing else is asked for."""
        side = side or self.size
        if side > self.size:
            raise UserError(
                f"{self.path} has images of {self.size} pixels, fewer than image_size={side}; use at most {self.size}, "
                f"or pack them again with --size {side}"
            )
        return PackedStore(self, part, (self.channels, side, side))

    # As photos ------------------------------------------------------------------------------------------------------

    def read(self, part: str, decoder: Decoder) -> PixelStore:
        """The images of a part as a learner sees photos: mapped where nothing is to be scaled, else scaled once."""
        decoder = self._sized(decoder)
        if decoder.short_side == self.size and decoder.channels == self.channels:
            return self.store(part, decoder.size[0])  # type: ignore[index]
        return DenseStore(torch.cat(list(self.stream(part, decoder))))

    def stream(self, part: str, decoder: Decoder, count: int = 256) -> Iterator[Tensor]:
        """The images of a part in order, as a learner sees photos: uint8 [n, C, H, W], at most `count` at a time."""
        store, decoder = self.store(part), self._sized(decoder)
        for start in range(0, len(store), count):
            pixels = map(store.picture, range(start, min(start + count, len(store))))
            yield decoder.decode_all(
                [Image.fromarray(np.ascontiguousarray(each.transpose(1, 2, 0))) for each in pixels]
            )

    def _sized(self, decoder: Decoder) -> Decoder:
        size = decoder.size or (suitable_size(self.size),) * 2
        return Decoder(size, decoder.channels, decoder.short_side or size[0])


class PackedStore(PictureStore):
    """The images of one part of a pack, mapped class by class. It knows nothing of the other part."""

    in_memory = False
    lasting = True
    known_by_pixels = False  # the index knows them

    def __init__(self, pack: Pack, part: str, shape: Shape) -> None:
        self.shape = shape
        self._path, self._part, self._known_as = pack.path, part, pack.identity(part)
        self._blocks = pack.blocks_of(part)
        self.sizes = torch.from_numpy(np.concatenate([block.sizes for block in self._blocks]).astype(np.int64))
        counts = [len(block) for block in self._blocks]
        self._block_of = np.repeat(np.arange(len(counts)), counts)
        lengths = self.sizes.prod(dim=1).numpy() * shape[0]
        self._starts = np.concatenate([np.cumsum(each) - each for each in np.split(lengths, np.cumsum(counts)[:-1])])
        self._maps: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.sizes)

    def identity(self) -> Iterator[bytes]:
        """The digest of this part, as the pack's index has it."""
        yield f"{self._part} {self.shape} {self._known_as}".encode()

    def picture(self, index: int) -> NDArray[np.uint8]:
        """One whole image, not copied; its class file is checked when it is first used."""
        number = int(self._block_of[index])
        pixels = self._maps.get(number)
        if pixels is None:
            pixels = self._maps[number] = self._map(self._blocks[number])
        height, width = self.sizes[index].tolist()
        start = int(self._starts[index])
        return pixels[start : start + self.shape[0] * height * width].reshape(self.shape[0], height, width)

    def _map(self, block: Block) -> NDArray[np.uint8]:
        pixels = map_file(self._path / block.file)
        if block.digest_of(pixels) != block.digest:
            raise Damaged(
                f"{self._path / block.file}, class '{block.name}', is not as it was packed; copy it again, or pack the "
                "folder again"
            )
        return pixels

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path, self._part, self.shape, self._known_as)


def _reopen(path: Path, part: str, shape: Shape, identity: str) -> PackedStore:
    """The store of a pack in another process: refused where the folder there is another pack."""
    pack = Pack.open(path)
    if pack.identity(part) != identity:
        raise UserError(f"{path} is another pack than the one that this work was begun with; copy that one there")
    return PackedStore(pack, part, shape)


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, mapped."""
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def write_end(index: Path, head: Mapping[str, Any], blocks: Sequence[Block]) -> None:
    """Write the index of a finished pack: what opening it expects."""
    lines = [json.dumps(each).encode() + b"\n" for each in (head, *(block.as_line() for block in blocks))]
    lines.append(json.dumps({"end": _hash(b"".join(lines))}).encode() + b"\n")
    index.write_bytes(b"".join(lines))


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST).hexdigest()
