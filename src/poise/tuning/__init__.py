"""How the action of a phase is chosen: policies over trials, and tuners that are none."""

from poise.tuning.trials import TrialResult, Trials, TrialSettings, Witness, trial_settings
from poise.tuning.tuners import TUNERS, decider_options, deciders, make_decider, own_space, tuner_options

__all__ = [
    "TUNERS",
    "TrialResult",
    "TrialSettings",
    "Trials",
    "Witness",
    "decider_options",
    "deciders",
    "make_decider",
    "own_space",
    "trial_settings",
    "tuner_options",
]
