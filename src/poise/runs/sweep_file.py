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
from poise.runfolder import REPORT
from poise.runs.overrides import contradict, in_order, parse_once
from poise.runs.plan import Opening, Plan, make_plan
from poise.runs.recipe import Recipe, make_recipe
from poise.settings import LIST_KEYS, flat_keys, takes_only_text
from poise.words import counted, one_line, toml_value

MOST_CELLS: Final = 10_000
MOST_NAME: Final = 200  # bytes of a folder's name that is given
LONGEST_NAME: Final = 255  # bytes of a name that most file systems take
NAMED_KEYS: Final = frozenset({"setting", "phases", "policy", "seed"})  # those that a folder's usual name says


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    plan: Plan


@dataclass(frozen=True)
class _Row:
    """A recipe with keys of its own, and the name of its folder where it has another than the usual one."""

    recipe: str
    keys: Mapping[str, Any]
    place: str  # where it is in the file
    folder: str | None = None


def read_sweep(path: Path, *, outlined: bool = False) -> list[Cell]:
    """The cells that a sweep file describes: its recipes and `[[cell]]` tables × every combination of its grid.

    `outlined`, for an estimate: the data of ImageNet need not be here.
    """
    wanted = "give a TOML file with recipe or [[cell]] tables, and [set] and [grid] where needed"
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a sweep file; {wanted}")
    values = parse_toml(read_toml(path, "sweep file", wanted), str(path), "sweep file")
    _check_keys(values, path)
    rows = [*_recipes(values, path), *_tables(values, path)]
    if not rows:
        raise UserError(_needs_rows(path))
    grid = {key: _check_list(key, choices, path) for key, choices in flat_keys(values.get("grid", {}))}
    _refuse_no_text(flat_keys(values.get("set", {})), f"{path}, [set]")
    for row in rows:
        _refuse_no_text(flat_keys(row.keys), row.place)
    _refuse_no_text(((key, value) for key, choices in grid.items() for value in choices), f"{path}, [grid]")
    for one, other in itertools.permutations(grid, 2):
        if other.startswith(f"{one}.") and any(contradict(one, size, other, None) for size in grid[one]):
            raise UserError(f"{path}: `{one}` in [grid] sets `{other}` of [grid], too; leave one of them out")
    _refuse_set_twice(values.get("set", {}), "[set]", grid, str(path))
    for row in rows:
        _refuse_set_twice(row.keys, "a [[cell]]", grid, row.place)
    _check_count(path, len(rows) * math.prod(map(len, grid.values())))
    opening = functools.cache(lambda data, size: open_source(data, size=size, outlined=outlined))  # for many cells
    chosen = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
    found: dict[str, tuple[Cell, _Row]] = {}
    for row, choice in itertools.product(rows, chosen):
        cell = _cell(row, values.get("set", {}), choice, opening)
        if cell.name in found:
            raise UserError(
                f"{path} describes a cell twice: {cell.name}; {_advice(same_row=found[cell.name][1] is row)}"
            )
        found[cell.name] = cell, row
    return [cell for cell, _ in found.values()]


def pick_cell(cells: list[Cell], number: int, file: Path) -> Cell:
    """The cell of this number, counted from 0."""
    if not 0 <= number < len(cells):
        numbers = f"0 to {len(cells) - 1}" if len(cells) > 1 else "number 0"
        raise UserError(f"--cell {number}: {file} describes {counted(len(cells), 'cell')}, {numbers}")
    return cells[number]


def _check_keys(values: Mapping[str, Any], path: Path) -> None:
    """Refuse what is in no sweep, and keys that are in the wrong place."""
    for key, value in values.items():
        _check_key(key, path)
        check_plain(key, value)
        for inner in _keys_in(value):
            _check_key(inner, path)
        if key not in SWEEP_KEYS:
            raise UserError(_explain_unknown(key, values, path))
    for key in ("set", "grid"):
        table = values.get(key, {})
        if not isinstance(table, dict):
            raise UserError(f"[{key}] in {path} must be a table of keys and values")
        _refuse_empty(table, str(path))
        _refuse_repeated(table, str(path))
        if "recipe" in table:
            raise UserError(f"{path}: take `recipe` out of [{key}], to the top of the file; it may be a list of names")
        if "folder" in table:
            raise UserError(f"{path}: `folder` in [{key}] would be the same for many cells; give it in a [[cell]]")


