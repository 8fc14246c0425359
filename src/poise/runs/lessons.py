"""A phase as a user of `poise learn` asks for it, and its images; those that cannot be read are named or left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from poise import store
from poise.data.packs import Pack
from poise.data.sources.layout import PACK, is_pack, labelled_files
from poise.errors import MOST_NAMED, BadImages, UnreadFile, UserError, shown
from poise.learner import Images, Learner, Settings
from poise.training import Event

T = TypeVar("T")


@dataclass(frozen=True)
class Lesson:
    """One phase as the user asks for it.

    Attributes:
        folder: with one folder of images for each class; or a pack.
        settings: of a new learner, those that were given; the others are the learner's own defaults.
        update: whether images of known classes are trained on.
        device: where it is learned.
        restart: whether a phase that was interrupted is discarded.
        checkpoint_seconds: between two checkpoints.
        skip_bad: whether files that cannot be decoded are left out; else they are named, and nothing is learned.
    """

    folder: Path
    settings: Mapping[str, int | str] = field(default_factory=dict)
    update: bool = False
    device: str = "auto"
    restart: bool = False
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS
    skip_bad: bool = False

    def describe(self) -> dict[str, Any]:
        """What must be the same when the phase is continued."""
        return {"settings": dict(self.settings), "update": self.update}


class Given(NamedTuple):
    """The images of a lesson, their labels where they do not bring them along, and the names of all classes."""

    images: Images
    labels: Sequence[str] | None
    names: Sequence[str]


def open_images(folder: Path) -> Given:
    """What a folder or a pack gives to learn."""
    if folder.suffix == PACK or is_pack(folder):
        pack = Pack.open(folder)
        return Given(pack, None, pack.class_names)
    files, labels = labelled_files(folder)
    return Given(files, labels, labels)


def read_phase(
    learner: Learner,
    lesson: Lesson,
    given: Given,
    say: Callable[[str], None],
    *,
    known: str,
) -> Iterator[Event]:
    """The phase that a learner makes of images; bad files among them are left out, or all of them are named."""
    fitting = partial(learner.fitting, known=known)
    return read_images(fitting, lesson, given, say)


def read_images(
    read: Callable[[Images, Sequence[str] | None], T],
    lesson: Lesson,
    given: Given,
    say: Callable[[str], None],
) -> T:
    """What `read` makes of images and their labels; bad files among them are left out, or all of them are named."""
    images, labels, _ = given
    try:
        return read(images, labels)
    except BadImages as error:
        faults, others = error.faults, error.others
    assert isinstance(images, list)  # only files can be bad
    assert labels is not None
    unread = {path: fault for path, fault in faults.items() if isinstance(fault, UnreadFile)}
    if unread and lesson.skip_bad:
        _refuse_unread(unread, len(images), say)
    if not lesson.skip_bad:
        _refuse_bad(faults, len(images), len(unread), say)
    for fault in faults.values():
        say(f"{fault}; it is left out")
    good = [(file, label) for file, label in zip(images, labels, strict=True) if str(file) not in faults]
    empty = sorted(set(labels) - {label for _, label in good})
    if empty:
        raise UserError(f"class '{empty[0]}' has no image that can be read; replace its images, or remove its folder")
    return read([file for file, _ in good] if others is None else others, [label for _, label in good])


def _refuse_bad(faults: Mapping[str, UserError], total: int, unread: int, say: Callable[[str], None]) -> NoReturn:
    """Name the files that cannot be read, a line for each, and refuse them; `unread` of them may be good."""
    if len(faults) == 1:
        skip = "" if unread else ", or leave it out with --skip-bad"
        raise UserError(f"{next(iter(faults.values()))}{skip}")
    more = _name_some(faults, say)
    skip = ", or leave them out with --skip-bad"
    if unread:
        skip = f" (--skip-bad leaves out all but {unread} that the system did not let poise read)"
    raise UserError(f"{len(faults)} of {total} images cannot be read{more}; replace or remove them{skip}")


def _refuse_unread(faults: Mapping[str, UserError], total: int, say: Callable[[str], None]) -> NoReturn:
    """The same for files that the system did not let poise read."""
    if len(faults) == 1:
        raise UserError(f"{next(iter(faults.values()))}; --skip-bad does not leave it out, for it may be good")
    more = _name_some(faults, say)
    raise UserError(
        f"the system did not let poise read {len(faults)} of {total} images{more}; --skip-bad does not leave them out, "
        "for they may be good; mend this, then give the same command again"
    )


def _name_some(faults: Mapping[str, UserError], say: Callable[[str], None]) -> str:
    """Say a line for each of the first faults, and give the words for how many more there are."""
    for fault in itertools.islice(faults.values(), MOST_NAMED):
        say(f"not read: {fault}")
    return f" ({len(faults) - MOST_NAMED} more than are named)" if len(faults) > MOST_NAMED else ""


# Settings as the options of a command ---------------------------------------------------------------------------------


@contextmanager
def told_as_typed(settings: Mapping[str, int | str]) -> Iterator[None]:
    """A mistake in the settings of a learner is told with the options of the command in their place.

    >>> with told_as_typed({"seed": -1}):
    ...     raise UserError("seed=-1 must be a whole number, at least 0")
    Traceback (most recent call last):
    poise.errors.UserError: --seed -1 must be a whole number, at least 0
    """
    try:
        yield
    except UserError as error:
        line = str(error)
        for name, value in settings.items():
            line = line.replace(f"{name}={shown(value)}", f"{typed_option(name)} {value}")
        raise UserError(line) from error


def typed_option(name: str) -> str:
    """A setting as an option of the command.

    >>> typed_option("image_size")
    '--image-size'
    """
    return f"--{name.replace('_', '-')}"


def has_other_settings(learner: Learner, given: Mapping[str, int | str]) -> bool:
    """Whether a learner was made with others than these settings, or chose others for its first images."""
    with told_as_typed(given):
        asked = Settings.resolve(automatic=True, **given)

    def value(settings: Settings, name: str) -> object:
        return getattr(settings, name)

    others = {name for name in given if value(learner.settings, name) != value(asked, name)}
    if learner.settings.image_size is None and learner.shape_ is not None:
        sides = {*learner.shape_[1:], learner.knowledge.short_side or learner.shape_[1]}
        others -= {"image_size"} if sides == {asked.image_size} else set()
    return bool(others)


def say_new_only(settings: Mapping[str, int | str]) -> str:
    """That these options belong to a new learner, in words."""
    return f"{', '.join(map(typed_option, settings))} can only be chosen for a new learner"


def typed_options(lesson: Mapping[str, Any]) -> str:
    """The options of a command, as they are typed."""
    words = [f"{typed_option(name)} {value}" for name, value in lesson["settings"].items()]
    return " ".join([*words, *(["--update"] if lesson["update"] else [])]) or "no options"
