"""A sweep: the cells of one file, several of them side by side on one device.

Each cell is an ordinary run folder. Runs take turns in one thread; on a GPU each has a stream of its own, so that
the device works on several at once while none of them changes a number of another. A run that finds no memory beside
the others waits until there is more of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from poise import store
from poise.errors import Interrupted, OutOfMemory, RunFailed, UserError, kind_and_line
from poise.progress import SweepDisplay
from poise.report import load_result
from poise.runs.folder import RunFolder
from poise.runs.observers import CellObserver, CellView
from poise.runs.run import Run, Running, complete
from poise.runs.stopping import Stop, stopping
from poise.runs.sweep_file import Cell
from poise.runs.sweep_order import rounds
from poise.training import Executor, Lane, Lanes, LocalExecutor, Work, make_backend
from poise.words import counted

log = logging.getLogger(__name__)

Failure = RunFailed | UserError


@dataclass(frozen=True)
class CellBench:
    """Runs cells, each in a folder of its own in `out`: finished ones are not run again, stopped ones are resumed.

    Sent elsewhere it is quiet, and nobody there asks it to stop.
    """

    out: Path
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS
    view: CellView | None = None
    stop: Stop = field(default_factory=Stop)

    def __reduce__(self) -> tuple[type[CellBench], tuple[Path, float]]:
        return CellBench, (self.out, self.checkpoint_seconds)

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
        folder, plan = self.folder(cell), cell.plan
        observers = (CellObserver(cell.name, self.view),) if self.view is not None else ()
        run = Run(plan, folder, observers, self.checkpoint_seconds, self.stop)
        if not folder.exists:
            return (yield from run.starting())
        run.refuse_other()
        if folder.finished:
            complete(folder)
            return load_result(folder.path)
        return (yield from run.resuming())

    def say(self, line: str, ended: str | None = None) -> None:
        """Say a line about a cell, and perhaps that it has `ended`."""
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
    cell that fails stops no other. One that starts from another's phase 0 is run after those that do not.
    """
    parts, errors = rounds(cells, out), dict[str, Failure]()
    stop, view = Stop(), SweepDisplay([cell.name for cell in cells])
    executor = executor or LocalExecutor(cell_lanes(lanes, cells), admits=lambda: not stop.is_set())
    bench = CellBench(out, checkpoint_seconds, view, stop)
    for line in dict.fromkeys(line for cell in cells for line in cell.plan.settings.remarks()):
        view.say(line)
    with stopping(stop), closing(view):
        for part in parts:
            found = [result for results in executor.run(bench, part) for result in results]
            if stop.is_set():
                break
            errors |= {cell.name: error for cell, error in zip(part, found, strict=True) if error is not None}
    if stop.is_set():
        raise stop.interruption("interrupted; the same command continues with the unfinished cells")
    return errors


def refuse_failed(failed: Collection[str], cells: Sequence[Cell]) -> None:
    """Say which cells failed, if any did."""
    if failed:
        raise RunFailed(f"{len(failed)} of {counted(len(cells), 'cell')} failed: {', '.join(failed)}")


def cell_lanes(count: int | None, cells: Sequence[Cell]) -> Lanes:
    """As many lanes as given; or eight on a GPU, and one elsewhere."""
    gpus = [cell.plan.recipe.device for cell in cells if cell.plan.recipe.device != "cpu"]
    device = gpus[0] if gpus and torch.cuda.is_available() else "cpu"
    return lanes_on(device, count)


def lanes_on(device: str, count: int | None) -> Lanes:
    """Lanes for runs on this device."""
    try:
        backend = make_backend(device, "fp32", deterministic=False)
    except UserError:  # the cell says so itself
        backend = make_backend("cpu", "fp32", deterministic=False)
    return Lanes(backend, count)
