"""The command that makes a pack of a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poise.cli import INTERRUPTED
from poise.cli.words import out_option, path_argument, say, show
from poise.errors import Interrupted
from poise.words import duration, one_line

if TYPE_CHECKING:
    from poise.data.packing import Packed

LINE_SECONDS: Final = 10.0  # between two lines where there is no terminal
BAR_SECONDS: Final = 0.1


def data_pack(
    folder: Annotated[Path, path_argument("With one folder of images per class; or train/ and val/ (or test/).")],
    out: Annotated[Path, out_option("The pack, FILE.pack.")],
    size: Annotated[int, typer.Option("--size", help="Short side of the packed images in pixels.")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Crop to squares; else the aspect is kept.")] = False,
    classes: Annotated[
        str,
        typer.Option(
            "--classes", metavar="LIST", help="Only these: a file, one per line; A,B,C; imagenet-subset-lucir."
        ),
    ] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be decoded.")] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Processes that decode; one per core if not given.", min=1, max=1024)
    ] = None,
) -> None:
    """Decode a folder of images once, into one file that runs start from within seconds.

    Interrupted, the same command goes on with the class that it was at.
    """
    from poise.data.packing import Packing, read_classes
    from poise.data.packs import Pack

    jobs = jobs or os.cpu_count() or 1
    packing = Packing(folder, out, size, square, read_classes(classes, folder), skip_bad, jobs)
    try:
        _watch(packing.run())
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on with the class that it was at", INTERRUPTED) from None
    pack = Pack.open(out)
    left_out = f", {pack.skipped} files left out" if pack.skipped else ""
    show(
        f"{out}: {len(pack.images.sizes):,} images of {len(pack.class_names)} classes, "
        f"{out.stat().st_size / 1e9:.3g} GB{left_out}; use it with data={out}"
    )


def _watch(steps: Iterable[Packed]) -> None:
    """Show how far a pack has come: a bar in a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console, began = Console(stderr=True), time.monotonic()
    if not console.is_terminal:
        _tell(steps, began, LINE_SECONDS, say)
        return
    with Progress(BarColumn(16), TextColumn("{task.description}", markup=False), console=console) as bar:
        task = bar.add_task("packing")

        def update(line: str) -> None:
            bar.update(task, description=line)

        def counted() -> Iterable[Packed]:
            for step in steps:
                bar.update(task, completed=step.images, total=step.total)
                yield step

        _tell(counted(), began, BAR_SECONDS, update)


def _tell(steps: Iterable[Packed], began: float, seconds: float, tell: Callable[[str], None]) -> None:
    told = 0.0
    step = None
    for step in steps:
        if not told and step.resumed:
            say(f"{step.resumed:,} images were packed before; going on")
        if time.monotonic() - told >= seconds:
            told = time.monotonic()
            tell(progress_line(step, told - began))
    if step is not None:
        tell(progress_line(step, time.monotonic() - began))


def progress_line(step: Packed, elapsed: float) -> str:
    """How far, how fast, how long yet, and what is at work."""
    rate = (step.images - step.resumed) / max(elapsed, 1e-6)
    left = (step.total - step.images) / rate if rate else 0.0
    ending = f"{duration(left)} left" if step.images < step.total else f"in {duration(elapsed)}"
    return f"packed {step.images:,} of {step.total:,} images, {rate:,.0f} images/s, {ending}, {one_line(step.name)}"
