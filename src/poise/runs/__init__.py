"""The phase loop over a stream, recipes, journal and checkpoints, and the examiner."""

from poise.runs.examiner import Exam, Examiner, split_for_development
from poise.runs.folder import RunFolder
from poise.runs.observers import Observer, RunDisplay
from poise.runs.plan import Plan, describe_plan, make_plan, open_outlined, reopen
from poise.runs.ranks import Follower, open_ranks
from poise.runs.recipe import Recipe, in_order, load_recipe, make_recipe, recipe_with
from poise.runs.run import Run
from poise.runs.stopping import ignore_signals
from poise.runs.sweep import Cell, SweepOutline, describe_sweep, read_sweep, refuse_failed, sweep_cells
from poise.runs.trackers import TRACKERS, Tracker

__all__ = [
    "TRACKERS",
    "Cell",
    "Exam",
    "Examiner",
    "Follower",
    "Observer",
    "Plan",
    "Recipe",
    "Run",
    "RunDisplay",
    "RunFolder",
    "SweepOutline",
    "Tracker",
    "describe_plan",
    "describe_sweep",
    "ignore_signals",
    "in_order",
    "load_recipe",
    "make_plan",
    "make_recipe",
    "open_outlined",
    "open_ranks",
    "read_sweep",
    "recipe_with",
    "refuse_failed",
    "reopen",
    "split_for_development",
    "sweep_cells",
]
