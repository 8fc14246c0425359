"""A sweep: the cells of one file, several of them side by side on one device.

Each cell is an ordinary run folder. Runs take turns in one thread; on a GPU each has a stream of its own, so that
the device works on several at once while none of them changes a number of another. A run that finds no memory beside
the others waits until there is more of it. A cell that starts from the phase 0 of another begins once that is there.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from poise import store
from poise.data.sources import open_source
from poise.errors import (
    Interrupted,
    OutOfMemory,
    PoiseError,
    RunFailed,
    UserError,
    kind_and_line,
    shown,
    suggestion,
)
from poise.progress import SweepDisplay
from poise.recipes import SWEEP_KEYS, parse_toml, read_recipe, read_toml
from poise.runs.folder import REPORT, RunFolder, refuse_file
from poise.runs.observers import CellObserver
from poise.runs.plan import Opening, Plan, make_plan, refuse_early, refuse_start_of
from poise.runs.recipe import Recipe, contradict, recipe_with, tables_first
from poise.runs.run import Run
from poise.runs.stopping import Stop, stopping
from poise.settings import flat_keys
from poise.training.device import make_backend
from poise.training.lanes import Executor, Lane, Lanes, Work
from poise.words import counted, one_line

log = logging.getLogger(__name__)

MOST_CELLS: Final = 10_000
NAMED_KEYS: Final = frozenset({"setting", "phases", "policy", "seed"})  # those that a folder's usual name says
WANTED: Final = "give a TOML file with recipe or [[cell]] tables, and [set] and [grid] where needed"

Pairs = list[tuple[str, Any]]  # keys with dots, and their values
Failure = RunFailed | UserError


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    plan: Plan


@dataclass(frozen=True)
class CellBench:
    """Runs cells, each in a folder of its own in `out`: finished ones are not run again, stopped ones are resumed.

    `awaited` has, by its name, the cell from whose phase 0 a cell starts.
    """

    out: Path
    checkpoint_seconds: float = store.CHECKPOINT_SECONDS
    view: SweepDisplay | None = None
    stop: Stop = field(default_factory=Stop)
    awaited: Mapping[str, Cell] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def ready(self, cell: Cell) -> bool:
        """Whether the phase 0 that a cell starts from is there, or will never be."""
        other = self.awaited.get(cell.name)
        return other is None or other.name in self._ended or self.folder(other).phase_0.exists()

    def work(self, cell: Cell, lane: Lane) -> Work[Failure | None]:
        """One run, from where it stands; its error, if it fails. One that does not fit beside others is tried again."""
        try:
            observers = (CellObserver(cell.name, self.view),) if self.view is not None else ()
            yield from Run(cell.plan, self.folder(cell), observers, self.checkpoint_seconds, self.stop).continuing()
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
    executor = executor or lanes_on(gpu, lanes, admits=lambda: not stop.is_set(), ready=bench.ready)
    for line in dict.fromkeys(line for cell in cells for line in cell.plan.settings.remarks()):
        view.say(line)
    with stopping(stop), closing(view):
        found = [result for results in executor.run(bench, cells) for result in results]
    if stop.is_set():
        raise stop.as_exit("interrupted; the same command continues with the unfinished cells")
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
    """The plan of a sweep as text, and why some of its cells would be refused, by name."""

    text: str
    refused: dict[str, PoiseError]


def describe_sweep(cells: Sequence[Cell], out: Path, number: int = 0) -> SweepOutline:
    """Each cell, the first of which has this number, with its state. Cells that could not be run are refused."""
    awaited, refused = find_awaited(cells, out), dict[str, PoiseError]()
    read_exam = functools.cache(lambda source: len(source.test()))  # the same for many cells
    lines, left = ["cell  state     folder"], 0
    for place, cell in enumerate(cells, number):
        try:
            state = Run(cell.plan, RunFolder(out / cell.name)).state()
            if state != "finished":
                cell.plan.new_learner()
                if cell.plan.recipe.exam == "test":
                    read_exam(cell.plan.source)
                reads = state == "new" and cell.name not in awaited
                refuse_early(cell.plan, cell.plan.training_images(), reads=reads)
                left += 1
        except PoiseError as error:
            state, refused[cell.name] = "refused", error
        lines.append(f"{place:4d}  {state:8}  {cell.name}")
    lines += ["", f"{left} of {counted(len(cells), 'cell')} to run"]
    return SweepOutline("\n".join(lines), refused)


def lanes_on(device: str, count: int | None, **may_start: Callable[..., bool]) -> Lanes:
    """As many lanes as given on this device; or eight on a GPU, and one elsewhere."""
    try:
        backend = make_backend(device, "fp32", deterministic=False)
    except UserError:  # the cell says so itself
        backend = make_backend("cpu", "fp32", deterministic=False)
    return Lanes(backend, count, **may_start)


# The file of a sweep --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A recipe with keys of its own, and the name of its folder where it has another than the usual one."""

    recipe: str
    keys: Pairs
    place: str  # where it is in the file
    folder: str | None = None


