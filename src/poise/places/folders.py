"""Folders of class folders: which files there are and which part they belong to. No file is opened."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from poise import draws
from poise.errors import UserError
from poise.files import describe

log = logging.getLogger(__name__)

#: How the names of image files end.
ENDINGS: Final = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
        *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
    )
)
#: How those end that Pillow cannot decode.
UNREADABLE: Final = frozenset({".heic", ".heif"})
_MOST_SAID = 5  # endings in one line
_SPLIT_SEED = 1993
_SYNSET: Final = re.compile(r"n\d{8}")

Files = Mapping[str, tuple[Path, ...]]  # the image files of each class


@dataclass(frozen=True)
class Layout:
    """Which files are the training and which the test part; `test` is None when the folder has none."""

    train: Files
    test: Files | None


def scan(folder: Path) -> Layout:
    """The layout of a data set: `train/CLASS/*` and `test/CLASS/*` (or `val`), or `CLASS/*` with a fixed seeded split.

    Only names are read, no file is opened.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder with one folder of images for each class")
    # A folder named train that holds images itself is a class of that name.
    if (folder / "train").is_dir() and not _image_files(folder / "train"):
        return _read_parts(folder / "train", _exam_part(folder))
    return _split(folder, _classes(folder))


def _exam_part(folder: Path) -> Path:
    """`test`, or `val` where only that has classes of `train`: ImageNet's test part is published without labels."""
    classes = _folder_names(folder / "train")
    named = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    labelled = (part for part in named if classes & _folder_names(part))
    return next(labelled, named[0] if named else folder / "test")


def _folder_names(folder: Path) -> set[str]:
    return {entry.name for entry in _entries(folder) if _is_folder(entry)}


def has_imagenet_names(folder: Path) -> bool:
    """Whether a folder has ImageNet's layout: `train/n01440764/*` and so on; no file of a class is listed."""
    try:
        with os.scandir(folder / "train") as found:
            names = [entry.name for entry in found if not entry.name.startswith(".")]
            return bool(names) and all(_SYNSET.fullmatch(name) for name in names)
    except OSError:
        return False


def labelled_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image file in `folder/CLASS/*`, and its class: what one phase brings."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder with one folder of images for each class")
    _refuse_parts(folder)
    listed = list(list_files(_classes(folder, least=1)))
    return [file for _, file in listed], [name for name, _ in listed]


def _refuse_parts(folder: Path) -> None:
    """Refuse a whole data set where the class folders of one of its parts are wanted."""
    train = folder / "train"
    if not train.is_dir() or _image_files(train) or not _folder_names(train):
        return
    exam = _exam_part(folder)
    tests = f", or {exam} to score" if exam.is_dir() else ""
    raise UserError(f"{folder} holds parts of a data set, not class folders; give {train} to learn{tests}")


def image_files(path: Path, unread: dict[Path, UserError] | None = None) -> list[Path]:
    """The file itself; for a folder, the image files in it and below it, sorted by path; hidden ones are left out.

    Links to folders are followed, and no folder is listed twice. What cannot be followed or listed is refused or, if
    `unread` is given, left out and put there with the reason.
    """
    if describe(path) != "a folder":
        return [path]
    found = sorted(_images_below(path, unread))
    if not found and not unread:
        raise UserError(f"{path} has no image; give image files ({_endings()}) or a folder of them")
    return found


def _images_below(folder: Path, unread: dict[Path, UserError] | None) -> Iterator[Path]:
    """The image files in a folder and below it. Links are followed last, and only to folders that were not met yet."""
    waiting, met = deque([folder]), set[tuple[int, int]]()
    while waiting:
        here = waiting.popleft()
        found = here.stat()
        if (found.st_dev, found.st_ino) in met:
            continue
        met.add((found.st_dev, found.st_ino))
        with _noting_refused(here, unread):
            yield from _image_files(here)
            for entry in _entries(here):
                inner = here / entry.name
                if not entry.is_symlink():
                    if entry.is_dir():
                        waiting.appendleft(inner)
                elif _is_folder(entry):
                    waiting.append(inner)
                elif not _names_image(entry):
                    with _noting_refused(inner, unread):
                        _refuse_broken(inner)


@contextmanager
def _noting_refused(path: Path, unread: dict[Path, UserError] | None) -> Iterator[None]:
    """What is refused in here is noted with the reason, where there is a place for that."""
    try:
        yield
    except UserError as error:
        if unread is None:
            raise
        unread[path] = error


def _refuse_broken(link: Path) -> None:
    try:
        link.stat()
    except PermissionError as error:
        raise UserError(f"{link} leads to where you may not read ({error.strerror}); check the permissions") from error
    except OSError as error:
        raise UserError(f"{link} is a broken link; mend or remove it") from error


