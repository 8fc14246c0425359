"""Algorithm 2: the step, the training of a phase, its events, and evaluation."""

from poise.training.backend import PRECISIONS, Backend, make_backend
from poise.training.evaluate import Extracted, both_classifiers, class_means, extract, guesses
from poise.training.events import (
    ActionDecided,
    EpochDone,
    Event,
    PhaseDone,
    PhaseStarted,
    StageDone,
    StepDone,
    TrialDone,
    TuningDone,
    trained_images,
)
from poise.training.lanes import Lanes
from poise.training.pace import Gauge, Pace, give_back
from poise.training.situation import PhaseStart
from poise.training.trainer import Schedule, Trainer

__all__ = [
    "PRECISIONS",
    "ActionDecided",
    "Backend",
    "EpochDone",
    "Event",
    "Extracted",
    "Gauge",
    "Lanes",
    "Pace",
    "PhaseDone",
    "PhaseStart",
    "PhaseStarted",
    "Schedule",
    "StageDone",
    "StepDone",
    "Trainer",
    "TrialDone",
    "TuningDone",
    "both_classifiers",
    "class_means",
    "extract",
    "give_back",
    "guesses",
    "make_backend",
    "trained_images",
]
