"""Data sets by name: what is published of them, and where they lie. No image is opened, and no torch loaded.

A name is looked up in the folder that POISE_DATA names, then in a small file of what the user registered. A pack comes
before a folder of its name; class folders of a data set that must be packed come after every pack of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from poise import store
from poise.data.sources.layout import PACK, has_imagenet_names, is_pack, scan
from poise.errors import Damaged, UserError, shown, suggestion

#: The data set that comes along.
EMBEDDED: Final = "digits"
#: What the recipe for a folder of one's own says in place of its name.
UNNAMED: Final = "folder"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SEED: Final = 1993


@dataclass(frozen=True)
class Release:
    """The published files of CIFAR-10 or CIFAR-100: where they are, their md5 sums and the names of their entries."""

    name: str
    title: str
    folder: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    labels_key: str
    names_key: str

    def found_in(self, folder: Path) -> Path | None:
        """The standard folder: `folder` itself, or below it."""
        for place in (folder, folder / self.folder, folder / self.name, folder / self.name / self.folder):
            # A folder that lacks some of its files is found too: reading it says which file is missing.
            if any((place / file).is_file() for file in self.meta) or (place.name == self.folder and place.is_dir()):
                return place
        return None


@dataclass(frozen=True)
class Collection:
    """A data set of ImageNet's line.

    Attributes:
        name: what to write after `data=`.
        title: what it is called in messages.
        folder: its folder in POISE_DATA, with `train/CLASS/*` and `val/CLASS/*`.
        classes: how many there are.
        images: how many training images there are.
        tests: how many images the exam has.
        size: height and width of an image as networks see it.
        stored: the shorter side of an image as it is stored; the centre of it is what an exam shows.
        part: how it is chosen of ImageNet's sorted classes: those of a seeded `draw`, or the `first` ones; empty: it is
            a data set of its own.
        known: names of some of its classes, by their places among all of them in sorted order.
    """

    name: str
    title: str
    folder: str
    classes: int
    images: int
    tests: int
    size: int
    stored: int
    part: str = ""
    known: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def chosen(self) -> tuple[int, ...]:
        """The places of its classes among ImageNet's, sorted.

        >>> COLLECTIONS["imagenet-subset-lucir"].chosen[:5], COLLECTIONS["imagenet-subset-podnet"].chosen[-1]
        ((7, 11, 14, 44, 54), 99)
        """
        places = np.arange(COLLECTIONS["imagenet"].classes)
        if self.part == "draw":  # numpy's legacy generator, as the literature has it
            places = np.sort(np.random.RandomState(_SEED).permutation(len(places))[: self.classes])
        return tuple(places[: self.classes].tolist())

    @property
    def needs_pack(self) -> bool:
        """Whether its images are too many and too large to be decoded at each start: class folders will not do."""
        return self.size < self.stored

    def sizes(self) -> list[int]:
        """About how many training images each class has, where they are not counted: the same of each."""
        each, rest = divmod(self.images, self.classes)
        return [each + (number < rest) for number in range(self.classes)]

    def select(self, names: Sequence[str], where: str) -> list[str]:
        """The class names that belong to it among those of a folder, sorted; refuses a folder of something else."""
        found, whole = list(names), COLLECTIONS["imagenet"].classes
        if self.part and len(found) == whole:
            found = [found[place] for place in self.chosen]
        if len(found) != self.classes:
            larger = f" (or the {whole} of ImageNet)" if self.part and self.classes < whole else ""
            raise UserError(
                f"{where} has {len(names)} classes, {self.title} has {self.classes}{larger}; check the folder"
            )
        for place, name in self.known.items():
            if found[place] != name:
                raise UserError(f"{where} is not {self.title}: class {place} is {found[place]}, expected {name}")
        return found


RELEASES: Final[dict[str, Release]] = {
    release.name: release
    for release in (
        Release(
            name="cifar10",
            title="CIFAR-10",
            folder="cifar-10-batches-py",
            train={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            test={"test_batch": "40351d587109b95175f43aff81a1287e"},
            meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
            labels_key="labels",
            names_key="label_names",
        ),
        Release(
            name="cifar100",
            title="CIFAR-100",
            folder="cifar-100-python",
            train={"train": "16019d7e3df5f24257cddd939b257f8d"},
            test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
            labels_key="fine_labels",
            names_key="fine_label_names",
        ),
    )
}

_FIRST_100 = {0: "n01440764", 8: "n01514859", 56: "n01734418", 68: "n01756291", 78: "n01776313", 99: "n01855672"}
_DRAWN_100 = {
    **{8: "n01806567", 23: "n02107574", 56: "n03089624", 65: "n03657121", 68: "n03710193"},
    **{74: "n03942813", 76: "n04026417", 78: "n04152593", 84: "n04409515", 90: "n04599235"},
}
_LUCIR = "imagenet-subset-lucir"
_PODNET = "imagenet-subset-podnet"
_SUBSET = "ImageNet-Subset as {} has it"

#: Two different sets of 100 classes go by the name of ImageNet-Subset. Results on them cannot be compared.
COLLECTIONS: Final[dict[str, Collection]] = {
    each.name: each
    for each in (
        Collection("tinyimagenet", "Tiny-ImageNet-100", "tiny-imagenet-100", 100, 50_000, 5_000, 64, 64),
        Collection("imagenet", "ImageNet", "imagenet", 1000, 1_281_167, 50_000, 224, 256, "first", _FIRST_100),
        Collection(_LUCIR, _SUBSET.format("LUCIR"), _LUCIR, 100, 128_856, 5_000, 224, 256, "draw", _DRAWN_100),
        # About 1,300 images of each class; a few have less.
        Collection(_PODNET, _SUBSET.format("PODNet"), _PODNET, 100, 130_000, 5_000, 224, 256, "first", _FIRST_100),
    )
}


@dataclass(frozen=True)
class KnownSource:
    """A data set that poise knows, found or not.

    Attributes:
        name: what to write after `data=`.
        kind: `embedded`, `CIFAR files`, `class folders`, `ImageNet` (class folders with its names) or `pack`.
        where: where it was found; None if it was not.
        hint: how to get it; empty if it was found.
    """

    name: str
    kind: str
    where: str | None
    hint: str = ""


def listing() -> list[KnownSource]:
    """All known data sets: the embedded one, CIFAR and ImageNet's, those in POISE_DATA and the registered ones."""
    own = dict.fromkeys((*_names_in_data_folder(), *sorted(_read_registered())))
    taken = {EMBEDDED, *RELEASES, *COLLECTIONS, *(collection.folder for collection in COLLECTIONS.values())}
    names = (*RELEASES, *COLLECTIONS, *(name for name in own if name not in taken))
    return [KnownSource(EMBEDDED, "embedded", "comes with scikit-learn"), *map(_look_up, names)]


