"""Image files and PIL images made pixels: rotated as their EXIF data says, scaled, and cropped around the centre."""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from poise.data.sources.layout import UNREADABLE
from poise.data.stores import free_memory
from poise.errors import BadImages, UnreadFile, UserError

#: What an image file may be, whatever its name says. Pillow knows more, and starts another program for some (EPS).
FORMATS: Final = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")
SIZES: Final = (32, 64, 96, 128, 224)  # the square sizes that are chosen from
LONGEST: Final = 4  # the long side of an image in a pack, as a multiple of the short one
_AHEAD: Final = 64  # images that are decoded and wait for their place
_LOOKED_AT: Final = 200  # images whose size is read before one is chosen for all

A = TypeVar("A")
B = TypeVar("B")
Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]  # height and width
Picture = str | Path | Image.Image  # an image file, or one that Pillow has opened or made
FileContent = tuple[int, bytes]  # how many bytes a file has, and their BLAKE2b digest


def content_of(data: bytes) -> FileContent:
    """An id of an image file's content, wherever the file lies."""
    return len(data), hashlib.blake2b(data, digest_size=16).digest()


def check_room(count: int, shape: tuple[int, int, int], todo: str = "use a smaller image_size") -> None:
    """Refuse images of this shape that take more memory than is free when they are decoded, and say what to do."""
    needed, there = count * math.prod(shape), free_memory()
    if needed > there:
        raise UserError(
            f"{count} images of {shape[1]}×{shape[2]} pixels take {needed / 1e9:.3g} GB, and this machine has "
            f"{there / 1e9:.3g} GB of memory free; {todo}"
        )


@dataclass(frozen=True)
class Decoder:
    """How pictures become pixels.

    Attributes:
        size: height and width of what is cut out of the centre; None: a square is chosen for the pictures.
        channels: 3 (pictures are made RGB), or 1 (grey).
        short_side: to how many pixels the short side is scaled before that; None: to the side of the square.
    """

    size: Size | None = None
    channels: int = 3
    short_side: int | None = None

    def sized_for(self, count: int, picture: Callable[[int], object]) -> Decoder:
        """This decoder with a size: if it has none, the square that suits `count` pictures, given by their places."""
        if self.size is not None:
            return self
        side = suitable_size(median_side(count, picture))
        return replace(self, size=(side, side))

    def decode(self, picture: Picture, place: int | None = None, data: bytes | None = None) -> Pixels:
        """One picture as uint8 [H, W, channels]; a file may come with its `data`.

        An error names a file by its path, and a PIL image by its `place` among the images.
        """
        assert self.size is not None
        scaled = max(*self.size, self.short_side or 0)
        with _open_picture(picture, place, data) as image:
            ours = not isinstance(picture, Image.Image)
            if ours:
                # A large JPEG can be decoded at a fraction of its size, which is many times faster.
                image.draft(None, (2 * scaled, 2 * scaled))
            upright = _turn_upright(image, "L" if self.channels == 1 else "RGB", ours=ours)
            fitted = _fit(upright, self.size, self.short_side)
        return np.array(fitted, dtype=np.uint8).reshape(*self.size, self.channels)

    def decode_all(
        self, pictures: Sequence[Picture], first: int = 0, contents: list[FileContent] | None = None
    ) -> Tensor:
        """Pictures as uint8 [N, channels, H, W]; all files that cannot be decoded are named in one `BadImages`.

        Args:
            pictures: files or PIL images.
            first: the place of the first of them, where others came before.
            contents: where to put what each file is known by.
        """
        decoder = self.sized_for(len(pictures), pictures.__getitem__)
        assert decoder.size is not None
        check_room(len(pictures), (self.channels, *decoder.size))
        pixels = torch.empty(len(pictures), self.channels, *decoder.size, dtype=torch.uint8)
        faults: dict[str, UserError] = {}
        for index, (image, content) in enumerate(decoder._decode_in_order(pictures, first, contents is not None)):
            if isinstance(image, UserError):
                faults[str(pictures[index])] = image
            else:
                pixels[index] = torch.from_numpy(image).permute(2, 0, 1)
            if contents is not None and content is not None:
                contents.append(content)
        if faults:
            raise BadImages(faults)
        return pixels

    def _decode_in_order(
        self, pictures: Sequence[Picture], first: int, known: bool
    ) -> Iterator[tuple[Pixels | UserError, FileContent | None]]:
        """Each picture, or why a file cannot be decoded; if it is to be `known`, with what it is known by."""

        def work(numbered: tuple[int, Picture]) -> tuple[Pixels | UserError, FileContent | None]:
            place, picture = numbered
            if not isinstance(picture, str | Path):
                return self.decode(picture, place), None
            try:
                with _explaining(picture):
                    data = Path(picture).read_bytes()
                return self.decode(picture, place, data), content_of(data) if known else None
            except UserError as error:
                return type(error)(str(error)), None  # without the frames, which hold on to the decoded image

        with ThreadPoolExecutor() as pool, without_warnings():
            yield from map_ahead(pool, work, enumerate(pictures, first), _AHEAD)


def suitable_size(side: int) -> int:
    """The largest of `SIZES` that is not above `side`, or the smallest one."""
    return max((choice for choice in SIZES if choice <= side), default=SIZES[0])


def median_side(count: int, picture: Callable[[int], object]) -> int:
    """The median shorter side in pixels of up to 200 of `count` images, evenly spaced, but of those not to be read."""
    if not count:
        raise UserError("no image files to choose a size from; give at least one")
    sides: list[int] = []
    with without_warnings():
        for index in np.unique(np.linspace(0, count - 1, _LOOKED_AT).round().astype(int)).tolist():
            with suppress(UserError), _open_picture(picture(index), index) as image:  # who decodes them all names it
                sides.append(min(image.size))
    return int(np.median(sides)) if sides else SIZES[0]


