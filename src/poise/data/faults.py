"""Why an image could not be read: the file cannot be decoded, or the system did not let poise read it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import UnidentifiedImageError

from poise.data.decoding import FORMAT_WORDS
from poise.data.sources.layout import UNREADABLE
from poise.errors import UnreadFile, UserError
from poise.files import MOST_IMAGE, open_plain

_AT_ONCE: Final = 1 << 20  # bytes of a file that are read together


@contextmanager
def explain_undecodable(path: str | Path) -> Iterator[None]:
    """Every error of reading an image as one line that says what to do."""
    try:
        yield
    except MemoryError:
        raise
    except UserError as error:  # it is no file that can be read
        raise UserError(f"image {error}") from error
    except Exception as error:  # a damaged file can make Pillow raise nearly anything
        refused = _refusal(error, path)
        if refused is not None:
            raise _say_refused(path, refused) from error
        reason = " ".join(str(error).replace(str(path), "file").split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = f"it is no {FORMAT_WORDS}"
            if Path(path).suffix.lower() in UNREADABLE:
                raise UserError(f"image {path} is HEIC, which cannot be decoded; convert it to JPEG") from error
        raise UserError(f"image {path} cannot be decoded ({reason}); replace or remove it") from error


def _refusal(error: Exception, path: str | Path) -> OSError | None:
    """What the system refused, where that is why an image was not decoded; Pillow's own errors have no number.

    A decoder that reads the file itself may not tell: then the file is read once more.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error
    try:
        with open_plain(path, MOST_IMAGE) as file:
            for _ in range(MOST_IMAGE // _AT_ONCE):
                if not file.read(_AT_ONCE):
                    break
    except (OSError, UserError, ValueError) as other:  # a picture of the user's own has no path
        return other if isinstance(other, OSError) and os.path.lexists(path) else None
    return None


def _say_refused(path: str | Path, error: OSError) -> UserError:
    """The error for an image file that the system did not let poise read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        if Path(path).is_symlink():
            return UserError(f"image {path} is a broken link; mend or remove it")
        return UnreadFile(f"image {path} does not exist; check the path")
    if isinstance(error, PermissionError):
        return UnreadFile(f"image {path} may not be read by you ({error.strerror}); change its permissions")
    return UnreadFile(f"image {path} could not be read ({error.strerror}); check its path and the disk that it is on")
