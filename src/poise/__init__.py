"""poise: class-incremental learning that finds its own balance between stability and plasticity."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

__version__ = "0.1.0"

#: Where each name is defined. It is imported when it is first asked for: torch, behind most of them, takes seconds.
_HOMES = {
    "Action": "poise.actions",
    "Augmentation": "poise.data",
    "Budget": "poise.data",
    "Learner": "poise.learner",
    "PoiseError": "poise.errors",
    "Preprocessing": "poise.data",
    "UserError": "poise.errors",
}


if not TYPE_CHECKING:  # which would take every other name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'poise' has no attribute '{name}'")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # asked for once only
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
