"""Data sets by name, folder or pack: opened, or verified and registered."""

from __future__ import annotations

from pathlib import Path

from poise.data.sources.base import Source, digest
from poise.data.sources.layout import PACK, image_files, is_pack, labelled_files, names_pack
from poise.data.sources.own import ArraySource, FolderSource, PackSource
from poise.data.sources.published import CifarSource, DigitsSource, OutlinedSource, open_collection
from poise.data.sources.registry import (
    COLLECTIONS,
    EMBEDDED,
    RELEASES,
    KnownSource,
    explain_missing,
    find,
    is_name,
    is_published,
    listing,
    remember,
)
from poise.errors import UserError
from poise.store import expand_user

__all__ = [
    "ArraySource",
    "CifarSource",
    "DigitsSource",
    "FolderSource",
    "KnownSource",
    "PackSource",
    "Source",
    "add_source",
    "digest",
    "image_files",
    "labelled_files",
    "listing",
    "open_source",
]


def open_source(data: str | Path, *, size: int | None = None, outlined: bool = False) -> Source:
    """The data set of this name, or in this folder of class folders, or in this pack.

    Args:
        data: a known or registered name, or the path of a folder or of a pack. A name wins over a folder of the same
            name in the working directory; write `./NAME` for the folder.
        size: height and width to which the images of class folders are scaled (None: chosen), and to which the centre
            of those of a pack is cut out (None: all of it).
        outlined: of one of ImageNet's data sets that is not here or not packed, say how many classes and images it has.
    """
    name, path = str(data), expand_user(data)
    if is_published(name) and size is not None:
        raise UserError(f"{name} has images of one fixed size; leave out image_size={size}, it is for class folders")
    if name == EMBEDDED:
        return DigitsSource()
    place = find(name) if is_name(name) else None
    if outlined and name in COLLECTIONS and (place is None or (COLLECTIONS[name].needs_pack and not is_pack(place))):
        return OutlinedSource(COLLECTIONS[name], place)
    if place is not None:
        return _open_place(place, name, size)
    if not is_published(name) and (path.is_dir() or path.suffix == PACK):
        return _open_place(path, None, size)
    missing = f"{name} was not found; " if is_published(name) else ""
    raise UserError(f"{missing}{explain_missing(name)}")


def _open_place(path: Path, name: str | None, size: int | None = None) -> Source:
    """Open whatever lies at a path: a published data set, a folder of class folders, or a pack."""
    if name in RELEASES:
        return CifarSource(RELEASES[name], path)
    if name in COLLECTIONS:
        return open_collection(COLLECTIONS[name], path)
    if names_pack(path):
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
    """Verify the data set in a folder, or a pack, and register where it is.

    Every file of a CIFAR data set is checked by md5; any other name needs a valid folder of class folders, or a pack,
    of which the index is checked.
    """
    if not is_name(name):
        raise UserError(f"'{name}' cannot name a data set; use letters, digits, '-' and '_' only")
    if name == EMBEDDED:
        raise UserError(f"'{EMBEDDED}' is the embedded data set; register the folder under another name")
    place = expand_user(folder).resolve()
    if not place.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the data set, or a pack")
    if name in RELEASES:
        place = RELEASES[name].found_in(place) or place
    source = _open_place(place, name)
    if isinstance(source, CifarSource):
        source.verify()
    remember(name, place)
    return source
