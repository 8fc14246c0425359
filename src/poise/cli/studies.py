"""The two commands that look at exams, and say so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from poise.cli.words import (
    USUAL_FOLDER,
    Checkpoints,
    LanesOption,
    Overrides,
    RecipeName,
    Seed,
    out_option,
    say,
    show,
)
from poise.recipes import DEFAULT_RECIPE
from poise.store import CHECKPOINT_SECONDS


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
    from poise.runs.checks import run_crossval

    plan = words_to_plan(recipe, overrides, seed)
    folder = out or plan.default_folder("crossval")
    result = run_crossval(plan, folder, lanes, say, checkpoint_every)
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
    from poise.runs.checks import Audit

    plan = words_to_plan(recipe, overrides, seed)
    usual = plan.default_folder()
    start_run(Audit(plan, RunFolder(out or usual.with_name(f"{usual.name}-leak")), (), checkpoint_every))
