"""The commands: thin, no logic. Every mistake is one line and the right exit code."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer

from poise import __version__
from poise.data.sources import labelled_files, listing, register
from poise.errors import PoiseError, UserError
from poise.experiment import (
    CHECKPOINT_SECONDS,
    DEFAULT_RECIPE,
    Lines,
    Run,
    RunFolder,
    TensorBoard,
    Watcher,
    describe_plan,
    load_recipe,
    make_plan,
    make_watcher,
    read_sweep,
    recipe_names,
    recipe_text,
    reopen,
    run_sweep,
    watch_phase,
)
from poise.learner import Learner
from poise.report import comparison_table, load_result, run_table

#: What Typer raises for a wrong command line; its newer versions carry a click of their own.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(add_completion=False, rich_markup_mode=None)
data_app = typer.Typer(invoke_without_command=True, help="List data sets, or add one.")
app.add_typer(data_app, name="data")

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value …, e.g. setting=tfs phases=25")]
Checkpoints = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.", min=0)]
Board = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard scalars (an extra).")]


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Class-incremental learning that finds its own balance between stability and plasticity."""
    if version:
        typer.echo(f"poise {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe (see 'poise recipes') or a TOML file.")] = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Short for seed=N.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and its cost.")] = False,
    tensorboard: Board = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a recipe over its stream of phases."""
    words = list(overrides or [])
    if "=" in recipe:  # the recipe was left out, the first word is an override
        words, recipe = [recipe, *words], DEFAULT_RECIPE
    words += [f"seed={seed}"] if seed is not None else []
    plan = make_plan(recipe, load_recipe(recipe, words))
    if dry_run:
        typer.echo(describe_plan(plan))
        return
    folder = RunFolder(out or plan.default_folder())
    if folder.exists:
        _explain_existing(folder, plan.as_json())
        return
    watcher = make_watcher(len(plan.stream), [*plan.source.notes, f"run folder {folder.path}"])
    job = Run(plan, folder, _watchers(folder, watcher, tensorboard), checkpoint_every)
    typer.echo(f"\n{run_table(job.start())}\n\nrun folder {folder.path}")


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    tensorboard: Board = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Go on with a run that was stopped or killed; the result is the same as without the stop."""
    opened, plan = reopen(folder)
    if opened.finished:
        typer.echo(f"{folder} is finished already: average accuracy {load_result(folder)['average_accuracy']:.2f}")
        return
    job = Run(plan, opened, _watchers(opened, make_watcher(len(plan.stream)), tensorboard), checkpoint_every)
    typer.echo(f"\n{run_table(job.resume())}\n\nrun folder {folder}")


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with recipe, [set] and [grid].")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the run folders.")] = Path("runs"),
    lanes: Annotated[int | None, typer.Option("--lanes", help="Runs side by side.", min=1)] = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a grid of runs; finished cells are not run again."""
    cells = read_sweep(file)
    side_by_side = lanes or (4 if torch.cuda.is_available() else 1)
    folders = run_sweep(cells, out, side_by_side, Lines(None, sys.stderr), checkpoint_every)
    typer.echo(f"\n{comparison_table([load_result(folder) for folder in folders])}\n\nrun folders in {out}")


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None) -> None:
    """List the shipped recipes, or print one."""
    if name is not None:
        typer.echo(recipe_text(name).rstrip())
        return
    for known in recipe_names():
        typer.echo(f"{known:18} {recipe_text(known).splitlines()[0].removeprefix('# ')}")


@app.command()
def report(folders: Annotated[list[Path], typer.Argument(help="Run folders.")]) -> None:
    """Print one table over finished runs."""
    typer.echo(comparison_table([load_result(folder) for folder in folders]))


@data_app.callback()
def data(context: typer.Context) -> None:
    """List the data sets that are known and where they were found."""
    if context.invoked_subcommand is None:
        for entry in listing():
            typer.echo(f"{entry.name:10} {entry.kind:14} {entry.where or entry.hint}")


@data_app.command("add")
def data_add(
    name: Annotated[str, typer.Argument(help="Its name from now on.")],
    source: Annotated[Path, typer.Option("--from", help="The folder it lies in.")],
) -> None:
    """Verify a data set and remember where it is."""
    added = register(name, source)
    _say(*added.notes)
    typer.echo(f"{name}: {len(added.class_names)} classes, checked and remembered")


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The learner's file; made if it is not there.")],
    folder: Annotated[Path, typer.Argument(help="A folder with one folder of images per class.")],
    method: Annotated[str | None, typer.Option(help="For a new learner: lucir, icarl or lwf.")] = None,
    epochs: Annotated[int | None, typer.Option(help="For a new learner.", min=1)] = None,
    memory: Annotated[int | None, typer.Option(help="For a new learner: images kept per class.", min=1)] = None,
    update: Annotated[bool, typer.Option("--update", help="Also train on new images of known classes.")] = False,
) -> None:
    """Learn the classes in a folder as one more phase, and save the learner."""
    given = {"method": method, "epochs": epochs, "memory": memory}
    chosen = {name: value for name, value in given.items() if value is not None}
    if model.exists() and chosen:
        raise UserError(f"{model} exists already; {', '.join(chosen)} can only be chosen for a new learner")
    learner = Learner.load(model) if model.exists() else Learner(**chosen)  # type: ignore[arg-type]
    if not os.access(model.absolute().parent, os.W_OK):
        raise UserError(f"{model.absolute().parent} is not a folder that can be written to; choose another MODEL")
    paths, labels = labelled_files(folder)
    known = sorted({label for label in labels if label in learner.classes_})
    if known and not update:
        raise UserError(f"class '{known[0]}' is known already; --update trains on new images of known classes")
    watch_phase(learner.fitting(paths, labels, known="update" if update else "refuse"))
    learner.save(model)
    typer.echo(f"{model}: {len(learner.classes_)} classes")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A learner's file, or model.safetensors of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
) -> None:
    """Print the most probable class of each image, and how probable it is."""
    learner = Learner.load(model)
    chances = learner.predict_proba(images)
    for path, row in zip(images, chances, strict=True):
        typer.echo(f"{path}\t{learner.classes_[int(row.argmax())]}\t{row.max():.3f}")


def main() -> NoReturn:
    """Run a command; a user's mistake is one line on stderr."""
    logging.basicConfig(level=logging.WARNING, format="poise: %(message)s")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except PoiseError as error:
        _fail(str(error), error.exit_code)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}; see 'poise --help'", 2)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}; nothing that was saved is lost", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted before a checkpoint could be written", 130)


def _fail(message: str, code: int) -> NoReturn:
    print(f"poise: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user gets
    sys.exit(code)


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line, err=True)


def _watchers(folder: RunFolder, watcher: Watcher, tensorboard: bool) -> list[Watcher]:
    return [watcher, TensorBoard(folder.path)] if tensorboard else [watcher]


def _explain_existing(folder: RunFolder, wanted: dict[str, object]) -> None:
    """A run folder is never overwritten: say what is there."""
    difference = folder.difference(wanted)
    if difference:
        raise UserError(f"{folder.path} holds another run ({difference}); choose another --out")
    if not folder.finished:
        raise UserError(f"{folder.path} holds this run, unfinished; go on with 'poise resume {folder.path}'")
    result = load_result(folder.path)
    typer.echo(f"{folder.path} holds this run, finished: average accuracy {result['average_accuracy']:.2f}")
