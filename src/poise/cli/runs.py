"""The commands that run recipes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.ranks import joined
from poise.cli.words import Board, Checkpoints, LanesOption, Out, Overrides, RecipeName, Seed, Track, out_option, show
from poise.recipes import DEFAULT_RECIPE
from poise.store import CHECKPOINT_SECONDS


def run(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Out = None,
    seed: Seed = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and its cost.")] = False,
    tensorboard: Board = False,
    track: Track = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a recipe over its stream of phases."""
    from poise.cli.running import refuse_dry_run, start_run, words_to_plan
    from poise.experiment import Run, RunFolder, describe_plan

    with joined() as world:
        plan = words_to_plan(recipe, overrides, seed)
        if dry_run:
            refuse_dry_run(world)
            show(describe_plan(plan))
            return
        job = Run(plan, RunFolder(out or plan.default_folder()), (), checkpoint_every, world=world)
        start_run(job, tensorboard, track)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    tensorboard: Board = False,
    track: Track = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Continue a run that was stopped or killed; the result is the same as without the stop."""
    from poise.cli.running import finish_up, make_watchers, resume_run, show_result
    from poise.experiment import make_watcher, reopen
    from poise.studies import runner_in

    with joined() as world:
        if world is not None:
            resume_run(world, folder, checkpoint_every, tensorboard, track)
            return
    opened, plan = reopen(folder)
    if opened.finished:
        finish_up(opened)
        return
    watchers = make_watchers(opened, make_watcher(len(plan.stream)), tensorboard, track)
    show_result(runner_in(opened)(plan, opened, watchers, checkpoint_every).resume(), folder)


def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with recipe, [set] and [grid].")],
    out: Annotated[Path, out_option("The folder of the run folders.")] = Path("runs"),
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a grid of runs; finished cells are not run again."""
    from poise.cli.running import write_report
    from poise.experiment import Lines, read_sweep, refuse_failed, sweep_cells
    from poise.report import comparison_table, load_result, run_of_result

    cells = read_sweep(file)
    failed = sweep_cells(cells, out, lanes, Lines(None, sys.stderr), checkpoint_every)
    folders = [out / cell.name for cell in cells if cell.name not in failed]
    if folders:
        table = comparison_table([run_of_result(load_result(folder)) for folder in folders])
        show(f"\n{table}\n\nrun folders in {out}\n{write_report(folders, out)}")
    refuse_failed(failed, cells)
