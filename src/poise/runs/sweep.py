"""A sweep: the cells of one file, several of them side by side on one device.

Each cell is an ordinary run folder. Runs take turns in one thread; on a GPU each has a stream of its own, so that
the device works on several at once while none of them changes a number of another. A run that finds no memory beside
the others waits until there is more of it. A cell that starts from the phase 0 of another begins once that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from poise import store
from poise.errors import Interrupted, OutOfMemory, PoiseError, RunFailed, UserError, kind_and_line
from poise.progress import SweepDisplay
from poise.runs.dryrun import refuse_early
from poise.runs.folder import RunFolder, refuse_file
from poise.runs.observers import CellObserver
from poise.runs.plan import refuse_start_of
from poise.runs.record import load_result
from poise.runs.run import Run, Running, complete
from poise.runs.stopping import Stop, stopping
from poise.runs.sweep_file import Cell
from poise.training import Executor, Lane, Lanes, LocalExecutor, Work, make_backend
from poise.words import counted

log = logging.getLogger(__name__)

Failure = RunFailed | UserError


@dataclass(frozen=True)
class CellBench:
    """Runs cells, each in a folder of its own in `out`: finished ones are not run again, stopped ones are resumed.

    `awaited` has, by its name, the cell from whose phase 0 a cell starts. Sent elsewhere a bench is quiet, and nobody
    there asks it to stop.
    """

    out: Path
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS
    view: SweepDisplay | None = None
    stop: Stop = field(default_factory=Stop)
    awaited: Mapping[str, Cell] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def __reduce__(self) -> tuple[type[CellBench], tuple[Path, float]]:
        return CellBench, (self.out, self.checkpoint_seconds)

    def ready(self, cell: Cell) -> bool:
        """Whether the phase 0 that a cell starts from is there, or will never be."""
        other = self.awaited.get(cell.name)
        return other is None or other.name in self._ended or self.folder(other).phase_0.exists()

    def work(self, cell: Cell, lane: Lane) -> Work[Failure | None]:
        """One run, from where it stands; its error, if it fails. One that does not fit beside others is tried again."""
        try:
            yield from self._run(cell)
            self.say(f"{cell.name}: finished", ended=cell.name)
        except (OutOfMemory, torch.cuda.OutOfMemoryError):
            raise
        except Interrupted:
            self.say(f"{cell.name}: stopped after a checkpoint")
        except Exception as error:  # of torch, of a method of the user's own: it is this cell's
            return self.failed(cell, error)
        return None

    def waits(self, cell: Cell) -> None:
        """Say which run waits."""
        self.say(f"{cell.name}: out of GPU memory beside others; it is resumed later")

    def failed(self, cell: Cell, error: Exception) -> Failure:
        """The error without its past, which would keep the failed run and all its memory alive.

        One that poise did not raise itself becomes one line, which says how to see all of it.
        """
        if not isinstance(error, RunFailed | UserError):
            log.debug("%s failed", cell.name, exc_info=error)
            again = f"'poise resume {self.out / cell.name}' shows where"
            error = RunFailed(f"{kind_and_line(error, 300)} ({again})")
        self.say(f"{cell.name}: {error}", ended=cell.name)
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)

    def folder(self, cell: Cell) -> RunFolder:
        """The run folder of a cell."""
        return RunFolder(self.out / cell.name)

    def _run(self, cell: Cell) -> Running:
        folder = self.folder(cell)
        observers = (CellObserver(cell.name, self.view),) if self.view is not None else ()
        run = Run(cell.plan, folder, observers, self.checkpoint_seconds, self.stop)
        if not folder.exists:
            return (yield from run.starting())
        run.refuse_other()
        if folder.finished:
            complete(folder)
            return load_result(folder.path)
        return (yield from run.resuming())

    def say(self, line: str, ended: str | None = None) -> None:
        """Say a line about a cell, and perhaps that it has `ended`."""
        if ended is not None:
            self._ended.add(ended)
        if self.view is not None:
            self.view.say(line)
            if ended is not None:
                self.view.ended(ended)


def sweep_cells(
    cells: Sequence[Cell],
    out: Path,
    lanes: int | None,
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS,
    executor: Executor | None = None,
) -> dict[str, Failure]:
    """Run every cell that is not finished, `lanes` at a time; returns why cells failed, by name.

    Without a number of lanes there is one on a CPU, and on a GPU eight, or as many as fit into its memory. A
    cell that fails stops no other.
    """
    awaited = find_awaited(cells, out)
    stop, view = Stop(), SweepDisplay([cell.name for cell in cells])
    bench = CellBench(out, checkpoint_seconds, view, stop, awaited)
    gpu = next((cell.plan.recipe.device for cell in cells if cell.plan.recipe.device != "cpu"), "cpu")
    executor = executor or LocalExecutor(lanes_on(gpu, lanes), lambda: not stop.is_set(), bench.ready)
    for line in dict.fromkeys(line for cell in cells for line in cell.plan.settings.remarks()):
        view.say(line)
    with stopping(stop), closing(view):
        found = [result for results in executor.run(bench, cells) for result in results]
    if stop.is_set():
        raise stop.interruption("interrupted; the same command continues with the unfinished cells")
    return {cell.name: error for cell, error in zip(cells, found, strict=True) if error is not None}


def refuse_failed(failed: Collection[str], cells: Sequence[Cell]) -> None:
    """Say which cells failed, if any did."""
    if failed:
        raise RunFailed(f"{len(failed)} of {counted(len(cells), 'cell')} failed: {', '.join(failed)}")


def find_awaited(cells: Sequence[Cell], out: Path) -> dict[str, Cell]:
    """By its name, for each cell that has not begun: the one from whose phase 0 it starts, if that is not there yet.

    Cells that wait for each other are refused, and a phase 0 that would not fit, before anything is trained.
    """
    refuse_file(out)
    folders = {str((out / cell.name).resolve()): cell for cell in cells}
    found = dict[str, Cell]()
    for cell in cells:
        start = cell.plan.recipe.start
        if start in folders and not RunFolder(out / cell.name).exists and not RunFolder(start).phase_0.exists():
            found[cell.name] = other = folders[start]
            try:
                if cell.plan.source.is_here and other.plan.source.is_here:
                    refuse_start_of(out / other.name, other.plan, cell.plan)
            except UserError as error:
                raise UserError(f"{cell.name}: {error}") from error
    for name in found:
        seen = [name]
        while seen[-1] in found:
            seen.append(found[seen[-1]].name)
            if seen[-1] in seen[:-1]:
                which = ", ".join(sorted({*seen}))
                raise UserError(f"none of these cells can be the first, each starts from one of them: {which}")
    return found


class SweepOutline(NamedTuple):
    """What a sweep would do, as text, and why some of its cells would be refused, by name."""

    text: str
    refused: dict[str, PoiseError]


def describe_sweep(cells: Sequence[Cell], out: Path, number: int = 0) -> SweepOutline:
    """Each cell, the first of which has this number, with its state. Cells that could not be run are refused."""
    awaited, refused = find_awaited(cells, out), dict[str, PoiseError]()
    lines, left = ["cell  state     folder"], 0
    for place, cell in enumerate(cells, number):
        try:
            state = Run(cell.plan, RunFolder(out / cell.name)).state()
            if state != "finished":
                cell.plan.new_learner()
                refuse_early(cell.plan, cell.plan.images()[0], reads=state == "new" and cell.name not in awaited)
                left += 1
        except PoiseError as error:
            state, refused[cell.name] = "refused", error
        lines.append(f"{place:4d}  {state:8}  {cell.name}")
    lines += ["", f"{left} of {counted(len(cells), 'cell')} to run"]
    return SweepOutline("\n".join(lines), refused)


def lanes_on(device: str, count: int | None) -> Lanes:
    """As many lanes as given on this device; or eight on a GPU, and one elsewhere."""
    try:
        backend = make_backend(device, "fp32", deterministic=False)
    except UserError:  # the cell says so itself
        backend = make_backend("cpu", "fp32", deterministic=False)
    return Lanes(backend, count)
