"""Which data sets poise knows, and where each of them was found.

A data set is looked for in the folder that POISE_DATA names, then among the folders that the user
registered, which are remembered in one small file per user. Class folders of a data set that must be packed come after
every pack of it. Where both have a data set, whoever opens it is told so (`shadowed_place`), except of CIFAR, whose
files are known by their md5.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from poise import locks, store
from poise.errors import Damaged, UserError, shown, suggestion
from poise.files import expand_user, is_disk_full
from poise.places.collections import COLLECTIONS, Collection
from poise.places.folders import has_imagenet_names, scan
from poise.places.packfile import ENDING, is_pack
from poise.places.releases import RELEASES, Release
from poise.words import one_line

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ADD = "poise data add {} --from FOLDER"
_ADD_PACK = "poise data add {} --from FILE.pack"
_REMOVE = "poise data remove {}"
#: The data set that comes along.
EMBEDDED = "digits"
#: What the recipe for a folder of one's own says in place of its name.
UNNAMED = "folder"
#: What follows the name of a file or folder of the user's that is called like a data set that poise knows.
_OWN = {True: " (pack)", False: " (folder)"}


@dataclass(frozen=True)
class KnownSource:
    """A data set that poise knows, found or not.

    Attributes:
        name: what to write after `data=`.
        kind: `embedded`, `CIFAR files`, `class folders`, `ImageNet` (class folders with its names) or `pack`.
        where: where it was found; None if it was not.
        hint: how to get it; empty if it was found.
        unused: where it is registered, if what was found in POISE_DATA comes first.
    """

    name: str
    kind: str
    where: str | None
    hint: str = ""
    unused: str | None = None


def listing() -> list[KnownSource]:
    """All known data sets: the embedded one, CIFAR and ImageNet's, those in POISE_DATA and the registered ones."""
    return [
        replace(entry, unused=_text(shadowed_place(entry.name))) if entry.where else entry for entry in _find_sources()
    ]


def _find_sources() -> list[KnownSource]:
    entries = [KnownSource(EMBEDDED, "embedded", "comes with scikit-learn")]
    entries += [_find_cifar(release) for release in RELEASES.values()]
    entries += [_find_collection(collection) for collection in COLLECTIONS.values()]
    taken = {*RELEASES, *COLLECTIONS, *(collection.folder for collection in COLLECTIONS.values())}
    searched = {name: place for name, place in _find_data_sets().items() if name not in taken}
    entries += [KnownSource(name, _kind(place), str(place)) for name, place in searched.items()]
    for name, place in sorted(_read_registered().items()):
        if name in taken or name in searched:
            continue
        if is_there(place):
            opened = named_place(name) or place  # a folder in POISE_DATA that is no data set may come first
            entries.append(KnownSource(name, _kind(opened), str(opened)))
            continue
        hint = f"{place} is gone; {_explain_adding(name, place)}, or {_REMOVE.format(name)}"
        entries.append(KnownSource(name, _kind(place), None, hint))
    return entries


def _text(place: Path | None) -> str | None:
    return None if place is None else str(place)


def is_there(place: Path) -> bool:
    """Whether anything lies there that can be reached: what is on a disk that does not answer is gone, too."""
    try:
        return place.exists()
    except OSError:
        return False


def _kind(place: Path) -> str:
    """What lies there, in words."""
    if place.suffix == ENDING and not (is_there(place) and place.is_dir()):
        return "pack"
    return "ImageNet" if has_imagenet_names(place) else "class folders"


def is_name(word: str) -> bool:
    """Whether a data set can have this name."""
    return _NAME.fullmatch(word) is not None


def own_name(path: Path) -> str:
    """What data in a folder or a pack of the user's own are called: never like a data set that poise knows.

    >>> own_name(Path("/photos/pets.pack")), own_name(Path("/photos/cifar100.pack")), own_name(Path("/photos/digits"))
    ('pets', 'cifar100 (pack)', 'digits (folder)')
    """
    packed = path.suffix == ENDING
    word = path.stem if packed else path.name
    return f"{word}{_OWN[packed]}" if _is_known(word) else word


def file_name(name: str) -> str:
    """The name of the file or folder of data that are called so, which was their name in results of older versions.

    >>> file_name("cifar100 (pack)"), file_name("pets (pack)")
    ('cifar100', 'pets (pack)')
    """
    words = (name.removesuffix(ending) for ending in _OWN.values() if name.endswith(ending))
    return next((word for word in words if _is_known(word)), name)


