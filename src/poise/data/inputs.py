"""What a user hands over (arrays, tensors, pictures, image files) as uint8 pixels [N, C, H, W]."""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from poise.data.arrays import array_pixels, list_pixels
from poise.data.decoding import known_formats, open_image, room_for
from poise.data.faults import explain_undecodable
from poise.data.stores import DenseStore
from poise.data.suitable import check_room
from poise.errors import BadImages, UserError
from poise.files import MOST_IMAGE, expand_user, read_bytes, reserve
from poise.quiet import without_warnings
from poise.ram import free_memory

log = logging.getLogger(__name__)

SIZES: Final = (32, 64, 96, 128, 224)  # the square sizes that `choose_size` chooses from
LONGEST: Final = 4  # the long side of an image in a pack, as a multiple of the short one
SPILL_SHARE: Final = 0.25  # of the free memory: images that take more are put into a temporary file
MOST_AHEAD: Final = 64  # images that are decoded and wait for their place
_LOOKED_AT = 200  # files whose size is read before one is chosen for all

A = TypeVar("A")
B = TypeVar("B")
Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]  # height and width
Picture = str | Path | Image.Image  # an image file, or one that Pillow has opened or made


def to_pixels(
    images: Any,  # noqa: ANN401 - checked here
    size: tuple[int, int] | None = None,
    channels: int = 3,
    short_side: int | None = None,
    *,
    first: int = 0,
) -> Tensor:
    """Images in any accepted form as uint8 [N, C, H, W].

    Args:
        images: numpy [N, H, W, C] or [N, H, W], torch [N, C, H, W] or [N, H, W], or a list of single images of one of
            these kinds; uint8, or floats from 0 to 1. Or a list of paths or PIL images, which are rotated as their EXIF
            data says.
        size: height and width. Paths and PIL images are scaled and cropped around the centre to it (None: see
            `choose_size`); arrays and tensors must already have it.
        channels: paths and PIL images are made RGB, or grey where this is 1.
        short_side: of paths and PIL images, to how many pixels it is scaled before a square is cut out of the centre
            (None: to the side of the square).
        first: the place of the first image among all of them, by which a bad one in a list is named.
    """
    if isinstance(images, str | Path):
        raise UserError(_single_path(images))
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":
        images = images.tolist()
    if isinstance(images, Sequence):
        pictures = _pictures(images)
        if pictures:
            return decode_all(pictures, size or choose_size(pictures), channels, short_side, first)
        return list_pixels(images, size, first)
    return array_pixels(images, size)


def _pictures(images: Sequence[Any]) -> Sequence[Picture]:
    """The paths or PIL images in a list of nothing else."""
    return images if all(isinstance(entry, Image.Image) for entry in images) else given_paths(images)


def given_paths(images: Any) -> list[Path]:  # noqa: ANN401 - whatever a user gives
    """The paths in a list of them, with a leading `~` written out; none where it is a list of anything else."""
    several = isinstance(images, Sequence) and not isinstance(images, str)
    listed = several and all(isinstance(entry, str | Path) for entry in images)
    return [expand_user(path) for path in images] if listed else []


def _single_path(path: str | Path) -> str:
    if expand_user(path).exists():
        return f"images='{path}' is a single path; pass a list of paths, such as [path]"
    return f"images='{path}' does not exist; check the path of the folder, or pass a list of paths"


def decode_all(
    pictures: Sequence[Picture], size: Size, channels: int = 3, short_side: int | None = None, first: int = 0
) -> Tensor:
    """These files or PIL images as uint8 [N, channels, H, W]; all files that cannot be decoded are named.

    They are named in a `BadImages`. `first` is the place of the first of them, where others came before.
    """
    check_room(len(pictures), (channels, *size))
    pixels = torch.empty(len(pictures), channels, *size, dtype=torch.uint8)
    _, faults = _decode_into(pixels, pictures, short_side, first)
    if faults:
        raise BadImages(faults)
    return pixels


def decode_store(pictures: Sequence[Picture], size: Size | None, channels: int, short_side: int | None) -> DenseStore:
    """The same as a store: in memory or, where they would take much of it, in a file that nobody else sees.

    Each picture is reduced as soon as it is decoded: large ones never lie in memory together.
    """
    try:
        found = size or choose_size(pictures)
    except BadImages:  # of the few that were looked at
        _name_bad(pictures)
        raise
    store = empty_store((len(pictures), channels, *found))
    count, faults = _decode_into(store.pixels, pictures, short_side)
    if faults:
        others = DenseStore(store.pixels[:count], mapped=not store.in_memory)
        raise BadImages(faults, others if size is not None else None)  # without the bad ones it may choose another
    return store


