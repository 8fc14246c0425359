"""Actions: what can be tuned in a phase, as plain frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from poise.errors import UserError, suggestion

AxisValue = float | str

#: Axes that are not weights of loss terms, with the words they accept (empty: any positive number).
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "lr": (),
    "classifier": ("fc", "ncm", "auto"),
    "old_rows": ("frozen", "trained"),
}


class Action(Mapping[str, AxisValue]):
    """One choice for every axis: the weights of the named loss terms and the settings of a phase.

    An axis that is not one of `SETTINGS` is the weight of the loss term of that name; a term without
    an axis has weight 1. An action is frozen, hashable, compares by value and prints as a short line.

    >>> Action(lr=0.1, classifier="fc", feature_kd=1.0)
    Action(classifier='fc', feature_kd=1.0, lr=0.1)
    """

    def __init__(self, **axes: AxisValue) -> None:
        self._axes: dict[str, AxisValue] = {name: _checked(name, axes[name]) for name in sorted(axes)}

    def __getitem__(self, name: str) -> AxisValue:
        return self._axes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __hash__(self) -> int:
        return hash(tuple(self._axes.items()))

    def __repr__(self) -> str:
        return f"Action({', '.join(f'{name}={value!r}' for name, value in self._axes.items())})"

    def __str__(self) -> str:
        return " ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in self._axes.items()
        )

    @property
    def lr(self) -> float:
        """The learning rate λ at the start of the phase."""
        return float(self._axes.get("lr", 0.1))

    @property
    def classifier(self) -> str:
        """Which classifier counts: `fc`, `ncm`, or `auto`."""
        return str(self._axes.get("classifier", "fc"))

    @property
    def old_rows(self) -> str:
        """Whether the head rows of old classes are `frozen` or `trained`."""
        return str(self._axes.get("old_rows", "trained"))

    def weight(self, term: str) -> float:
        """The weight of a loss term, 1 where the action does not name it."""
        return float(self._axes.get(term, 1.0))

    def replace(self, **axes: AxisValue) -> Action:
        """The same action with some axes changed; an axis it does not have is refused."""
        for name in axes:
            if name not in self._axes:
                raise UserError(f"unknown action axis '{name}'; {suggestion(name, self._axes)}")
        return Action(**{**self._axes, **axes})


def _checked(name: str, value: AxisValue) -> AxisValue:
    words = SETTINGS.get(name, ())
    if words:
        if value not in words:
            raise UserError(f"action {name}={value!r}; {suggestion(str(value), words)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"action {name}={value!r} must be a number")
    if not 0 <= value < float("inf") or (name == "lr" and value == 0):
        raise UserError(f"action {name}={value!r} must be {'above' if name == 'lr' else 'at least'} 0 and finite")
    return float(value)
