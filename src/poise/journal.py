"""The journal of a job: an append-only file of JSON lines, which a run that is resumed cuts where it goes on."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from poise import files
from poise.errors import Damaged
from poise.store import PLAIN_FORMAT, check_format, encode_line

_CHUNK = 2**20  # bytes of a journal read at once
PACKED = ".xz"  # what the name of a journal ends with that was compressed to be kept
_MOST_UNPACKED = 2**30  # bytes of such a journal
_MOST_UNPACKING = 2**28  # bytes of memory that unpacking it may take


def _new_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _hash_bytes(found: hashlib.blake2b, path: Path, start: int, stop: int) -> hashlib.blake2b:
    """The hash, updated with the bytes of a file from `start` up to `stop`, a few at a time."""
    if start < stop:
        with path.open("rb") as file:
            file.seek(start)
            while start < stop and (some := file.read(min(_CHUNK, stop - start))):
                found.update(some)
                start += len(some)
    return found


def _unpack_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines of a compressed journal, unpacked a few at a time: whatever it holds, no memory is filled with it."""
    unpacker, rest, total = lzma.LZMADecompressor(memlimit=_MOST_UNPACKING), b"", 0
    try:
        while not unpacker.eof:
            some = file.read(_CHUNK) if unpacker.needs_input else b""
            more = unpacker.decompress(some, _CHUNK)
            total += len(more)
            if total > _MOST_UNPACKED or len(rest) > files.MOST_DOCUMENT or not (some or more):
                raise Damaged(f"{path} is cut off, or more than a journal")
            *lines, rest = (rest + more).split(b"\n")
            yield from (line + b"\n" for line in lines)
    except lzma.LZMAError as error:
        raise Damaged(f"{path} is not a compressed journal") from error


class Journal:
    """An append-only file of JSON lines. Its length in bytes is a position one can return to.

    Before anything is written `check` is called, which may refuse it.
    """

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._check = check
        self._file: BinaryIO | None = None
        self._hash, self._hashed = _new_hash(), 0  # of the bytes up to there

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file = self._file or files.open_to_append(self.path)
        self._check()  # once it is open: what replaces us from now on replaces the file (`rewind`)
        if self._file.tell() == 0:
            self._forget_hash()
            self._file.write(encode_line(json.dumps({"journal": "poise", "format": PLAIN_FORMAT})))
        self._file.write(encode_line(json.dumps(event, ensure_ascii=False, allow_nan=False)))
        self._file.flush()

    def position(self) -> int:
        """The length so far, on the disk: what is before it survives a crash of the machine."""
        if self._file is not None:
            if not files.is_at(self._file, self.path):
                self._check()  # by a newer attempt; if not, by an older one that was paused in the middle of `rewind`
                what = "was replaced by another process" if self.path.exists() else "was moved or deleted meanwhile"
                raise Damaged(f"{self.path} {what}; go on from the last checkpoint, wherever it lies now")
            self._file.flush()
            os.fsync(self._file.fileno())
        return self.path.stat().st_size if self.path.exists() else 0

    def digest(self) -> str:
        """Of all bytes up to `position`; those that were there at the last call are not read again."""
        position = self.position()
        if position < self._hashed:
            self._forget_hash()
        _hash_bytes(self._hash, self.path, self._hashed, position)
        self._hashed = position
        return self._hash.hexdigest()

    def check(self, position: int, digest: str | None) -> None:
        """Refuse a journal that is shorter than `position`, or whose bytes up to there have another digest.

        None is any: checkpoints did not always keep a digest.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < position:
            raise Damaged(f"{self.path} has {size} bytes, the checkpoint was written when it had {position}")
        if digest is not None and _hash_bytes(_new_hash(), self.path, 0, position).hexdigest() != digest:
            raise Damaged(f"{self.path} was changed since the checkpoint was written")

    def rewind(self, position: int, *, anew: bool = False) -> None:
        """Cut everything after `position`: the events that a resumed run will produce again.

        With `anew` the rest goes into a new file: what another process still writes into the old one is lost.
        """
        self.close()
        self.check(position, None)
        self._forget_hash()
        self._check()
        if anew:
            with files.open_plain(self.path, files.MOST_JOURNAL) if position else io.BytesIO() as file:
                files.write_bytes(self.path, file.read(position))
            return
        with files.open_to_append(self.path) as file:
            file.truncate(position)

    def _forget_hash(self) -> None:
        self._hash, self._hashed = _new_hash(), 0

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(path: Path, brief: str | None = None) -> Iterator[dict[str, Any]]:
    """The events of a journal, finished or still growing; a torn last line and the header are left out.

    Of events of the kind `brief` nothing but the kind is told, which is quick where there are thousands of them. One
    that was compressed to be kept (`.xz`) is unpacked on the way.
    """
    if not path.exists():
        return
    short = {"event": brief}
    begins = json.dumps(short)[:-1].encode()
    with files.open_plain(path, files.MOST_JOURNAL) as file:
        packed = path.suffix == PACKED
        lines = _unpack_lines(path, file) if packed else iter(partial(file.readline, files.MOST_DOCUMENT), b"")
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                if len(line) == files.MOST_DOCUMENT:
                    raise Damaged(f"{path}, line {number} has no end; poise wrote no such line")
                return
            if brief is not None and line.startswith(begins):
                yield short.copy()
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Damaged(f"{path}, line {number} is not JSON") from error
            if number == 1 and "journal" in event:
                check_format(path, event.get("format"))
            else:
                yield event
