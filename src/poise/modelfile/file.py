"""The file of a learner that is taught folder by folder, with a lock and a phase in its middle beside it."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import torch
from pydantic import BaseModel, Field

from poise import store
from poise.data.packs import Pack
from poise.data.sources.layout import is_pack, labelled_files, names_pack
from poise.errors import (
    MOST_NAMED,
    BadImages,
    Damaged,
    OtherImages,
    RunFailed,
    UnreadFile,
    UserError,
    reading,
    shown,
)
from poise.learner import Images, Known, Learner, LearnerState, Settings, save_state, warn_of_short_phase
from poise.modelfile.info import LearnerSummary
from poise.progress import watch_phase
from poise.runs.stopping import CheckpointClock, Stop, explaining_memory, stopping, torch_threads
from poise.training.events import Event, PhaseDone, Progress

log = logging.getLogger(__name__)

T = TypeVar("T")
Say = Callable[[str], None]

#: What the file of a phase in its middle is called in its header.
KIND: Final = "unfinished phase"


@dataclass(frozen=True)
class Lesson:
    """One phase as the user of `poise learn` asks for it.

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

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that a new learner is made with."""
        classifier = self.settings.get("classifier")
        rest = {name: value for name, value in self.settings.items() if name != "classifier"}
        return rest if classifier is None else {**rest, "action": {"classifier": classifier}}

    def made(self, learner: Learner) -> bool:
        """Whether a learner was made with the settings of this lesson."""
        has, wanted = learner.settings.as_json(), Settings.resolve(automatic=True, **self.parameters).as_json()
        chosen = wanted["action"].items() <= has["action"].items()
        return chosen and all(has[name] == wanted[name] for name in self.parameters if name != "action")

    def describe(self) -> dict[str, Any]:
        """The identity of the lesson: what must be equal when an interrupted phase is continued."""
        return {"settings": dict(self.settings), "update": self.update}


class LessonImages(NamedTuple):
    """The images of a lesson, their labels where they do not bring them along, and the names of all classes."""

    images: Images
    labels: Sequence[str] | None
    names: Sequence[str]


class PendingPhase(BaseModel):
    """The description in the file of an unfinished phase, beside the state of its learner.

    `model` is the digest of the learner's file that the phase was begun from; None where it began a new one.
    """

    learner: dict[str, Any]
    lesson: dict[str, Any]
    folder: str
    model: str | None
    threads: int = Field(ge=1, le=1024)


class ModelFile:
    """A learner's file.

    While a phase is learned, the file stays as it was, and no other process can learn into it. An interrupted phase is
    kept beside it in `NAME.pending`, and the same lesson continues it to the same bytes.
    """

    def __init__(self, path: Path) -> None:
        if not path.name:
            raise UserError(f"{path} is a folder, not a file; give the file of a learner")
        self.path = store.expand_user(path)
        if is_pack(self.path):
            raise UserError(
                f"{path} is a pack of images, not the file of a learner; give the learner first, then images"
            )
        self._file = self.path.resolve() if os.path.islink(self.path) else self.path  # noqa: PTH114 - pathlib's may raise
        self.pending = self._file.with_name(f"{self._file.name}.pending")

    def load(self, device: str = "auto", classifier: str | None = None) -> Learner:
        """The learner in the file, to predict with, perhaps by another classifier than its own."""
        self._refuse_unborn()
        return Learner.load(self._file, device=device).predicting_by(classifier)

    def remove(self, classes: Sequence[str]) -> Learner:
        """Take these classes out of the learner in the file."""
        self._refuse_unborn()
        with self._locked():
            learner = self._read("cpu")
            if self.pending.exists():
                what = f"finish it first with 'poise learn', or delete {self.pending}"
                raise UserError(f"a phase of {self.path} was interrupted; {what}")
            labels = {str(label): label for label in learner.knowledge.classes}
            learner.remove([labels.get(name, name) for name in classes])
            save_state(learner.state(), self._file, memory=True)
        return learner

    def _locked(self) -> AbstractContextManager[None]:
        busy = f"is learning into {self.path}; wait for it or choose another MODEL"
        return store.locked(self._file.with_name(f".{self._file.name}.lock"), busy, passing=True)

    def summarise(self) -> LearnerSummary:
        """A summary of the file; weights and images are not read."""
        self._refuse_unborn()
        return LearnerSummary.read(self._file, interrupted=self.pending.exists())

    def _refuse_unborn(self) -> None:
        if not os.path.lexists(self._file) and self.pending.exists():
            raise UserError(
                f"{self.path} does not exist yet: its first phase was interrupted; continue it with 'poise learn'"
            )

    # Teaching ---------------------------------------------------------------------------------------------------

    def teach(self, lesson: Lesson, say: Say = log.info, done: Callable[[], None] = lambda: None) -> Learner:
        """Learn the classes in a folder as one more phase, and write the learner to the file.

        A phase that was interrupted is continued. A lesson that the file has learned already, from exactly these
        images, changes nothing. `done` is called before the file is written.
        """
        with typed_as_options(lesson.settings):
            Settings.resolve(automatic=True, **lesson.parameters)  # a mistake in them is told before a folder is read
        store.refuse_run_folder(self._file)
        store.refuse_bad_place(self._file)
        again = "give the same command again, or begin a new learner with a smaller --batch or --image-size"
        with self._locked(), explaining_memory(again):
            images, began, saved = list_images(lesson.folder), self._digest(), self._read_pending(lesson)
            if (learner := self._find_finished(lesson, images, saved, began, say)) is not None:
                return learner
            if saved is not None:
                self._refuse_another(saved[1], lesson, began)
            with torch_threads(saved[1].threads if saved is not None else torch.get_num_threads()):
                learner = self._open(lesson, saved)
                events = self._begin(learner, lesson, images, saved, say)
                stop = Stop()
                with stopping(stop):
                    for _ in watch_phase(self._with_checkpoints(learner, events, lesson, stop, began)):
                        pass
                    self._save(learner, began, done)
        return learner

    def _find_finished(
        self,
        lesson: Lesson,
        images: LessonImages,
        saved: tuple[LearnerState, PendingPhase] | None,
        began: str | None,
        say: Say,
    ) -> Learner | None:
        """The learner in the file, if it has learned exactly these images already.

        A process may also have been killed after it saved the file and before it removed the phase beside it.
        """
        in_its_middle = saved is not None and saved[1].model == began
        if began is None or in_its_middle or (lesson.update and saved is None):
            return None
        if not set(images.names) <= set(LearnerSummary.read(self._file).saved.knowledge.classes):
            return None
        learner = self._read(lesson.device)
        if not lesson.made(learner) or not read_images(learner.has_learned, lesson, images, say):
            return None
        self.pending.unlink(missing_ok=True)
        say(f"{self.path} has learned these classes from these images already; nothing is done")
        return learner

    def _open(self, lesson: Lesson, saved: tuple[LearnerState, PendingPhase] | None) -> Learner:
        """The learner: the one in the file or a new one; in the middle of its phase, if that was interrupted."""
        if self._file.exists():
            if lesson.settings:
                options = ", ".join(map(typed_option, lesson.settings))
                raise UserError(f"{self.path} exists already; {options} can only be chosen for a new learner")
            if saved is None:
                return self._read(lesson.device)
            return Learner.from_state(
                LearnerState.read(self._file).replace(pending=saved[0].pending), device=lesson.device
            )
        if saved is not None:
            return Learner.from_state(saved[0], device=lesson.device)
        return Learner(**lesson.parameters, device=lesson.device)

    def _read(self, device: str) -> Learner:
        state = LearnerState.read(self._file)
        with reading(self._file):
            return Learner.from_state(state, device=device)

    def _begin(
        self,
        learner: Learner,
        lesson: Lesson,
        images: LessonImages,
        saved: tuple[LearnerState, PendingPhase] | None,
        say: Say,
    ) -> Iterator[Event]:
        """The phase, its images read and checked."""
        known = sorted(set(images.names) & set(learner.knowledge.classes))
        if known and not lesson.update and saved is None and learner.memory_ is not None:
            raise UserError(f"class '{known[0]}' is known already; --update trains on new images of known classes")
        update: Known = "update" if lesson.update or saved is not None else "refuse"  # other images are told as such
        try:
            events = read_images(partial(learner.fitting, known=update), lesson, images, say)
        except OtherImages as error:
            if saved is None:
                raise UserError(
                    f"{self.path} was saved in the middle of a phase; continue that in Python, with partial_fit and "
                    "the same images, or choose another MODEL"
                ) from error
            raise UserError(
                f"{self.path} was interrupted while it learned {saved[1].folder}, and these are other images; give "
                f"that folder, unchanged, to continue, or use --restart, which discards {self.pending}"
            ) from error
        if lesson.restart:
            self.pending.unlink(missing_ok=True)
        if saved is not None:
            say(f"continuing the phase that was interrupted, from {self.pending}")
        return events

    # The phase in its middle ------------------------------------------------------------------------------------

    def _read_pending(self, lesson: Lesson) -> tuple[LearnerState, PendingPhase] | None:
        """The phase that was interrupted, if there is one; where it is discarded, it need not be readable."""
        if lesson.restart or not self.pending.exists():
            return None
        try:
            tensors, meta = store.read_tensors(self.pending, kind=KIND)
            with reading(self.pending):
                found = PendingPhase(**meta)
                return LearnerState.from_tensors(tensors, found.learner), found
        except Damaged as error:
            raise Damaged(f"{error}; --restart begins the phase again") from error

    def _refuse_another(self, saved: PendingPhase, lesson: Lesson, began: str | None) -> None:
        """Refuse to continue a phase of another file, or one that was begun with other options."""
        if saved.model != began:
            raise UserError(
                f"{self.path} was changed since its phase was interrupted; restore it to continue, "
                f"or use --restart, which discards {self.pending}"
            )
        if saved.lesson != lesson.describe():
            words = [f"{typed_option(name)} {value}" for name, value in saved.lesson["settings"].items()]
            options = " ".join([*words, *(["--update"] if saved.lesson["update"] else [])]) or "no options"
            raise UserError(
                f"a phase of {self.path} was interrupted that was begun with {options}; "
                "give the same options to continue it, or use --restart to discard it"
            )

    def _with_checkpoints(
        self, learner: Learner, events: Iterable[Event], lesson: Lesson, stop: Stop, model: str | None
    ) -> Iterator[Event]:
        """The events, with a checkpoint now and then, and one before it leaves because it was asked to."""
        clock = CheckpointClock(lesson.checkpoint_seconds)
        for event in events:
            warn_of_short_phase(learner.settings, learner.phase_under_way, event)
            yield event
            if isinstance(event, Progress) and event.what == "augmentation" and stop.is_set():
                raise stop.as_exit("interrupted before anything was learned; the same command begins again")
            if isinstance(event, PhaseDone | Progress) or not (clock.is_due(event) or stop.is_set()):
                continue  # states are saved after a trial, an epoch or a stage, never inside of one
            tensors, meta = learner.state().without_past().tensors(images=False)
            noted = PendingPhase(
                learner=meta,
                lesson=lesson.describe(),
                folder=str(lesson.folder),
                model=model,
                threads=torch.get_num_threads(),
            )
            store.write_tensors(self.pending, tensors, noted.model_dump(), kind=KIND)
            clock.restart()
            if stop.is_set():
                raise stop.as_exit("interrupted; the same command continues, with --restart it begins again")

    # The end of a phase -----------------------------------------------------------------------------------------

    def _save(self, learner: Learner, began: str | None, done: Callable[[], None]) -> None:
        """Write what was learned to the file; beside it, and as a failure, where another process changed that."""
        if self._digest() == began:
            done()
            save_state(learner.state(), self._file, memory=True)
            self.pending.unlink(missing_ok=True)
            return
        names = (f"{self._file.stem}-learned-{number}{self._file.suffix}" for number in itertools.count(1))
        beside = next(path for name in names if not (path := self._file.with_name(name)).exists())
        save_state(learner.state(), beside, memory=True)
        self.pending.unlink(missing_ok=True)
        raise RunFailed(
            f"{self.path} was changed by another process meanwhile and is left so; what was learned, without that "
            f"change, is in {beside}"
        )

    def _digest(self) -> str | None:
        """The digest of the file as it is; a phase continues from the file that it was begun with and from no other."""
        if not self._file.exists():
            return None
        with self._file.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()


# Images -------------------------------------------------------------------------------------------------------------


def list_images(folder: Path) -> LessonImages:
    """What a folder or a pack gives to learn."""
    if names_pack(folder):
        pack = Pack.open(folder)
        return LessonImages(pack, None, pack.class_names)
    paths, labels = labelled_files(folder)
    return LessonImages(paths, labels, labels)


def read_images(read: Callable[[Images, Sequence[str] | None], T], lesson: Lesson, given: LessonImages, say: Say) -> T:
    """Read images with their labels by `read`; bad files among them are left out, or all of them are named."""
    try:
        return read(given.images, given.labels)
    except BadImages as error:
        faults = error.faults
    assert isinstance(given.images, list)  # only files can be bad
    assert given.labels is not None
    unread = {path: fault for path, fault in faults.items() if isinstance(fault, UnreadFile)}
    if unread or not lesson.skip_bad:  # what the system did not let us read may be good: it is never left out
        _refuse_bad(unread or faults, len(given.images), say, skippable=not unread)
    for fault in faults.values():
        say(f"{fault}; it is left out")
    good = [(path, label) for path, label in zip(given.images, given.labels, strict=True) if str(path) not in faults]
    empty = sorted(set(given.labels) - {label for _, label in good})
    if empty:
        raise UserError(f"class '{empty[0]}' has no image that can be read; replace its images, or remove its folder")
    return read([path for path, _ in good], [label for _, label in good])


def _refuse_bad(faults: Mapping[str, UserError], total: int, say: Say, *, skippable: bool) -> NoReturn:
    """Name the files that cannot be read, a line for each, and refuse them."""
    advice = "replace or remove them, or leave them out with --skip-bad"
    if not skippable:
        advice = "--skip-bad does not leave out what the system did not let poise read, for it may be good"
    if len(faults) == 1:
        raise UserError(
            f"{next(iter(faults.values()))}{', or leave it out with --skip-bad' if skippable else f'; {advice}'}"
        )
    for fault in itertools.islice(faults.values(), MOST_NAMED):
        say(f"not read: {fault}")
    more = f" ({len(faults) - MOST_NAMED} more than are named)" if len(faults) > MOST_NAMED else ""
    raise UserError(f"{len(faults)} of {total} images cannot be read{more}; {advice}")


# In words -----------------------------------------------------------------------------------------------------------


@contextmanager
def typed_as_options(settings: Mapping[str, int | str]) -> Iterator[None]:
    """A mistake in the settings of a learner is told with the options of the command in their place.

    >>> with typed_as_options({"seed": -1}):
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