def _name_bad(pictures: Sequence[Picture]) -> None:
    """Refuse all files that cannot be decoded; nothing is kept of the others."""
    faults: dict[str, UserError] = {}
    for start in range(0, len(pictures), MOST_AHEAD):
        some = pictures[start : start + MOST_AHEAD]
        found = zip(some, decode_each(some, (SIZES[0], SIZES[0])), strict=True)
        faults |= {str(picture): fault for picture, fault in found if isinstance(fault, UserError)}
    if faults:
        raise BadImages(faults)


def empty_store(shape: tuple[int, ...]) -> DenseStore:
    """Room for images: in memory or, where they would take much of it, in a file that nobody else sees."""
    count, free = math.prod(shape), free_memory()
    found = _map_file(shape) if count > SPILL_SHARE * free else None
    if found is None and count > free:
        raise UserError(
            f"{shape[0]} images of {shape[2]}×{shape[3]} pixels take {count / 1e9:.3g} GB, more than there is of "
            "memory, and than is free on the disk for temporary files; set TMPDIR to a folder on a larger one, or "
            "use a smaller image_size"
        )
    return DenseStore(torch.empty(shape, dtype=torch.uint8)) if found is None else DenseStore(found, mapped=True)


def _map_file(shape: tuple[int, ...]) -> Tensor | None:
    """A tensor in a temporary file, which is gone when the tensor is; None where there is no room for it."""
    folder = next((each for each in (os.environ.get("TMPDIR"), "/var/tmp") if each and os.access(each, os.W_OK)), None)
    count = math.prod(shape)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            reserve(file.fileno(), count)
            return torch.frombuffer(mmap.mmap(file.fileno(), count), dtype=torch.uint8).view(shape)
    except OSError as error:  # the disk is full, files may not be so long, or there is no folder for them
        log.debug("no temporary file of %d bytes: %s", count, error)
        return None


def _decode_into(
    pixels: Tensor, pictures: Sequence[Picture], short_side: int | None, first: int = 0
) -> tuple[int, dict[str, UserError]]:
    """Decode pictures to the first places; how many there are, and what is wrong with the others, by their paths."""
    channels, size = pixels.shape[1], (pixels.shape[2], pixels.shape[3])

    def fit(numbered: tuple[int, Picture]) -> Pixels | UserError:
        place, picture = numbered
        return _try_to_fit(picture, size, channels, short_side, place)

    count, faults = 0, dict[str, UserError]()
    with ThreadPoolExecutor() as pool:
        for index, image in enumerate(map_ahead(pool, fit, enumerate(pictures, first), MOST_AHEAD)):
            if isinstance(image, UserError):
                faults[str(pictures[index])] = image
            else:
                pixels[count] = torch.from_numpy(image).permute(2, 0, 1)
                count += 1
    return count, faults


def _try_to_fit(
    picture: Picture, size: Size, channels: int, short_side: int | None, place: int | None = None
) -> Pixels | UserError:
    """What `fit_picture` gives; of a file that cannot be decoded, why."""
    try:
        return fit_picture(picture, size, channels, short_side, place)
    except UserError as error:
        if isinstance(picture, str | Path):
            return _without_frames(error)
        raise


