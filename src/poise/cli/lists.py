"""The commands that list what there is. They answer at once: only what verifies a data set loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poise.cli.words import path_option, say, show
from poise.places import listing, shadowing
from poise.recipes import recipe_names, recipe_text


def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None) -> None:
    """List the shipped recipes, or print one."""
    if name is not None:
        show(recipe_text(name).rstrip())
        return
    for known in recipe_names():
        show(f"{known:22} {recipe_text(known).splitlines()[0].removeprefix('# ')}")


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
    if (first := shadowing(name)) is not None:
        say(f"but {name} in the folder of POISE_DATA comes first: {first}; move it away, or unset POISE_DATA")
