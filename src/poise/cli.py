"""The commands: thin, no logic. Every mistake is one line and the right exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from poise import __version__
from poise.data.sources import add_source, labelled_files, listing
from poise.errors import PoiseError, UserError
from poise.experiment import (
    CHECKPOINT_SECONDS,
    DEFAULT_RECIPE,
    Lines,
    Plan,
    Run,
    RunFolder,
    TensorBoard,
    Watcher,
    activation_maps,
    describe_plan,
    load_recipe,
    make_plan,
    make_watcher,
    parse_override,
    read_sweep,
    recipe_names,
    recipe_text,
    refuse_failed,
    reopen,
    report_maps,
    sweep_cells,
    watch_phase,
)
from poise.learner import Learner
from poise.policies import make_policy
from poise.policies.simulate import replay_on_table
from poise.report import (
    Figure,
    Report,
    actions_table,
    check_picture,
    comparison_table,
    load_result,
    rows_table,
    run_of_result,
    run_table,
    watch,
)
from poise.studies import (
    Audit,
    Probe,
    ProbeTable,
    Question,
    audit_folder,
    crossval_folder,
    gather_with_studies,
    load_probe,
    probe_summary,
    reach,
    reopened,
    run_crossval,
    runner_in,
    simulation_summary,
    simulation_table,
)

#: What Typer raises for a wrong command line; newer versions bundle their own click.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(add_completion=False, rich_markup_mode=None)
data_app = typer.Typer(invoke_without_command=True, help="List data sets, or add one.")
app.add_typer(data_app, name="data")

RecipeName = Annotated[str, typer.Argument(help="A recipe (see 'poise recipes') or a TOML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value …, e.g. setting=tfs phases=25")]
Checkpoints = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.", min=0)]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Short for seed=N.")]
LanesOption = Annotated[int | None, typer.Option("--lanes", help="Runs side by side; measured if not given.", min=1)]
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
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Out = None,
    seed: Seed = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and its cost.")] = False,
    tensorboard: Board = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a recipe over its stream of phases."""
    plan = _plan(recipe, overrides, seed)
    if dry_run:
        typer.echo(describe_plan(plan))
        return
    _start(Run(plan, RunFolder(out or plan.default_folder()), (), checkpoint_every), tensorboard)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that was stopped.")],
    tensorboard: Board = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Continue a run that was stopped or killed; the result is the same as without the stop."""
    opened, plan = reopen(folder)
    if opened.finished:
        typer.echo(f"{folder} is finished already: average accuracy {load_result(folder)['average_accuracy']:.2f}")
        return
    watchers = _watchers(opened, make_watcher(len(plan.stream)), tensorboard)
    job = runner_in(opened)(plan, opened, watchers, checkpoint_every)
    typer.echo(f"\n{run_table(run_of_result(job.resume()))}\n\nrun folder {folder}\n{_write_report([folder], folder)}")


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with recipe, [set] and [grid].")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the run folders.")] = Path("runs"),
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Run a grid of runs; finished cells are not run again."""
    cells = read_sweep(file)
    failed = sweep_cells(cells, out, lanes, Lines(None, sys.stderr), checkpoint_every)
    folders = [out / cell.name for cell in cells if cell.name not in failed]
    if folders:
        table = comparison_table([run_of_result(load_result(folder)) for folder in folders])
        typer.echo(f"\n{table}\n\nrun folders in {out}\n{_write_report(folders, out)}")
    refuse_failed(failed, cells)


