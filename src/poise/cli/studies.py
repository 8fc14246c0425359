"""The commands of studies, which look at exams and say so."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.words import (
    USUAL_FOLDER,
    Checkpoints,
    LanesOption,
    Overrides,
    RecipeName,
    Seed,
    out_option,
    path_option,
    say,
    show,
)
from poise.errors import UserError, shown
from poise.files import expand_user
from poise.recipes import DEFAULT_RECIPE
from poise.store import CHECKPOINT_SECONDS

_MOST_REPLAYED = 1_000_000  # phases of all runs together: hours


def crossval(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[Path | None, out_option("The folder of the run folders.", USUAL_FOLDER.format("crossval"))] = None,
    seed: Seed = None,
    lanes: LanesOption = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """An oracle: run every action of the space in all phases, and keep the best by the exam."""
    from poise.cli.running import words_to_plan
    from poise.report import actions_table, run_of_result, run_table
    from poise.runs import Lines
    from poise.studies import crossval_folder, run_crossval

    plan = words_to_plan(recipe, overrides, seed)
    folder = out or crossval_folder(plan)
    result = run_crossval(plan, folder, lanes, Lines(None, sys.stderr), checkpoint_every)
    show(f"\n{actions_table(result)}\n\n{run_table(run_of_result(result))}\n\nrun folders in {folder}")


def audit(
    recipe: RecipeName = DEFAULT_RECIPE,
    overrides: Overrides = None,
    out: Annotated[Path | None, out_option("Run folder.", f"{USUAL_FOLDER.format('POLICY')}-leak")] = None,
    seed: Seed = None,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Measure a leak: run a policy that is told the exam accuracy of its trials. Its results are labelled."""
    from poise.cli.running import start_run, words_to_plan
    from poise.runs import RunFolder
    from poise.studies import Audit, audit_folder

    plan = words_to_plan(recipe, overrides, seed)
    start_run(Audit(plan, RunFolder(out or audit_folder(plan)), (), checkpoint_every))


def probe(
    recipe: Annotated[str, typer.Argument(help="A recipe, or the folder of a run trained up to the phase.")],
    phase: Annotated[int, typer.Option("--phase", help="In which phase the actions are tried.")],
    out: Annotated[Path, out_option("The table, FILE.json; a run up to the phase goes beside it.")],
    overrides: Overrides = None,
    space: Annotated[
        str | None, typer.Option("--space", help="Short for space=NAME.", show_default="the recipe's")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option("--lengths", help="Epochs of the trials, e.g. 4,16.", show_default="the policy's own")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also train every action at full length.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", help="Splits of the environment.", min=1, max=10_000)] = 1,
) -> None:
    """Try every action of a space in one phase; store rewards beside the exam of the temporary models."""
    from poise.cli.running import words_to_plan
    from poise.runs import RunFolder, make_watcher
    from poise.studies import Probe, ProbeTable, Question, probe_summary, reach, reopen_for_probe

    words = [*(overrides or []), *([f"space={space}"] if space else [])]
    question = Question(phase, _whole_numbers(lengths), full, rounds)
    folder = expand_user(recipe)
    if RunFolder(folder).exists:
        job = Probe(*reopen_for_probe(folder, words), question, out)
    else:
        job = Probe(words_to_plan(recipe, words), RunFolder(out.with_suffix("")), question, out)
        reach(job.plan, job.folder, phase, make_watcher(len(job.plan.stream), job.plan.source.notes))
    show(probe_summary(ProbeTable(job.run(say))))


def simulate(
    tables: Annotated[
        list[str], typer.Argument(help="Tables of 'poise probe'; then options of the policy, key=value.")
    ],
    policy: Annotated[str, typer.Option("--policy", help="Which policy is replayed.")],
    runs: Annotated[int, typer.Option("--runs", help="How many; 300 take about 3 to 15 s.", min=1, max=100_000)] = 300,
    phases: Annotated[
        int | None,
        typer.Option("--phases", help="With one table: the number of phases.", min=1, max=1_000, show_default="5"),
    ] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            "--truth", help="Judge by: exam (after M₁) or full (after M₂).", show_default="full, if the tables have it"
        ),
    ] = None,
    truth_from: Annotated[list[Path] | None, path_option("--truth-from", "Judge by the exams of these tables.")] = None,
    classifier: Annotated[str | None, typer.Option(help="fc or ncm.", show_default="the default action's")] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="M₁, if the tables have several.", show_default="the longest")
    ] = None,
    paired: Annotated[bool, typer.Option("--paired", help="Draw validation noise alike for all actions.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the simulated runs.")] = 0,
) -> None:
    """Replay a policy on tables of rewards, one after the other as phases, many times."""
    from poise.policies import POLICIES, make_policy, resolved_options
    from poise.policies.simulate import replay_on_table
    from poise.runs import parse_once
    from poise.studies import load_probe, simulation_summary, simulation_table
    from poise.tuning import tuner_names

    if runs * (phases or 1) > _MOST_REPLAYED:
        raise UserError(f"{runs} runs of {phases} phases take days; use at most {_MOST_REPLAYED} phases in all")
    if policy in {*tuner_names(), "crossval"} - {*POLICIES}:
        raise UserError(
            f"policy {policy} cannot be replayed, as it does not choose by the rewards of single trials; "
            f"replay one of {', '.join(POLICIES)}"
        )
    options = parse_once([word for word in tables if "=" in word])
    resolved_options(policy, options)  # refuses what means nothing, before the tables are read
    probes = [load_probe(expand_user(word)) for word in tables if "=" not in word]
    judges = [load_probe(path) for path in truth_from or ()]
    table, words = simulation_table(
        probes, length=length, truth=truth, classifier=classifier, phases=phases, judges=judges
    )
    made = partial(make_policy, policy, options=options)
    found = replay_on_table(made, table, runs, seed, full=probes[0].long, paired=paired)
    named = " ".join([policy, *(f"{key}={value}" for key, value in options.items())])
    show(simulation_summary(found, f"{named} on {words}"))


def _whole_numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in (text or "").split(",") if word)
    except ValueError as error:
        raise UserError(f"--lengths {shown(text)} must be whole numbers with commas between, e.g. 4,16") from error
