"""What runs on a worker: it keeps its device, captured steps and opened data, and answers one call after the other.

It is sent words and plain values, so that nothing of the driver's process is needed here, and imports no Ray.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from poise.data import ImageSet
from poise.data.sources import Source, open_source
from poise.errors import PoiseError, RunFailed, kind_and_line
from poise.ray.letters import Letter, open_letter
from poise.runs.observers import Standing
from poise.runs.plan import plan_of_words
from poise.runs.provenance import SAID_BY_SOURCE, versions
from poise.runs.stopping import Stop
from poise.runs.sweep import CellBench, Failure, lanes_on
from poise.runs.sweep_file import Cell
from poise.training import Crew
from poise.tuning import Attempt, TrialResult, Trials

TURN_SECONDS = 1.0  # of work between two answers about cells


class OpenedSource(Source):
    """A data set whose images are read once for all cells and trials of this worker."""

    def __init__(self, source: Source) -> None:
        self._source = source
        for name in ("name", "class_names", "preprocessing", "augmentation", "net", "notes"):
            setattr(self, name, getattr(source, name))

    @cached_property
    def fingerprint(self) -> str:
        """Of the source."""
        return self._source.fingerprint

    @cached_property
    def _train(self) -> ImageSet:
        return self._source.train()

    @cached_property
    def _test(self) -> ImageSet:
        return self._source.test()

    def train(self) -> ImageSet:
        """The training images."""
        return self._train

    def test(self) -> ImageSet:
        """The test images."""
        return self._test

    def outline(self) -> tuple[list[int], tuple[int, int, int]]:
        """How many training images each class has, and their shape."""
        return self._source.outline()


Warned = tuple[str, int, str]  # the name of a logger, a level, and what was said


class Notes(logging.Handler):
    """What is to be said to the driver: lines, warnings of whomever, and how far each cell has come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._warnings: list[Warned] = []
        self.standings: dict[str, Standing] = {}
        self.over: list[str] = []

    def say(self, line: str) -> None:
        """A line of its own."""
        self.lines.append(line)

    def note(self, name: str, standing: Standing) -> None:
        """A cell has come so far."""
        self.standings[name] = standing

    def ended(self, name: str) -> None:
        """A cell is finished or has failed."""
        self.standings.pop(name, None)
        self.over.append(name)

    def emit(self, record: logging.LogRecord) -> None:
        """A warning; what Ray says on a worker is about its own affairs."""
        if record.name.partition(".")[0] != "ray":
            self._warnings.append((record.name, record.levelno, record.getMessage()))

    def warnings(self) -> dict[str, list[Warned]]:
        """The warnings, once: a part of every answer."""
        found, self._warnings = self._warnings, []
        return {"warnings": found}

    def take(self) -> dict[str, Any]:
        """All of it, once."""
        found = {"lines": self.lines, "standings": dict(self.standings), "ended": self.over, **self.warnings()}
        self.lines, self.over = [], []
        return found


