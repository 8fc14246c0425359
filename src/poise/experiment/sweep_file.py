"""The file of a sweep, and the cells that it describes: runs by a grid, and runs with keys of their own."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from poise.data.sources import open_source
from poise.errors import UserError, check_plain, shown, suggestion
from poise.experiment.plan import Opening, Plan, make_plan
from poise.experiment.recipe import make_recipe, tomllib_loads
from poise.recipes import read_toml, recipe_text
from poise.words import one_line

SWEEP_KEYS: Final = ("recipe", "cell", "set", "grid")
MOST_CELLS: Final = 10_000
NAMED_KEYS: Final = frozenset({"setting", "phases", "policy", "seed"})  # those that a folder's usual name says


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    plan: Plan
    attempt: str | None = None  # the name of this attempt at it, where it was made elsewhere


@dataclass(frozen=True)
class _Row:
    """A recipe with keys of its own, and the name of its folder where it has another than the usual one."""

    recipe: str
    keys: Mapping[str, Any]
    folder: str | None = None


def read_sweep(path: Path) -> list[Cell]:
    """The cells that a sweep file describes: its recipes and `[[cell]]` tables × every combination of its grid."""
    text = read_toml(path, f"sweep file {path} cannot be read; give a TOML file with recipe, [set] and [grid]")
    values = tomllib_loads(text, str(path))
    for key, value in values.items():
        check_plain(key, value)
    for key in values:
        if key not in SWEEP_KEYS:
            raise UserError(f"unknown key '{key}' in {path}; {suggestion(key, SWEEP_KEYS)}")
    for key in ("set", "grid"):
        if not isinstance(values.get(key, {}), dict):
            raise UserError(f"[{key}] in {path} must be a table of keys and values")
    rows = [*_recipes(values, path), *_tables(values, path)]
    grid = {key: _listed(key, choices) for key, choices in values.get("grid", {}).items()}
    _check_count(path, len(rows) * math.prod(map(len, grid.values())))
    opening = functools.cache(lambda data, size: open_source(data, size=size))  # the same data for many cells
    cells = [
        _cell(row, values.get("set", {}), dict(zip(grid, combination, strict=True)), opening)
        for row in rows
        for combination in itertools.product(*grid.values())
    ]
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path} describes a cell twice: {twice}; give one of them another name")
    return cells


def pick_cell(cells: list[Cell], number: int, file: Path) -> Cell:
    """The cell of this number, counted from 0."""
    if not 0 <= number < len(cells):
        raise UserError(f"--cell {number}: {file} describes {len(cells)} cells, 0 to {len(cells) - 1}")
    return cells[number]


def _recipes(values: Mapping[str, Any], path: Path) -> Iterator[_Row]:
    """Those of the key `recipe`, which may be left out where there are `[[cell]]` tables."""
    recipes = values.get("recipe", [] if "cell" in values else None)
    recipes = [recipes] if isinstance(recipes, str) else recipes
    empty = not recipes and "cell" not in values
    if not isinstance(recipes, list) or empty or not all(isinstance(name, str) for name in recipes):
        raise UserError(f'{path} needs recipe = "NAME" or a list of names')
    return (_Row(name, {}) for name in recipes)


def _tables(values: Mapping[str, Any], path: Path) -> Iterator[_Row]:
    tables = values.get("cell", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path}: begin each cell with [[cell]], in double brackets")
    for table in tables:
        recipe, folder = table.get("recipe"), table.get("folder")
        if not isinstance(recipe, str):
            raise UserError(f'{path}: each [[cell]] needs recipe = "NAME"')
        if folder is not None and (not isinstance(folder, str) or not _is_folder_name(folder)):
            raise UserError(f"{path}: folder = {_toml(folder)} must be a name without slashes, for a folder in --out")
        yield _Row(recipe, {key: value for key, value in table.items() if key not in ("recipe", "folder")}, folder)


def _is_folder_name(name: str) -> bool:
    return bool(name.strip()) and name not in (".", "..") and not set(name) & set("/\\") and one_line(name) == name


def _check_count(path: Path, cells: int) -> None:
    if cells > MOST_CELLS:
        raise UserError(f"{path} describes {shown(cells)} cells; name fewer values, {MOST_CELLS} cells at most")


def _cell(row: _Row, fixed: dict[str, Any], chosen: dict[str, Any], opening: Opening) -> Cell:
    words = [f"{key}={_toml(value)}" for key, value in {**_flat(fixed), **_flat(row.keys), **chosen}.items()]
    plan = make_plan(row.recipe, make_recipe(tomllib_loads(recipe_text(row.recipe), row.recipe), words), opening)
    named = NAMED_KEYS if row.folder is None else ()
    extra = [f"{key}={value}" for key, value in chosen.items() if key not in named]
    folder = row.folder or plan.default_folder().name
    return Cell(one_line("-".join([folder, *extra]).replace("/", "-").replace(" ", "")), plan)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
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
