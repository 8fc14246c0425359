"""Algorithm 2: the step, the training of a phase, its events, and evaluation."""

from poise.training.backend import PRECISIONS, Backend, make_backend
from poise.training.evaluate import Extracted, both_classifiers, class_means, extract
from poise.training.events import (
    ActionDecided,
    EpochDone,
    Event,
    PhaseDone,
    PhaseStarted,
    StageDone,
    StepDone,
    TrialDone,
)
from poise.training.lanes import Lanes
from poise.training.phase import PhaseStart
from poise.training.trainer import Schedule, Trainer
from poise.training.trials import TrialResult, Trials, TrialSettings, Witness

__all__ = [
    "PRECISIONS",
    "ActionDecided",
    "Backend",
    "EpochDone",
    "Event",
    "Extracted",
    "Lanes",
    "PhaseDone",
    "PhaseStart",
    "PhaseStarted",
    "Schedule",
    "StageDone",
    "StepDone",
    "Trainer",
    "TrialDone",
    "TrialResult",
    "TrialSettings",
    "Trials",
    "Witness",
    "both_classifiers",
    "class_means",
    "extract",
    "make_backend",
]
