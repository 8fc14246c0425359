"""Algorithm 2: one model trained with one action.

`situation` is what a training starts from, `material` its images or their features, `trainer` trains it stage by
stage, `balanced` picks the images of a balanced one, `step` is one step of it (`capture`: as a CUDA graph), `schedule`
its length, `optimiser` what moves the weights, `restoring` takes over what was saved, `keeping` says what remains
after it, `evaluate` looks at models, `lanes` runs several trainings side by side,
`backend` is the device, `ranks` those that train together (`statistics`: theirs), `noise` what a network draws
itself, `events` what happens on the way.
"""

from poise.training.backend import PRECISIONS, Backend, make_backend, undisturbed
from poise.training.evaluate import NCM_TEMPERATURE, ClassMeans, Evaluator, Extracted, both_classifiers
from poise.training.events import (
    ActionDecided,
    DefaultsChosen,
    EpochDone,
    Event,
    PhaseDone,
    PhaseStarted,
    Progress,
    StageDone,
    TrialDone,
    TuningDone,
)
from poise.training.keeping import keep_exemplars, keep_memory, measure_means, remember_means
from poise.training.lanes import (
    Bench,
    Executor,
    Lane,
    Lanes,
    LocalExecutor,
    WaitingExecutor,
    Work,
    give_back,
    worthwhile_lanes,
)
from poise.training.material import Material, features_suffice
from poise.training.ranks import ALONE, World, current_world, join_world, leave_world
from poise.training.schedule import Schedule
from poise.training.situation import LocalPhase, Situation
from poise.training.switches import Switches, changed_switches, read_switches
from poise.training.trainer import Trainer

__all__ = [
    "ALONE",
    "NCM_TEMPERATURE",
    "PRECISIONS",
    "ActionDecided",
    "Backend",
    "Bench",
    "ClassMeans",
    "DefaultsChosen",
    "EpochDone",
    "Evaluator",
    "Event",
    "Executor",
    "Extracted",
    "Lane",
    "Lanes",
    "LocalExecutor",
    "LocalPhase",
    "Material",
    "PhaseDone",
    "PhaseStarted",
    "Progress",
    "Schedule",
    "Situation",
    "StageDone",
    "Switches",
    "Trainer",
    "TrialDone",
    "TuningDone",
    "WaitingExecutor",
    "Work",
    "World",
    "both_classifiers",
    "changed_switches",
    "current_world",
    "features_suffice",
    "give_back",
    "join_world",
    "keep_exemplars",
    "keep_memory",
    "leave_world",
    "make_backend",
    "measure_means",
    "read_switches",
    "remember_means",
    "undisturbed",
    "worthwhile_lanes",
]
