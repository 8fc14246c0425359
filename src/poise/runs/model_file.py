"""The file of a learner that is taught folder by folder, with a lock and the checkpoint of a phase beside it."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from poise import __version__, locks, store
from poise.data.sources.layout import is_pack
from poise.errors import (
    Damaged,
    Malformed,
    OtherImages,
    OutOfMemory,
    PoiseError,
    RunFailed,
    UserError,
    reading,
)
from poise.learner import Learner, LearnerState, LearnerSummary, Settings, save_state, warn_of_short_phase
from poise.progress import watch_phase
from poise.runs.lessons import (
    Given,
    Lesson,
    has_other_settings,
    open_images,
    read_images,
    read_phase,
    say_new_only,
    told_as_typed,
    typed_option,
    typed_options,
)
from poise.runs.stopping import CheckpointClock, Stop, as_many_threads, stopping
from poise.schema import contents_of
from poise.training import Event, PhaseDone, Progress

log = logging.getLogger(__name__)

#: What to do where the file of a phase in its middle cannot be read.
AGAIN: Final = "--restart begins the phase again"
#: What the file of a phase in its middle is called in its header.
KIND: Final = "unfinished phase"
Saved = tuple[LearnerState, dict[str, Any]]  # such a phase, and what else was written with it


class ModelFile:
    """A learner's file.

    While a phase is learned, the file stays as it was, and no other process can learn into it. If one writes it all the
    same, that is kept, and what was learned goes to a file beside it. An interrupted phase is kept beside it, too, in
    `NAME.pending`, and the same lesson continues it to the same bytes.
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

    def teach(
        self, lesson: Lesson, say: Callable[[str], None] = log.info, done: Callable[[], None] = lambda: None
    ) -> Learner:
        """Learn the classes in a folder as one more phase, and write the learner to the file.

        Where it continues a phase, it says so. `done` is called in the last moment before the file is as it stays.
        """
        with told_as_typed(lesson.settings):
            Settings.resolve(automatic=True, **lesson.settings)  # a mistake in them is told before a folder is read
        store.refuse_run_folder(self._file)
        place = self._file.absolute().parent
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise UserError(f"{place} is not a folder that can be written to; choose another MODEL")
        lock = locks.lock_beside(self._file)
        busy = f"is learning into {self.path}; wait for it or choose another MODEL"
        with locks.locked(lock, busy, passing=True), _explain_memory(), contents_of(self.pending, AGAIN):
            began = self._digest()  # before anything is read: what is written from here on is seen at the end
            found, given = self._find_pending(lesson), open_images(lesson.folder)
            if found is not None and (learner := self._find_learned(found, lesson, given, began)) is not None:
                done()
                self.pending.unlink(missing_ok=True)
                say(f"{self.path} was saved with this phase before it was interrupted; it is finished")
                return learner
            if (learner := self._find_repeated(lesson, given, say)) is not None:
                kept = f"; the phase that was interrupted stays in {self.pending}" if self.pending.exists() else ""
                say(f"{self.path} learned these classes from these images already; nothing is done{kept}")
                return learner
            saved = None if lesson.restart or found is None else self._check_saved(found, lesson, began)
            with as_many_threads(saved[1]["threads"] if saved else torch.get_num_threads()):
                learner = self._open(lesson, saved)
                events = self._begin(learner, lesson, given, saved, say)
                if saved is not None:
                    say(f"continuing the phase that was interrupted, from {self.pending}{_say_version(saved[1])}")
                stop = Stop()
                with stopping(stop):
                    for _ in watch_phase(self._with_checkpoints(learner, events, lesson, stop, began)):
                        pass
                    self._save(learner, began, done)
        return learner

    def load(self, device: str = "auto") -> Learner:
        """The learner in the file, to predict with."""
        self._refuse_unborn()
        return Learner.load(self._file, device=device)

    def summarise(self) -> LearnerSummary:
        """What the file holds, in short; weights and images are not read."""
        self._refuse_unborn()
        return LearnerSummary.read(self._file, interrupted=self.pending.exists())

    def _refuse_unborn(self) -> None:
        """Refuse a file that is not there because its first phase was interrupted."""
        if not self._file.exists() and self.pending.is_file():
            raise UserError(
                f"{self.path} does not exist yet: its first phase was interrupted; continue it with 'poise learn'"
            )

    # Where it starts from ---------------------------------------------------------------------------------------

    def _open(self, lesson: Lesson, saved: Saved | None) -> Learner:
        """The learner: the one in the file or a new one; in the middle of its phase, if that was interrupted."""
        if self._file.exists():
            if lesson.settings:
                raise UserError(f"{self.path} exists already; {say_new_only(lesson.settings)}")
            if saved is None:
                return self._read(lesson.device)
            return Learner.from_state(saved[0].continuing(LearnerState.read(self._file)), device=lesson.device)
        if saved is not None:
            return Learner.from_state(saved[0], device=lesson.device)
        with told_as_typed(lesson.settings):
            return Learner(**lesson.settings, device=lesson.device)  # type: ignore[arg-type]

    def _read(self, device: str) -> Learner:
        """The learner in the file, to learn more."""
        state = LearnerState.read(self._file)
        with contents_of(self._file):
            return Learner.from_state(state, device=device)

    def _find_repeated(self, lesson: Lesson, given: Given, say: Callable[[str], None]) -> Learner | None:
        """The learner in the file, if it has learned this lesson before, from the same images.

        If it knows all classes of the lesson and did not, or if that cannot be known, it is refused; except where a
        phase was interrupted, which is told first. None where there is something to learn.
        """
        if lesson.update or not self._file.exists():
            return None
        if not set(given.names) <= set(LearnerSummary.read(self._file).classes):
            return None
        learner = self._read(lesson.device)
        same = learner.memory_ is not None and not has_other_settings(learner, lesson.settings)
        if same and read_images(learner.has_learned, lesson, given, say):
            return learner
        if self.pending.exists() and not lesson.restart:
            return None
        raise UserError(self._explain_known(learner, lesson))

    def _explain_known(self, learner: Learner, lesson: Lesson) -> str:
        """Why a lesson is refused all of whose classes the learner knows, though it did not learn it before."""
        knows = f"{self.path} knows all classes in {lesson.folder}"
        if learner.memory_ is None:
            return f"{self.path} was saved without its memory: it can predict but not learn further"
        if has_other_settings(learner, lesson.settings):
            return f"{knows}, and was made with other settings; {say_new_only(lesson.settings)}"
        without = f"leave {', '.join(map(typed_option, lesson.settings))} out and " if lesson.settings else ""
        advice = f"to train on them, {without}add --update"
        return f"{knows}, but has no record of a phase of exactly these images; {advice}"

    def _begin(
        self, learner: Learner, lesson: Lesson, given: Given, saved: Saved | None, say: Callable[[str], None]
    ) -> Iterator[Event]:
        """The phase, its images read and checked."""
        known = sorted({label for label in given.names if label in learner.knowledge.classes})
        if known and not lesson.update and saved is not None:  # whose classes were all new
            raise UserError(self._explain_other_images(saved))
        if known and not lesson.update:
            raise UserError(f"class '{known[0]}' is known already; --update trains on new images of known classes")
        try:
            known_ones = "update" if lesson.update else "refuse"
            events = read_phase(learner, lesson, given, say, known=known_ones)
        except OtherImages as error:
            if saved is None:
                raise UserError(
                    f"{self.path} was saved in the middle of a phase; continue that in Python, with partial_fit and "
                    "the same images, or choose another MODEL"
                ) from error
            raise UserError(self._explain_other_images(saved)) from error
        if lesson.restart:
            self.pending.unlink(missing_ok=True)
        return events

    def _explain_other_images(self, saved: Saved) -> str:
        return (
            f"{self.path} was interrupted while it learned {saved[1]['folder']}, and these are other images; give that "
            f"folder, unchanged, to continue, or use --restart, which discards {self.pending}"
        )

    def _find_pending(self, lesson: Lesson) -> Saved | None:
        """The phase that was interrupted, if there is one; where it is discarded, it need not be readable."""
        if not self.pending.exists():
            return None
        try:
            tensors, meta = store.read_tensors(self.pending, kind=KIND)
            with reading(self.pending, AGAIN):
                state = LearnerState.from_tensors(tensors, meta["learner"])
                _ = meta["lesson"]["settings"], meta["lesson"]["update"], meta["folder"], meta["model"], meta["threads"]
            return state, meta
        except PoiseError as error:
            if lesson.restart:
                return None
            if isinstance(error, Malformed) or not isinstance(error, Damaged):
                raise
            raise Damaged(f"{error}; {AGAIN}") from error

    def _check_saved(self, saved: Saved, lesson: Lesson, began: str | None) -> Saved:
        """The same; refused where it is not the one that is asked for. `began` is the digest of the file as it is."""
        _, meta = saved
        if meta["model"] != began:
            raise UserError(
                f"{self.path} was changed since its phase was interrupted; restore it to continue, "
                f"or use --restart, which discards {self.pending}"
            )
        if meta["lesson"] != lesson.describe():
            raise UserError(
                f"a phase of {self.path} was interrupted that was begun with {typed_options(meta['lesson'])}; "
                "give the same options to continue it, or use --restart to discard it"
            )
        return saved

    def _find_learned(self, saved: Saved, lesson: Lesson, given: Given, began: str | None) -> Learner | None:
        """The learner in the file, if it has learned this phase: a process was killed before it removed the checkpoint.

        It must know exactly the classes that the phase ends with, and the images must be those of the phase.
        """
        state, meta = saved
        if state.pending is None or meta["lesson"] != lesson.describe():
            return None
        if began is None or meta["model"] == began:
            return None
        now = LearnerState.read(self._file)
        numbers = {0} if meta["model"] is None else {entry.phase for entry in state.pending.history}  # of the phase
        doubtful = lesson.update and not numbers  # it cannot be told from an update before it
        if now.settings != state.settings or not numbers <= {now.knowledge.phases - 1} or doubtful:
            return None
        if not set(given.names) <= set(now.knowledge.classes):
            return None
        with contents_of(self._file):
            asked = Learner.from_state(state.continuing(now), device=lesson.device)
            learner = Learner.from_state(now, device=lesson.device)
        try:
            read_phase(asked, lesson, given, log.info, known="update")
        except OtherImages:
            return None
        return learner

    # Checkpoints ------------------------------------------------------------------------------------------------

    def _with_checkpoints(
        self, learner: Learner, events: Iterable[Event], lesson: Lesson, stop: Stop, model: str | None
    ) -> Iterator[Event]:
        """The events, with a checkpoint now and then, and one before it leaves because it was asked to.

        `model` is the digest of the file that the phase was begun from.
        """
        clock = CheckpointClock(lesson.checkpoint_seconds)
        for event in events:
            warn_of_short_phase(learner.settings, learner.phase_under_way, event)
            yield event
            if isinstance(event, Progress) and event.what == "augmentation":
                if stop.is_set():
                    raise stop.interruption("interrupted before anything was learned; the same command begins again")
                continue
            if isinstance(event, PhaseDone) or not (clock.is_due(event) or stop.is_set()):
                continue
            tensors, meta = learner.state().without_past().tensors(images=False)
            described = {"lesson": lesson.describe(), "folder": str(lesson.folder), "model": model}
            noted = {"learner": meta, **described, "threads": torch.get_num_threads()}
            store.write_tensors(self.pending, tensors, noted, kind=KIND)
            clock.restart()
            if stop.is_set():
                raise stop.interruption("interrupted; the same command continues, with --restart it begins again")

    # The end of a phase -----------------------------------------------------------------------------------------

    def _save(self, learner: Learner, began: str | None, done: Callable[[], None]) -> None:
        """Write what was learned to the file; beside it, and as a failure, where that has another digest by now."""
        if self._is_changed(began):
            beside = self._free_name_beside()
            save_state(learner.state(), beside, memory=True)
            self.pending.unlink(missing_ok=True)
            raise RunFailed(self._explain_changed(began, beside))
        done()
        save_state(learner.state(), self._file, memory=True)
        self.pending.unlink(missing_ok=True)

    def _is_changed(self, began: str | None) -> bool:
        """Whether there is another file now than the one with this digest, or something that cannot be read."""
        try:
            return self._digest() != began
        except (PoiseError, OSError):
            return True

    def _explain_changed(self, began: str | None, beside: Path) -> str:
        done, advice = "changed", "give the same command again to learn it into the changed file, then delete that one"
        if began is None or not self._file.exists():
            done, advice = "made" if began is None else "removed", "move that one to where you want it"
        return (
            f"{self.path} was {done} by another process meanwhile and is left so; what was learned, without that "
            f"change, is in {beside}; {advice}"
        )

    def _free_name_beside(self) -> Path:
        """A name that no file has: `pets-learned.safetensors`, `pets-learned-2.safetensors` and so on."""
        start = os.fsdecode(os.fsencode(self._file.stem)[:200])  # all of it must be short enough for a file's name
        endings = ("learned" if number == 1 else f"learned-{number}" for number in itertools.count(1))
        paths = (self._file.with_name(f"{start}-{ending}{self._file.suffix}") for ending in endings)
        return next(path for path in paths if not os.path.lexists(path))

    def _digest(self) -> str | None:
        """Of the file as it is; a phase continues what it was begun with and nothing else."""
        if not self._file.exists():
            return None
        store.refuse_unreadable(self._file)
        with self._file.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()


@contextmanager
def _explain_memory() -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(
            "out of GPU memory; free some and give the same command again, "
            "or begin a new learner with a smaller --batch or --image-size"
        ) from error


def _say_version(meta: Mapping[str, Any]) -> str:
    """That another version of poise began a phase, in words; nothing where it was this one."""
    version = meta["learner"].get("poise", __version__)
    if version == __version__:
        return ""
    return f", which poise {version} began: the result may differ from that without the stop"
