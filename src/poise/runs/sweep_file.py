"""The file of a sweep, and the cells that it describes: runs by a grid, and runs with keys of their own."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from poise.data.sources import open_source
from poise.errors import UserError, check_plain, shown, suggestion
from poise.recipes import SWEEP_KEYS, parse_toml, read_recipe, read_toml
from poise.runs.folder import REPORT
from poise.runs.plan import Opening, Plan, make_plan
from poise.runs.recipe import Recipe, contradict, recipe_with, tables_first
from poise.settings import flat_keys
from poise.words import counted, one_line

MOST_CELLS: Final = 10_000
NAMED_KEYS: Final = frozenset({"setting", "phases", "policy", "seed"})  # those that a folder's usual name says
WANTED: Final = "give a TOML file with recipe or [[cell]] tables, and [set] and [grid] where needed"

Pairs = list[tuple[str, Any]]  # keys with dots, and their values


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    plan: Plan


@dataclass(frozen=True)
class _Row:
    """A recipe with keys of its own, and the name of its folder where it has another than the usual one."""

    recipe: str
    keys: Pairs
    place: str  # where it is in the file
    folder: str | None = None


def read_sweep(path: Path, *, outlined: bool = False) -> list[Cell]:
    """The cells that a sweep file describes: its recipes and `[[cell]]` tables × every combination of its grid.

    `outlined`, for an estimate: the data of ImageNet need not be here.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a sweep file; {WANTED}")
    values = parse_toml(read_toml(path, "sweep file", WANTED), str(path), "sweep file")
    for key in values:
        check_plain(key, values[key])
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
    return list(found.values())


def pick_cell(cells: list[Cell], number: int, file: Path) -> Cell:
    """The cell of this number, counted from 0."""
    if not 0 <= number < len(cells):
        raise UserError(f"--cell {number}: {file} describes {counted(len(cells), 'cell')}, counted from 0")
    return cells[number]


def _explain_unknown(key: str, values: Mapping[str, Any], path: Path) -> str:
    """What to do about a key at the top of a sweep file that is none of its own."""
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
