"""A run folder: what lies where, who may write, and which checkpoint is the newest good one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from poise import store
from poise.errors import Damaged, PoiseError, RunFailed, UserError, is_disk_full, reading, shown
from poise.runs.journal import Journal

log = logging.getLogger(__name__)

# The files of a run folder: `RunFolder` says what is in them.
RECIPE, RESULT, MACHINE, JOURNAL = "recipe.json", "result.json", "machine.json", "journal.jsonl"
PHASE_0, CHECKPOINTS = "phase-0.safetensors", "checkpoints"
#: In a folder of `poise crossval`, in place of the recipe.
CROSSVAL: Final = "crossval.json"
#: The page of a report, and its folder where a run or a sweep ends with one.
PAGE, REPORT = "index.html", "report"

#: In `recipe.json`, what the phase 0 that a run started from is recognised by.
START_FINGERPRINT: Final = "start_fingerprint"
KEPT_CHECKPOINTS: Final = 2


class RunDescription(BaseModel):
    """The contents of `recipe.json`: the resolved recipe, and digests of its data and its start."""

    model_config = ConfigDict(extra="allow")

    name: str
    recipe: dict[str, Any]
    fingerprint: str
    runner: str = "run"
    start_fingerprint: str | None = None
    exam_images: str | None = None


class CheckpointMeta(BaseModel):
    """The description in a checkpoint, beside its tensors."""

    learner: dict[str, Any]
    exams: list[dict[str, Any]]
    actions: list[dict[str, float | str]]
    stored: list[dict[str, int]]
    seconds: dict[str, float]
    journal: int
    journal_digest: str
    pinned: dict[str, str]


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    path: Path
    tensors: dict[str, Tensor]
    meta: CheckpointMeta


def refuse_file(out: Path) -> None:
    """Refuse a place in which no run could have its folder."""
    there = next((path for path in (out, *out.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise UserError(f"{there} is a file; give a folder as --out")


class RunFolder:
    """The files of one run.

    `recipe.json` what is run; `journal.jsonl` what happened; `checkpoints/` the newest two; `phase-0.safetensors`
    the state after the first phase (for `start=`); `model.safetensors` the final model, for predictions;
    `result.json` the result; `machine.json` what belongs to the machine.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.recipe = path / RECIPE
        self.result = path / RESULT
        self.machine = path / MACHINE
        self.phase_0 = path / PHASE_0
        self.model = path / store.FINAL_MODEL
        self.checkpoints = path / CHECKPOINTS
        self.journal = Journal(path / JOURNAL)

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.recipe.exists()

    @property
    def finished(self) -> bool:
        """Whether a run was finished here."""
        return self.result.exists()

    def description(self) -> RunDescription:
        """The run that was started here, from `recipe.json`."""
        todo = "restore it from a copy, or start the run again in another folder"
        with reading(self.recipe, todo):
            return RunDescription(**store.read_json(self.recipe))

    def difference(self, wanted: RunDescription) -> str:
        """How the run that was started here differs from another one; empty if it does not.

        Where the data lie, and the phase 0 that it starts from, is no difference: both have fingerprints.
        """
        saved = self.description()
        if saved.runner != wanted.runner:
            return "without a leak" if wanted.runner == "audit" else "a leak audit"
        if saved.fingerprint != wanted.fingerprint:
            return "of other data"
        there, here = saved.recipe, wanted.recipe
        found = {key: f"{key}={shown(there.get(key))}" for key in here if there.get(key) != here[key] and key != "data"}
        if there.get("start") is not None and here["start"] is not None:
            present = RunFolder(here["start"]).phase_0_fingerprint()
            if present == saved.start_fingerprint or (present is None and there["start"] == here["start"]):
                found.pop("start", None)
            else:
                found["start"] = f"start={there['start']} had another phase 0 than {here['start']} has now"
        return ", ".join(found.values())

    def phase_0_fingerprint(self) -> str | None:
        """The digest of the state after the first phase, wherever it lies; None where it cannot be read."""
        try:
            return store.digest_of_tensors(store.read_tensors(self.phase_0, kind="phase 0")[0])
        except PoiseError:
            return None

    def refuse_leftovers(self) -> None:
        """Refuse a folder with files or folders of other runs, even of parts of them; and what can be no folder."""
        refuse_file(self.path)
        files = (self.recipe, self.result, self.phase_0, self.model, self.journal.path)
        if any(path.exists() for path in files) or any(self.checkpoints.glob("*.safetensors")):
            raise UserError(f"{self.path} holds files of another run; choose another --out")
        if inner := next(iter(sorted(self.path.glob(f"*/{RECIPE}"))), None):  # which reports would not find
            some = f"holds run folders, such as {inner.parent.name}"
            raise UserError(f"{self.path} {some}; choose another --out, perhaps one inside it")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out of this folder, and turn the system's errors about it into one clear line.

        The lock ends with this process.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with store.locked(self.path / "lock", f"runs in {self.path}; wait for it or choose another --out"):
                yield
        except OSError as error:
            again = f"'poise resume {self.path}' (nothing saved is lost)" if self.exists else "give the command again"
            if is_disk_full(error):
                raise RunFailed(f"no space left for {self.path}; free some, then {again}") from error
            place = Path(error.filename or self.path)
            if not (error.errno and (place.is_relative_to(self.path) or self.path.is_relative_to(place))):
                raise  # of another place: the user's own code may open files
            name = f" ({Path(error.filename).name})" if error.filename else ""
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise UserError(f"{self.path} cannot be used: {reason}{name}; fix it, then {again}") from error

    # Checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint_files(self) -> list[Path]:
        """The checkpoints, whatever is in them, the newest one last."""
        found = [path for path in self.checkpoints.glob("[0-9]*.safetensors") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))

    def write_checkpoint(self, tensors: Mapping[str, Tensor], meta: CheckpointMeta) -> None:
        """Write a new checkpoint, then delete all but the newest two."""
        present = self.checkpoint_files()
        number = int(present[-1].stem) + 1 if present else 0
        path = self.checkpoints / f"{number:06d}.safetensors"
        store.write_tensors(path, tensors, meta.model_dump(), kind="checkpoint")
        for old in present[: len(present) + 1 - KEPT_CHECKPOINTS]:
            old.unlink()

    def newest_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that can be read and fits the journal; None if none was written yet.

        Those that cannot be used are named and left out. Where none can, that is refused: days of work must not be done
        again unasked.
        """
        unusable = dict[Path, Damaged]()
        for path in reversed(self.checkpoint_files()):
            try:
                tensors, values = store.read_tensors(path, kind="checkpoint")
                with reading(path):
                    meta = CheckpointMeta(**values)
                self.journal.check(meta.journal, meta.journal_digest)
            except Damaged as error:
                unusable[path] = error
                continue
            for newer, fault in unusable.items():
                log.warning("%s; resuming from the one before", fault)
                newer.unlink()
            return Checkpoint(path, tensors, meta)
        if not unusable:
            return None
        names, first = ", ".join(path.name for path in unusable), next(iter(unusable.values()))
        raise Damaged(
            f"no checkpoint in {self.checkpoints} is intact ({names}): {first}; restore one from a copy, or start from "
            f"the beginning with 'poise resume {self.path} --restart'"
        )

    def forget(self) -> None:
        """Remove what was written of a run that was refused at its first step; what else lies there stays."""
        for path in (self.recipe, self.machine, self.journal.path, self.path / "lock"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # there is something else in it
            self.checkpoints.rmdir()
            self.path.rmdir()

    def discard(self) -> None:
        """Remove all checkpoints, and empty the journal: the run starts from the beginning."""
        for path in self.checkpoint_files():
            path.unlink()
        self.journal.rewind(0)
