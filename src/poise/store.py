"""Files that survive a crash: written beside their name, flushed to the disk and renamed; checked, unable to run code.

Tensors go into safetensors files with one JSON document in the header; plain values into JSON files; events into the
journal of a run (`poise.runs.journal`). A reader sees the old bytes or the new ones and never something between.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from poise.errors import Damaged, UserError

if TYPE_CHECKING:
    from torch import Tensor

# What reads and writes tensors imports torch when it is called: commands that list something do not wait for it.

FORMAT: Final = 3  # of tensor files, which hold the state of a learner; before 1.0, others are refused
PLAIN_FORMAT: Final = 1  # of JSON documents and journals
FINAL_MODEL: Final = "model.safetensors"  # in a run folder, for predictions
CHECKPOINT_SECONDS: Final = 60.0  # between two checkpoints of a job that was not told otherwise
DIGEST: Final = "digest"  # the last key of a document that has one


# Paths and bytes ------------------------------------------------------------------------------------------------------


def expand_user(path: str | Path) -> Path:
    """The path with a leading `~` written out; refuses a user that does not exist, unless a file is called so."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        if os.path.lexists(path):
            return Path(path)
        raise UserError(f"{path}: there is no such user on this machine; write the path out") from error


def refuse_bad_place(path: Path) -> None:
    """Refuse a path at which no file can be written."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder {path.absolute().parent} does not exist; make it first")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file in it")


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put `data` at `path` atomically: a temporary file, fsync, rename, fsync of the folder.

    Without `sync` the disk is not waited for: for what can be made again. An error of the system names `path`.
    """
    temporary = path.with_name(f".{path.name}.tmp")  # what a killed process left of it is written over
    try:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            if path.is_file():
                shutil.copymode(path, temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if sync:  # the folder, too: the new name is in it
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


# Locks ----------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, busy: str, *, passing: bool = False) -> Iterator[None]:
    """Keep every other process out; the operating system ends the lock with this one, however it ends.

    The empty file at `path` stays unless it is `passing`: then whoever comes in the moment in which it is removed may
    come in beside us. Another process gets one line, which ends with `busy`.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"another process {busy}") from error
    except NotImplementedError as error:
        raise UserError(f"{path} cannot be locked on this disk; use a folder on another one") from error
    try:
        yield
    finally:
        if passing:
            path.unlink(missing_ok=True)
        lock.release()


# Plain values ---------------------------------------------------------------------------------------------------------


def encode_line(text: str) -> bytes:
    """A line of JSON as bytes; what cannot be UTF-8, as in some names of files, is escaped as JSON does it."""
    return (text + "\n").encode(errors="backslashreplace")


def write_json(path: Path, value: Mapping[str, Any], *, digest: bool = False) -> None:
    """Write a document with its format version, human-readable, in a fixed byte layout.

    With `digest` its last key is a digest of all others, by which a reader sees that it was changed.
    """
    document = {"format": PLAIN_FORMAT, **value}
    own = {DIGEST: digest_of(document)} if digest else {}
    write_bytes(path, encode_line(json.dumps({**document, **own}, indent=1, ensure_ascii=False, allow_nan=False)))


def read_json(path: Path) -> dict[str, Any]:
    """Read a document written by `write_json`, without its format version and its digest."""
    return read_verified(path)[0]


def read_verified(path: Path) -> tuple[dict[str, Any], bool]:
    """Read a document, and say whether it has a digest; one that does not match the contents raises `Damaged`."""
    try:
        value = json.loads(path.read_bytes())
        kept = value.pop(DIGEST, None)
        intact = kept is None or kept == digest_of(value)
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise Damaged(f"{path} is damaged or was not written by poise (no JSON)") from error
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


def check_format(path: Path, found: object, known: int = PLAIN_FORMAT) -> None:
    """Refuse a file of another format, and what nobody numbered."""
    if not isinstance(found, int):
        raise Damaged(f"{path} has no format version; it was not written by poise")
    if found != known:
        advice = "install a newer poise" if found > known else "make it again, or use the poise that wrote it"
        raise UserError(f"{path} has format {found}, this poise reads {known}; {advice}")


# Tensors --------------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, kind: str) -> None:
    """Write tensors and a JSON document as one safetensors file of the given kind."""
    from safetensors.torch import save as to_bytes

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    document = json.dumps({"kind": kind, "format": FORMAT, "meta": meta}, allow_nan=False)
    header = {"sum": digest_of_tensors(plain, document), "document": document}
    # One entry only: safetensors writes its metadata in the order of a hash table, anew in every process.
    write_bytes(path, to_bytes(plain, {"poise": json.dumps(header)}))


def read_tensors(path: Path, *, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `write_tensors`; any damage raises `Damaged`, another kind or format `UserError`."""
    from safetensors.torch import load

    with _opened(path, kind) as (file, plain):
        header = json.loads((file.metadata() or {})["poise"])
        # Not `file.get_tensor`, in which Ctrl-C becomes a ValueError of torch. Copies lie as torch's own tensors do.
        tensors = {name: tensor.clone() for name, tensor in sorted(load(plain.read()).items())}
        if header["sum"] != digest_of_tensors(tensors, header["document"]):
            raise Damaged(f"{path} is damaged: its contents do not match their checksum")
        document = json.loads(header["document"])
    return tensors, _checked_meta(path, document, kind)


def read_summary(
    path: Path, names: Sequence[str], *, kind: str
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]], dict[str, Tensor]]:
    """The document of a file written by `write_tensors`, the shapes of its tensors, and those of them that are named.

    The others are not read, which is quick, so that damage in them is not noticed.
    """
    with _opened(path, kind) as (file, _):
        document = json.loads(json.loads((file.metadata() or {})["poise"])["document"])
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        tensors = {name: file.get_tensor(name) for name in names if name in shapes}
    return _checked_meta(path, document, kind), shapes, tensors


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[tuple[Any, IO[bytes]]]:
    """A file of tensors, opened, and its bytes; what cannot be understood in it is damage."""
    from safetensors import SafetensorError, safe_open

    if kind == "learner":
        refuse_run_folder(path)
    refuse_unreadable(path)
    try:
        # By its handle: safetensors opens no path that is not UTF-8.
        with path.open("rb") as plain, safe_open(f"/dev/fd/{plain.fileno()}", framework="pt") as file:
            yield file, plain
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged or was not written by poise") from error


