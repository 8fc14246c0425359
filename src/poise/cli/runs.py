"""The commands about runs: run recipes, and show what they found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from poise.cli.words import (
    USUAL_FOLDER,
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
    is_launched,
    path_argument,
    path_option,
    say,
    show,
)
from poise.errors import PoiseError, UserError
from poise.recipes import DEFAULT_RECIPE, RECIPES, parse_toml, read_recipe, recipe_text
from poise.settings import KEYS, RecipeKeys, flat_keys
from poise.store import CHECKPOINT_SECONDS
from poise.words import counted, toml_value

if TYPE_CHECKING:
    from poise.runs import Plan, Run, RunFolder
    from poise.training.lanes import Executor
    from poise.training.ranks import World

_WIDEST: Final = 32  # characters of a column of `--keys`; a longer value moves the rest of its line


def run(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Out = None,
    seed: Seed = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")] = False,
    tensorboard: Board = False,
    track: Track = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
    trials_on: TrialsOn = None,
    cpus_per_worker: CpusPerWorker = None,
) -> None:
    """Run a recipe over its stream of phases."""
    from poise.runs import Run, RunFolder, describe_plan

    with _joined_world() as world:
        plan = _plan_of(recipe, overrides, seed, outlined=dry_run)
        folder = RunFolder(out or plan.default_folder())
        job = Run(plan, folder, (), checkpoint_every, world=world)
        if dry_run and world.joined:
            raise UserError("--dry-run looks at one process; start it without torchrun")
        if dry_run:
            state = {
                "new": f"{folder.path}, new",
                "begun": f"{folder.path} holds this run, unfinished; continue with 'poise resume {folder.path}'",
                "finished": f"{folder.path} holds this run, finished",
            }[job.state()]
            show(f"{describe_plan(plan)}\nfolder  {state}")
            return
        with _on_a_cluster(trials_on, "--trials-on", cpus_per_worker) as job.executor:
            _carry_out(job, tensorboard, track)


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
    from poise.runs import RunFolder, reopen
    from poise.runs.checks import runner_in

    with _joined_world() as world:
        opened = RunFolder(folder)
        plan = world.broadcast(lambda: None if opened.exists and opened.finished else reopen(folder)[1])
        if plan is None:
            _finish_up(opened, world)
            return
        runner = world.broadcast(lambda: runner_in(opened))
        job = runner(plan, opened, (), checkpoint_every, world=world, restarts=restart)
        with _on_a_cluster(trials_on, "--trials-on", cpus_per_worker) as job.executor:
            _carry_out(job, tensorboard, track, resumes=True)


def sweep(
    file: Annotated[Path, path_argument("A TOML file with recipe or [[cell]], [set] and [grid].")],
    out: Annotated[Path, path_option("--out", "The folder of the run folders.")] = Path("runs"),
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
    on: On = None,
    cpus_per_worker: CpusPerWorker = None,
    cell: Annotated[int | None, typer.Option("--cell", help="Run only this cell, counted from 0.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells with their state.")] = False,
) -> None:
    """Run a grid of runs; finished cells are not run again."""
    from poise.report import comparison_table
    from poise.runs import describe_sweep, read_sweep, refuse_failed, sweep_cells
    from poise.runs.record import load_result, read_run

    cells = read_sweep(file, cell, outlined=dry_run)
    if dry_run:
        outline = describe_sweep(cells, out, cell or 0)
        show(outline.text)
        if outline.refused:
            lines = "; ".join(f"{name}: {why}" for name, why in outline.refused.items())
            raise UserError(f"{counted(len(outline.refused), 'cell')} would be refused: {lines}")
        return
    with _on_a_cluster(on, "--on", cpus_per_worker, lanes) as executor:
        failed = sweep_cells(cells, out, lanes, checkpoint_every, executor=executor)
    if cell is not None:
        for error in failed.values():
            raise error
        _show_result(load_result(out / cells[0].name), out / cells[0].name)
        return
    folders = [out / each.name for each in cells if each.name not in failed]
    if folders:
        table = comparison_table([read_run(folder) for folder in folders])
        show(f"\n{table}\n\nrun folders in {out}\n{_write_report(folders, out)}")
    refuse_failed(failed, cells)


def crossval(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, path_option("--out", "The folder of the run folders.", USUAL_FOLDER.format("crossval"))
    ] = None,
    seed: Seed = None,
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """An oracle: run every action of the space in all phases, and keep the best by the exam."""
    from poise.report import actions_table, run_table
    from poise.runs.checks import run_crossval
    from poise.runs.record import run_of_result

    plan = _plan_of(recipe, overrides, seed)
    folder = out or plan.default_folder("crossval")
    result = run_crossval(plan, folder, lanes, say, checkpoint_every)
    show(f"\n{actions_table(result)}\n\n{run_table(run_of_result(result))}\n\nrun folders in {folder}")


def audit(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[Path | None, path_option("--out", "Run folder.", f"{USUAL_FOLDER.format('POLICY')}-leak")] = None,
    seed: Seed = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Measure a leak: run a policy that is told the exam accuracy of its trials. Its results are labelled."""
    from poise.runs import RunFolder
    from poise.runs.checks import Audit

    plan = _plan_of(recipe, overrides, seed)
    usual = plan.default_folder()
    job = Audit(plan, RunFolder(out or usual.with_name(f"{usual.name}-leak")), (), checkpoint_every)
    _carry_out(job)


