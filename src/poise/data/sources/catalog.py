"""Which data sets are known, and where they were found.

A data set is looked for in the folder that POISE_DATA names, then among the folders that the user
registered, which are remembered in one small file per user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poise import store
from poise.data.sources.base import Source
from poise.data.sources.cifar import RELEASES, CifarSource, Release
from poise.data.sources.digits import DigitsSource
from poise.data.sources.folder import FolderSource, scan
from poise.errors import Damaged, UserError, suggestion

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ADD = "poise data add {} --from FOLDER"
UNNAMED = "folder"  # what the recipe for a folder of one's own says in place of its name


@dataclass(frozen=True)
class KnownSource:
    """A data set that poise knows, found or not.

    Attributes:
        name: what to write after `data=`.
        kind: `embedded`, `CIFAR files` or `class folders`.
        where: where it was found; None if it was not.
        hint: how to get it; empty if it was found.
    """

    name: str
    kind: str
    where: str | None
    hint: str = ""


def open_source(data: str, *, size: int | None = None) -> Source:
    """The data set of this name, or in this folder of class folders.

    Args:
        data: a known or registered name, or the path of a folder. A name wins over a folder of the same name
            in the working directory; write `./NAME` for the folder.
        size: height and width to which the images of class folders are scaled; None: chosen.
    """
    if data == "digits" or data in RELEASES:
        if size is not None:
            raise UserError(f"{data} has images of one fixed size; leave out size={size}, it is for class folders")
        return DigitsSource() if data == "digits" else _open_cifar(RELEASES[data])
    folder = _named_folder(data) if _NAME.fullmatch(data) else None
    if folder is not None:
        return FolderSource(folder, name=data, size=size)
    path = Path(data).expanduser()
    if path.is_dir():
        return FolderSource(path, size=size)
    raise UserError(_explain_unknown(data))


def add_source(name: str, folder: Path) -> Source:
    """Verify the data set in a folder and remember where it is.

    Every file of a CIFAR data set is checked by md5; any other name needs a valid folder of class folders.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot name a data set; use letters, digits, '-' and '_' only")
    if name == "digits":
        raise UserError("'digits' is the embedded data set; register the folder under another name")
    absolute = Path(folder).expanduser().resolve()
    if not absolute.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the data set")
    source, found = _verify(name, absolute)
    _remember(name, found)
    return source


def listing() -> list[KnownSource]:
    """All known data sets: the embedded one, the CIFAR ones, those in POISE_DATA and the registered ones."""
    entries = [KnownSource("digits", "embedded", "comes with scikit-learn")]
    entries += [_find_cifar(release) for release in RELEASES.values()]
    searched = {folder.name: folder for folder in _find_data_sets()}
    entries += [KnownSource(name, "class folders", str(folder)) for name, folder in searched.items()]
    for name, folder in sorted(_read_registered().items()):
        if name in RELEASES or name in searched:
            continue
        there = folder.is_dir()
        hint = "" if there else f"{folder} is gone; {_ADD.format(name)}"
        entries.append(KnownSource(name, "class folders", str(folder) if there else None, hint))
    return entries


def _verify(name: str, folder: Path) -> tuple[Source, Path]:
    if name not in RELEASES:
        return FolderSource(folder, name=name), folder
    release = RELEASES[name]
    found = release.found_in(folder) or folder
    source = CifarSource(release, found)
    source.verify()
    return source, found


def _open_cifar(release: Release) -> Source:
    folder = _cifar_folder(release)
    if folder is None:
        raise UserError(f"{release.name} was not found; {_explain_getting(release)}")
    return CifarSource(release, folder)


def _cifar_folder(release: Release) -> Path | None:
    searched = _data_folder()
    found = release.found_in(searched) if searched else None
    if found is not None:
        return found
    folder = _read_registered().get(release.name)
    if folder is not None and not folder.is_dir():
        raise UserError(_explain_vanished(release.name, folder))
    return folder


def _find_cifar(release: Release) -> KnownSource:
    try:
        folder = _cifar_folder(release)
    except UserError as error:
        return KnownSource(release.name, "CIFAR files", None, str(error))
    if folder is None:
        return KnownSource(release.name, "CIFAR files", None, _explain_getting(release))
    return KnownSource(release.name, "CIFAR files", str(folder))


def _explain_getting(release: Release) -> str:
    add = _ADD.format(release.name)
    return (
        f"get the python version from the CIFAR page, unpack it to {release.folder} and run {add}, "
        "or set POISE_DATA to the folder it is in"
    )


def _named_folder(name: str) -> Path | None:
    """The folder of class folders of this name, in POISE_DATA or registered."""
    searched = _data_folder()
    if searched is not None and (searched / name).is_dir():
        return searched / name
    folder = _read_registered().get(name)
    if folder is not None and not folder.is_dir():
        raise UserError(_explain_vanished(name, folder))
    return folder


def _data_folder() -> Path | None:
    value = os.environ.get("POISE_DATA")
    return Path(value).expanduser() if value else None


def _find_data_sets() -> Iterator[Path]:
    """The folders in POISE_DATA that are data sets of class folders."""
    searched = _data_folder()
    if searched is None or not searched.is_dir():
        return
    for folder in sorted(searched.iterdir()):
        if folder.is_dir() and _NAME.fullmatch(folder.name) and _is_data_set(folder):
            yield folder


def _is_data_set(folder: Path) -> bool:
    if folder.name == "digits" or folder.name in RELEASES:
        return False
    try:
        scan(folder)
    except UserError:
        return False
    return True


def _explain_vanished(name: str, folder: Path) -> str:
    return f"{name} is registered at {folder}, which is gone; put it back or run {_ADD.format(name)}"


def _explain_unknown(data: str) -> str:
    if data == UNNAMED:
        return "say which images: data=FOLDER, a folder with one folder of images for each class"
    known = {"digits", *RELEASES, *_read_registered(), *(folder.name for folder in _find_data_sets())}
    add = _ADD.format("NAME")
    return f"unknown data '{data}', neither a name nor a folder; {suggestion(data, known)} (to add one: {add})"


def _config() -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "poise" / "data.json"


def _read_registered() -> dict[str, Path]:
    path = _config()
    try:
        folders = store.read_json(path)["folders"] if path.exists() else {}
        return {str(name): Path(folder) for name, folder in folders.items()}
    except (Damaged, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged; delete it and register your folders again: {_ADD.format('NAME')}"
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from error


def _remember(name: str, folder: Path) -> None:
    path = _config()
    folders = {known: str(where) for known, where in _read_registered().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_json(path, {"folders": {**folders, name: str(folder)}})
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); check its permissions, or use POISE_DATA"
        ) from error
