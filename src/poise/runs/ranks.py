"""One run on several ranks: rank 0 has the run folder and the exam; the others train with it and write nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from poise import __version__
from poise.data import ImageSet
from poise.learner import Learner, LearnerState
from poise.runs.examiner import Examiner
from poise.runs.findings import Findings
from poise.runs.folder import Checkpoint
from poise.runs.machine import source_digest
from poise.runs.plan import Plan, images_by_origin
from poise.runs.run import Opened, Run
from poise.runs.stopping import explaining_memory
from poise.training.ranks import World


def open_ranks(world: World, plan: Plan) -> None:
    """Train as this plan says; ranks that would not compute the same (other versions, data, threads) are refused."""
    world.refuse_unlike(
        version_of_poise=__version__,
        source_of_poise=source_digest()[:12],
        version_of_torch=torch.__version__,
        data_set=plan.source.fingerprint,
        number_of_threads=torch.get_num_threads(),
    )


class Follower(Run):
    """The run on another rank than the first: the same trainings after the same events, no folder and no exam."""

    _found: Checkpoint | None = None  # what rank 0 resumes from

    @contextmanager
    def _open_folder(self) -> Iterator[None]:
        with explaining_memory("give the command again, or start again with a smaller batch"):
            yield

    def _open_images(self) -> tuple[ImageSet, Examiner]:
        return self.plan.training_images(), _NoExaminer()

    def _threads(self) -> int:
        threads, self._found = self.world.broadcast(_nothing_of_its_own)
        return threads

    def _restore(self) -> Opened:
        if self._found is None:
            return self._prepare()
        train, examiner = self._open_images()
        meta = self._found.meta
        state = LearnerState.from_tensors(self._found.tensors, meta.learner, lookup=images_by_origin(train))
        self.findings = Findings.from_json(meta)
        return self.plan.restored_learner(state), train, examiner

    def _end_phase(self, learner: Learner, phase: int, examiner: Examiner) -> None:
        """Rank 0 does."""

    def _checkpoint(self, learner: Learner) -> None:
        """Rank 0 does."""

    def _finish(self, learner: Learner) -> None:
        """Rank 0 does."""


class _NoExaminer(Examiner):
    """Has no images: a follower never opens those of the exam."""

    def __init__(self) -> None:
        """Open nothing."""


def _nothing_of_its_own() -> tuple[int, Checkpoint | None]:
    raise AssertionError("only rank 0 reads the folder")