def scale_for_pack(path: Path, side: int, *, square: bool) -> tuple[Pixels, FileContent]:
    """One image file as uint8 [3, H, W] with this short side, as a pack stores it, and what the file is known by.

    It is scaled (bilinear, antialiased) with its aspect kept, of very long images the middle `LONGEST` : 1; or to a
    square around its centre.
    """
    with _explaining(path):
        data = path.read_bytes()
    with _open_picture(path, data=data) as image, without_warnings():
        image.draft(None, (2 * side, 2 * side))
        upright = _turn_upright(image, "RGB", ours=True)
        fitted = _fit(upright, (side, side)) if square else _scale(upright, side)
    return np.ascontiguousarray(np.asarray(fitted, dtype=np.uint8).transpose(2, 0, 1)), content_of(data)


def map_ahead(pool: Executor, work: Callable[[A], B], pieces: Iterable[A], most: int) -> Generator[B, None, None]:
    """The results in order; at most `most` pieces are at work or wait to be taken."""
    waiting: deque[Future[B]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for each in waiting:  # left in the middle: nobody waits for them
            each.cancel()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore warnings, of which Pillow and scikit-learn have many, in all threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def known_formats() -> tuple[str, ...]:
    """The formats among `FORMATS` that this Pillow can decode."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _open_picture(picture: object, place: int | None = None, data: bytes | None = None) -> Iterator[Image.Image]:
    """The image of a file, closed afterwards; a picture of the user's own stays as it is."""
    where = "an image" if place is None else f"images[{place}]"
    if isinstance(picture, Image.Image):
        with _explaining(f"of mode {picture.mode}" if place is None else f"of mode {picture.mode} at index {place}"):
            yield picture
    elif isinstance(picture, str | Path):
        file = Path(picture) if data is None else BytesIO(data)
        with _explaining(picture), Image.open(file, formats=known_formats()) as image:
            yield image
    else:
        raise UserError(f"{where} came as {type(picture).__name__} among PIL images; give all of one kind")


@contextmanager
def _explaining(path: str | Path) -> Iterator[None]:
    """Every error of reading an image as one line that says what to do."""
    try:
        yield
    except (MemoryError, UserError):
        raise
    except Exception as error:  # a damaged file can make Pillow raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not Pillow's own
            raise UnreadFile(
                f"image {path} cannot be read ({error.strerror}); check its path and permissions"
            ) from error
        reason = " ".join(str(error).replace(str(path), "file").split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "it is no JPEG, PNG, GIF, BMP, PPM, TIFF, WebP, JPEG 2000 or AVIF"
            if Path(path).suffix.lower() in UNREADABLE:
                raise UserError(f"image {path} is HEIC, which cannot be decoded; convert it to JPEG") from error
        raise UserError(f"image {path} cannot be decoded ({reason}); replace or remove it") from error


def _scale(image: Image.Image, side: int) -> Image.Image:
    short, long = min(image.size), max(image.size)
    scaled = min(int(side * long / short), LONGEST * side)
    wanted = (side, scaled) if image.width <= image.height else (scaled, side)
    if long > LONGEST * short:
        return ImageOps.fit(image, wanted, Image.Resampling.BILINEAR)
    return image.resize(wanted, Image.Resampling.BILINEAR)


def _fit(image: Image.Image, size: Size, short_side: int | None = None) -> Image.Image:
    """The image scaled and cropped around its centre; to a square exactly as the centre of one that a pack stores."""
    height, width = size
    if height != width:
        return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    scaled = _scale(image, short_side or height)
    left, top = (scaled.width - width) // 2, (scaled.height - height) // 2
    return scaled.crop((left, top, left + width, top + height))


def _turn_upright(image: Image.Image, mode: str, *, ours: bool) -> Image.Image:
    """The image rotated as its EXIF data says, in this mode; one of our own is not copied before that."""
    image.load()
    if ours:
        ImageOps.exif_transpose(image, in_place=True)
    upright = _to_eight_bit(image if ours else ImageOps.exif_transpose(image))
    return upright if upright.mode == mode else upright.convert(mode)


def _to_eight_bit(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel; Pillow itself would cut 16-bit grey values off at 255."""
    wide = image.mode == "I" and image.format == "PPM"  # 16 bits of a PGM file, which Pillow opens as 32
    if image.mode in ("I", "F") and not wide:
        raise ValueError("its values have 32 bits, expected 8 or 16")
    if wide or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    return image


# Kept images in a learner's file --------------------------------------------------------------------------------------


def compress(pixels: Tensor) -> dict[str, Tensor]:
    """Images [N, 1 or 3, H, W] as WebP files without loss, one after the other, and the length of each."""
    files = list[bytes]()
    for image in pixels.cpu():
        file = BytesIO()
        colours = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(colours).save(file, "WEBP", lossless=True, quality=0, method=0)
        files.append(file.getvalue())
    whole = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    return {"files": whole, "lengths": torch.tensor([len(data) for data in files])}


def decompress(files: Tensor, lengths: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The images that `compress` was given."""
    channels, height, width = shape
    found = torch.empty(len(lengths), *shape, dtype=torch.uint8)
    try:
        for place, data in enumerate(torch.split(files, lengths.tolist())):
            with Image.open(BytesIO(data.numpy().tobytes()), formats=["WEBP"]) as image:
                if image.size != (width, height):
                    raise ValueError("its kept images have another size")
                colours = torch.from_numpy(np.array(image.convert("RGB")))
            found[place] = colours.permute(2, 0, 1)[:channels]
    except (OSError, RuntimeError) as error:
        raise ValueError("its kept images cannot be read") from error
    return found
