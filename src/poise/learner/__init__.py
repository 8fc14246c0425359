"""The learner: one phase per `partial_fit`, then `predict`.

`learner` is what a user meets, `conventions` what scikit-learn expects of it,
`settings` what it is made with, `arrival` what comes in, `phase` Algorithm 1, `state`
all of it as tensors and plain values, `summary` what a file of it holds in short, `views` what can be read off it,
`workload` how much work a phase will be,
`timing` how long it takes, `opening` what comes before it;
`saving`, `upkeep`, `rejecting` and `exporting` what else is done with it.
"""

from poise.learner.arrival import Images, Labels
from poise.learner.defaults import suit, warn_of_short_phase
from poise.learner.labels import Label
from poise.learner.learner import Learner
from poise.learner.networks import build_model
from poise.learner.opening import judging_work
from poise.learner.phase import Surroundings
from poise.learner.rejecting import least_images
from poise.learner.saving import save_state
from poise.learner.settings import KEYS, Settings
from poise.learner.state import Knowledge, LearnerState, Lookup
from poise.learner.summary import LearnerSummary
from poise.learner.timing import STEP_COST, TEACHER_COST, Speed, is_computed, speed_of, try_step
from poise.learner.upkeep import Exemplar
from poise.learner.workload import can_validate, planned_work

__all__ = [
    "KEYS",
    "STEP_COST",
    "TEACHER_COST",
    "Exemplar",
    "Images",
    "Knowledge",
    "Label",
    "Labels",
    "Learner",
    "LearnerState",
    "LearnerSummary",
    "Lookup",
    "Settings",
    "Speed",
    "Surroundings",
    "build_model",
    "can_validate",
    "is_computed",
    "judging_work",
    "least_images",
    "planned_work",
    "save_state",
    "speed_of",
    "suit",
    "try_step",
    "warn_of_short_phase",
]