class Host:
    """A worker. Every call sets the number of threads first: sums are split among them, so bytes depend on it."""

    def __init__(self) -> None:
        self._threads = self._present_threads = 1
        self._sources: dict[tuple[str, int | None], Source] = {}
        self._notes, self._stop = Notes(), Stop()
        logging.getLogger().addHandler(self._notes)
        self._bench: CellBench | None = None
        self._crew: Crew[Failure | None] | None = None
        self._names: dict[int, str] = {}
        self._left: float | None = None
        self._trials: dict[int, Trials] = {}

    def ping(self) -> int:
        """A sign of life."""
        return os.getpid()

    def introduce(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """The first call: what this worker is, and what keeps it from working for that driver."""
        sys.argv = ["poise", *hello["command"]]  # as `machine.json` will have it
        if hello["on_gpu"] is False:  # Ray lets a worker without a GPU see all of them
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if hello.get("poise_data"):
            os.environ.setdefault("POISE_DATA", hello["poise_data"])
        self._threads = self._present_threads = int(hello["threads"])
        torch.set_num_threads(self._threads)
        problem = _other_versions(hello["versions"]) or _unseen_folder(hello["out"]) or self._other_data(hello["data"])
        if hello["out"] is not None:
            self._bench = CellBench(
                Path(hello["out"]["folder"]), hello["checkpoint_seconds"], self._notes, self._stop, True, True
            )
            device = "cuda" if hello["on_gpu"] and torch.cuda.is_available() else "cpu"
            self._lanes = lanes_on(device, hello["lanes"])
            self._crew = Crew(self._lanes, too_large=self._too_large, waits=self._waits)
        return {
            "process": os.getpid(),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "problem": problem,
            "opens": bool(hello["may_open"]) and problem is None and self._other_data(hello["may_open"]) is None,
            **self._notes.warnings(),
        }

    # Cells ----------------------------------------------------------------------------------------------------------

    def turn(self, orders: Sequence[Mapping[str, Any]], more: int, stop: int | None) -> dict[str, Any]:
        """Work on cells for a moment, on these as well from now on; `more` wait for room, `stop` is a signal's number.

        Says which have ended with what, how far the others have come, and for how many more there is room.
        """
        torch.set_num_threads(self._present_threads)  # a cell that is resumed has those that it was started with
        assert self._crew is not None
        ended: dict[str, Failure | None] = {}
        for words in orders:
            if (failure := self._begin(words)) is not None:
                ended[words["cell"]] = failure
        if stop is not None and not self._stop.is_set():
            self._stop.signal = stop
            self._stop.set()
        now = time.monotonic()
        if self._left is not None:
            self._lanes.pace.leave_out(now - self._left)
        while self._crew.busy and time.monotonic() - now < TURN_SECONDS and not self._crew.results:
            self._crew.take_turns(more=more)
        for place in list(self._crew.results):
            ended[self._names.pop(place)] = self._crew.results.pop(place)
        self._left, self._present_threads = time.monotonic(), torch.get_num_threads()
        return {"done": ended, "room": self._crew.room, **self._notes.take()}

    def _begin(self, words: Mapping[str, Any]) -> Failure | None:
        assert self._bench is not None
        assert self._crew is not None
        name = str(words["cell"])
        try:
            cell = Cell(name, plan_of_words(words, self._open), words["attempt"])
        except Exception as error:
            return self._bench.failed(Cell(name, None), error)  # type: ignore[arg-type]
        self._names[self._crew.join(partial(self._bench.work, cell))] = name
        return None

    def _too_large(self, place: int, error: Exception) -> Failure:
        assert self._bench is not None
        return self._bench.failed(Cell(self._names[place], None), error)  # type: ignore[arg-type]

    def _waits(self, place: int) -> None:
        assert self._bench is not None
        self._bench.waits(Cell(self._names[place], None))  # type: ignore[arg-type]

    # Trials ---------------------------------------------------------------------------------------------------------

    def open_bench(self, key: int, letter: Letter, keep: Sequence[int]) -> dict[str, Any]:
        """Take over what the trials of a phase start from, and forget all but those to keep; says what is wrong."""
        return {"problem": self._take_over(key, letter, keep), **self._notes.warnings()}

    def _take_over(self, key: int, letter: Letter, keep: Sequence[int]) -> str | None:
        torch.set_num_threads(self._threads)
        self._trials = {known: trials for known, trials in self._trials.items() if known in keep}
        try:
            self._trials[key] = open_letter(letter, self._open)
        except PoiseError as error:
            return str(error)
        except Exception as error:  # a module or a class of the user's that is not there, memory that does not suffice
            return f"what trials start from cannot be opened: {kind_and_line(error, 300)}"
        return None

    def try_all(self, key: int, attempts: Sequence[Attempt]) -> dict[str, Any]:
        """Run attempts of a phase side by side; their results in this order, or why one failed."""
        return {"results": self._try_all(key, attempts), **self._notes.warnings()}

    def _try_all(self, key: int, attempts: Sequence[Attempt]) -> list[TrialResult] | PoiseError:
        torch.set_num_threads(self._threads)
        try:
            return list(self._trials[key].run_all(attempts))
        except PoiseError as error:
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        except Exception as error:
            return RunFailed(f"a trial failed: {kind_and_line(error, 300)}")

    # Data -----------------------------------------------------------------------------------------------------------

    def _open(self, data: str, size: int | None) -> Source:
        if (data, size) not in self._sources:
            self._sources[data, size] = OpenedSource(open_source(data, size=size))
        return self._sources[data, size]

    def _other_data(self, wanted: Sequence[tuple[str, int | None, str]]) -> str | None:
        for data, size, fingerprint in wanted:
            try:
                found = self._open(data, size).fingerprint
            except PoiseError as error:
                return str(error)
            if found != fingerprint:
                return f"the data '{data}' there are not those here; copy them anew"
        return None


def _unseen_folder(out: Mapping[str, str] | None) -> str | None:
    """What is wrong with the folder of all runs, seen from here."""
    if out is None:
        return None
    folder, name, token = Path(out["folder"]), out["name"], out["token"]
    advice = "give an --out that all nodes see, such as one on a network disk"
    try:
        if (folder / name).read_text() != token:
            return f"{folder} is another folder there; {advice}"
    except OSError:
        return f"{folder} is not seen there; {advice}"
    try:
        answer = folder / f"{name}-{os.getpid()}"
        answer.touch()
        answer.unlink()
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror}); {advice}"
    return None


def _other_versions(wanted: Mapping[str, str | None]) -> str | None:
    found = versions()
    for name, version in wanted.items():
        if name in found and found[name] != version and name not in SAID_BY_SOURCE:
            if name == "poise_source":
                there, here = found["poise_commit"] or found["poise"], wanted["poise_commit"] or wanted["poise"]
                which = f"{there}, here {here}" if there != here else f"{there} as well, with other files"
                return f"another poise is installed there ({which}); install the same"
            return f"{name} {found[name]} is installed there, {version} here; install the same"
    return None
