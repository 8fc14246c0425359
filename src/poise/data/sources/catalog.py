"""Data sets by their names: opened, or verified and remembered. Where they lie is known in `poise.places`."""

from __future__ import annotations

import logging
from pathlib import Path

from poise.data.sources.base import Source
from poise.data.sources.cifar import CifarSource
from poise.data.sources.collection import OutlinedSource, open_collection
from poise.data.sources.digits import DigitsSource
from poise.data.sources.folder import FolderSource
from poise.data.sources.pack import PackSource
from poise.errors import UserError
from poise.files import expand_user
from poise.places import (
    COLLECTIONS,
    EMBEDDED,
    ENDING,
    RELEASES,
    Release,
    cifar_folder,
    collection_place,
    explain_getting,
    explain_shadowed,
    explain_unknown,
    is_name,
    is_pack,
    named_place,
    remember,
    shadowed_place,
)

log = logging.getLogger(__name__)


def open_source(data: str | Path, *, size: int | None = None, outlined: bool = False) -> Source:
    """The data set of this name, or in this folder of class folders, or in this pack.

    Args:
        data: a known or registered name, or the path of a folder or of a pack. A name wins over a folder of the same
            name in the working directory; write `./NAME` for the folder.
        size: height and width to which the images of class folders are scaled (None: chosen), and to which the centre
            of those of a pack is cut out (None: all of it).
        outlined: of one of ImageNet's data sets that is not here or not packed, say how many classes and images it has.
    """
    data = str(data)
    if data == EMBEDDED or data in RELEASES or data in COLLECTIONS:
        if size is not None:
            raise UserError(
                f"{data} has images of one fixed size; leave out image_size={size}, it is for class folders"
            )
        if data in COLLECTIONS:
            collection, place = COLLECTIONS[data], collection_place(COLLECTIONS[data])
            if outlined and (place is None or (collection.needs_pack and place.is_dir())):
                return OutlinedSource(collection, place)
            _warn_of_shadowed(data)
            return open_collection(collection, place)
        return DigitsSource() if data == EMBEDDED else _open_cifar(RELEASES[data])
    place = named_place(data) if is_name(data) else None
    if place is not None:
        _warn_of_shadowed(data)
        return _open_place(place, data, size)
    path = expand_user(data)
    if path.is_dir() or path.suffix == ENDING:
        return _open_place(path, None, size)
    raise UserError(explain_unknown(data))


def _warn_of_shadowed(name: str) -> None:
    """Say so where another data set is opened than the one that was registered under this name.

    What is opened does not depend on what is registered, so that nothing fails where that cannot be read.
    """
    try:
        registered = shadowed_place(name)
    except UserError as error:
        log.debug("%s", error)
        return
    if registered is not None:
        log.warning("%s", explain_shadowed(name, registered))


def _open_place(path: Path, name: str | None, size: int | None) -> Source:
    """A folder of class folders, or a pack."""
    if not path.is_dir():
        return PackSource(path, name=name, size=size)
    try:
        return FolderSource(path, name=name, size=size)
    except UserError as error:
        release = next((each for each in RELEASES.values() if each.found_in(path)), None)
        if release is None:
            raise
        add = f"poise data add {release.name} --from {path}"
        raise UserError(
            f"{path} has {release.title}'s own files; run '{add}', then give data={release.name}"
        ) from error


def add_source(name: str, folder: Path) -> Source:
    """Verify the data set in a folder, or a pack, and remember where it is.

    Every file of a CIFAR data set is checked by md5; any other name needs a valid folder of class folders, or a pack,
    of which the index is checked.
    """
    if not is_name(name):
        raise UserError(f"'{name}' cannot name a data set; use letters, digits, '-' and '_' only")
    if name == EMBEDDED:
        raise UserError(f"'{EMBEDDED}' is the embedded data set; register the folder under another name")
    absolute = expand_user(folder).resolve()
    if not absolute.is_dir() and (name in RELEASES or not is_pack(absolute)):
        raise UserError(f"{folder} is not a folder; give the folder that holds the data set, or a pack")
    source, found = _verify(name, absolute)
    remember(name, found)
    return source


def _verify(name: str, folder: Path) -> tuple[Source, Path]:
    if name in COLLECTIONS:
        return open_collection(COLLECTIONS[name], folder), folder
    if name not in RELEASES:
        return _open_place(folder, name, None), folder
    release = RELEASES[name]
    found = release.found_in(folder) or folder
    source = CifarSource(release, found)
    source.verify()
    return source, found


def _open_cifar(release: Release) -> Source:
    folder = cifar_folder(release)
    if folder is None:
        raise UserError(f"{release.name} was not found; {explain_getting(release)}")
    return CifarSource(release, folder)
