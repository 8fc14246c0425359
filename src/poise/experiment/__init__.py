"""The phase loop over a stream, recipes, journal and checkpoints, and the examiner."""

from poise.experiment.cam import activation_maps, report_maps
from poise.experiment.dryrun import describe_plan
from poise.experiment.examiner import Exam, Examiner, split_for_development
from poise.experiment.folder import RunFolder
from poise.experiment.progress import Lines, Quiet, Watcher, make_watcher
from poise.experiment.recipe import (
    DEFAULT_RECIPE,
    Recipe,
    load_recipe,
    make_recipe,
    parse_override,
    recipe_names,
    recipe_text,
)
from poise.experiment.run import CHECKPOINT_SECONDS, Plan, Run, make_plan, reopen
from poise.experiment.sweep import Cell, read_sweep, refuse_failed, sweep_cells
from poise.experiment.tensorboard import TensorBoard
from poise.experiment.trackers import TRACKERS, make_tracker
from poise.experiment.tracking import Tracker, track_folder
from poise.progress import watch_phase

__all__ = [
    "CHECKPOINT_SECONDS",
    "DEFAULT_RECIPE",
    "TRACKERS",
    "Cell",
    "Exam",
    "Examiner",
    "Lines",
    "Plan",
    "Quiet",
    "Recipe",
    "Run",
    "RunFolder",
    "TensorBoard",
    "Tracker",
    "Watcher",
    "activation_maps",
    "describe_plan",
    "load_recipe",
    "make_plan",
    "make_recipe",
    "make_tracker",
    "make_watcher",
    "parse_override",
    "read_sweep",
    "recipe_names",
    "recipe_text",
    "refuse_failed",
    "reopen",
    "report_maps",
    "split_for_development",
    "sweep_cells",
    "track_folder",
    "watch_phase",
]
