"""Class folders: which image files there are, and to which part they belong. No file is opened, and no torch loaded."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from poise import draws
from poise.errors import UserError

log = logging.getLogger(__name__)

#: How the names of image files end.
ENDINGS: Final = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
        *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
    )
)
#: Endings of images that Pillow cannot decode.
UNREADABLE: Final = frozenset({".heic", ".heif"})
#: How the name of a pack ends, and the file by which one is recognised.
PACK: Final = ".pack"
INDEX: Final = "index.jsonl"
_SPLIT_SEED = 1993
_SYNSET: Final = re.compile(r"n\d{8}")

Files = Mapping[str, tuple[Path, ...]]  # the image files of each class


@dataclass(frozen=True)
class Layout:
    """Which files are the training and which the test part; `test` is None when the folder has none."""

    train: Files
    test: Files | None


def is_pack(path: Path) -> bool:
    """Whether there is a pack, whatever it is called."""
    return (path / INDEX).is_file()


def names_pack(path: Path) -> bool:
    """Whether this is a pack, whatever its name, or is called one: then what is wrong with it is said."""
    return path.suffix == PACK or is_pack(path)


def scan(folder: Path) -> Layout:
    """The layout of `train/CLASS/*` and `test/CLASS/*` (or `val`), or of `CLASS/*`, which are split by a fixed seed."""
    _refuse_no_folder(folder)
    # A folder named train that holds images itself is a class of that name.
    if (folder / "train").is_dir() and not _has_images(folder / "train"):
        return _read_parts(folder / "train", _exam_part(folder))
    return _split(folder, _read_classes(folder))


def labelled_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image file in `folder/CLASS/*`, and its class: what one phase brings."""
    _refuse_no_folder(folder)
    train = folder / "train"
    if train.is_dir() and not _has_images(train) and _folder_names(train):
        exam = _exam_part(folder)
        tests = f", or {exam} to score" if exam.is_dir() else ""
        raise UserError(f"{folder} holds parts of a data set, not class folders; give {train} to learn{tests}")
    listed = list(list_files(_read_classes(folder, least=1)))
    return [file for _, file in listed], [name for name, _ in listed]


def image_files(path: Path) -> list[Path]:
    """The file itself; for a folder, the image files in it and below it, sorted by path; hidden ones are left out.

    Links to folders are followed, and no folder is listed twice.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    met = set[tuple[int, int]]()
    for here, folders, names in os.walk(path, followlinks=True, onerror=_refuse_unlisted):
        status = Path(here).stat()
        if (status.st_dev, status.st_ino) in met:
            folders.clear()
            continue
        met.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        folders.sort(key=lambda name: Path(here, name).is_symlink())  # a file is listed by its own path if it can be
        found += [Path(here, name) for name in names if _is_image(name)]
    if not found:
        raise UserError(f"{path} has no image; give image files ({', '.join(sorted(ENDINGS))}) or a folder of them")
    return sorted(found)


def list_files(files: Files) -> Iterator[tuple[str, Path]]:
    """The name of its class and the path of every file, class by class."""
    return ((name, file) for name, members in files.items() for file in members)


def has_imagenet_names(folder: Path) -> bool:
    """Whether a folder has ImageNet's layout: `train/n01440764/*` and so on; no file of a class is listed."""
    try:
        names = [path.name for path in (folder / "train").iterdir() if not path.name.startswith(".")]
    except OSError:
        return False
    return bool(names) and all(map(_SYNSET.fullmatch, names))


def _read_parts(train: Path, test: Path) -> Layout:
    known = _read_classes(train)
    if not test.is_dir():
        return Layout(known, None)
    examined = _read_classes(test, least=1)
    strangers = sorted(set(examined) - set(known))
    if strangers:
        raise UserError(f"{test} has classes that {train} lacks: {', '.join(strangers)}; add them there or remove them")
    return Layout(known, examined)


def _exam_part(folder: Path) -> Path:
    """`test`, or `val` where only that has classes of `train`: ImageNet's test part is published without labels."""
    classes = _folder_names(folder / "train")
    named = [folder / name for name in ("test", "val") if (folder / name).is_dir()]
    labelled = (part for part in named if set(classes).intersection(_folder_names(part)))
    return next(labelled, named[0] if named else folder / "test")


def _split(folder: Path, classes: Files) -> Layout:
    """A fifth of each class, at least one image, is the test part: the same ones whatever the other classes are."""
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


def _read_classes(folder: Path, least: int = 2) -> Files:
    """The image files of each class folder, classes and files sorted by name; what is no image is counted and said."""
    classes: dict[str, tuple[Path, ...]] = {}
    left_out = Counter[str]()
    for link in _entries(folder):  # of a disk that is not mounted, say: its class would be missing in silence
        if link.is_symlink() and not Path(link).exists():
            raise UserError(f"{link.path} is a broken link; mend or remove it")
    for name in _folder_names(folder):
        entries = _entries(folder / name)
        images = [entry.name for entry in entries if _is_image(entry.name) and not _is_folder(entry)]
        if not images:
            inner = f"; if its folders are the classes, give {folder / name}" if any(map(_is_folder, entries)) else ""
            raise UserError(f"class folder {folder / name} has no image; add some or remove the folder{inner}")
        classes[name] = tuple(folder / name / image for image in images)
        known = set(images)
        rest = [entry for entry in entries if entry.name not in known]
        left_out.update("folder" if _is_folder(own) else Path(own.name).suffix.lower() or "no ending" for own in rest)
    if len(classes) < least:
        found = f"only one class folder, {next(iter(classes))}" if classes else "no class folder"
        raise UserError(f"{folder} has {found}; put the images of each class in a folder of its own, at least {least}")
    if left_out:
        advice = "; HEIC cannot be decoded: convert it to JPEG" if left_out.keys() & UNREADABLE else ""
        words = ", ".join(f"{count} {ending[:20]}" for ending, count in left_out.most_common(5))
        _warn_once(f"{folder}: left out what is no image by its name in class folders ({words}){advice}")
    return classes


@functools.cache
def _warn_once(line: str) -> None:
    """Log a warning unless it was logged before: a folder is listed more than once for one command."""
    log.warning("%s", line)


def _has_images(folder: Path) -> bool:
    return any(_is_image(entry.name) and not _is_folder(entry) for entry in _entries(folder))


def _folder_names(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder) if _is_folder(entry)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(tuple(ENDINGS)) and not name.startswith(".")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link to itself is no error."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; no file is asked for its kind, which takes long for many."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        _refuse_unlisted(error)
        raise


def _refuse_no_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder with one folder of images for each class")


def _refuse_unlisted(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from error
