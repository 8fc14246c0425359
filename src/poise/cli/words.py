"""What several commands share: options, and lines for the user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from poise.errors import naming
from poise.recipes import RECIPES
from poise.settings import LIST_KEYS
from poise.store import expand_user
from poise.words import one_line, printable


def _expand_paths(path: Path | list[Path] | None) -> Path | list[Path] | None:
    """A leading `~` is the user's home, also where a shell left it as it is."""
    if isinstance(path, list):
        return [expand_user(each) for each in path]
    return None if path is None else expand_user(path)


def path_argument(meaning: str, *, readable: bool = True) -> Any:  # noqa: ANN401 - whatever Typer makes of an argument
    """An argument that is a path, or several; where it need not be `readable`, the command itself says if it is not."""
    return typer.Argument(help=meaning, callback=_expand_paths, readable=readable)


def path_option(name: str, meaning: str, default: str | None = None) -> Any:  # noqa: ANN401 - Typer's
    """An option that is a path, or several; `default` says in words what holds if it is not given."""
    return typer.Option(name, help=meaning, callback=_expand_paths, show_default=default or True)


RecipeName = Annotated[
    str, typer.Argument(help="A recipe (see 'poise recipes') or a TOML file.", autocompletion=lambda: [*RECIPES])
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help=f"key=value …, e.g. setting=tfs phases=25; '{LIST_KEYS}' lists the keys.")
]
Checkpoints = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.", min=0)]
#: The folder of a run, as `Plan.default_folder` names it.
USUAL_FOLDER: Final = "runs/RECIPE-SETTING-N-{}-sSEED"
Out = Annotated[Path | None, path_option("--out", "Run folder.", USUAL_FOLDER.format("POLICY"))]
Seed = Annotated[int | None, typer.Option("--seed", help="Short for seed=N.", show_default="the recipe's")]
LanesOption = Annotated[
    int | None,
    typer.Option("--lanes", help="Runs side by side.", min=1, max=1_000, show_default="1 on a CPU, 8 on a GPU"),
]
On = Annotated[str | None, typer.Option("--on", help="Run cells on a Ray cluster: ray, or ray:HOST:PORT (an extra).")]
TrialsOn = Annotated[
    str | None, typer.Option("--trials-on", help="Run trials on a Ray cluster: ray, or ray:HOST:PORT (an extra).")
]
CpusPerWorker = Annotated[
    int | None,
    typer.Option("--cpus-per-worker", help="CPUs of each worker on a cluster.", min=1, show_default="its threads"),
]
Board = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard scalars (an extra).")]
Track = Annotated[str | None, typer.Option("--track", help="Also write to wandb, trackio or mlflow (extras).")]


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def show(text: str) -> None:
    """Print a text as output; what a terminal would obey in the names of others is written out."""
    with naming("standard output"):
        typer.echo(printable(text))


def say(*lines: str) -> None:
    """Print lines beside the output."""
    for line in lines:
        typer.echo(one_line(line), err=True)