def _look_up(name: str) -> KnownSource:
    kind = "CIFAR files" if name in RELEASES else "ImageNet" if name in COLLECTIONS else "class folders"
    try:
        place = find(name)
    except UserError as error:
        return KnownSource(name, kind, None, str(error))
    if place is None:
        return KnownSource(name, kind, None, explain_missing(name))
    if kind == "class folders":
        kind = "pack" if place.suffix == PACK else "ImageNet" if has_imagenet_names(place) else kind
    return KnownSource(name, kind, str(place))


def is_name(word: str) -> bool:
    """Whether a data set can have this name."""
    return _NAME.fullmatch(word) is not None


def is_published(name: str) -> bool:
    """Whether poise knows a data set of this name without being told."""
    return name == EMBEDDED or name in RELEASES or name in COLLECTIONS


def own_name(path: Path) -> str:
    """The name for data in a folder or a pack of the user's own: never that of a data set that poise knows.

    >>> own_name(Path("/photos/pets.pack")), own_name(Path("/photos/cifar100.pack")), own_name(Path("/photos/digits"))
    ('pets', 'cifar100 (pack)', 'digits (folder)')
    """
    packed = path.suffix == PACK
    word = path.stem if packed else path.name
    return f"{word} ({'pack' if packed else 'folder'})" if is_published(word) else word


def find(name: str) -> Path | None:
    """The folder or pack of a named data set; None if it is nowhere. One that was registered and is gone is refused."""
    root = _data_folder()
    if name in RELEASES:
        found = RELEASES[name].found_in(root) if root is not None else None
        return found or next(_registered_place(name), None)
    if name not in COLLECTIONS:
        return next(_places(name), None)
    collection = COLLECTIONS[name]
    whole = "imagenet" if collection.part and name != "imagenet" else None
    found = None
    for place in chain(_places(name, collection.folder), _places(whole) if whole else ()):
        if place.suffix == PACK or not collection.needs_pack:
            return place
        found = found or place
    return found


