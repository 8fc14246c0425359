"""The commands that run recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poise.cli.ranks import joined_world
from poise.cli.words import (
    Board,
    Checkpoints,
    CpusPerWorker,
    LanesOption,
    On,
    Out,
    Overrides,
    RecipeName,
    Seed,
    Track,
    TrialsOn,
    out_option,
    path_argument,
    show,
)
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
    trials_on: TrialsOn = None,
    cpus_per_worker: CpusPerWorker = None,
) -> None:
    """Run a recipe over its stream of phases."""
    from poise.cli.running import show_plan, start_run, trials_elsewhere, words_to_plan
    from poise.runs import Run, RunFolder

    with joined_world() as world:
        plan = words_to_plan(recipe, overrides, seed, outlined=dry_run)
        folder = RunFolder(out or plan.default_folder())
        if dry_run:
            show_plan(Run(plan, folder, world=world))
            return
        with trials_elsewhere(plan, trials_on, cpus_per_worker, begins=not folder.exists) as executor:
            job = Run(plan, folder, (), checkpoint_every, executor=executor, world=world)
            start_run(job, tensorboard, track)


def resume(
    folder: Annotated[Path, path_argument("The folder of a run that was stopped.")],
    tensorboard: Board = False,
    track: Track = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
    trials_on: TrialsOn = None,
    cpus_per_worker: CpusPerWorker = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from the beginning if no checkpoint is intact.")
    ] = False,
) -> None:
    """Continue a run that was stopped or killed; the result is the same as without the stop."""
    from poise.cli.running import (
        finish_up,
        is_finished,
        make_observers,
        refuse_under_torchrun,
        resume_run,
        show_result,
        trials_elsewhere,
    )
    from poise.runs import RunDisplay, RunFolder, reopen
    from poise.runs.checks import runner_in

    with joined_world() as world:
        if world.joined:
            refuse_under_torchrun(trials_on)
            resume_run(world, folder, checkpoint_every, tensorboard, track, restart=restart)
            return
    if is_finished(folder):
        given = {
            "--tensorboard": tensorboard,
            "--track": track,
            "--checkpoint-every": checkpoint_every != CHECKPOINT_SECONDS,
            "--trials-on": trials_on,
            "--cpus-per-worker": cpus_per_worker,
            "--restart": restart,
        }
        finish_up(RunFolder(folder), given)
        return
    opened, plan = reopen(folder)
    observers = make_observers(opened, RunDisplay(len(plan.stream)), tensorboard, track)
    with trials_elsewhere(plan, trials_on, cpus_per_worker) as executor:
        job = runner_in(opened)(plan, opened, observers, checkpoint_every, executor=executor, restarts=restart)
        show_result(job.resume(), folder)


def sweep(
    file: Annotated[Path, path_argument("A TOML file with recipe or [[cell]], [set] and [grid].")],
    out: Annotated[Path, out_option("The folder of the run folders.")] = Path("runs"),
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
    on: On = None,
    cpus_per_worker: CpusPerWorker = None,
    cell: Annotated[int | None, typer.Option("--cell", help="Run only this cell, counted from 0.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells with their state and time.")] = False,
) -> None:
    """Run a grid of runs; finished cells are not run again."""
    from poise.cli.running import cells_elsewhere, refuse_elsewhere, show_outline, show_result, write_report
    from poise.report import comparison_table, load_result, read_run
    from poise.runs import describe_sweep, pick_cell, read_sweep, refuse_failed, sweep_cells

    cells = read_sweep(file, outlined=dry_run)
    if cell is not None:
        cells = [pick_cell(cells, cell, file)]
    if dry_run:
        refuse_elsewhere(on, cpus_per_worker)
        show_outline(describe_sweep(cells, out, cell or 0))
        return
    with cells_elsewhere(on, cpus_per_worker, lanes) as executor:
        failed = sweep_cells(cells, out, lanes, checkpoint_every, executor=executor)
    if cell is not None:
        for error in failed.values():
            raise error
        show_result(load_result(out / cells[0].name), out / cells[0].name)
        return
    folders = [out / cell.name for cell in cells if cell.name not in failed]
    if folders:
        table = comparison_table([read_run(folder) for folder in folders])
        show(f"\n{table}\n\nrun folders in {out}\n{write_report(folders, out)}")
    refuse_failed(failed, cells)
