"""The learner: one phase per `partial_fit`, then `predict`.

`learner` is what a user meets, `conventions` what scikit-learn expects of it,
`settings` what it is made with, `arrival` what comes in, `phase` Algorithm 1, `state`
all of it as tensors and plain values, `summary` what a file of it holds in short, `views` what can be read off it,
`workload` how much work a phase will be;
`saving`, `upkeep`, `rejecting` and `exporting` what else is done with it.
"""

from poise.learner.arrival import Images, Labels
from poise.learner.defaults import suit, warn_of_short_phase
from poise.learner.labels import Label
from poise.learner.learner import Learner
from poise.learner.networks import build_model
from poise.learner.phase import Surroundings
from poise.learner.rejecting import least_images
from poise.learner.saving import save_state
from poise.learner.settings import KEYS, Settings
from poise.learner.state import Knowledge, LearnerState, Lookup
from poise.learner.summary import LearnerSummary
from poise.learner.upkeep import Exemplar
from poise.learner.workload import planned_work

__all__ = [
    "KEYS",
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
    "Surroundings",
    "build_model",
    "least_images",
    "planned_work",
    "save_state",
    "suit",
    "warn_of_short_phase",
]
