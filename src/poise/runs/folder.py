"""A run folder: what lies where, who may write, and which checkpoint is the newest good one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from poise import locks, runfolder, store
from poise.errors import Damaged, Malformed, PoiseError, RunFailed, UserError, is_disk_full, shown
from poise.journal import Journal
from poise.runfolder import START_FINGERPRINT, without_empty_keys
from poise.runs.contents import check_checkpoint
from poise.schema import anything, contents_of, fitting_together, keyed, mapped, maybe, text

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2
LONGEST_PATH = 1000  # letters of one in a line


class NoneIntact(Damaged):
    """No checkpoint of a run can be resumed from."""


class Checkpoint(NamedTuple):
    """A checkpoint as it was read."""

    path: Path
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def refuse_file(out: Path) -> None:
    """Refuse a place in which no run could have its folder."""
    there = next((path for path in (out, *out.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise UserError(f"{there} is a file; give a folder as --out")


@contextmanager
def needed_to_resume() -> Iterator[None]:
    """Say what to do about a damaged file without which a run cannot be resumed."""
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{error}; restore it from a copy, or start the run again in another folder") from error


class RunFolder:
    """The files of one run.

    `recipe.json` what is run; `journal.jsonl` what happened; `checkpoints/` the newest two; `phase-0.safetensors`
    the state after the first phase (for `start=`); `model.safetensors` the final model, for predictions;
    `result.json` the result; `machine.json` what belongs to the machine.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.recipe = path / runfolder.RECIPE
        self.result = path / runfolder.RESULT
        self.machine = path / runfolder.MACHINE
        self.phase_0 = path / runfolder.PHASE_0
        self.model = path / store.FINAL_MODEL
        self.checkpoints = path / runfolder.CHECKPOINTS
        self.journal = Journal(path / runfolder.JOURNAL)

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.recipe.exists()

    @property
    def finished(self) -> bool:
        """Whether a run was finished here."""
        return self.result.exists()

    @property
    def has_phase_0(self) -> bool:
        """Whether a run can start from here; a path that cannot be one is refused."""
        try:
            return self.phase_0.exists()
        except OSError as error:
            raise UserError(
                f"start={self.path} cannot be looked into ({os.strerror(error.errno or 0)}); "
                "give the folder of a run that finished phase 0"
            ) from error

    def difference(self, wanted: Mapping[str, Any]) -> str:
        """How the run that was started here differs from another one; empty if it does not."""
        saved = store.read_json(self.recipe)
        with contents_of(self.recipe, "restore it from a copy, or choose another --out"):
            known = {"recipe": mapped(anything), "fingerprint": text}
            keyed(known, {START_FINGERPRINT: maybe(text)})(saved, "")
            with fitting_together():
                there = dict(saved["recipe"])
        if saved.get("runner") != wanted.get("runner"):
            return "a leak audit" if saved.get("runner") else "without a leak"
        if saved["fingerprint"] != wanted["fingerprint"]:
            return "of other data"
        here = wanted["recipe"]
        if _are_full_paths(there.get("data"), here["data"]):
            there["data"] = here["data"]  # the same data elsewhere
        other = [key for key in here if without_empty_keys(there.get(key)) != without_empty_keys(here[key])]
        found = {key: _value_words(key, there.get(key)) for key in other}
        if there.get("start") is not None and here["start"] is not None:
            begun, fingerprint = _value_words("start", there["start"]), saved.get(START_FINGERPRINT)
            explain = self._explain_moved_start if "start" in found else self._explain_same_start
            found["start"] = explain(begun, here["start"], fingerprint)
        return ", ".join(words for words in found.values() if words)

    @staticmethod
    def _explain_same_start(begun: str, wanted: str, known: str | None) -> str:
        """How the phase 0 that this run began with differs from what lies there now; empty if that cannot be told."""
        with suppress(PoiseError):  # it is damaged, and is not needed any more
            present = RunFolder(Path(wanted)).phase_0_fingerprint()
            if present is not None and known is not None and present != known:
                return f"{begun}, where another phase 0 lies now"
        return ""

    def _explain_moved_start(self, begun: str, wanted: str, known: str | None) -> str:
        """How the phase 0 that this run began with differs from that of another folder; empty if it does not.

        What is `known` of it is its fingerprint. An older poise did not write it down; there the run's own copy counts.
        """
        present = RunFolder(Path(wanted)).phase_0_fingerprint()
        if present is None:
            return f"{begun}; {wanted} has no {runfolder.PHASE_0} to compare with, 'poise resume' needs none"
        mine = known if known is not None else self.phase_0_fingerprint()
        if mine is None:
            return f"{begun}, of which nothing is left to compare {wanted} with; 'poise resume' needs none"
        return "" if mine == present else f"{begun}, another phase 0 than that of {wanted}"

    def phase_0_fingerprint(self) -> str | None:
        """What the state after the first phase is recognised by, wherever it lies; None if it is not here."""
        if not self.has_phase_0:
            return None
        return store.digest_of_tensors(store.read_tensors(self.phase_0, kind="phase 0")[0])

    def refuse_other(self, wanted: Mapping[str, Any]) -> None:
        """Refuse a folder in which another run was started."""
        if difference := self.difference(wanted):
            raise UserError(f"{self.path} holds another run ({difference}); choose another --out")

    def refuse_leftovers(self) -> None:
        """Refuse a folder with files or folders of other runs, even of parts of them; and what can be no folder."""
        refuse_file(self.path)
        written = any(path.exists() for path in (self.recipe, self.result, self.phase_0, self.model))
        if written or self.checkpoint_files() or self.journal.position():
            raise UserError(f"{self.path} holds files of another run; choose another --out")
        if inner := next(iter(sorted(self.path.glob(f"*/{runfolder.RECIPE}"))), None):  # which reports would not find
            name = inner.parent.name
            raise UserError(
                f"{self.path} holds run folders, such as {name}; choose another --out, perhaps one inside it"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out of this folder; the lock ends with this process."""
        with ExitStack() as stack:
            with self.writing():
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                busy = f"runs in {self.path}; wait for it or choose another --out"
                stack.enter_context(locks.locked(self.path / "lock", busy))
            yield

    def write_json(self, path: Path, value: Mapping[str, Any], *, digest: bool = False) -> None:
        """Write a document of this folder."""
        store.write_json(path, value, digest=digest)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn the operating system's errors about this folder into one clear line."""
        try:
            yield
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            if is_disk_full(error):
                resume = f"'poise resume {self.path}' (nothing saved is lost)"
                again = resume if self.exists else "give the same command again"
                raise RunFailed(f"no space left for {self.path}; free some, then {again}") from error
            name = f" ({Path(error.filename).name})" if error.filename else ""
            raise UserError(f"{self.path} cannot be used: {reason}{name}; {self._advise(error)}") from error

    def _advise(self, error: OSError) -> str:
        """What can be done about an error of the operating system's."""
        if not self.exists:
            return "fix it or choose another --out"
        if not isinstance(error, FileNotFoundError):
            return f"fix it, then 'poise resume {self.path}'"
        return f"restore it from a copy{'' if self.finished else ', or start the run again in another folder'}"

    def write_checkpoint(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a new checkpoint, then delete all but the newest two."""
        present = self.checkpoint_files()
        number = int(present[-1].stem) + 1 if present else 0
        store.write_tensors(self.checkpoints / f"{number:06d}.safetensors", tensors, meta, kind="checkpoint")
        for old in present[: len(present) + 1 - KEPT_CHECKPOINTS]:
            old.unlink(missing_ok=False)

    def last_checkpoint(self) -> int:
        """The number of the newest checkpoint, whatever is in it; -1 if there is none."""
        present = self.checkpoint_files()
        return int(present[-1].stem) if present else -1

    def newest_checkpoint(self, *, journal: bool = False) -> Checkpoint | None:
        """The newest intact checkpoint; damaged ones are reported and skipped, and removed if one is intact.

        With `journal` also those are skipped that were written when the journal was another one up to there; if none is
        left, this is refused.
        """
        refused: Damaged | None = None
        damaged = dict[Path, Damaged]()
        for path in reversed(self.checkpoint_files()):
            try:
                found = Checkpoint(path, *store.read_tensors(path, kind="checkpoint"))
            except Damaged as error:
                damaged[path] = error
                continue
            try:
                check_checkpoint(found.meta)
                if journal:
                    self.journal.check(found.meta["journal"], found.meta["journal_digest"])
            except Malformed as error:
                raise Damaged(f"{path} {error}; remove it to resume from the one before") from error
            except Damaged as error:
                refused = refused or error
                continue
            if refused is not None:
                log.warning("%s; resuming from the one before", refused)
            for newer, fault in damaged.items():
                log.warning("%s; falling back to the one before", fault)
                newer.unlink()
            return found
        if refused is not None:
            raise NoneIntact(f"{refused}; restore it from a copy")
        if journal and damaged:  # days of work must not be done again unasked
            names = ", ".join(path.name for path in reversed(damaged))
            raise NoneIntact(
                f"all checkpoints in {self.checkpoints} are damaged ({names}), and what was trained is lost with them; "
                "restore one from a copy"
            )
        return None

    def checkpoint_to_resume(self, *, restarts: bool, whole: bool) -> Checkpoint | None:
        """The newest intact one; None if none was written yet, or if none is intact and the run restarts.

        If it does not, that is refused. `whole`: it is a run that the user resumes, not the beginning of a study.
        """
        try:
            found = self.newest_checkpoint(journal=True)
        except NoneIntact as error:
            if restarts:
                return None
            again = f"start from the beginning with 'poise resume {self.path} --restart'"
            again = again if whole else f"remove {self.path} to train it again"
            raise Damaged(f"{error}, or {again}") from error
        if found is not None and restarts:
            log.warning("%s is intact: resuming from it; remove the folder to start from the beginning", found.path)
        return found

    def discard(self) -> None:
        """Remove all checkpoints, and empty the journal: the run starts from the beginning."""
        for path in self.checkpoint_files():
            path.unlink()
        self.journal.rewind(0)

    def checkpoint_files(self) -> list[Path]:
        """The checkpoints, whatever is in them, the newest one last."""
        found = [path for path in self.checkpoints.glob("[0-9]*.safetensors") if path.stem.isdecimal()]
        return sorted(found, key=lambda path: int(path.stem))


def _are_full_paths(*words: object) -> bool:
    """Whether all of these are paths that need no folder to begin in."""
    return all(isinstance(word, str) and Path(word).is_absolute() for word in words)


def _value_words(key: str, value: object) -> str:
    """A key with its value, for a line; where it is a path it has to be whole."""
    return f"{key}={shown(value, LONGEST_PATH) if key in ('data', 'start') else shown(value)}"