@app.command()
def crossval(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder of the run folders.")] = None,
    seed: Seed = None,
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """An oracle: run every action of the space as a constant one, and keep the best by the exam of whole runs."""
    plan = _plan(recipe, overrides, seed)
    folder = out or crossval_folder(plan)
    result = run_crossval(plan, folder, lanes, Lines(None, sys.stderr), checkpoint_every)
    typer.echo(f"\n{actions_table(result)}\n\n{run_table(run_of_result(result))}\n\nrun folders in {folder}")


@app.command()
def audit(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Out = None,
    seed: Seed = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Measure a leak: run a policy that is told the exam accuracy of its trials. Its results are labelled."""
    plan = _plan(recipe, overrides, seed)
    _start(Audit(plan, RunFolder(out or audit_folder(plan)), (), checkpoint_every), tensorboard=False)


@app.command()
def probe(
    recipe: Annotated[str, typer.Argument(help="A recipe, or the folder of a run that stands before the phase.")],
    phase: Annotated[int, typer.Option("--phase", help="In which phase the actions are tried.")],
    out: Annotated[Path, typer.Option("--out", help="The table, FILE.json; a run up to the phase goes beside it.")],
    overrides: Overrides = None,
    space: Annotated[str | None, typer.Option("--space", help="Short for space=NAME.")] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", help="Epochs of the trials, e.g. 4,16.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Also train every action at full length.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", help="Splits of the environment.", min=1)] = 1,
) -> None:
    """Try every action of a space in one phase; store rewards beside the exam of the temporary models."""
    words = [*(overrides or []), *([f"space={space}"] if space else [])]
    question = Question(phase, _whole_numbers(lengths), full, rounds)
    if RunFolder(Path(recipe)).exists:
        job = Probe(*reopened(Path(recipe), words), question, out)
    else:
        job = Probe(_plan(recipe, words), RunFolder(out.with_suffix("")), question, out)
        reach(job.plan, job.folder, phase, make_watcher(len(job.plan.stream), job.plan.source.notes))
    typer.echo(probe_summary(ProbeTable(job.run(_say))))


@app.command()
def simulate(
    tables: Annotated[
        list[str], typer.Argument(help="Tables of 'poise probe'; then options of the policy, key=value.")
    ],
    policy: Annotated[str, typer.Option("--policy", help="Which policy is replayed.")],
    runs: Annotated[int, typer.Option("--runs", help="How often; 300 take about 3 to 15 s.", min=1)] = 300,
    phases: Annotated[
        int | None, typer.Option("--phases", help="With one table: in how many phases (5).", min=1)
    ] = None,
    truth: Annotated[str | None, typer.Option("--truth", help="Judge by: exam (after M₁) or full (after M₂).")] = None,
    truth_from: Annotated[list[Path] | None, typer.Option("--truth-from", help="Tables whose exams judge.")] = None,
    classifier: Annotated[str | None, typer.Option("--classifier", help="fc or ncm.")] = None,
    length: Annotated[int | None, typer.Option("--length", help="M₁, if the tables have several.")] = None,
    paired: Annotated[bool, typer.Option("--paired", help="An image is easy or hard for all actions alike.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulated runs.")] = 0,
) -> None:
    """Replay a policy on tables of rewards, one after the other as phases, many times."""
    options = _options([word for word in tables if "=" in word])
    probes = [load_probe(Path(word)) for word in tables if "=" not in word]
    judges = [load_probe(path) for path in truth_from or ()]
    table, words = simulation_table(
        probes, length=length, truth=truth, classifier=classifier, phases=phases, judges=judges
    )
    made = partial(make_policy, policy, options=options)
    found = replay_on_table(made, table, runs, seed, full=probes[0].long, paired=paired)
    named = " ".join([policy, *(f"{key}={value}" for key, value in options.items())])
    typer.echo(simulation_summary(found, f"{named} on {words}"))


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(help="Print this one.")] = None) -> None:
    """List the shipped recipes, or print one."""
    if name is not None:
        typer.echo(recipe_text(name).rstrip())
        return
    for known in recipe_names():
        typer.echo(f"{known:18} {recipe_text(known).splitlines()[0].removeprefix('# ')}")


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, folders of them, and tables of 'poise probe'.")],
    out: Annotated[Path | None, typer.Option("--out", help="A folder for index.html, tables and figures.")] = None,
    watching: Annotated[bool, typer.Option("--watch", help="Rewrite the page while runs continue.")] = False,
    every: Annotated[int, typer.Option("--every", help="Seconds between updates with --watch.", min=1)] = 10,
    maps: Annotated[bool, typer.Option("--cam", help="Also draw where the final models look (slower).")] = False,
) -> None:
    """Print a table over runs; with --out write a page with every table and figure, which opens from the disk."""
    if watching and out is None:
        raise UserError("--watch rewrites a page; say where with --out FOLDER")
    look = partial(gather_with_studies, paths)
    found = watch(look, out, every, _say) if watching and out is not None else look()
    if not found.runs and not found.texts:
        raise UserError(f"{found.unread[0].path} {found.unread[0].reason}")
    _say(*(f"not read: {each.path} {each.reason}" for each in found.unread))
    typer.echo(found.text())
    if out is not None:
        typer.echo(f"\nreport {found.write(out, _activation_maps(found) if maps else (), printed=True)}")


@app.command()
def cam(
    paths: Annotated[list[Path], typer.Argument(help="Finished run folders, or learners' files, side by side.")],
    images: Annotated[list[Path] | None, typer.Option("--images", help="Image files or folders of them.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The picture: FILE.png, .svg or .pdf.")] = Path("cam.png"),
) -> None:
    """Draw where models look (Grad-CAM); without --images, at exam images of early, middle and late classes."""
    check_picture(out)
    figure = activation_maps(paths, images or ())
    figure.save(out)
    typer.echo(f"{rows_table(figure.data)}\n\n{out}")


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
    added = add_source(name, source)
    _say(*added.notes)
    typer.echo(f"{name}: {len(added.class_names)} classes, checked and remembered")


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The learner's file; made if it is not there.")],
    folder: Annotated[Path, typer.Argument(help="A folder with one folder of images per class.")],
    method: Annotated[str | None, typer.Option(help="For a new learner: lucir, icarl, ranpac, …")] = None,
    epochs: Annotated[int | None, typer.Option(help="For a new learner.", min=1)] = None,
    memory: Annotated[int | None, typer.Option(help="For a new learner: images kept per class, or 0.", min=0)] = None,
    policy: Annotated[str | None, typer.Option(help="For a new learner: online, fixed, …")] = None,
    update: Annotated[bool, typer.Option("--update", help="Also train on new images of known classes.")] = False,
) -> None:
    """Learn the classes in a folder as one more phase, and save the learner."""
    given = {"method": method, "epochs": epochs, "memory": memory, "policy": policy}
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


def _plan(recipe: str, overrides: list[str] | None, seed: int | None = None) -> Plan:
    words = list(overrides or [])
    if "=" in recipe:  # no recipe given: the first word is an override
        words, recipe = [recipe, *words], DEFAULT_RECIPE
    words += [f"seed={seed}"] if seed is not None else []
    return make_plan(recipe, load_recipe(recipe, words))


def _start(job: Run, tensorboard: bool) -> None:
    """Start a run, or say what its folder already holds."""
    folder, plan = job.folder, job.plan
    if folder.exists:
        _explain_existing(folder, job.described())
        return
    watcher = make_watcher(len(plan.stream), [*plan.source.notes, f"run folder {folder.path}"])
    job.watchers = _watchers(folder, watcher, tensorboard)
    table = run_table(run_of_result(job.start()))
    typer.echo(f"\n{table}\n\nrun folder {folder.path}\n{_write_report([folder.path], folder.path)}")


def _activation_maps(found: Report) -> list[Figure]:
    return report_maps([run.path for run in found.runs if RunFolder(run.path).model.exists()])


def _write_report(runs: Sequence[Path], out: Path) -> str:
    """Write the report page of some runs into a folder, and say where; a failure does not fail the runs."""
    page = out / "report"
    if RunFolder(page).exists:
        return f"no report: {page} is a run folder"
    try:
        return f"report {gather_with_studies(runs).write(page)}"
    except (PoiseError, OSError) as error:
        return f"no report: {error}"


def _options(words: list[str]) -> dict[str, Any]:
    return {".".join(path): value for path, value in map(parse_override, words)}


def _whole_numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in (text or "").split(",") if word)
    except ValueError as error:
        raise UserError(f"--lengths {text} must be whole numbers with commas between, e.g. 4,16") from error


def _watchers(folder: RunFolder, watcher: Watcher, tensorboard: bool) -> list[Watcher]:
    return [watcher, TensorBoard(folder.path)] if tensorboard else [watcher]


def _explain_existing(folder: RunFolder, wanted: dict[str, object]) -> None:
    """A run folder is never overwritten: say what is there."""
    folder.refuse_other(wanted)
    if not folder.finished:
        raise UserError(f"{folder.path} holds this run, unfinished; continue with 'poise resume {folder.path}'")
    result = load_result(folder.path)
    typer.echo(f"{folder.path} holds this run, finished: average accuracy {result['average_accuracy']:.2f}")
