"""The commands about data sets. Only what reads images loads torch."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer

from poise.cli.words import path_argument, path_option, say, show
from poise.data.sources.registry import forget, listing
from poise.words import one_line

_AGAIN: Final = "interrupted; the same command goes on with the class that it was at"

app = typer.Typer(invoke_without_command=True, help="List data sets, add or remove one, or pack one.")


@app.callback()
def data(context: typer.Context) -> None:
    """List the data sets that are known and where they were found."""
    if context.invoked_subcommand is None:
        entries = listing()
        longest = max(len(entry.name) for entry in entries)
        for entry in entries:
            show(f"{entry.name:{longest}} {entry.kind:14} {entry.where or entry.hint}")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Its name from now on.")],
    source: Annotated[Path, path_option("--from", "The folder it lies in, or its pack.")],
) -> None:
    """Verify a data set and remember where it is."""
    from poise.data.sources import add_source

    added = add_source(name, source)
    say(*added.notes)
    show(f"{name}: {len(added.class_names)} classes, checked and remembered")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The name that it was added under.")]) -> None:
    """Forget where an added data set is. Its files are left as they are."""
    folder = forget(name)
    show(f"{name}: no longer registered; {folder} is left as it is")


@app.command()
def pack(
    folder: Annotated[Path, path_argument("With one folder of images per class; or train/ and val/ (or test/).")],
    out: Annotated[Path, path_option("--out", "The pack, NAME.pack.")],
    size: Annotated[int, typer.Option("--size", help="Short side of the packed images in pixels.")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Crop to squares (default: keep the aspect).")] = False,
    classes: Annotated[
        str,
        typer.Option(
            "--classes",
            metavar="LIST",
            help="Only these: a file, one per line; A,B,C; imagenet-subset-lucir.",
            show_default="all",
        ),
    ] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be decoded.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes that decode.", min=1, max=1024, show_default="one per core"),
    ] = None,
) -> None:
    """Decode a folder of images once, into a pack that runs start from within seconds.

    If it is interrupted, the same command resumes with the class that it had reached.
    """
    from poise.data.packing import Packing, read_classes
    from poise.data.packs import Pack
    from poise.progress import Display
    from poise.runs.stopping import Stop, stopping

    packing = Packing(folder, out, size, square, read_classes(classes, folder), skip_bad, jobs or os.cpu_count() or 1)
    display, stop, resumed = Display(), Stop(), 0
    with stopping(stop), closing(display), closing(packing.run()) as steps:
        for step in steps:
            if step.resumed > resumed:
                resumed = step.resumed
                display.say(f"{resumed:,} images were packed before; going on")
            display.show("", f"packing {one_line(step.name)}", step.images, step.total)
            if stop.is_set():
                raise stop.as_exit(_AGAIN)
    made = Pack.open(out)
    left_out = f", {made.skipped} files left out" if made.skipped else ""
    show(
        f"{out}: {sum(map(len, made.blocks)):,} images of {len(made.class_names)} classes, "
        f"{made.nbytes / 1e9:.3g} GB{left_out}; use it with data={out}"
    )