def _read_parts(train: Path, test: Path) -> Layout:
    known = _classes(train)
    if not test.is_dir():
        return Layout(known, None)
    examined = _classes(test, least=1)
    strangers = sorted(set(examined) - set(known))
    if strangers:
        raise UserError(f"{test} has classes that {train} lacks: {', '.join(strangers)}; add them there or remove them")
    return Layout(known, examined)


def _split(folder: Path, classes: Files) -> Layout:
    train: dict[str, tuple[Path, ...]] = {}
    test: dict[str, tuple[Path, ...]] = {}
    for name, files in classes.items():
        if len(files) < 2:
            raise UserError(
                f"class '{name}' in {folder} has a single image, too few for a training and a test part; "
                "add images or use train/ and test/ folders"
            )
        shuffled = draws.generator(_SPLIT_SEED, "folder test", name).permutation(len(files))
        chosen = set(shuffled[: max(1, len(files) // 5)].tolist())
        train[name] = tuple(file for index, file in enumerate(files) if index not in chosen)
        test[name] = tuple(file for index, file in enumerate(files) if index in chosen)
    return Layout(train, test)


def _classes(folder: Path, least: int = 2) -> Files:
    """The image files of each class folder, classes and files sorted by name."""
    entries = _entries(folder)
    for entry in entries:
        if entry.is_symlink():
            _refuse_broken(folder / entry.name)
    left_out = _LeftOut()
    classes = {entry.name: _image_files(folder / entry.name, left_out) for entry in entries if _is_folder(entry)}
    for name, files in classes.items():
        if not files:
            if any(map(_is_folder, _entries(folder / name))):
                raise UserError(
                    f"class folder {folder / name} has no image, only folders; if these are the classes, "
                    f"give {folder / name}"
                )
            raise UserError(f"class folder {folder / name} has no image; add some ({_endings()}) or remove the folder")
    if len(classes) < least:
        found = f"only one class folder, {next(iter(classes))}" if classes else "no class folder"
        raise UserError(f"{folder} has {found}; put the images of each class in a folder of its own, at least {least}")
    left_out.tell(folder)
    return classes


@dataclass
class _LeftOut:
    """What lies in class folders and is not learned."""

    endings: Counter[str] = field(default_factory=Counter)  # of files that are no images by their names
    below: list[Path] = field(default_factory=list)  # images in folders inside of class folders

    def add(self, place: Path, entry: os.DirEntry[str]) -> None:
        """One more entry of a class folder that is no image."""
        if (place / entry.name).is_dir():
            with suppress(UserError):  # it may not be listed, and need not
                self.below += _image_files(place / entry.name)
        else:
            self.endings[Path(entry.name).suffix.lower() or "no ending"] += 1

    def tell(self, folder: Path) -> None:
        """Say it, in a line for each kind, once."""
        if self.endings:
            count, most = self.endings.total(), self.endings.most_common(_MOST_SAID)
            words = ", ".join(f"{number} {ending[:20]}" for ending, number in most)
            more = ", …" if len(self.endings) > len(most) else ""
            advice = "; HEIC cannot be decoded: convert it to JPEG" if self.endings.keys() & UNREADABLE else ""
            _say_once(f"{folder}: left out {_files(count)} in class folders by their endings ({words}{more}){advice}")
        if self.below:
            _say_once(
                f"{folder}: left out {_files(len(self.below))} in folders inside of class folders, such as "
                f"{self.below[0]}; put images directly into the folder of their class"
            )


@functools.cache
def _say_once(line: str) -> None:
    """A folder is listed more than once for one command."""
    log.warning("%s", line)


def _files(count: int) -> str:
    return f"{count} file{'s' * (count > 1)}"


def _image_files(folder: Path, left_out: _LeftOut | None = None) -> tuple[Path, ...]:
    """All that have the name of an image: what is no file after all, such as a broken link, is refused when read."""
    images: list[Path] = []
    for entry in _entries(folder):
        if _names_image(entry) and not _is_folder(entry):
            images.append(folder / entry.name)
        elif left_out is not None:
            left_out.add(folder, entry)
    return tuple(images)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link to itself is a broken link, and no error of the system's."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _names_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(tuple(ENDINGS))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted by name. It is listed without asking for each file, which takes long for many."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error


def _endings() -> str:
    return ", ".join(sorted(ENDINGS))


def list_files(files: Files) -> Iterator[tuple[str, Path]]:
    """The name of its class and the path of every file, class by class."""
    return ((name, file) for name, members in files.items() for file in members)
