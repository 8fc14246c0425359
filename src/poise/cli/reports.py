"""The commands that show what runs found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.words import out_option, path_argument, path_option, say, show
from poise.errors import UserError


def report(
    paths: Annotated[list[Path], path_argument("Run folders, and folders of them.")],
    out: Annotated[Path | None, out_option("A folder for index.html, tables and figures.")] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Rewrite the page while runs continue.")] = False,
    every: Annotated[int, typer.Option("--every", help="Seconds between updates (--watch).", min=1, max=86_400)] = 10,
    maps: Annotated[bool, typer.Option("--cam", help="Also draw where the final models look (slower).")] = False,
) -> None:
    """Print a table over runs; with --out write a page with every table and figure, which opens from the disk."""
    from poise.report import gather, watch
    from poise.runs import RunFolder, report_maps

    if watching and out is None:
        raise UserError("--watch rewrites a page; say where with --out FOLDER")
    look = partial(gather, paths)
    found = watch(look, out, every, say) if watching and out is not None else look()
    if not found.runs:
        raise found.unread[0].error
    say(*(f"not read: {each.path} {each.reason}" for each in found.unread))
    show(found.text())
    if out is not None:
        finished = [run.path for run in found.runs if RunFolder(run.path).model.exists()]
        show(f"\nreport {found.write(out, report_maps(finished) if maps else (), printed=True)}")


def cam(
    paths: Annotated[list[Path], path_argument("Finished run folders, or learners' files, side by side.")],
    images: Annotated[list[Path] | None, path_option("--images", "Image files or folders of them.")] = None,
    out: Annotated[Path, out_option("The picture: FILE.png, .svg or .pdf.")] = Path("cam.png"),
) -> None:
    """Draw where models look (Grad-CAM); without --images, at exam images of early, middle and late classes."""
    from poise.report import check_picture, rows_table
    from poise.runs import activation_maps

    check_picture(out)
    figure = activation_maps(paths, images or ())
    figure.save(out)
    show(f"{rows_table(figure.data)}\n\n{out}")
