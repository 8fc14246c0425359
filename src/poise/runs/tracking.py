"""A journal's numbers in a tracking service: while a run goes on, or from the journal of one that was made before."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from poise import store
from poise.errors import RunFailed, UserError, first_line
from poise.journal import read_journal
from poise.meter import Done
from poise.runs.examiner import FIGURES, Exam
from poise.runs.folder import RunFolder
from poise.settings import flat_keys
from poise.training import Event

log = logging.getLogger(__name__)

#: Where a run folder says under which id it is known to each service.
TRACKED = "tracking.json"


class Scalar(NamedTuple):
    """One number of a run, and where it belongs: at an epoch, a trial or a phase."""

    name: str
    value: float
    step: int


def scalars(entry: Mapping[str, Any]) -> Iterator[Scalar]:
    """The numbers in an entry of a journal, in the order in which they are told."""
    phase = entry.get("phase", 0)
    match entry.get("event"):
        case "epoch":
            for name, value in {"loss": entry["loss"], "lr": entry["lr"], **entry["terms"]}.items():
                yield Scalar(f"phase-{phase}/{entry['stage']}/{name}", value, entry["epoch"])
        case "trial":
            yield Scalar(f"phase-{phase}/trials/reward", entry["reward"], entry["trial"]["id"])
        case "action":
            for axis, value in entry["action"].items():
                if not isinstance(value, str):
                    yield Scalar(f"action/{axis}", value, phase)
        case "exam":
            exam = Exam.from_json(entry)
            for name, classifier in (("counted", None), ("fc", "fc"), ("ncm", "ncm")):
                yield Scalar(f"accuracy/{name}", exam.accuracy(classifier), phase)


class Tracker(ABC):
    """A watcher that hands the numbers of a run to a service. Nothing is opened before there is one.

    A service that fails does not fail the run: its journal has everything, and `track_folder` writes it later.
    """

    #: The word for it on the command line, and the extra it needs.
    name: ClassVar[str]

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._opened = self._failed = False

    def event(self, event: Event, done: Done) -> None:
        """Hand on what is in the event, if it belongs in the journal."""
        if event.kept:
            self._try(event.as_json())

    def exam(self, exam: Exam) -> None:
        """Hand on the accuracies of a phase."""
        self._try(exam.as_json())

    def record(self, entry: Mapping[str, Any]) -> None:
        """Hand on what is in an entry of the journal."""
        found = list(scalars(entry))
        if found and not self._opened:
            self._open()
        if found:
            self._write(found)

    def close(self) -> None:
        """Write the figures of a finished run, and close."""
        if self._opened and not self._failed:
            try:
                self.finish()
            except Exception as error:
                self._give_up(error)

    def finish(self) -> None:
        """The same, where a failure is to be told."""
        if self.folder.finished:
            result = store.read_json(self.folder.result)
            last = len(result["curve"]) - 1
            self._write([Scalar(f"result/{name}", result[name], last) for name in FIGURES if name in result])
        self._end(finished=self.folder.finished)

    def _open(self) -> None:
        known = read_tracked_ids(self.folder)
        found = self._begin(self.folder.path.absolute().name, _settings(self.folder), known.get(self.name))
        store.write_json(self.folder.path / TRACKED, {**known, self.name: found})
        self._opened = True

    def _try(self, entry: Mapping[str, Any]) -> None:
        if not self._failed:
            try:
                self.record(entry)
            except Exception as error:  # of a service, which may raise anything
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        log.warning("%s does not work (%s); the run goes on without it", self.name, first_line(error))

    # What a service does -------------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, name: str, settings: Mapping[str, Any], known: str | None) -> str:
        """Begin a run of that name, or go on with the one that is known; its id."""

    @abstractmethod
    def _write(self, found: list[Scalar]) -> None:
        """Write the numbers of one entry."""

    @abstractmethod
    def _end(self, *, finished: bool) -> None:
        """Close the run."""


def track_folder(tracker: Tracker) -> int:
    """Write the whole journal of a run folder; how many numbers it has."""
    folder = tracker.folder
    if not folder.exists:
        raise UserError(f"{folder.path} is not a run folder; start one with 'poise run'")
    if (known := read_tracked_ids(folder).get(tracker.name)) is not None:
        raise UserError(f"{folder.path} is in {tracker.name} already, as {known}; see {folder.path / TRACKED}")
    journal = list(read_journal(folder.journal.path))
    count = sum(1 for entry in journal for _ in scalars(entry))
    if not count:
        raise UserError(f"the journal of {folder.path} has no numbers yet; wait until the first epoch is done")
    try:
        for entry in journal:
            tracker.record(entry)
        tracker.finish()
    except Exception as error:
        raise RunFailed(f"{tracker.name} does not work: {first_line(error)}") from error
    return count


def read_tracked_ids(folder: RunFolder) -> dict[str, str]:
    """Under which id a run is known to each service."""
    path: Path = folder.path / TRACKED
    return store.read_json(path) if path.exists() else {}


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The keys of the recipe, nested ones by dots."""
    recipe = store.read_json(folder.recipe)["recipe"]
    return {key: value for key, value in flat_keys(recipe) if value not in (None, {})}
