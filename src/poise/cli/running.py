"""How the commands about runs go about it, once torch may be loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poise.cli.ranks import is_launched
from poise.cli.words import say, show
from poise.errors import PoiseError, UserError
from poise.recipes import DEFAULT_RECIPE, recipe_names
from poise.report import gather, load_result, run_of_result, run_table
from poise.runfolder import PAGE, REPORT
from poise.runs import (
    Follower,
    Observer,
    Plan,
    Run,
    RunDisplay,
    RunFolder,
    SweepOutline,
    TensorBoard,
    complete,
    describe_plan,
    in_order,
    load_recipe,
    make_plan,
    make_tracker,
    open_outlined,
    open_ranks,
    parse_once,
    reopen,
)
from poise.runs.checks import runner_in
from poise.training import Executor, World
from poise.words import counted


def words_to_plan(
    recipe: str, overrides: Sequence[str] | None, seed: int | None = None, *, outlined: bool = False
) -> Plan:
    """The plan that the words of a command describe; `outlined`, for an estimate: see `open_outlined`."""
    words = list(overrides or [])
    if "=" in recipe:  # no recipe given: the first word is an override
        words, recipe = [recipe, *words], DEFAULT_RECIPE
    _refuse_second_recipe(recipe, words)
    words += [f"seed={seed}"] if seed is not None else []
    parse_once(words)
    return make_plan(recipe, load_recipe(recipe, in_order(words)), open_outlined if outlined else None)


def _refuse_second_recipe(recipe: str, words: Sequence[str]) -> None:
    """Refuse a recipe or a folder of images that stands behind the first word, where only keys can be."""
    for word in (word for word in words if "=" not in word):
        if word not in recipe_names() and not word.endswith(".toml"):
            if Path(word).is_dir():
                raise UserError(f"{word} is not key=value; for the images in this folder write data={word}")
            continue
        if recipe == DEFAULT_RECIPE and "=" in words[0]:
            raise UserError(f"{word} is a recipe, which comes first: poise … {word} {words[0]} …")
        raise UserError(f"{recipe} and {word} are two recipes; give one, or make a sweep of both ('poise sweep FILE')")


@contextmanager
def cells_elsewhere(place: str | None, cpus_per_worker: int | None, lanes: int | None) -> Iterator[Executor | None]:
    """Where `--on` says that cells are run; None: here."""
    if place is None:
        if cpus_per_worker is not None:
            raise UserError("--cpus-per-worker is about the workers of a cluster; use it with --on ray")
        yield None
        return
    from poise.ray import make_executor

    with make_executor(place, "--on", cpus_per_worker=cpus_per_worker, lanes=lanes) as executor:
        yield executor


def refuse_under_torchrun(place: str | None) -> None:
    """Refuse to send the trials of several ranks away."""
    if place is not None and is_launched():
        raise UserError("--trials-on does not go together with torchrun; leave out one of them")


@contextmanager
def trials_elsewhere(
    plan: Plan, place: str | None, cpus_per_worker: int | None, *, begins: bool = True
) -> Iterator[Executor | None]:
    """Where `--trials-on` says that the trials of a run are run; None: here.

    Where the run `begins`, so do its workers: what is wrong with the cluster is said before anything is trained.
    """
    if place is None:
        if cpus_per_worker is not None:
            raise UserError("--cpus-per-worker is about the workers of a cluster; use it with --trials-on ray")
        yield None
        return
    from poise.ray import make_executor

    refuse_under_torchrun(place)
    with make_executor(place, "--trials-on", cpus_per_worker=cpus_per_worker) as executor:
        connected = executor.connect()
        if not plan.settings.kind.asks:
            say(f"policy={plan.settings.policy} asks for no trials: --trials-on makes this run no faster")
        elif begins:
            say(connected)
        yield executor


def start_run(job: Run, tensorboard: bool = False, track: str | None = None) -> None:
    """Start a run, or say what its folder already holds. Under torchrun, one that is unfinished goes on.

    torchrun itself gives the same command again after a failure, and so may a user.
    """
    folder, plan = job.folder, job.plan
    if job.world.joined:
        open_ranks(job.world, plan)
        _run_on_ranks(job, job.world.broadcast(job.state), tensorboard, track)
        return
    if (state := job.state()) != "new":
        _explain_existing(folder, state, {"--tensorboard": tensorboard, "--track": track})
        return
    display = RunDisplay(len(plan.stream), [*plan.notes, f"run folder {folder.path}"])
    job.observers = make_observers(folder, display, tensorboard, track)
    show_result(job.start(), folder.path)


def resume_run(
    world: World, path: Path, every: float, tensorboard: bool, track: str | None, *, restart: bool = False
) -> None:
    """`poise resume` under torchrun: rank 0 opens the folder, and tells the others what is in it."""

    def open_plan() -> tuple[Plan | None, str]:
        if is_finished(path):
            return None, "finished"
        folder, plan = reopen(path)
        if runner_in(folder) is not Run:
            raise UserError(f"{path} is not the folder of a run; resume it without torchrun")
        return plan, Run(plan, folder).state()

    plan, state = world.broadcast(open_plan)
    if plan is None:
        if world.leads:
            finish_up(RunFolder(path), {"--tensorboard": tensorboard, "--track": track, "--restart": restart})
        return
    open_ranks(world, plan)
    job = Run(plan, RunFolder(path), (), every, world=world, restarts=restart)
    _run_on_ranks(job, state, tensorboard, track)


def _run_on_ranks(job: Run, state: str, tensorboard: bool, track: str | None) -> None:
    """Run it on this rank, as all ranks do: rank 0 with its folder, the others following."""
    world = job.world
    if state == "finished":
        if world.leads:
            finish_up(job.folder, {"--tensorboard": tensorboard, "--track": track})
        return
    if not world.leads:
        job = Follower(job.plan, job.folder, (), job.checkpoint_seconds, world=world)
    else:
        notes = [*job.plan.notes, f"run folder {job.folder.path}", f"{world.size} ranks"]
        job.observers = make_observers(job.folder, RunDisplay(len(job.plan.stream), notes), tensorboard, track)
    result = job.start() if state == "new" else job.resume()
    if result:
        show_result(result, job.folder.path)


def show_outline(outline: SweepOutline) -> None:
    """Print what a sweep would do; then the cells that would be refused, as an error."""
    show(outline.text)
    if outline.refused:
        whys: dict[str, list[str]] = {}
        for name, error in outline.refused.items():
            whys.setdefault(str(error), []).append(name)
        lines = "; ".join(f"{', '.join(names)}: {why}" for why, names in whys.items())
        raise UserError(f"{counted(len(outline.refused), 'cell')} would be refused: {lines}")


def refuse_elsewhere(place: str | None, cpus_per_worker: int | None) -> None:
    """Refuse `--dry-run` of a sweep on a cluster."""
    for option, given in (("--on", place), ("--cpus-per-worker", cpus_per_worker)):
        if given is not None:
            raise UserError(f"--dry-run measures this machine, and runs nothing elsewhere; leave {option} out")


def show_plan(job: Run) -> None:
    """Print what a run would do and cost, and what its folder holds; refuses what the run would refuse."""
    if job.world.joined:
        raise UserError("--dry-run measures one process; start it without torchrun")
    path, state = job.folder.path, job.state()
    what = {
        "new": f"{path}, new",
        "begun": f"{path} holds this run, unfinished; continue with 'poise resume {path}'",
        "finished": f"{path} holds this run, finished",
    }
    show(f"{describe_plan(job.plan)}\nfolder  {what[state]}")


def show_result(result: Mapping[str, Any], folder: Path) -> None:
    """Print the table of a finished run, and write its page."""
    show(f"\n{run_table(run_of_result(result))}\n\nrun folder {folder}\n{write_report([folder], folder)}")


def is_finished(path: Path) -> bool:
    """Whether this is the folder of a finished run; its data may be gone."""
    folder = RunFolder(path)
    return folder.exists and folder.finished


def finish_up(folder: RunFolder, given: Mapping[str, object]) -> None:
    """Say that a run is finished, and write what it had no time to write if it was killed after its result.

    `given` are the options of the command, of which none has an effect any more.
    """
    result = load_result(folder.path)
    show(f"{folder.path} is finished already: average accuracy {result['average_accuracy']:.2f}")
    _say_unused(given)
    complete(folder)
    if not folder.model.exists():
        _write_model_again(folder)
    if not (folder.path / REPORT / PAGE).exists():
        show(write_report([folder.path], folder.path))


def _write_model_again(folder: RunFolder) -> None:
    """Write the missing model of a finished run, which needs its data; the result stands without it."""
    try:
        opened, plan = reopen(folder.path)
        runner_in(opened)(plan, opened).rewrite_model()
    except PoiseError as error:
        say(f"{folder.model.name} is missing and cannot be written again: {error}")
    else:
        show(f"{folder.model.name} was missing and is written again")


def make_observers(folder: RunFolder, display: Observer, tensorboard: bool, track: str | None = None) -> list[Observer]:
    """What watches a run: the display, and TensorBoard and a tracking service where they are asked for."""
    board: list[Observer] = [TensorBoard(folder)] if tensorboard else []
    service: list[Observer] = [make_tracker(track, folder)] if track is not None else []
    return [display, *board, *service]


def write_report(runs: Sequence[Path], out: Path) -> str:
    """Write the report page of some runs into a folder, and say where; a failure does not fail the runs."""
    page = out / REPORT
    if RunFolder(page).exists:
        return f"no report: {page} is a run folder"
    try:
        return f"report {gather(runs).write(page)}"
    except (PoiseError, OSError) as error:
        return f"no report: {error}"


def _say_unused(given: Mapping[str, object]) -> None:
    """Say which options have no effect, as the run is finished."""
    if names := [name for name, value in given.items() if value]:
        say(f"the run is finished: {' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect")


def _explain_existing(folder: RunFolder, state: str, given: Mapping[str, object]) -> None:
    """A run folder is never overwritten: say what is there."""
    if state == "begun":
        raise UserError(f"{folder.path} holds this run, unfinished; continue with 'poise resume {folder.path}'")
    result = load_result(folder.path)
    show(f"{folder.path} holds this run, finished: average accuracy {result['average_accuracy']:.2f}")
    _say_unused(given)
