"""A sweep: a grid of runs from one file, several of them side by side on one device.

Each cell is an ordinary run folder. Runs take turns in one thread; on a GPU each has a stream of its own, so that
the device works on several at once while none of them changes a number of another. How many are at work at once is
found by measuring; a run that finds no memory beside the others waits until there is more of it.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from poise import store
from poise.errors import Interrupted, OutOfMemory, RunFailed, UserError, suggestion
from poise.experiment.examiner import Exam
from poise.experiment.folder import RunFolder
from poise.experiment.progress import Lines, Quiet
from poise.experiment.recipe import make_recipe, recipe_text, tomllib_loads
from poise.experiment.run import CHECKPOINT_SECONDS, Going, Plan, Run, make_plan, stopping
from poise.training import Gauge, Pace, give_back, make_backend

log = logging.getLogger(__name__)

KEYS = ("recipe", "set", "grid")
WINDOW = 5.0  # seconds over which runs are measured: now and then they do other things than training


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    plan: Plan


class CellLines(Quiet):
    """One line per exam, with the name of its cell."""

    def __init__(self, name: str, lines: Lines) -> None:
        self._name, self._lines = name, lines

    def exam(self, exam: Exam) -> None:
        """The accuracy after a phase."""
        self._lines.say(f"{self._name}: phase {exam.phase}, accuracy {exam.accuracy():.2f} ({exam.classifier})")


def read_sweep(path: Path) -> list[Cell]:
    """The cells that a sweep file describes: recipes × every combination of the grid's values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"sweep file {path} cannot be read; give a TOML file with recipe, [set] and [grid]") from error
    values = tomllib_loads(text, str(path))
    for key in values:
        if key not in KEYS:
            raise UserError(f"unknown key '{key}' in {path}; {suggestion(key, KEYS)}")
    recipes = values.get("recipe")
    recipes = [recipes] if isinstance(recipes, str) else recipes
    if not isinstance(recipes, list) or not recipes or not all(isinstance(name, str) for name in recipes):
        raise UserError(f'{path} needs recipe = "NAME" or a list of names')
    for key in ("set", "grid"):
        if not isinstance(values.get(key, {}), dict):
            raise UserError(f"[{key}] in {path} must be a table of keys and values")
    grid = {key: _listed(key, choices) for key, choices in values.get("grid", {}).items()}
    cells = [
        _cell(name, values.get("set", {}), dict(zip(grid, combination, strict=True)))
        for name in recipes
        for combination in itertools.product(*grid.values())
    ]
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise UserError(f"{path} describes a cell twice: {next(name for name in names if names.count(name) > 1)}")
    return cells


def sweep_cells(
    cells: Sequence[Cell],
    out: Path,
    lanes: int | None,
    lines: Lines,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> dict[str, RunFailed | UserError]:
    """Run every cell that is not finished, `lanes` at a time; returns why cells failed, by name.

    Without a number of lanes there is one on a CPU, and on a GPU as many as make it faster and fit into its memory. A
    cell that fails stops no other.
    """
    stop, waiting, active = threading.Event(), deque(cells), dict[str, tuple[Cell, Going]]()
    failed: dict[str, RunFailed | UserError] = {}
    pace = _pace(lanes, cells)
    with stopping(stop):
        while waiting or active:
            while waiting and len(active) < pace.allowed and not stop.is_set():
                cell = waiting.popleft()
                active[cell.name] = cell, _going(cell, out / cell.name, lines, stop, checkpoint_seconds)
                pace.begin(cell.name)
            pace.look(len(waiting))
            for name, (cell, going) in list(active.items()):
                short_of_memory = False
                try:
                    pace.did(next(going))
                    continue
                except StopIteration:
                    lines.say(f"{name}: finished")
                except Interrupted:
                    lines.say(f"{name}: stopped after a checkpoint")
                except (RunFailed, UserError) as error:
                    short_of_memory = isinstance(error, OutOfMemory) and len(active) > 1
                    if not short_of_memory:
                        failed[name] = _bare(error)
                        lines.say(f"{name}: {error}")
                del active[name], going
                pace.end(name)
                if short_of_memory:  # outside the handler, which would keep the failed run alive
                    waiting.appendleft(cell)
                    pace.fewer(len(active))
                    give_back()
                    lines.say(f"{name}: out of GPU memory beside others; goes on later, lanes: {pace.allowed}")
            if stop.is_set() and not active:
                raise Interrupted("interrupted; the same command goes on with the unfinished cells")
    return failed


def refuse_failed(failed: Collection[str], cells: Sequence[Cell]) -> None:
    """Say which cells failed, if any did."""
    if failed:
        raise RunFailed(f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)}")


def _bare(error: RunFailed | UserError) -> RunFailed | UserError:
    """The error without its past, which would keep the failed run and all its memory alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _pace(lanes: int | None, cells: Sequence[Cell]) -> Pace:
    """How many cells are at work at once: so many, or what is found by measuring."""
    gpus = [cell.plan.recipe.device for cell in cells if cell.plan.recipe.device != "cpu"]
    if lanes is not None or not gpus or not torch.cuda.is_available():
        return Pace(lanes or 1)
    try:
        device = make_backend(gpus[0], "fp32", deterministic=False).device
    except UserError:  # the cell says so itself
        return Pace(1)
    return Pace(gauge=Gauge.of(device), window=WINDOW)


def _going(cell: Cell, path: Path, lines: Lines, stop: threading.Event, checkpoint_seconds: float) -> Going:
    """The cell's run, from where it stands."""
    folder, plan = RunFolder(path), cell.plan
    watchers = (CellLines(cell.name, lines),)
    if not folder.exists:
        return (yield from Run(plan, folder, watchers, checkpoint_seconds, stop).starting())
    difference = folder.difference(plan.as_json())
    if difference:
        raise UserError(f"{path} holds another run ({difference}); choose another --out")
    if folder.finished:
        return store.read_json(folder.result)
    return (yield from Run(plan, folder, watchers, checkpoint_seconds, stop).resuming())


def _cell(name: str, fixed: dict[str, Any], chosen: dict[str, Any]) -> Cell:
    words = [f"{key}={_toml(value)}" for key, value in {**_flat(fixed), **chosen}.items()]
    plan = make_plan(name, make_recipe(tomllib_loads(recipe_text(name), name), words))
    shown = {"setting", "phases", "policy", "seed"}
    extra = [f"{key}={value}" for key, value in chosen.items() if key not in shown]
    return Cell("-".join([plan.default_folder().name, *extra]).replace("/", "-").replace(" ", ""), plan)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


def _listed(key: str, choices: object) -> list[Any]:
    if not isinstance(choices, list) or not choices:
        raise UserError(f"grid.{key} must be a list of values, such as {key} = [1, 2]")
    return choices