def report(
    paths: Annotated[list[Path], path_argument("Run folders, and folders of them.")],
    out: Annotated[Path | None, path_option("--out", "A folder for index.html, tables and figures.")] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Rewrite the page while runs continue.")] = False,
    every: Annotated[int, typer.Option("--every", help="Seconds between updates (--watch).", min=1, max=86_400)] = 10,
    maps: Annotated[bool, typer.Option("--cam", help="Also draw where the final models look (slower).")] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="ROW", help="Compare all rows with this one, such as 'der, fixed'."),
    ] = None,
) -> None:
    """Print a table over runs; with --out write a page with every table and figure, which opens from the disk."""
    from poise.report import gather, report_maps, watch

    if watching and out is None:
        raise UserError("--watch rewrites a page; say where with --out FOLDER")
    look = partial(gather, paths, against)
    found = watch(look, out, every, say) if watching and out is not None else look()
    if not found.runs:
        raise found.unread[0].error
    say(*(f"not read: {each.path} {each.reason}" for each in found.unread))
    show(found.text())
    if out is not None:
        show(f"\nreport {found.write(out, report_maps(found) if maps else ())}")


def cam(
    paths: Annotated[list[Path], path_argument("Finished run folders, or learners' files, side by side.")],
    images: Annotated[list[Path] | None, path_option("--images", "Image files or folders of them.")] = None,
    out: Annotated[Path, path_option("--out", "The picture: FILE.png, .svg or .pdf.")] = Path("cam.png"),
) -> None:
    """Draw where models look (Grad-CAM); without --images, at exam images of early, middle and late classes."""
    from poise.report import activation_maps, check_picture, rows_table

    check_picture(out)
    figure = activation_maps(paths, images or ())
    figure.save(out)
    show(f"{rows_table(figure.data)}\n\n{out}")


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this one: a name, or a TOML file.", autocompletion=lambda: [*RECIPES])
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List the keys of recipes: type, default, what this recipe says, meaning.")
    ] = False,
) -> None:
    """List the shipped recipes, or print one; with --keys, list the keys that can be given as key=value."""
    if keys:
        show(_keys_table(name))
    elif name is not None:
        show(recipe_text(name).rstrip())
    else:
        for known in RECIPES:
            show(f"{known:22} {recipe_text(known).splitlines()[0].removeprefix('# ')}")


# What they share ------------------------------------------------------------------------------------------------------


def _plan_of(recipe: str, overrides: Sequence[str] | None, seed: int | None, *, outlined: bool = False) -> Plan:
    """The plan that the words of a command describe; `outlined`: also where the images are not here."""
    from poise.runs import in_order, make_plan, open_outlined, recipe_with

    words = list(overrides or [])
    if "=" in recipe:  # no recipe given: the first word is an override
        words, recipe = [recipe, *words], DEFAULT_RECIPE
    for word in (word for word in words if "=" not in word):
        if word in RECIPES or word.endswith(".toml"):
            if recipe == DEFAULT_RECIPE and "=" in words[0]:
                raise UserError(f"{word} is a recipe, which comes first: poise … {word} {words[0]} …")
            raise UserError(f"{recipe} and {word} are two recipes; give one, or make a sweep ('poise sweep FILE')")
        if Path(word).is_dir():
            raise UserError(f"{word} is not key=value; for the images in this folder write data={word}")
    words += [f"seed={seed}"] if seed is not None else []
    made = recipe_with(read_recipe(recipe), in_order(words))
    return make_plan(recipe, made, open_outlined if outlined else None)


@contextmanager
def _joined_world() -> Iterator[World]:
    """The world of a command that torchrun started, else that of this process. All ranks leave it together."""
    from poise.training.ranks import ALONE, join_world

    if not is_launched():
        yield ALONE
        return
    world = join_world()
    with world.ending_together():
        yield world
    world.wait()  # until rank 0 is done, too: torchrun ends all ranks where one fails