def _is_known(name: str) -> bool:
    """Whether poise knows a data set of this name without being told."""
    return name == EMBEDDED or name in RELEASES or name in COLLECTIONS


def cifar_folder(release: Release) -> Path | None:
    """Where the published files lie, in POISE_DATA or registered."""
    searched = _data_folder()
    found = release.found_in(searched) if searched else None
    if found is not None:
        return found
    folder = _read_registered().get(release.name)
    if folder is not None and not (is_there(folder) and folder.is_dir()):
        raise UserError(_explain_vanished(release.name, folder))
    return folder


def _find_cifar(release: Release) -> KnownSource:
    try:
        folder = cifar_folder(release)
    except UserError as error:
        return KnownSource(release.name, "CIFAR files", None, str(error))
    if folder is None:
        return KnownSource(release.name, "CIFAR files", None, explain_getting(release))
    return KnownSource(release.name, "CIFAR files", str(folder))


def collection_place(collection: Collection) -> Path | None:
    """Where it lies, in POISE_DATA or registered: a pack or class folders, its own or those of all of ImageNet."""
    first = None
    for place in _collection_places(collection):
        if not collection.needs_pack or not place.is_dir():
            return place
        first = first or place
    return first


def _collection_places(collection: Collection) -> Iterator[Path]:
    yield from _places(collection.name, collection.folder)
    if collection.part and collection.name != "imagenet":
        yield from _places("imagenet")


def _find_collection(collection: Collection) -> KnownSource:
    try:
        place = collection_place(collection)
    except UserError as error:
        return KnownSource(collection.name, "ImageNet", None, str(error))
    hint = "" if place is not None else explain_collection(collection)
    return KnownSource(collection.name, "ImageNet", None if place is None else str(place), hint)


def explain_collection(collection: Collection) -> str:
    """How to get a data set of ImageNet's line that was not found."""
    if not collection.needs_pack:
        return (
            f"put train/CLASS/* and val/CLASS/* of {collection.title} into a folder and run "
            f"{_ADD.format(collection.name)}, or set POISE_DATA to the folder that {collection.folder} is in"
            f"{_doubt_folder()}"
        )
    pack = f"{collection.folder}{ENDING}"
    only = f" --classes {collection.name}" if collection.name != "imagenet" else ""
    return (
        f"put train/CLASS/* and val/CLASS/* of ImageNet into a folder, run poise data pack FOLDER --out {pack}{only}, "
        f"then poise data add {collection.name} --from {pack}, or set POISE_DATA to the folder that {pack} is in"
        f"{_doubt_folder()}"
    )


def explain_getting(release: Release) -> str:
    """How to get a data set that was not found."""
    add = _ADD.format(release.name)
    return (
        f"get the python version from the CIFAR page, unpack it to {release.folder} and run {add}, "
        f"or set POISE_DATA to the folder it is in{_doubt_folder()}"
    )


def named_place(name: str) -> Path | None:
    """The pack, or the folder of class folders, of this name: the first of them.

    A folder in POISE_DATA that is only called so, without a folder in it, does not come before what was registered.
    """
    places = _places(name)
    first = next(places, None)
    if first is None or not first.is_dir() or _has_folders(first):
        return first
    return next(places, first)


def _has_folders(place: Path) -> bool:
    try:
        return any(entry.is_dir() for entry in place.iterdir())
    except OSError:  # whoever opens it says so
        return True


def _places(name: str, called: str | None = None) -> Iterator[Path]:
    """The packs and the folders of class folders of this name: in POISE_DATA, where they may be `called` otherwise,
    which is looked for first; then the registered one.
    """
    searched = _data_folder()
    files = [file for word in dict.fromkeys((called or name, name)) for file in (f"{word}{ENDING}", word)]
    for place in (searched / file for file in files) if searched is not None else ():
        if place.is_dir() or (place.suffix == ENDING and is_pack(place)):
            yield place
    registered = _read_registered().get(name)
    if registered is not None and not is_there(registered):
        raise UserError(_explain_vanished(name, registered))
    if registered is not None:
        yield registered


def shadowed_place(name: str) -> Path | None:
    """Where a data set is registered that is not opened from there: what POISE_DATA has comes first."""
    registered = _read_registered().get(name) if _data_folder() is not None and name != EMBEDDED else None
    if registered is None or not is_there(registered):
        return None
    opened = place_of(name)
    return None if opened is None or opened.resolve() == registered.resolve() else registered


def place_of(name: str) -> Path | None:
    """What is opened under a name other than the embedded one's, in POISE_DATA or registered."""
    if name in RELEASES:
        return cifar_folder(RELEASES[name])
    return collection_place(COLLECTIONS[name]) if name in COLLECTIONS else named_place(name)