def read_sweep(path: Path, only: int | None = None, *, outlined: bool = False) -> list[Cell]:
    """The cells that a sweep file describes: its recipes and `[[cell]]` tables × every combination of its grid.

    `only` the one with this number, counted from 0, if it is given. `outlined`, for an estimate: the data of ImageNet
    need not be here.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a sweep file; {WANTED}")
    values = parse_toml(read_toml(path, "sweep file", WANTED), str(path), "sweep file")
    for key in values:
        if key not in SWEEP_KEYS:
            raise UserError(_explain_unknown(key, values, path))
    rows = list(_rows(values, path))
    fixed, grid = (list(flat_keys(_table(values, key, path))) for key in ("set", "grid"))
    for key, choices in grid:
        if not isinstance(choices, list) or not choices:
            raise UserError(f"{path}: grid.{key} must be a list of values, such as {key} = [1, 2]")
    count = len(rows) * math.prod(len(choices) for _, choices in grid)
    if count > MOST_CELLS:
        raise UserError(f"{path} describes {shown(count)} cells; name fewer values, {MOST_CELLS} cells at most")
    opening = functools.cache(lambda data, size: open_source(data, size=size, outlined=outlined))  # for many cells
    found = dict[str, Cell]()
    for row, chosen in itertools.product(rows, itertools.product(*(choices for _, choices in grid))):
        cell = _make_cell(row, fixed, list(zip((key for key, _ in grid), chosen, strict=True)), opening)
        if cell.name in found:
            mend = 'list each value of [grid] once, or give [[cell]] tables a folder = "NAME" of their own'
            raise UserError(f"{path} describes a cell twice: {cell.name}; {mend}")
        found[cell.name] = cell
    if only is None:
        return list(found.values())
    if not 0 <= only < len(found):
        raise UserError(f"--cell {only}: {path} describes {counted(len(found), 'cell')}, counted from 0")
    return [list(found.values())[only]]


def _explain_unknown(key: str, values: Mapping[str, Any], path: Path) -> str:
    """Advice for a key at the top of a sweep file that is none of its own."""
    if key not in Recipe.model_fields:
        return f"unknown key '{key}' in {path}; {suggestion(key, SWEEP_KEYS)}"
    if not values.keys() & {*SWEEP_KEYS}:
        return f"{path} is a recipe, not a sweep file; run it with 'poise run {path}'"
    return f"{path}: `{key}` at the top is for no cell; put it under [set], or a list of its values under [grid]"


def _table(values: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise UserError(f"[{key}] in {path} must be a table of keys and values")
    for word, mend in (("recipe", "the top of the file; it may be a list of names"), ("folder", "a [[cell]]")):
        if word in table:
            raise UserError(f"{path}: take `{word}` out of [{key}], to {mend}")
    return table


def _rows(values: Mapping[str, Any], path: Path) -> Iterator[_Row]:
    """The recipes of the key `recipe`, and the `[[cell]]` tables."""
    names, tables = values.get("recipe", []), values.get("cell", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path}: begin each cell with [[cell]], in double brackets")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not (names or tables):
        raise UserError(f'{path} needs recipe = "NAME", a list of such names, or a [[cell]] table for each run')
    for name in names:
        yield _Row(name, [], f"{path}, recipe {shown(name)}")
    for number, table in enumerate(tables):
        place, own = f"{path}, [[cell]] {number} (counted from 0)", dict(table)
        recipe, folder = own.pop("recipe", None), own.pop("folder", None)
        if not isinstance(recipe, str):
            raise UserError(f'{place}: each [[cell]] needs recipe = "NAME"')
        if folder is not None and not _is_name(folder):
            raise UserError(f"{place}: folder {shown(folder)} must be a name without slashes, and not '{REPORT}'")
        yield _Row(recipe, list(flat_keys(own)), place, folder)


def _is_name(folder: object) -> bool:
    """Whether this can be the name of a folder in `--out`."""
    plain = isinstance(folder, str) and folder == one_line(folder.strip()) and not {*folder} & {"/", "\\"}
    return plain and folder not in ("", ".", "..", REPORT)


def _make_cell(row: _Row, fixed: Pairs, chosen: Pairs, opening: Opening) -> Cell:
    try:
        _refuse_set_twice(itertools.product([*fixed, *row.keys], chosen))
        _refuse_set_twice(itertools.permutations(chosen, 2))
        sizes = [pair for pair in chosen if pair[0] == "memory"]  # to which other tables may add keys
        rest = [pair for pair in chosen if pair[0] != "memory"]
        # A cell may change what holds for all.
        pairs = [*sizes, *tables_first(fixed), *tables_first(row.keys), *tables_first(rest)]
        recipe = recipe_with(read_recipe(row.recipe), [(key.split("."), value) for key, value in pairs])
        plan = make_plan(row.recipe, recipe, opening)
    except UserError as error:
        raise UserError(f"{row.place}: {error}") from error
    if row.folder is None:
        extra = [f"{key}={value}" for key, value in chosen if key not in NAMED_KEYS]
        return Cell(_as_name("-".join([plan.default_folder().name, *extra])), plan)
    return Cell(_as_name("-".join([row.folder, *(f"{key}={value}" for key, value in chosen)])), plan)


def _refuse_set_twice(pairs: Iterable[tuple[tuple[str, Any], tuple[str, Any]]]) -> None:
    """Refuse two keys of which one would undo the other."""
    for (own, value), (key, choice) in pairs:
        if own == key or contradict(own, value, key, choice):
            raise UserError(f"`{key}` in [grid] and `{own}` set the same; leave one of them out")


def _as_name(words: str) -> str:
    return one_line(words.replace("/", "-").replace("\\", "-").replace(" ", ""))
