"""Files that survive a crash: atomic, versioned, checked, and unable to run code.

Tensors go into safetensors files with one JSON document in the header; plain values into JSON files;
events into an append-only journal of JSON lines. A file is written beside its name, flushed to the
disk and renamed, so a reader sees the old bytes or the new ones and never something between.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from poise import files, ram
from poise._version import __version__
from poise.errors import Damaged, UserError

if TYPE_CHECKING:
    from torch import Tensor

# What reads and writes tensors imports torch when it is called: commands that list something do not wait for it.

FORMAT = 2  # of tensor files, which hold the state of a learner; others are refused (docs/production.md)
FINAL_MODEL = "model.safetensors"  # in a run folder, for predictions
CHECKPOINT_SECONDS = 60.0  # between two checkpoints of a job that was not told otherwise
PLAIN_FORMAT = 1  # of JSON documents and journals; raised when an older poise could not read them
_CHUNK = 2**20  # bytes of a journal read at once
PACKED = ".xz"  # what the name of a journal ends with that was compressed to be kept
_MOST_UNPACKED = 2**30  # bytes of such a journal
_MOST_UNPACKING = 2**28  # bytes of memory that unpacking it may take
DIGEST = "digest"  # the last key of a document that has one


class Summary(NamedTuple):
    """What is known of a file of tensors without reading all of it."""

    meta: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    tensors: dict[str, Tensor]


def refuse_bad_place(path: Path) -> None:
    """Refuse a path at which no file can be written."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.absolute().parent} does not exist; make it first")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file in it")


def write_json(path: Path, value: Mapping[str, Any], *, digest: bool = False) -> None:
    """Write a document with its format version, human-readable, in a fixed byte layout.

    With `digest` its last key is a digest of all others, by which a reader sees that it was changed.
    """
    document = {"format": PLAIN_FORMAT, **value}
    own = {DIGEST: digest_of(document)} if digest else {}
    text = json.dumps({**document, **own}, indent=1, ensure_ascii=False, allow_nan=False)
    files.write_bytes(path, _encode_line(text))


def read_json(path: Path) -> dict[str, Any]:
    """Read a document written by `write_json`, without its format version and its digest."""
    return read_verified(path)[0]


def read_verified(path: Path) -> tuple[dict[str, Any], bool]:
    """The same, and whether it has a digest; one that does not match the contents raises `Damaged`."""
    try:
        value = json.loads(files.read_bytes(path))
        kept = value.pop(DIGEST, None) if isinstance(value, dict) else None
        intact = kept is None or kept == digest_of(value)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged or was not written by poise (no JSON)") from error
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged or was not written by poise (no JSON)")
    if not intact:
        raise Damaged(f"{path} was changed since it was written: its contents do not match their digest")
    check_format(path, value.pop("format", None))
    return value, kept is not None


def digest_of(value: object) -> str:
    """A digest of a plain value as JSON has it: its layout and the order of its keys do not matter.

    >>> digest_of({"a": 1, "b": [0.5]}) == digest_of({"b": (0.5,), "a": 1})
    True
    """
    plain = json.loads(json.dumps(value))  # keys are words from here on, and are sorted as such
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A digest of tensors, read from a file, by their names and values: what else is in the file does not matter."""
    return _checksum(tensors, "")


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    kind: str,
    like: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write tensors and a JSON document as one safetensors file of the given kind.

    Where there is a file at `like`, it has the permissions of that one. `check` may refuse it in the last moment.
    """
    from safetensors.torch import save as to_bytes

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    document = json.dumps({"kind": kind, "format": FORMAT, "meta": meta}, allow_nan=False)
    header = {"sum": _checksum(plain, document), "document": document}
    # One entry only: safetensors writes its metadata in the order of a hash table, anew in every process.
    files.write_bytes(path, to_bytes(plain, {"poise": json.dumps(header)}), like=like, check=check)