def explain_shadowed(name: str, registered: Path) -> str:
    """The line about a registered data set in whose place another one is opened."""
    return (
        f"{name} in the folder of POISE_DATA comes first: {place_of(name)}; for the registered {registered}, "
        "move that away or unset POISE_DATA"
    )


def _named_folder() -> Path | None:
    """The folder that POISE_DATA names, whatever is there."""
    value = os.environ.get("POISE_DATA")
    return expand_user(value) if value else None


def _data_folder() -> Path | None:
    """The folder that POISE_DATA names, if it can be looked into."""
    folder = _named_folder()
    return folder if folder is not None and os.access(folder, os.R_OK | os.X_OK) else None


def _doubt_folder() -> str:
    """What to add to a line about data that were not found, where POISE_DATA leads nowhere."""
    named, folder = _named_folder(), _data_folder()
    if named is None or (folder is not None and folder.is_dir()):
        return ""
    unread = folder is None and is_there(named) and named.is_dir()
    why = "which cannot be read" if unread else "which is no folder"
    return f" (POISE_DATA is '{one_line(str(named))}', {why})"


def _find_data_sets() -> dict[str, Path]:
    """The packs and the folders of class folders in POISE_DATA by their names; a pack comes before a folder."""
    searched, found = _data_folder(), dict[str, Path]()
    if searched is None or not searched.is_dir():
        return found
    for place in sorted(searched.iterdir()):
        name = place.stem if place.suffix == ENDING else place.name
        if not _NAME.fullmatch(name) or name == EMBEDDED or name in RELEASES:
            continue
        if is_pack(place) if place.suffix == ENDING else name not in found and _is_data_set(place):
            found[name] = place
    return found


def _is_data_set(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if has_imagenet_names(folder):  # whose files are too many to be listed here
        return True
    try:
        scan(folder)
    except UserError:
        return False
    return True


def _explain_vanished(name: str, folder: Path) -> str:
    return (
        f"{name} is registered at {folder}, which is gone; put it back or run {_explain_adding(name, folder)}, "
        f"or {_REMOVE.format(name)}"
    )


def _explain_adding(name: str, place: Path) -> str:
    """The command that registers it again."""
    return (_ADD_PACK if place.suffix == ENDING else _ADD).format(name)


def explain_unknown(data: str) -> str:
    """The line about a word that is neither a data set nor a folder."""
    if data == UNNAMED:
        return "say which images: data=FOLDER, a folder with one folder of images for each class"
    known = {EMBEDDED, *RELEASES, *COLLECTIONS, *_read_registered(), *_find_data_sets()}
    more = f"(to add one: {_ADD.format('NAME')}){_doubt_folder()}"
    return f"unknown data '{data}', neither a name, a folder nor a pack; {suggestion(data, known)} {more}"


def _config() -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else expand_user("~/.config")) / "poise" / "data.json"


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


def remember(name: str, folder: Path) -> None:
    """Register a folder under a name."""
    with _registering() as folders:
        folders[name] = folder


def forget(name: str) -> Path:
    """Take back what `remember` did, and say where that was; the data stay."""
    if name in _read_registered():
        with _registering() as folders:
            if name in folders:
                return folders.pop(name)
    found = f"{suggestion(name, _read_registered())}{_explain_found(name)}"
    raise UserError(f"no data set {shown(name)} is registered; {found}")


def still_found(name: str) -> Path | None:
    """Where a data set lies that is not registered, or not any more."""
    try:
        return place_of(name) if is_name(name) and name != EMBEDDED else None
    except UserError:  # what is registered as all of ImageNet is gone
        return None


def _explain_found(name: str) -> str:
    """The end of a line about a name that is not registered, if it is a data set nevertheless."""
    if name == EMBEDDED:
        return f" ({name} is embedded)"
    return f" ({name} is found without that: {place})" if (place := still_found(name)) is not None else ""


@contextmanager
def _registering() -> Iterator[dict[str, Path]]:
    """What is registered, to be changed: written down at the end, and no other process changes it meanwhile."""
    path = _config()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locks.one_at_a_time(path.parent):
            folders = _read_registered()
            yield folders
            store.write_json(path, {"folders": {name: str(folder) for name, folder in folders.items()}})
    except OSError as error:
        if is_disk_full(error):
            raise
        raise UserError(
            f"{path} cannot be written ({error.strerror}); check its permissions, or use POISE_DATA"
        ) from error