def _without_frames(error: UserError) -> UserError:
    """The error alone: what it was raised from holds on to the decoded image, and there may be many of them."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def map_ahead(pool: Executor, work: Callable[[A], B], pieces: Iterable[A], most: int) -> Iterator[B]:
    """The results in order; at most so many pieces are at work or wait to be taken."""
    waiting: deque[Future[B]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(work, piece))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def choose_size(pictures: Sequence[Picture]) -> Size:
    """A square size for these images: the largest of `SIZES` that is not above the median of their shorter sides."""
    return suitable_square(median_side(pictures))


def suitable_square(side: int) -> Size:
    """Height and width of images whose median shorter side this is."""
    return suitable_size(side), suitable_size(side)


def decode_each(
    paths: Sequence[Picture], size: tuple[int, int], channels: int = 3, short_side: int | None = None
) -> list[Tensor | UserError]:
    """The image of each file as uint8 [channels, H, W]; in the place of one that cannot be decoded, why."""
    work = partial(_try_to_fit, size=size, channels=channels, short_side=short_side)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(work, paths))
    return [each if isinstance(each, UserError) else torch.from_numpy(each).permute(2, 0, 1) for each in found]


def suitable_size(side: int) -> int:
    """The largest of `SIZES` that is not above `side`, or the smallest one."""
    return max((choice for choice in SIZES if choice <= side), default=SIZES[0])


def median_side(pictures: Sequence[Picture]) -> int:
    """The median shorter side in pixels of the images, from up to 200 of them, evenly spaced.

    Those of them that are no image files are named, all at once (`BadImages`).
    """
    if not pictures:
        raise UserError("no image files to choose a size from; give at least one")
    looked_at = np.unique(np.linspace(0, len(pictures) - 1, _LOOKED_AT).round().astype(int))
    sides, faults = list[int](), dict[str, UserError]()
    for index in looked_at.tolist():
        try:
            sides.append(_shorter_side(pictures[index], index))
        except UserError as error:
            if not isinstance(pictures[index], str | Path):
                raise
            faults[str(pictures[index])] = _without_frames(error)
    if faults:
        raise BadImages(faults)
    return int(np.median(sides))


def _shorter_side(picture: Picture, place: int) -> int:
    with _open_picture(picture, place) as image:
        return min(image.size)


def fit_picture(
    picture: Picture, size: Size, channels: int, short_side: int | None, place: int | None = None
) -> Pixels:
    """One image as uint8 [H, W, channels], scaled and cropped around its centre.

    With a `short_side`, it is what a pack of that size shows of it. An error names a file by its path, and a PIL image
    by its `place` among the images.
    """
    mode = "L" if channels == 1 else "RGB"
    scaled = max(*size, short_side or 0)
    with _open_picture(picture, place) as image:
        whole, ours = image.size, not isinstance(picture, Image.Image)
        if ours:
            # A large JPEG can be decoded at a fraction of its size, which is many times faster.
            image.draft(None, (2 * scaled, 2 * scaled))
        with room_for(image, whole):
            fitted = _fit(_turn_upright(image, mode, ours=ours), size, short_side)
            if ours:
                image.close()  # its pixels are gone before others take their place
    return np.array(fitted, dtype=np.uint8).reshape(*size, channels)


def scale_picture(path: Path, side: int, *, square: bool) -> tuple[Pixels, bytes]:
    """One image file as uint8 [3, H, W] with this short side, as a pack stores it, and all bytes of the file.

    It is scaled (bilinear, antialiased) with its aspect kept, of very long images the middle `LONGEST` : 1; or to a
    square around its centre.
    """
    with explain_undecodable(path), without_warnings():
        data = read_bytes(path, MOST_IMAGE)
        with Image.open(BytesIO(data), formats=known_formats()) as image:
            whole = image.size
            image.draft(None, (2 * side, 2 * side))
            with room_for(image, whole):
                upright = _turn_upright(image, "RGB", ours=True)
                fitted = _scale(upright, side, square=square)
    return np.ascontiguousarray(np.asarray(fitted, dtype=np.uint8).transpose(2, 0, 1)), data


def _scale(image: Image.Image, side: int, *, square: bool) -> Image.Image:
    if square:
        return _fit(image, (side, side))
    short, long = min(image.size), max(image.size)
    scaled = min(int(side * long / short), LONGEST * side)
    wanted = (side, scaled) if image.width <= image.height else (scaled, side)
    if long > LONGEST * short:
        return ImageOps.fit(image, wanted, Image.Resampling.BILINEAR)
    return image.resize(wanted, Image.Resampling.BILINEAR)


def _turn_upright(image: Image.Image, mode: str, *, ours: bool) -> Image.Image:
    """The image rotated as its EXIF data says, in this mode; one of our own is not copied before that."""
    image.load()
    if ours:
        ImageOps.exif_transpose(image, in_place=True)
    upright = _to_eight_bit(image if ours else ImageOps.exif_transpose(image))
    return upright if upright.mode == mode else upright.convert(mode)


def _fit(image: Image.Image, size: Size, short_side: int | None = None) -> Image.Image:
    """The image scaled and cropped around its centre; to a square exactly as the centre of one that a pack stores."""
    height, width = size
    if height != width:
        return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    scaled = _scale(image, short_side or height, square=False)
    left, top = (scaled.width - width) // 2, (scaled.height - height) // 2
    return scaled.crop((left, top, left + width, top + height))


@contextmanager
def _open_picture(picture: Picture, place: int | None = None) -> Iterator[Image.Image]:
    """The image of a file, closed afterwards; a picture of the user's own stays as it is. Pillow warns of nothing."""
    if isinstance(picture, Image.Image):
        name = f"of mode {picture.mode}" if place is None else f"of mode {picture.mode} at index {place}"
        with explain_undecodable(name), without_warnings():
            yield picture
    elif isinstance(picture, str | Path):
        with explain_undecodable(picture), without_warnings(), open_image(picture) as image:
            yield image
    else:
        where = "an image" if place is None else f"images[{place}]"
        raise UserError(f"{where} came as {type(picture).__name__} among PIL images; give all of one kind")


def _to_eight_bit(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel; Pillow itself would cut 16-bit grey values off at 255."""
    wide = image.mode == "I" and image.format == "PPM"  # 16 bits of a PGM file, which Pillow opens as 32
    if image.mode in ("I", "F") and not wide:
        raise ValueError("its values have 32 bits, expected 8 or 16")
    if wide or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    return image
