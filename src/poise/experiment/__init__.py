"""The phase loop over a stream, recipes, journal and checkpoints, and the examiner."""

from poise.experiment.cam import activation_maps, report_maps
from poise.experiment.dryrun import describe_plan
from poise.experiment.examiner import Exam, Examiner, split_for_development
from poise.experiment.folder import RunFolder
from poise.experiment.lessons import Lesson
from poise.experiment.model_file import ModelFile
from poise.experiment.overrides import in_order, parse_once
from poise.experiment.plan import Plan, make_plan, open_outlined, reopen
from poise.experiment.prediction import (
    Prediction,
    predict_files,
    predict_paths,
    read_paths,
    score_folder,
    set_reject,
)
from poise.experiment.progress import Lines, Quiet, Watcher, make_watcher
from poise.experiment.ranks import Follower, open_ranks
from poise.experiment.recipe import Recipe, load_recipe, make_recipe
from poise.experiment.run import Run, complete
from poise.experiment.stopping import ignore_signals
from poise.experiment.sweep import refuse_failed, sweep_cells
from poise.experiment.sweep_file import Cell, pick_cell, read_sweep
from poise.experiment.sweep_outline import SweepOutline, describe_sweep
from poise.experiment.sweep_view import sweep_lines
from poise.experiment.tensorboard import TensorBoard
from poise.experiment.trackers import TRACKERS, make_tracker
from poise.experiment.tracking import Tracker, track_folder

__all__ = [
    "TRACKERS",
    "Cell",
    "Exam",
    "Examiner",
    "Follower",
    "Lesson",
    "Lines",
    "ModelFile",
    "Plan",
    "Prediction",
    "Quiet",
    "Recipe",
    "Run",
    "RunFolder",
    "SweepOutline",
    "TensorBoard",
    "Tracker",
    "Watcher",
    "activation_maps",
    "complete",
    "describe_plan",
    "describe_sweep",
    "ignore_signals",
    "in_order",
    "load_recipe",
    "make_plan",
    "make_recipe",
    "make_tracker",
    "make_watcher",
    "open_outlined",
    "open_ranks",
    "parse_once",
    "pick_cell",
    "predict_files",
    "predict_paths",
    "read_paths",
    "read_sweep",
    "refuse_failed",
    "reopen",
    "report_maps",
    "score_folder",
    "set_reject",
    "split_for_development",
    "sweep_cells",
    "sweep_lines",
    "track_folder",
]
