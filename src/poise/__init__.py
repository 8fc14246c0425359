"""poise: class-incremental learning that finds its own balance between stability and plasticity."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.actions import Action as Action
    from poise.data import Augmentation as Augmentation
    from poise.data import Budget as Budget
    from poise.data import Preprocessing as Preprocessing
    from poise.errors import PoiseError as PoiseError
    from poise.errors import UserError as UserError
    from poise.learner import Learner as Learner

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
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - the keys are strings


if not TYPE_CHECKING:  # which would take every other name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'poise' has no attribute '{name}'")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # asked for once only
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
