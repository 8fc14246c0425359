"""The learner: one phase per `partial_fit`, then `predict`.

`learner` is what a user meets, `inputs` what comes in, `phase` Algorithm 1, `defaults` what is chosen for the first
images, `networks` how models are built, `state` all of it as tensors and plain values, `upkeep` what changes between
phases, `extras` rejecting and export.
"""

from poise.learner.defaults import fill_in_defaults, warn_of_short_phase
from poise.learner.inputs import Images, Known, Labels
from poise.learner.learner import Learner
from poise.learner.phase import planned_work
from poise.learner.settings import KEYS, Runtime, Settings
from poise.learner.state import Label, LearnerState, Lookup, save_state

__all__ = [
    "KEYS",
    "Images",
    "Known",
    "Label",
    "Labels",
    "Learner",
    "LearnerState",
    "Lookup",
    "Runtime",
    "Settings",
    "fill_in_defaults",
    "planned_work",
    "save_state",
    "warn_of_short_phase",
]
