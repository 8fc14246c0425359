"""poise: class-incremental learning that finds its own balance between stability and plasticity."""

from poise._version import __version__
from poise.actions import Action
from poise.data import Augmentation, Budget, Preprocessing
from poise.errors import PoiseError, UserError
from poise.learner import Learner

__all__ = [
    "Action",
    "Augmentation",
    "Budget",
    "Learner",
    "PoiseError",
    "Preprocessing",
    "UserError",
    "__version__",
]