def _places(name: str, folder: str | None = None) -> Iterator[Path]:
    """Where packs and class folders of this name lie: in POISE_DATA (as `folder`, or under the name), or registered."""
    root = _data_folder()
    for word in dict.fromkeys((folder or name, name)):
        if root is None:
            break
        if is_pack(root / f"{word}{PACK}"):
            yield root / f"{word}{PACK}"
        if any(each.is_dir() for each in root.glob(f"{word}/*")):  # not a folder that is only called so
            yield root / word
    yield from _registered_place(name)


def _registered_place(name: str) -> Iterator[Path]:
    place = _read_registered().get(name)
    if place is None:
        return
    if not place.exists():
        source = f"FOLDER{PACK}" if place.suffix == PACK else "FOLDER"
        raise UserError(
            f"{name} is registered at {place}, which is gone; put it back, run poise data add {name} --from {source}, "
            f"or poise data remove {name}"
        )
    yield place


def explain_missing(name: str) -> str:
    """How to get a data set that was not found; of another word, which data sets there are."""
    if name in RELEASES:
        release = RELEASES[name]
        get = f"get the python version from the CIFAR page, unpack it to {release.folder} and run"
        return f"{get} poise data add {name} --from FOLDER, or set POISE_DATA to the folder it is in{_doubt_folder()}"
    if name in COLLECTIONS:
        collection = COLLECTIONS[name]
        place = collection.folder
        step = f"put train/CLASS/* and val/CLASS/* of {collection.title} into a folder and run"
        if collection.needs_pack:
            place = f"{collection.folder}{PACK}"
            only = f" --classes {name}" if name != "imagenet" else ""
            step = "put train/CLASS/* and val/CLASS/* of ImageNet into a folder and run poise data pack FOLDER "
            step += f"--out {place}{only}, then"
        source = place if collection.needs_pack else "FOLDER"
        add = f"poise data add {name} --from {source}"
        return f"{step} {add}, or set POISE_DATA to the folder that {place} is in{_doubt_folder()}"
    if name == UNNAMED:
        return "say which images: data=FOLDER, a folder with one folder of images for each class"
    known = {EMBEDDED, *RELEASES, *COLLECTIONS, *_read_registered(), *_names_in_data_folder()}
    return (
        f"unknown data '{name}', neither a name, a folder nor a pack; {suggestion(name, known)} "
        f"(to add one: poise data add NAME --from FOLDER){_doubt_folder()}"
    )


def _data_folder() -> Path | None:
    """The folder that POISE_DATA names, if it is one."""
    value = os.environ.get("POISE_DATA")
    folder = Path(os.path.expanduser(value)) if value else None  # noqa: PTH111 - pathlib's may raise
    return folder if folder is not None and folder.is_dir() else None


def _doubt_folder() -> str:
    """A remark for a line about data that were not found, where POISE_DATA leads nowhere."""
    value = os.environ.get("POISE_DATA")
    return f" (POISE_DATA is {shown(value)}, which is no folder)" if value and _data_folder() is None else ""


def _names_in_data_folder() -> list[str]:
    """The names of the packs and the folders of class folders in POISE_DATA, sorted."""
    root, found = _data_folder(), set[str]()
    for place in root.iterdir() if root is not None else ():
        packed = is_pack(place)
        name = place.stem if packed else place.name
        if is_name(name) and not is_published(name) and (packed or _is_data_set(place)):
            found.add(name)
    return sorted(found)


def _is_data_set(folder: Path) -> bool:
    if has_imagenet_names(folder):  # whose files are too many to be listed here
        return True
    try:
        return folder.is_dir() and bool(scan(folder).train)
    except UserError:
        return False


# What the user registered ---------------------------------------------------------------------------------------------


def remember(name: str, folder: Path) -> None:
    """Register a folder or a pack under a name."""
    _write_registered({**_read_registered(), name: folder})


def forget(name: str) -> Path:
    """Take back what `remember` did, and say where that was; the data stay."""
    folders = _read_registered()
    if name not in folders:
        embedded = f" ({name} is embedded)" if name == EMBEDDED else ""
        raise UserError(f"no data set {shown(name)} is registered; {suggestion(name, folders)}{embedded}")
    place = folders.pop(name)
    _write_registered(folders)
    return place


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
            f"{path} is damaged; delete it and register your folders again: poise data add NAME --from FOLDER"
        ) from error


def _write_registered(folders: Mapping[str, Path]) -> None:
    path = _config()
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(path, {"folders": {name: str(folder) for name, folder in folders.items()}})