def _explain_unknown(key: str, values: Mapping[str, Any], path: Path) -> str:
    """What to do about a key at the top of a sweep file that is none of its own."""
    if key not in Recipe.model_fields:
        return f"unknown key '{key}' in {path}; {suggestion(key, SWEEP_KEYS)}"
    if not values.keys() & {*SWEEP_KEYS}:
        return f"{path} is a recipe, not a sweep file; run it with 'poise run {path}'"
    return f"{path}: `{key}` at the top is for no cell; put it under [set], or a list of its values under [grid]"


def _check_key(key: str, path: Path) -> None:
    if not key or set(key) & set("=#") or any(map(str.isspace, key)) or one_line(key) != key:
        raise UserError(f"{path}: no key is called {shown(key)}; write keys without =, # and blanks, as in seed = 1")


def _keys_in(value: object) -> Iterator[str]:
    """The keys of all tables in a value."""
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys_in(inner)


def _needs_rows(path: Path) -> str:
    return f'{path} needs recipe = "NAME", a list of such names, or a [[cell]] table for each run'


def _recipes(values: Mapping[str, Any], path: Path) -> Iterator[_Row]:
    """Those of the key `recipe`, which may be left out where there are `[[cell]]` tables."""
    recipes = values.get("recipe", [])
    recipes = [recipes] if isinstance(recipes, str) else recipes
    if not isinstance(recipes, list) or not all(isinstance(name, str) for name in recipes):
        raise UserError(_needs_rows(path))
    return (_Row(name, {}, f"{path}, recipe {shown(name)}") for name in recipes)


def _tables(values: Mapping[str, Any], path: Path) -> Iterator[_Row]:
    tables = values.get("cell", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{path}: begin each cell with [[cell]], in double brackets")
    for number, table in enumerate(tables):
        yield _make_row(table, f"{path}, [[cell]] {number} (counted from 0)")


def _make_row(table: Mapping[str, Any], place: str) -> _Row:
    """The row of a `[[cell]]` table."""
    recipe, folder = table.get("recipe"), table.get("folder")
    for key in ("set", "grid"):
        if key in table:
            raise UserError(
                f"{place}: [{key}] holds for all cells; take it out of the [[cell]], to the top of the file"
            )
    if not isinstance(recipe, str):
        raise UserError(f'{place}: each [[cell]] needs recipe = "NAME"')
    if folder is not None:
        _check_folder(folder, place)
    for key in table:
        if key.partition(".")[0] not in {*Recipe.model_fields, "recipe", "folder"}:
            nearest = suggestion(key, [*Recipe.model_fields, "recipe", "folder"])
            raise UserError(f"{place}: unknown key '{key}'; {nearest} (all keys: '{LIST_KEYS}')")
    _refuse_empty(table, place)
    _refuse_repeated(table, place)
    return _Row(recipe, {key: value for key, value in table.items() if key not in ("recipe", "folder")}, place, folder)


def _refuse_empty(table: Mapping[str, Any], place: str) -> None:
    """Refuse a table without keys, which would change nothing."""
    for key, value in table.items():
        if value == {}:
            raise UserError(f"{place}: `{key}` is a table without keys, which changes nothing; leave it out")
        if isinstance(value, dict):
            _refuse_empty({f"{key}.{inner}": each for inner, each in value.items()}, place)


def _refuse_repeated(table: Mapping[str, Any], place: str) -> None:
    """Refuse a key with dots that is there twice: in quotation marks, for TOML it is another one."""
    keys = [key for key, _ in flat_keys(table)]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"{place}: `{twice}` is there with quotation marks and without; leave one of them out")


def _refuse_no_text(keys: Iterable[tuple[str, Any]], place: str) -> None:
    """Refuse a number or a date for a key that takes only text: of 2024.10 TOML leaves 2024.1, another folder."""
    for key, value in keys:
        if takes_only_text(key) and not isinstance(value, str):
            raise UserError(f"{place}: key '{key}': must be text, in quotation marks, not {shown(value)}")


