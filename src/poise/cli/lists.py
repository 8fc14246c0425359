"""The commands that list what there is. They answer at once: only what verifies a data set loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from poise.cli.words import path_option, say, show
from poise.data.sources.registry import forget, listing
from poise.errors import check_plain
from poise.recipes import parse_toml, recipe_names, recipe_text
from poise.settings import KEYS, flat_keys, refuse_unknown
from poise.words import toml_value

_WIDEST: Final = 32  # characters of a column; a longer value moves the rest of its line


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one: a name, or a TOML file.")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List the keys of recipes: type, default, what this recipe says, meaning.")
    ] = False,
) -> None:
    """List the shipped recipes, or print one; with --keys, list the keys that can be given as key=value."""
    if keys:
        show(_keys_table(name))
        return
    if name is not None:
        show(recipe_text(name).rstrip())
        return
    for known in recipe_names():
        show(f"{known:22} {recipe_text(known).splitlines()[0].removeprefix('# ')}")


def _keys_table(name: str | None) -> str:
    """Every key of a recipe; with a recipe's name, also what that one says."""
    rows = [("key", "type", "default", *([f"in {name}"] if name is not None else []), "meaning")]
    values = {} if name is None else parse_toml(recipe_text(name), name)
    for word, value in values.items():
        check_plain(word, value)
    refuse_unknown(values)
    flat = {**values, **dict(flat_keys(values))}
    for key in KEYS:
        said = flat.get(key.name)
        own = [] if name is None else ["" if said is None else toml_value(said)]
        rows.append((key.name, key.kind, key.default, *own, key.meaning))
    widths = [min(max(len(row[place]) for row in rows), _WIDEST) for place in range(len(rows[0]) - 1)]
    lines = ("  ".join(f"{word:{width}}" for word, width in zip(row, [*widths, 0], strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def data(context: typer.Context) -> None:
    """List the data sets that are known and where they were found."""
    if context.invoked_subcommand is None:
        entries = listing()
        longest = max(len(entry.name) for entry in entries)
        for entry in entries:
            show(f"{entry.name:{longest}} {entry.kind:14} {entry.where or entry.hint}")


def data_add(
    name: Annotated[str, typer.Argument(help="Its name from now on.")],
    source: Annotated[Path, path_option("--from", "The folder it lies in, or its pack.")],
) -> None:
    """Verify a data set and remember where it is."""
    from poise.data.sources import add_source

    added = add_source(name, source)
    say(*added.notes)
    show(f"{name}: {len(added.class_names)} classes, checked and remembered")


def data_remove(
    name: Annotated[str, typer.Argument(help="The name that it was added under.")],
) -> None:
    """Forget where an added data set is. Its files are left as they are."""
    folder = forget(name)
    show(f"{name}: no longer registered; {folder} is left as it is")
