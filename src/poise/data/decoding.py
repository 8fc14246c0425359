"""Image files of anybody's making: which ones are opened, and how many pixels are decoded at once.

A file of a few megabytes can hold an image of a gigabyte. One image has at most `MOST_PIXELS`, and the large ones
among those that are decoded side by side wait until the pixels of the others are gone.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from PIL import Image

from poise import files

#: What an image file may be, whatever its name says. Pillow knows more, and starts another program for some (EPS).
FORMATS: Final = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")
#: The same in words.
FORMAT_WORDS: Final = "JPEG, PNG, GIF, BMP, PPM, TIFF, WebP, JPEG 2000 or AVIF"
#: The most pixels of one image; Pillow's own limit, unless a program has moved that.
MOST_PIXELS: Final = 178_956_970
#: The most pixels that are decoded at once: 1 to 2 GB of memory.
PIXELS_AT_ONCE: Final = 200_000_000
#: Images with at most so many pixels need not wait: there are never enough of them.
SMALL: Final = 1_000_000
#: After images with at least so many, freed memory is given back.
LARGE: Final = 10_000_000


class PixelBudget:
    """Keeps the pixels that several threads decode at once below a limit."""

    def __init__(self, most: int) -> None:
        self._free = self._most = most
        self._changed = threading.Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        """Wait until so many pixels fit beside the others; an image that never does has the budget for itself."""
        if pixels <= SMALL:
            yield
            return
        held = min(pixels, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= held)
            self._free -= held
        try:
            yield
        finally:
            with self._changed:
                self._free += held
                self._changed.notify_all()


#: Of all threads of this process.
BUDGET: Final = PixelBudget(PIXELS_AT_ONCE)


@functools.cache
def known_formats() -> tuple[str, ...]:
    """Those of the formats that this Pillow can decode."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def open_image(path: str | Path) -> Iterator[Image.Image]:
    """An image file, of which no pixel is decoded yet; closed afterwards. No other program is ever started for it."""
    with files.open_plain(path, files.MOST_IMAGE) as file, Image.open(file, formats=known_formats()) as image:
        yield image


@contextmanager
def room_for(image: Image.Image, size: tuple[int, int]) -> Iterator[None]:
    """Room in the budget for the pixels of an open image, which are to be decoded and let go inside of it.

    `size` is what the image had before `draft`: a JPEG that is decoded at a fraction of its size may need memory for
    all of it, if it is progressive.
    """
    whole, drafted = size[0] * size[1], image.width * image.height
    if not whole:
        raise ValueError(f"it has {size[0]}×{size[1]} pixels")
    if whole > MOST_PIXELS:
        raise ValueError(f"it has {size[0]}×{size[1]} pixels, more than {MOST_PIXELS / 1e6:.0f} million")
    share = 1 if image.info.get("progressive") else 4
    pixels = max(drafted, whole // share)
    with BUDGET.holding(pixels):
        try:
            yield
        finally:
            if pixels >= LARGE and (trim := _trim_function()) is not None:
                trim(0)


@functools.cache
def _trim_function() -> Callable[[int], int] | None:
    """What gives freed memory back to the system, where there is such a function.

    Without it glibc keeps much of it, for each thread apart, so that a few large images fill the memory in turn.
    """
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return cast("Callable[[int], int]", found)
