"""Files that survive a crash: atomic, versioned, checked, and unable to run code.

Tensors go into safetensors files with one JSON document in the header; plain values into JSON files; events into a
journal (`poise.journal`). A file is written beside its name, flushed to the disk and renamed, so a reader sees the old
bytes or the new ones and never something between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poise import files, ram
from poise._version import __version__
from poise.errors import Damaged, UserError

if TYPE_CHECKING:
    from torch import Tensor

# What reads and writes tensors imports torch when it is called: commands that list something do not wait for it.

FORMAT = 3  # of tensor files, which hold the state of a learner; others are refused
FINAL_MODEL = "model.safetensors"  # in a run folder, for predictions
CHECKPOINT_SECONDS = 60.0  # between two checkpoints of a job that was not told otherwise
PLAIN_FORMAT = 1  # of JSON documents and journals; raised when an older poise could not read them
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
    files.write_bytes(path, encode_line(text))


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


def encode_line(text: str) -> bytes:
    """A line of JSON as bytes; what cannot be UTF-8, as in some names of files, is escaped as JSON does it."""
    return (text + "\n").encode(errors="backslashreplace")
