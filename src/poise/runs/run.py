"""A run: the only loop over the stream. It journals, checkpoints, examines, and can be killed anywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

import torch

from poise import store
from poise.data import ImageSet
from poise.errors import Damaged, UserError, reading
from poise.learner import Learner, LearnerState, save_state
from poise.runs.examiner import Examiner
from poise.runs.findings import SECONDS_PHASE_0, Findings
from poise.runs.folder import START_FINGERPRINT, CheckpointMeta, RunDescription, RunFolder
from poise.runs.machine import Machine, command_for, describe_machine, record_end, record_resume, versions_of
from poise.runs.observers import Observer
from poise.runs.plan import Plan, images_by_origin, read_start, refuse_other_exam
from poise.runs.recipe import Recipe
from poise.runs.record import load_result
from poise.runs.stopping import CheckpointClock, Stop, explaining_memory, stopping, torch_threads
from poise.training.events import Progress, TrialDone, TuningDone
from poise.training.lanes import Executor, WaitingExecutor, Work
from poise.training.ranks import ALONE, World
from poise.tuning.results import Reward

log = logging.getLogger(__name__)

Running = Work[None]  # a run, a little at a time
Opened = tuple[Learner, ImageSet, Examiner]  # what the phases are run with

#: Recipe keys that may change until a resume: where a run is computed, and where data and start lie.
_FREE: Final = ("device", "data", "start")
#: What else `recipe.json` says that must not change until a resume.
_DESCRIBED: Final = (
    *("name", "fingerprint", START_FINGERPRINT, "runner"),
    *("exam_images", "class_names", "space", "pretrained_on"),
)


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
    result: dict[str, Any] = field(default_factory=dict)  # once it is finished
    _described: dict[str, Any] = field(default_factory=dict)  # what `recipe.json` says
    _pinned: dict[str, str] = field(default_factory=dict)  # a digest of each part of it that must stay the same
    _watching: Sequence[Observer] = ()  # who is told what happens: the journal first
    _mark: float = 0.0

    def start(self) -> dict[str, Any]:
        """Run from the beginning, in a new folder; returns the result, empty if it was to leave before the end."""
        return self.to_end(self.starting())

    def resume(self) -> dict[str, Any]:
        """Go on from the newest good checkpoint, or from the beginning if none was written yet.

        If it is finished, nothing is done: its result is returned as it was written.
        """
        if not self.world.joined and self.folder.finished:
            return load_result(self.folder.path)
        return self.to_end(self.resuming())

    def to_end(self, steps: Running) -> dict[str, Any]:
        """Take all of these steps; a signal stops them after a checkpoint."""
        with stopping(self.stop, raises=not self.world.joined):
            for _ in steps:
                pass
        return self.result

    def starting(self) -> Running:
        """`start` as a generator that pauses after every event, so that several runs can share a GPU."""
        prepared = self._prepare()
        with self._open_folder():
            if self.world.leads:
                if (state := self.state()) != "new":
                    path, result = self.folder.path, self.folder.result
                    begun = f"unfinished; continue with resume(), or 'poise resume {path}'"
                    how = f"finished: {result}; give another folder" if state == "finished" else begun
                    raise UserError(f"{path} holds this run, {how}")
                self._describe(*prepared)
            try:
                yield from self._run_phases(*prepared)
            except UserError:  # what only the first step shows, such as a network whose maps a method misses
                if self.world.leads and not self.folder.checkpoint_files():
                    self.folder.forget()
                raise

    def resuming(self) -> Running:
        """`resume` as a generator."""
        if self.world.leads and not self.folder.exists:
            raise UserError(f"{self.folder.path} is not a run folder; begin with start(), or 'poise run'")
        with self._open_folder(), torch_threads(self._threads()):
            yield from self._run_phases(*self._restore())

    def continuing(self) -> Running:
        """`starting`, or `resuming` where this run has begun; nothing where it is finished."""
        state = self.state()
        if state == "finished":
            self.result = load_result(self.folder.path)
        else:
            yield from self.starting() if state == "new" else self.resuming()

    def state(self) -> str:
        """Whether its folder is `new`, or holds this run, `begun` or `finished`; what holds something else is refused.

        Also a run of the same data with other exam images, which are only read where the data lie at another path now.
        Where the images are not here, runs of the same recipe cannot be told apart by them.
        """
        folder, plan = self.folder, self.plan
        if not folder.exists:
            folder.refuse_leftovers()
            return "new"
        if plan.source.is_here:
            if difference := folder.difference(RunDescription(**self._description())):
                raise UserError(f"{folder.path} holds another run ({difference}); choose another --out")
            if plan.recipe.exam == "test" and folder.description().recipe["data"] != plan.recipe.data:
                refuse_other_exam(folder, Examiner(plan.source.test(), plan.stream))
        return "finished" if folder.finished else "begun"

    # Beginning and resuming -------------------------------------------------------------------------------------

    @contextmanager
    def _open_folder(self) -> Iterator[None]:
        """The folder is ours, its errors are one line each, and everything is closed at the end."""
        again = f"'poise resume {self.folder.path}', or start again with a smaller batch or image_size"
        with self.folder.locked(), explaining_memory(again), ExitStack() as stack:
            self._watching = (self.folder.journal, *self.observers)
            for observer in self._watching:
                stack.callback(observer.close)
            yield

    def _prepare(self) -> Opened:
        """Check the recipe against the data, and open both, before anything is written."""
        settings, recipe = self.plan.settings, self.plan.recipe
        train, examiner = self._open_images()
        if recipe.start is None:
            learner = self.plan.new_learner(self.executor)
        else:
            state = read_start(Path(recipe.start), settings, self.plan.identity(), images_by_origin(train))
            learner = self.plan.restored_learner(state, self.executor)
        if self.plan.net_info is not None:
            self.plan.net_info.check(train.shape)
        self.world.wait()  # all ranks found their part in order
        return learner, train, examiner

    def _open_images(self) -> tuple[ImageSet, Examiner]:
        train, exam = self.plan.images()
        return train, Examiner(exam, self.plan.stream)

    def _description(self) -> dict[str, Any]:
        return {**self.plan.as_json(), **({"runner": self.runner} if self.runner != Run.runner else {})}

    def _describe(self, learner: Learner, train: ImageSet, examiner: Examiner) -> None:
        """Write down what is run, and where."""
        plan, start, info = self.plan, self.plan.recipe.start, self.plan.net_info
        self._described = {
            **self._description(),
            **({START_FINGERPRINT: RunFolder(start).phase_0_fingerprint()} if start is not None else {}),
            "exam_images": examiner.fingerprint,
            "class_names": list(plan.source.class_names),
            "space": plan.settings.action_space.as_json() if plan.settings.kind.tunes else None,
            **({"pretrained_on": info.pretrained_on} if info is not None and info.pretrained_on is not None else {}),
        }
        machine = describe_machine(self.folder.path, learner.backend, versions_of(plan.settings))
        self._pin()
        store.write_json(self.folder.machine, machine.model_dump())
        store.write_json(self.folder.recipe, self._described)

    def _pin(self) -> None:
        """Make a digest of everything that must not change until a resume, by the name of its key."""
        recipe = self._described["recipe"]
        values = {key: recipe[key] for key in Recipe.model_fields if key not in _FREE}
        values |= {key: self._described.get(key) for key in _DESCRIBED}
        self._pinned = {key: store.digest_of(value) for key, value in values.items()}

    def _threads(self) -> int:
        """Set the number of threads that this run computes with, once it is resumed."""
        try:
            return Machine.read(self.folder.machine).threads_to_resume_with
        except Damaged as error:
            if self.restarts:  # then the file is written anew
                return torch.get_num_threads()
            raise Damaged(f"{error}, or start the run again in another folder") from error

    def _restore(self) -> Opened:
        """The learner as the newest good checkpoint has it; a new one where there is none."""
        path, runner = self.folder.path, self.folder.description().runner
        if runner != self.runner:
            raise UserError(f"{path} is the folder of another runner ({runner}); use 'poise resume' for it")
        try:
            found = self.folder.newest_checkpoint()
        except Damaged:
            if not self.restarts:
                raise
            found = None
        self.world.broadcast(lambda: (torch.get_num_threads(), found))
        if found is None:
            prepared = self._prepare()
            self.folder.discard()
            log.warning("%s has no checkpoint; starting from the beginning", path)
            self._describe(*prepared)
            return prepared
        train, examiner = self._open_images()
        refuse_other_exam(self.folder, examiner)
        self._described = {**store.read_json(self.folder.recipe), **self._description()}
        self._pin()
        if changed := [key for key, digest in found.meta.pinned.items() if self._pinned.get(key) != digest]:
            raise UserError(f"recipe.json in {path} was changed since ({', '.join(changed)}); restore it")
        with reading(found.path, "remove it to resume from the one before"):
            self.findings = Findings.from_json(found.meta)
            state = LearnerState.from_tensors(found.tensors, found.meta.learner, lookup=images_by_origin(train))
        learner = self.plan.restored_learner(state, self.executor)
        self.folder.journal.rewind(found.meta.journal)
        record_resume(self.folder.machine, learner.backend, versions_of(self.plan.settings))
        return learner, train, examiner

    # The loop ---------------------------------------------------------------------------------------------------

    def _run_phases(self, learner: Learner, train: ImageSet, examiner: Examiner) -> Running:
        self._mark, work = time.monotonic(), self.plan.work(train)
        for observer in self._watching:
            observer.begin(work)
        last = len(self.plan.stream.groups)
        for phase in range(len(self.findings.exams), last if self.until is None else self.until):
            yield from self._learn(learner, phase, train, examiner)
            self._end_phase(learner, phase, examiner)
            if phase + 1 < last and self.stop.agree(self.world):
                self._leave()
        if self.until is None:
            self._finish(learner)

    def _reward(self, learner: Learner, examiner: Examiner) -> Reward | None:
        """The reward that a study asks for in place of the local one; an honest run has none."""
        return None

    def _learn(self, learner: Learner, phase: int, train: ImageSet, examiner: Examiner) -> Generator[int, None, None]:
        clock, reward = CheckpointClock(self.checkpoint_seconds), self._reward(learner, examiner)
        groups, coming = self.plan.stream.groups, None
        if self.plan.settings.memory.knows_increment:  # the last phase counts itself
            coming = len(train.of_labels(groups[min(phase + 1, len(groups) - 1)]))
        arrived = train.of_labels(groups[phase])
        if learner.phases_ > phase:  # it was left between the phase and its exam
            return
        events = learner.fitting(arrived, next_images=coming, reward=reward)
        if isinstance(self.executor, WaitingExecutor):  # a stop is heard, too, while other machines are waited for
            self.executor.meanwhile = lambda: self._leave_if_asked(learner)
        while True:
            began = time.monotonic()
            event = next(events, None)
            about_trials = isinstance(event, TrialDone | TuningDone)
            if isinstance(event, Progress):
                about_trials = event.what not in ("training", "augmentation")
            self.findings.seconds["policy" if about_trials else "train"] += time.monotonic() - began
            if event is None:
                break
            for observer in self._watching:
                observer.event(event)
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
        self.findings.add(exam, learner)
        for observer in self._watching:
            observer.exam(exam)
        if phase == 0:
            tensors, meta = learner.state().tensors(images=False)
            phase_0 = {"learner": meta, "identity": self.plan.identity()}
            store.write_tensors(self.folder.phase_0, tensors, phase_0, kind="phase 0")
            self._count_total()
            self.findings.seconds[SECONDS_PHASE_0] = self.findings.seconds["total"]
        self._checkpoint(learner)

    def _checkpoint(self, learner: Learner) -> None:
        tensors, meta = learner.state().tensors(images=False)
        self._count_total()
        journal = self.folder.journal
        written = CheckpointMeta(
            learner=meta,
            **self.findings.as_json(),
            journal=journal.position(),
            journal_digest=journal.digest(),
            pinned=self._pinned,
        )
        self.folder.write_checkpoint(tensors, written)

    def _count_total(self) -> None:
        mark, self._mark = self._mark, time.monotonic()
        self.findings.seconds["total"] += self._mark - mark

    def _leave_if_asked(self, learner: Learner) -> None:
        """Stop after a checkpoint, if a signal asks for it: all ranks after the same event, whichever heard it."""
        if self.stop.agree(self.world):
            self._checkpoint(learner)
            self._leave()

    def _leave(self) -> NoReturn:
        alone = f"continue with '{command_for(self.plan.settings)} resume {self.folder.path}'"
        how = "the same command goes on" if self.world.joined else alone
        raise self.stop.as_exit(f"interrupted; {how}")

    def _finish(self, learner: Learner) -> None:
        named = learner.state().renamed(self.plan.source.class_names)  # what a prediction should say
        save_state(named, self.folder.model, memory=False)
        record_end(self.folder.machine)
        self._count_total()
        self.result = self._result()
        store.write_json(self.folder.result, self.result, digest=True)  # last: with it the run is finished
        for observer in self._watching:
            observer.end(self.result)

    def _result(self) -> dict[str, Any]:
        return self.findings.result(self.plan, self._described, self.world)
