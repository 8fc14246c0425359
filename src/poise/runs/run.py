"""A run: the only loop over the stream. It journals, checkpoints, examines, and can be killed anywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from poise import store
from poise.data import ImageSet
from poise.errors import Damaged, OutOfMemory, PoiseError, UserError
from poise.learner import Learner, LearnerState, save_state
from poise.nets import named_info
from poise.report import load_result
from poise.runfolder import SECONDS_PHASE_0, START_FINGERPRINT
from poise.runs.changes import changed_keys, differing_keys, pin, refuse_changed
from poise.runs.contents import check_progress
from poise.runs.examiner import Exam, Examiner
from poise.runs.findings import Findings, describe_space, known_pretraining
from poise.runs.folder import Checkpoint, RunFolder, needed_to_resume
from poise.runs.machine import describe_machine, record_end, record_resume, threads_to_resume_with
from poise.runs.observers import Observer
from poise.runs.plan import Plan, images_by_origin, refuse_other_exam
from poise.runs.provenance import versions_of
from poise.runs.starting import read_start
from poise.runs.stopping import CheckpointClock, Stop, as_many_threads, heeding, stopping
from poise.schema import contents_of
from poise.training import ALONE, Event, Executor, Progress, TrialDone, TuningDone, Work, World
from poise.tuning import Reward

log = logging.getLogger(__name__)

Running = Work[dict[str, Any]]  # a run, a little at a time


@dataclass
class Run:
    """One run in one folder.

    With `until` it leaves before that phase, after a checkpoint, and its folder is that of an unfinished run. With
    `restarts` it is resumed from the beginning if no checkpoint is intact, which is refused otherwise. In a
    `world` this is the run of rank 0, which writes and examines; the other ranks follow it (`poise.runs.ranks`).
    """

    runner: ClassVar[str] = "run"  # what a folder is resumed with

    plan: Plan
    folder: RunFolder
    observers: Sequence[Observer] = ()
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS
    stop: Stop = field(default_factory=Stop)
    until: int | None = None
    executor: Executor | None = None  # where trials are run, if not here; no part of the result
    world: World = ALONE
    restarts: bool = False
    findings: Findings = field(default_factory=Findings)
    _pinned: dict[str, str] = field(default_factory=dict)
    _mark: float = 0.0

    def start(self) -> dict[str, Any]:
        """Run from the beginning, in a new folder; returns the result, empty if it was to leave before the end."""
        with stopping(self.stop):
            return _run_to_end(self.starting())

    def resume(self) -> dict[str, Any]:
        """Go on from the newest good checkpoint, or from the beginning if none was written yet.

        If it is finished, nothing is done: its result is returned as it was written.
        """
        if not self.world.joined and self.folder.finished:
            return load_result(self.folder.path)
        with stopping(self.stop):
            return _run_to_end(self.resuming())

    def starting(self) -> Running:
        """`start` as a generator that pauses after every event, so that several runs can share a GPU."""
        prepared = self._prepare()
        with self._open_folder():
            self._refuse_begun()
            return (yield from self._from_the_beginning(*prepared))

    def resuming(self) -> Running:
        """`resume` as a generator."""
        if not self.folder.exists:
            raise UserError(f"{self.folder.path} is not a run folder; begin with start(), or 'poise run'")
        with self._open_folder(), as_many_threads(self._threads_to_resume_with()):
            self._refuse_other_runner()
            found = self.folder.checkpoint_to_resume(restarts=self.restarts, whole=self.until is None)
            self.world.broadcast(lambda: (torch.get_num_threads(), found))
            if found is None:
                prepared = self._prepare()
                self.folder.discard()
                log.warning("%s has no checkpoint; starting from the beginning", self.folder.path)
                return (yield from self._from_the_beginning(*prepared))
            train, examiner = self._open_images()
            refuse_other_exam(self.folder, examiner)
            with contents_of(found.path, "remove it to resume from the one before"):
                learner = self._restore_learner(found, train)
                self.folder.journal.rewind(found.meta["journal"])
                record_resume(self.folder.machine, learner.backend, versions_of(self.plan.settings))
                return (yield from self._run_phases(learner, train, examiner))

    def _threads_to_resume_with(self) -> int:
        try:
            with needed_to_resume():
                return threads_to_resume_with(self.folder.machine)
        except Damaged:
            if self.restarts:  # then the file is written anew
                return torch.get_num_threads()
            raise

    def rewrite_model(self) -> None:
        """Write the final model of a finished run again, from its last checkpoint."""
        with self._open_folder():
            found = self.folder.newest_checkpoint()
            if found is None or len(found.meta["exams"]) < len(self.plan.stream):
                raise Damaged(
                    f"{self.folder.path} has no checkpoint of its last phase any more; restore it from a copy"
                )
            with contents_of(found.path):
                self._write_model(self._restore_learner(found, self.plan.training_images()))

    def describe(self) -> dict[str, Any]:
        """What the folder says it holds."""
        return {**self.plan.as_json(), **({"runner": self.runner} if self.runner != Run.runner else {})}

    def refuse_other(self) -> None:
        """Refuse a folder in which another run was started, also one of the same data with other exam images.

        Those are only read where the data lie at another path now.
        """
        self.folder.refuse_other(self.describe())
        recipe, saved = self.plan.recipe, store.read_json(self.folder.recipe)["recipe"]
        if recipe.exam == "test" and saved.get("data") != recipe.data:
            refuse_other_exam(self.folder, Examiner(self.plan.source.test(), self.plan.stream))

    def state(self) -> str:
        """Whether its folder is `new`, or holds this run, `begun` or `finished`; what holds something else is refused.

        Where the images are not here, runs of the same recipe cannot be told apart by them.
        """
        if not self.folder.exists:
            self.folder.refuse_leftovers()
            return "new"
        if self.plan.source.is_here:
            self.refuse_other()
        return "finished" if self.folder.finished else "begun"

    def _refuse_begun(self) -> None:
        """Refuse to start where this run was started before."""
        path, state = self.folder.path, self.state()
        if state == "finished":
            raise UserError(f"{path} holds this run, finished: {self.folder.result}; give another folder to run again")
        if state == "begun":
            raise UserError(f"{path} holds this run, unfinished; continue with resume(), or 'poise resume {path}'")

    @contextmanager
    def _open_folder(self) -> Iterator[None]:
        """The folder is ours, its errors are one line each, and everything is closed at the end."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.callback(observer.close)
            stack.enter_context(self.folder.locked())
            stack.enter_context(self.folder.writing())
            stack.callback(self.folder.journal.close)
            try:
                yield
            except torch.cuda.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"out of GPU memory; free some and 'poise resume {self.folder.path}', "
                    "or start again with a smaller batch or image_size"
                ) from error

    def _prepare(self) -> tuple[Learner, ImageSet, Examiner]:
        """What can be wrong with the recipe or the data is found here, before anything is written."""
        learner = self.plan.new_learner(self.executor)
        self.plan.settings.kind.check_first_phase(len(self.plan.stream[0]))
        train, examiner = self._open_images()
        info = named_info(self.plan.settings.net, self.plan.settings.seed)
        if info is not None:
            info.check(train.shape)
        if self.plan.recipe.start is not None:
            learner = self._start_from(Path(self.plan.recipe.start), train)
        self.world.wait()  # all ranks found their part in order
        return learner, train, examiner

    def _open_images(self) -> tuple[ImageSet, Examiner]:
        train, exam = self.plan.images()
        return train, Examiner(exam, self.plan.stream)

    def _from_the_beginning(self, learner: Learner, train: ImageSet, examiner: Examiner) -> Running:
        machine = describe_machine(self.folder.path, learner.backend, versions_of(self.plan.settings))
        self.folder.write_json(self.folder.machine, machine)
        described = {
            **self.describe(),
            **self._start_fingerprint(),
            "exam_images": examiner.fingerprint,
            "class_names": list(self.plan.source.class_names),
            "space": describe_space(learner),
            **known_pretraining(learner),
        }
        self.folder.write_json(self.folder.recipe, described)
        self._pinned = pin(self.plan, described)
        return (yield from self._run_phases(learner, train, examiner))

    def _run_phases(self, learner: Learner, train: ImageSet, examiner: Examiner) -> Running:
        self._mark, work = time.monotonic(), self.plan.work(train)
        for observer in self.observers:
            observer.begin(work)
        for phase in range(len(self.findings.exams), len(self.plan.stream) if self.until is None else self.until):
            if learner.phases_ == phase:
                yield from self._learn(learner, phase, train, self._reward(learner, examiner))
            self._end_phase(learner, phase, examiner)
            if phase + 1 < len(self.plan.stream) and self._is_asked_to_stop():
                self._leave()
        return self._finish(learner) if self.until is None else {}

    def _reward(self, learner: Learner, examiner: Examiner) -> Reward | None:
        """What the policy is told of a trial, where that is not the local reward: an honest run has no other."""
        return None

    def _next_images(self, phase: int, train: ImageSet) -> int | None:
        """For a memory that is to know it, how many images the next phase brings; the last one counts itself."""
        if not self.plan.settings.memory.knows_increment:
            return None
        return len(train.of_labels(self.plan.stream[min(phase + 1, len(self.plan.stream) - 1)]))

    def _learn(
        self, learner: Learner, phase: int, train: ImageSet, reward: Reward | None
    ) -> Generator[int, None, None]:
        arrived = train.of_labels(self.plan.stream[phase])
        events = learner.fitting(
            arrived,
            arrived.labels,
            origins=arrived.origins,
            next_images=self._next_images(phase, train),
            reward=reward,
        )
        clock = CheckpointClock(self.checkpoint_seconds)
        while True:
            began = time.monotonic()
            with heeding(self.executor, lambda: self._leave_if_asked(learner)):
                event = next(events, None)
            self.findings.seconds["policy" if _is_about_trials(event) else "train"] += time.monotonic() - began
            if event is None:
                return self._check_ranks(learner)
            self._show(event)
            self._leave_if_asked(learner)
            if clock.is_due(event):
                self._checkpoint(learner)
                clock.restart()
            yield isinstance(event, Progress)

    def _end_phase(self, learner: Learner, phase: int, examiner: Examiner) -> None:
        """Examine what was learned, and write it down."""
        began = time.monotonic()
        exam = examiner.examine(learner, phase)
        self.findings.seconds["evaluate"] += time.monotonic() - began
        self._keep(exam, learner)
        if phase == 0:
            self._count_total()
            self.findings.seconds[SECONDS_PHASE_0] = self.findings.seconds["total"]
        self._checkpoint(learner)

    def _show(self, event: Event) -> None:
        if event.kept:
            self.folder.journal.append(event.as_json())
        for observer in self.observers:
            observer.event(event)

    def _keep(self, exam: Exam, learner: Learner) -> None:
        self.findings.add(exam, learner)
        self.folder.journal.append(exam.as_json())
        if exam.phase == 0:
            tensors, meta = learner.state().tensors(images=False)
            store.write_tensors(
                self.folder.phase_0, tensors, {"learner": meta, "identity": self.plan.identity()}, kind="phase 0"
            )
        for observer in self.observers:
            observer.exam(exam)

    def _checkpoint(self, learner: Learner) -> None:
        tensors, meta = learner.state().tensors(images=False)
        self._count_total()
        run = {
            "learner": meta,
            **self.findings.as_json(),
            "journal": self.folder.journal.position(),
            "journal_digest": self.folder.journal.digest(),
            "pinned": self._pinned,
        }
        self.folder.write_checkpoint(tensors, run)

    def _count_total(self) -> None:
        mark, self._mark = self._mark, time.monotonic()
        self.findings.seconds["total"] += self._mark - mark

    def _is_asked_to_stop(self) -> bool:
        """Whether a signal asks for it: all ranks stop after the same event, whichever heard it."""
        return self.stop.agree(self.world)

    def _leave_if_asked(self, learner: Learner) -> None:
        """Stop after a checkpoint, if a signal asks for it."""
        if self._is_asked_to_stop():
            self._checkpoint(learner)
            self._leave()

    def _leave(self) -> NoReturn:
        alone = f"continue with 'poise resume {self.folder.path}'"
        how = "the same command goes on" if self.world.joined else alone
        raise self.stop.interruption(f"interrupted; {how}")

    def _refuse_other_runner(self) -> None:
        found = runner_of(self.folder)
        if found != self.runner:
            raise UserError(f"{self.folder.path} is the folder of another runner ({found}); use 'poise resume' for it")

    def _restore_learner(self, found: Checkpoint, train: ImageSet) -> Learner:
        meta = found.meta
        self._pinned = pin(self.plan, {**store.read_json(self.folder.recipe), **self.describe()})
        refuse_changed(self.folder, changed_keys(meta.get("pinned", {}), self._pinned))
        state = LearnerState.from_tensors(found.tensors, meta["learner"], lookup=images_by_origin(train))
        refuse_changed(self.folder, differing_keys(state.settings, self.plan.settings))
        check_progress(state.knowledge, len(meta["exams"]), self.plan.stream)
        self.findings = Findings.from_json(meta)
        return self.plan.restored_learner(state, self.executor)

    def _start_from(self, path: Path, train: ImageSet) -> Learner:
        """A learner with the state after phase 0 of another run of the same data, order and seed."""
        settings = self.plan.settings
        state = read_start(path, settings, self.plan.identity(), images_by_origin(train))
        with contents_of(RunFolder(path).phase_0, "give another start"):
            return self.plan.restored_learner(state.started_with(settings), self.executor)

    def _start_fingerprint(self) -> dict[str, Any]:
        """What the phase 0 that it starts from is recognised by, should that lie elsewhere one day."""
        start = self.plan.recipe.start
        return {} if start is None else {START_FINGERPRINT: RunFolder(Path(start)).phase_0_fingerprint()}

    def _finish(self, learner: Learner) -> dict[str, Any]:
        self._write_model(learner)
        self._count_total()
        result = self._result(learner)
        self.folder.write_json(self.folder.result, result, digest=True)
        record_end(self.folder.machine)
        for observer in self.observers:
            observer.end(result)
        return result

    def _result(self, learner: Learner) -> dict[str, Any]:
        return self.findings.result(self.plan, learner, self.world)

    def _write_model(self, learner: Learner) -> None:
        named = learner.state().renamed(self.plan.source.class_names)  # what a prediction should say
        save_state(named, self.folder.model, memory=False)

    def _check_ranks(self, learner: Learner) -> None:
        """All ranks must have learned the same."""
        if self.world.joined:
            self.world.refuse_unequal(learner.state().tensors(images=False)[0])


def complete(folder: RunFolder) -> None:
    """Write what a run that was killed after its result had no time to write: that it is finished, and when.

    The result stands without it: where it cannot be written, that is said and no more.
    """
    try:
        with folder.writing():
            if store.read_json(folder.machine).get("finished") is None:
                with folder.locked():
                    record_end(folder.machine, folder.result.stat().st_mtime)
    except PoiseError as error:
        log.warning("%s", error)


def _is_about_trials(event: Event | None) -> bool:
    """Whether the time before this event was spent on choosing an action."""
    if isinstance(event, Progress):
        return event.what not in ("training", "augmentation")
    return isinstance(event, TrialDone | TuningDone)


def runner_of(folder: RunFolder) -> str:
    """What this folder must be resumed with: `run`, or `audit`."""
    return str(store.read_json(folder.recipe).get("runner", Run.runner))


def _run_to_end(going: Running) -> dict[str, Any]:
    while True:
        try:
            next(going)
        except StopIteration as end:
            result: dict[str, Any] = end.value
            return result