def _checked_meta(path: Path, document: Any, kind: str) -> dict[str, Any]:  # noqa: ANN401 - whatever was in the file
    """The plain values of a document, refused where it is of another kind or format."""
    if not isinstance(document, dict) or not isinstance(document.get("meta"), dict):
        raise Damaged(f"{path} is damaged or was not written by poise")
    check_format(path, document.get("format"), FORMAT)
    if document.get("kind") != kind:
        raise UserError(f"{path} is a {document.get('kind')} file of poise, not a {kind} file")
    meta: dict[str, Any] = document["meta"]
    return meta


def refuse_run_folder(path: Path) -> None:
    """Name the model in a run folder that is given in its place."""
    if path.is_dir():
        found = path / FINAL_MODEL if (path / FINAL_MODEL).is_file() else "the file of a learner"
        raise UserError(f"{path} is a folder, not a file; give {found}")


def refuse_unreadable(path: Path) -> None:
    """Refuse a file that is not there or cannot be read, with the system's reason."""
    if not path.exists():
        raise UserError(f"{path} does not exist" if not path.is_symlink() else f"{path} is a broken link; mend it")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def digest_of_tensors(tensors: Mapping[str, Tensor], document: str = "") -> str:
    """A digest of a document, and of tensors by their names and values."""
    import torch

    digest = hashlib.blake2b(document.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