@contextmanager
def _on_a_cluster(
    place: str | None, option: str, cpus_per_worker: int | None, lanes: int | None = None
) -> Iterator[Executor | None]:
    """Where the option says that work is done; None: here."""
    if place is None:
        if cpus_per_worker is not None:
            raise UserError(f"--cpus-per-worker is about the workers of a cluster; use it with {option} ray")
        yield None
        return
    from poise.ray import make_executor

    if option == "--trials-on" and is_launched():
        raise UserError("--trials-on does not go together with torchrun; leave out one of them")
    with make_executor(place, option, cpus_per_worker=cpus_per_worker, lanes=lanes) as executor:
        yield executor


def _carry_out(job: Run, tensorboard: bool = False, track: str | None = None, *, resumes: bool = False) -> None:
    """Start a run whose folder is new, resume it, or say what its folder already holds.

    Under torchrun, which repeats a command, one that has begun goes on. Rank 0 of a world has the folder and shows the
    run, the others follow.
    """
    from poise.runs import Follower, RunDisplay, Tracker, open_ranks

    world, plan, path = job.world, job.plan, job.folder.path
    state = "resumed" if resumes else world.broadcast(job.state)
    if state == "begun" and not world.joined:
        raise UserError(f"{path} holds this run, unfinished; continue with 'poise resume {path}'")
    if state == "finished":
        _finish_up(job.folder, world)
        return
    if world.joined:
        open_ranks(world, plan)
    if job.executor is not None:
        connected = job.executor.connect()  # type: ignore[attr-defined]
        idle = f"policy={plan.settings.policy} asks for no trials: --trials-on makes this run no faster"
        say(connected if plan.settings.kind.asks else idle)
    if not world.leads:
        job = Follower(plan, job.folder, (), job.checkpoint_seconds, world=world)
    else:
        ranks = [f"{world.size} ranks"] if world.joined else []
        opening = [*plan.notes, f"run folder {path}", *ranks] if state == "new" else ranks
        services = [name for name in ("tensorboard" if tensorboard else None, track) if name is not None]
        trackers = [Tracker(name, job.folder) for name in services]
        job.observers = [RunDisplay(len(plan.stream.groups), opening), *trackers]
    result = job.start() if state == "new" else job.resume()
    if result:
        _show_result(result, path)


def _show_result(result: Mapping[str, Any], folder: Path) -> None:
    """Print the table of a finished run, and write its page."""
    from poise.report import run_table
    from poise.runs.record import run_of_result

    show(f"\n{run_table(run_of_result(result))}\n\nrun folder {folder}\n{_write_report([folder], folder)}")


def _write_report(runs: Sequence[Path], out: Path) -> str:
    """Write the report page of some runs into a folder, and say where; a failure does not fail the runs."""
    from poise.report import gather
    from poise.runs import RunFolder
    from poise.runs.folder import REPORT

    if RunFolder(out / REPORT).exists:
        return f"no report: {out / REPORT} is a run folder"
    try:
        return f"report {gather(runs).write(out / REPORT)}"
    except (PoiseError, OSError) as error:
        return f"no report: {error}"


def _finish_up(folder: RunFolder, world: World) -> None:
    """Say that a run is finished, and write its page if it was killed before that."""
    from poise.runs.folder import PAGE, REPORT
    from poise.runs.record import load_result

    if not world.leads:
        return
    average = load_result(folder.path)["average_accuracy"]
    show(f"{folder.path} holds this run, finished: average accuracy {average:.2f}")
    if not (folder.path / REPORT / PAGE).exists():
        show(_write_report([folder.path], folder.path))


def _keys_table(name: str | None) -> str:
    """Every key of a recipe; with a recipe's name, also what that one says."""
    rows = [("key", "type", "default", *([f"in {name}"] if name is not None else []), "meaning")]
    values = {} if name is None else parse_toml(recipe_text(name), name)
    RecipeKeys(**values)  # which refuses what no recipe can say
    flat = {**values, **dict(flat_keys(values))}
    for key in KEYS:
        said = flat.get(key.name)
        own = [] if name is None else ["" if said is None else toml_value(said)]
        rows.append((key.name, key.kind, key.default, *own, key.meaning))
    widths = [min(max(len(row[place]) for row in rows), _WIDEST) for place in range(len(rows[0]) - 1)]
    lines = ("  ".join(f"{word:{width}}" for word, width in zip(row, [*widths, 0], strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
