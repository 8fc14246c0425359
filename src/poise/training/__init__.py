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
from poise.training.phase import PhaseStart
from poise.training.trainer import Schedule, Trainer
from poise.training.trials import TrialResult, Trials, TrialSettings, Witness, trial_settings
from poise.training.tuners import TUNERS, decider_options, deciders, make_decider, own_space, tuner_options

__all__ = [
    "PRECISIONS",
    "TUNERS",
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
    "TrialResult",
    "TrialSettings",
    "Trials",
    "TuningDone",
    "Witness",
    "both_classifiers",
    "class_means",
    "decider_options",
    "deciders",
    "extract",
    "give_back",
    "guesses",
    "make_backend",
    "make_decider",
    "own_space",
    "trained_images",
    "trial_settings",
    "tuner_options",
]
