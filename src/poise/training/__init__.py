"""Algorithm 2: one model trained with one action.

`context` is what a training starts from and what it trains on, `trainer` trains it stage by stage, `step` is one step
of it (`capture`: as a CUDA graph), `optimiser` its length and what moves the weights, `evaluate` looks at models,
`lanes` runs several trainings side by side, `device` says where, `ranks` are processes that train together, `events`
is what happens on the way.
"""

from poise.training.context import (
    LocalPhase,
    PhaseContext,
    PhaseData,
    features_suffice,
    keep_memory,
    measure_means,
)
from poise.training.device import (
    Backend,
    changed_switches,
    make_backend,
    read_switches,
    undisturbed,
)
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
from poise.training.lanes import (
    Bench,
    Executor,
    Lane,
    Lanes,
    WaitingExecutor,
    Work,
    worthwhile_lanes,
)
from poise.training.optimiser import Schedule
from poise.training.ranks import ALONE, World, join_world
from poise.training.trainer import Trainer

__all__ = [
    "ALONE",
    "NCM_TEMPERATURE",
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
    "LocalPhase",
    "PhaseContext",
    "PhaseData",
    "PhaseDone",
    "PhaseStarted",
    "Progress",
    "Schedule",
    "StageDone",
    "Trainer",
    "TrialDone",
    "TuningDone",
    "WaitingExecutor",
    "Work",
    "World",
    "both_classifiers",
    "changed_switches",
    "features_suffice",
    "join_world",
    "keep_memory",
    "make_backend",
    "measure_means",
    "read_switches",
    "undisturbed",
    "worthwhile_lanes",
]