def read_tensors(path: Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `write_tensors`; any damage raises `Damaged`, another kind `UserError`.

    So does a file that this user may not read; an error of the disk is `Damaged`, in the system's words.

    The checksum is looked at first, and is made the same way in every format: damage never looks like a
    newer format or another kind.
    """
    with _open_tensors(path, kind) as file:
        header = json.loads((file.metadata() or {})["poise"])
        # Copies: otherwise they are the file itself, and change with it if somebody writes it over.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        intact = header["sum"] == _checksum(tensors, header["document"])
        document = json.loads(header["document"], parse_constant=_refuse_constant) if intact else {}
    if not intact:
        raise Damaged(f"{path} is damaged: its contents do not match their checksum")
    return tensors, _checked_meta(path, document, kind)


def read_summary(path: Path, names: Sequence[str], *, kind: str) -> Summary:
    """The document of a file written by `write_tensors`, the shapes of its tensors, and those of them that are named.

    The others are not read, which is quick, so that damage in them is not noticed.
    """
    with _open_tensors(path, kind) as file:
        document = json.loads(json.loads((file.metadata() or {})["poise"])["document"], parse_constant=_refuse_constant)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        tensors = {name: file.get_tensor(name) for name in names if name in shapes}
    return Summary(_checked_meta(path, document, kind), shapes, tensors)


@contextmanager
def _open_tensors(path: Path, kind: str) -> Iterator[Any]:
    """A file of tensors, opened; what cannot be understood in it while it is read is damage."""
    from safetensors import SafetensorError, safe_open

    if kind == "learner":
        refuse_run_folder(path)
    refuse_unreadable(path)
    try:
        with _utf8_path(path) as plain, safe_open(plain, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged or was not written by poise") from error


def _checked_meta(path: Path, document: Any, kind: str) -> dict[str, Any]:  # noqa: ANN401 - whatever was in the file
    """The plain values of a document, refused where it is of another kind or format."""
    if not isinstance(document, dict) or not isinstance(document.get("meta"), dict):
        raise Damaged(f"{path} is damaged or was not written by poise")
    meta: dict[str, Any] = document["meta"]
    check_format(path, document.get("format"), FORMAT, _writer_of(meta))
    if document.get("kind") != kind:
        raise UserError(f"{path} is a {document.get('kind')} file of poise, not a {kind} file")
    return meta


def _writer_of(meta: Mapping[str, Any]) -> str | None:
    """The version of the poise that wrote it, where that is noted: in every learner, also one inside of other files."""
    learner = meta.get("learner", meta)
    version = learner.get("poise") if isinstance(learner, dict) else None
    return version if isinstance(version, str) else None


def refuse_run_folder(path: Path) -> None:
    """Name the model in a run folder that is given in its place."""
    if files.describe(path) == "a folder":
        found = path / FINAL_MODEL if (path / FINAL_MODEL).is_file() else "the file of a learner"
        raise UserError(f"{path} is a folder, not a file; give {found}")


def refuse_unreadable(path: Path) -> None:
    """Refuse what cannot be opened and read, with the system's reason: safetensors calls all of it missing."""
    try:
        files.refuse_other_kinds(path, ram.main_memory())
        with files.open_plain(path) as file:
            file.read(1)
    except PermissionError as error:
        raise UserError(f"{path} may not be read by you ({error.strerror}); change its permissions") from error
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror}); check the disk that it is on") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


@contextmanager
def _utf8_path(path: Path) -> Iterator[str]:
    """A path to the file that is UTF-8, which safetensors needs; for other names, that of the opened file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with files.open_plain(path) as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield str(path)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def check_format(path: Path, found: object, known: int = PLAIN_FORMAT, writer: str | None = None) -> None:
    """Refuse what a newer poise wrote, what an older one wrote that is no longer read, and what nobody numbered.

    `writer` is the version that wrote it, where that is known: the line then says which one to use.
    """
    if not isinstance(found, int):
        raise Damaged(f"{path} has no format version; it was not written by poise")
    if found == known:
        return
    known_by = writer if writer != __version__ else None  # of a poise between two versions, its number says nothing
    if found > known:
        advice = f"install poise {known_by} or newer" if known_by else "install a newer poise"
    else:
        advice = f"train it again, or use {f'poise {known_by}, which wrote it' if known_by else 'an older poise'}"
    raise UserError(f"{path} has format {found}, this poise reads {known}; {advice}")


def _checksum(tensors: Mapping[str, Tensor], document: str) -> str:
    import torch

    digest = hashlib.blake2b(document.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode_line(text: str) -> bytes:
    """A line of JSON as bytes; what cannot be UTF-8, as in some names of files, is escaped as JSON does it."""
    return (text + "\n").encode(errors="backslashreplace")


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
            self._file.write(_encode_line(json.dumps({"journal": "poise", "format": PLAIN_FORMAT})))
        self._file.write(_encode_line(json.dumps(event, ensure_ascii=False, allow_nan=False)))
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
