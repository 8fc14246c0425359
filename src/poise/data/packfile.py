"""What a pack looks like from outside: its ending, how it begins and how it ends. No torch is needed to recognise one.

page 0      MAGIC, filled up to PAGE bytes
blocks      one for each class of each part, images one after the other; parts begin at a page
index       a JSON document and arrays (`poise.data.packs`)
end         END, then the place, length and digest of the index
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from poise import files
from poise.errors import Damaged, UserError

ENDING: Final = ".pack"
MAGIC: Final = b"poise pack 1\n"
END: Final = b"poise pack end\n\0"
PAGE: Final = 1 << 16  # a multiple of the page sizes that machines have
_FOOTER: Final = struct.Struct("<16sQQ16s")
#: The most bytes of an index: of 100 million images.
MOST_INDEX: Final = 8 << 30


@dataclass(frozen=True)
class Footer:
    """Where the index lies, and its digest."""

    place: int
    length: int
    digest: bytes

    def as_bytes(self) -> bytes:
        """As the last bytes of a pack."""
        return _FOOTER.pack(END, self.place, self.length, self.digest)


def is_pack(path: Path) -> bool:
    """Whether there is a file that begins as a pack does."""
    if files.describe(path) != "a plain file":
        return False
    try:
        with files.open_plain(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, UserError):
        return False


def read_footer(path: Path) -> Footer:
    """The end of a pack; refuses a file that is none, or has lost its end."""
    try:
        with files.open_plain(path) as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path} is no pack; make one with 'poise data pack FOLDER --out FILE{ENDING}'")
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _FOOTER.size))
            last = file.read(_FOOTER.size)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error
    if len(last) < _FOOTER.size or not last.startswith(END):
        raise Damaged(f"{path} is cut off: its end is missing; copy it again, or pack the folder again")
    _, place, length, digest = _FOOTER.unpack(last)
    if length > MOST_INDEX or place < PAGE or place + length + _FOOTER.size != size:
        raise Damaged(f"{path} is cut off or damaged: its index is not in its place; copy it again, or pack again")
    return Footer(place, length, digest)