def _check_folder(name: object, place: str) -> None:
    """Refuse what cannot be the name of a folder in `--out`."""
    rule = _broken_rule(name) if isinstance(name, str) else 'must be text, as in folder = "NAME"'
    if rule:
        raise UserError(f"{place}: folder {shown(name)} {rule}")


def _broken_rule(name: str) -> str | None:
    """What is wrong with the name of a folder, if anything is."""
    if name.strip() != name or not name:
        return "must not be empty, nor begin or end with a blank"
    if name in (".", ".."):
        return "must be a name of its own, in --out"
    if set(name) & set("/\\"):
        return "must be a name without slashes, / or \\, for a folder in --out"
    if one_line(name) != name:
        return "must not have control characters or marks of the direction of writing"
    if len(name.encode()) > MOST_NAME:
        return (
            f"has {len(name.encode())} bytes; with the words of [grid] it may have {MOST_NAME}, so choose a shorter one"
        )
    return f"is where the sweep's page goes (OUT/{REPORT}); choose another name" if name == REPORT else None


def _refuse_set_twice(keys: Mapping[str, Any], where: str, grid: Mapping[str, Any], place: str) -> None:
    """Refuse a key of a cell or of all that the grid would set, too, or a part of such a key."""
    for (own, value), (key, choices) in itertools.product(flat_keys(keys), grid.items()):
        if own == key:
            raise UserError(f"{place}: `{key}` is in [grid] and in {where}; leave it out of one of them")
        nested = own.startswith(f"{key}.") or key.startswith(f"{own}.")
        if nested and any(contradict(own, value, key, choice) for choice in choices):
            raise UserError(f"{place}: `{key}` in [grid] sets `{own}` of {where}, too; leave one of them out")


def _advice(*, same_row: bool) -> str:
    """What to do about two cells of one name."""
    if same_row:
        return "[grid] lists a value twice, or two that are written alike; list it once"
    return 'give folder = "NAME", a name of its own, in one of the [[cell]] tables'


def _check_count(path: Path, cells: int) -> None:
    if cells > MOST_CELLS:
        raise UserError(f"{path} describes {shown(cells)} cells; name fewer values, {MOST_CELLS} cells at most")


def _cell(row: _Row, fixed: dict[str, Any], chosen: dict[str, Any], opening: Opening) -> Cell:
    general, own, listed = map(_as_words, (dict(flat_keys(fixed)), dict(flat_keys(row.keys)), chosen))
    try:
        for words in ([*general, *listed], [*own, *listed]):
            parse_once(words)
        sizes = [word for word in listed if word.startswith("memory=")]  # to which other tables may add keys
        words = [*sizes, *in_order(general), *in_order(own)]  # a cell may change what holds for all
        words += [word for word in in_order(listed) if word not in sizes]
        plan = make_plan(row.recipe, make_recipe(read_recipe(row.recipe), words), opening)
    except UserError as error:
        raise UserError(f"{row.place}: {error}") from error
    if row.folder is None:
        extra = [f"{key}={value}" for key, value in chosen.items() if key not in NAMED_KEYS]
        return Cell(_check_length(_as_name("-".join([plan.default_folder().name, *extra])), row), plan)
    name = "-".join([row.folder, *(_as_name(f"{key}={value}").replace("\\", "-") for key, value in chosen.items())])
    _check_folder(name, row.place)
    return Cell(name, plan)


def _as_words(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}={toml_value(value)}" for key, value in keys.items()]


def _check_length(name: str, row: _Row) -> str:
    """The name, unless no file system would take it."""
    if (size := len(name.encode())) > LONGEST_NAME:
        rule = f"a folder's name of {size} bytes, of which the recipe's and the values of [grid] take too many"
        advice = f"{LONGEST_NAME} are possible; list shorter values, or give them to [[cell]] tables with a folder"
        raise UserError(f"{row.place}: {rule}; {advice}")
    return name


def _as_name(words: str) -> str:
    return one_line(words.replace("/", "-").replace(" ", ""))


def _check_list(key: str, choices: object, path: Path) -> list[Any]:
    if not isinstance(choices, list) or not choices:
        raise UserError(f"{path}: grid.{key} must be a list of values, such as {key} = [1, 2]")
    return choices
