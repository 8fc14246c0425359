"""Actions: what can be tuned in a phase, as plain frozen values; and spaces of them, from which a policy chooses.

A space is a grid, or several, around one base action.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from poise.errors import LARGEST_NUMBER, UserError, check_number, shown, suggestion

AxisValue = float | str


@dataclass(frozen=True)
class Axis:
    """A setting of an action that is more than the weight of a loss term.

    Attributes:
        name: as an action, a space and a recipe write it.
        default: the value where an action does not name the axis; None: something else says it (schedule, memory).
        words: what it accepts; without words it is a number of at least 0.
        positive: whether the number must be above 0.
        most: the largest number.
        kind: the word of `tune` that tunes it alone; None: it is tuned only where nothing is switched.
        changes_step: whether a training step that was captured with one value cannot serve another. A step reads
            learning rates and weights anew each time; whatever else it depends on says so here.
    """

    name: str
    default: AxisValue | None = None
    words: tuple[str, ...] = ()
    positive: bool = False
    most: float = LARGEST_NUMBER
    kind: str | None = None
    changes_step: bool = False

    def checked(self, value: object) -> AxisValue:
        """The value, refused where the axis does not accept it."""
        if self.words:
            if value not in self.words:
                raise UserError(f"action {self.name}={shown(value)}; {suggestion(value, self.words)}")
            return str(value)
        check_number(f"action {self.name}", value, most=self.most, positive=self.positive)
        return float(cast("float", value))


#: The longest phase; also of a schedule.
MOST_EPOCHS: Final = 1_000_000

#: The word of `tune` for every distillation weight.
DISTILLATION: Final = "kd"

#: The weights of the loss terms of poise's own methods.
TERMS: Final = ("auxiliary", "feature_kd", "logit_kd", "margin", "pod")

#: The settings by their names. Every other axis of an action is the weight of the loss term of that name.
AXES: Final[dict[str, Axis]] = {}


def register_axis(axis: Axis) -> Axis:
    """Make a setting known by its name, for actions, spaces and recipes."""
    if axis.name in TERMS or AXES.get(axis.name, axis) != axis:
        raise UserError(f"the axis '{axis.name}' is known already; give yours its own name")
    AXES[axis.name] = axis
    return axis


for _axis in (
    Axis("lr", 0.1, positive=True, kind="lr"),
    Axis("classifier", "fc", words=("fc", "ncm", "auto"), kind="classifier"),
    Axis("old_rows", "trained", words=("frozen", "trained")),
    Axis("adjustment", 0.0),
    Axis("balance", "none", words=("none", "align", "finetune"), changes_step=True),
    Axis("epochs", positive=True, most=MOST_EPOCHS),
    Axis("allocation", most=1),
    Axis("backbone_rate", 1.0, kind="lr", changes_step=True),
    Axis("ridge", 0.0),
    Axis("beta1", 0.0, most=1),
):
    register_axis(_axis)


def is_weight(name: str) -> bool:
    """Whether an axis is the weight of a loss term."""
    return name not in AXES


def axis_named(name: str) -> Axis:
    """The setting of that name, else the weight of the loss term of that name: of distillation, but for two terms."""
    return AXES.get(name) or Axis(name, kind=DISTILLATION if name not in ("auxiliary", "margin") else None)


class Action(Mapping[str, AxisValue]):
    """One choice for every axis: the weights of the named loss terms and the settings of a phase.

    An axis that is not one of `AXES` is the weight of the loss term of that name; a term without
    an axis has weight 1. An action is frozen, hashable, compares by value and prints as a short line.

    >>> Action(lr=0.1, classifier="fc", feature_kd=1.0)
    Action(classifier='fc', feature_kd=1.0, lr=0.1)
    """

    def __init__(self, **axes: AxisValue) -> None:
        self._axes: dict[str, AxisValue] = {name: axis_named(name).checked(axes[name]) for name in sorted(axes)}

    @classmethod
    def restored(cls, axes: Mapping[str, AxisValue]) -> Action:
        """A saved action as it is: its axes were checked when it was made, and need not be known here."""
        action = cls()
        action._axes = {name: axes[name] for name in sorted(axes)}
        return action

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

    # Every setting is an attribute: as the action says, else its default; None where something else says it.

    #: The learning rate λ at the start of the phase.
    lr: float
    #: Which classifier counts: `fc`, `ncm`, or `auto`.
    classifier: str
    #: Whether the head rows of old classes are `frozen` or `trained`.
    old_rows: str
    #: How the head is balanced after training: `none`, `align` (weight alignment) or `finetune`.
    balance: str
    #: τ: how much of the logarithm of its share of the training images is added to each class's logit.
    adjustment: float
    #: The learning rate of the backbone as a multiple of the head's; 0 keeps it frozen in this phase.
    backbone_rate: float
    #: RanPAC's κ; 0 where held-out images say it.
    ridge: float
    #: FOSTER's β₁: how far logits are aligned to the numbers of images; 0 is not at all.
    beta1: float
    #: The length of the phase in epochs; None where the schedule says it.
    epochs: float | None
    #: RMM's ρ: the share of the room for new images that is given to exemplars; None where the budget says it.
    allocation: float | None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a number or a word, as the axis has
        if name not in AXES:
            raise AttributeError(f"an action has no setting '{name}'", name=name, obj=self)
        return self._axes.get(name, AXES[name].default)

    @property
    def step_key(self) -> tuple[AxisValue | None, ...]:
        """A key: two actions with equal keys can be trained by one captured step."""
        return tuple(getattr(self, name) for name, axis in sorted(AXES.items()) if axis.changes_step)

    def weight(self, term: str) -> float:
        """The weight of a loss term, 1 where the action does not name it."""
        return float(self._axes.get(term, 1.0))

    def replace(self, **axes: AxisValue) -> Action:
        """This action with some axes changed; an axis it does not have is refused."""
        if unknown := sorted({*axes} - {*self._axes}):
            raise UserError(f"unknown action axis '{unknown[0]}'; {suggestion(unknown[0], self._axes)}")
        return Action(**{**self._axes, **axes})


# Action spaces -------------------------------------------------------------------------------------------------------

Grid = Mapping[str, Sequence[AxisValue]]
Grids = Grid | Sequence[Grid]  # one, or several of which all actions count


class Named(NamedTuple):
    """The grids of a space that goes by a name: what of them a method does not have is left out.

    `favourite` is the action, as changes to the method's own, that did best where little can be seen.
    """

    name: str
    grids: tuple[Grid, ...]
    favourite: Mapping[str, AxisValue] | None = None


Space = str | Grids | Named

#: The largest space: each action is an arm, and most policies try all of them.
MOST_ACTIONS: Final = 10_000
#: The name of a grid of one's own.
OWN: Final = "grid"

_PAPER: Final = (0, 0.1, 0.5, 1, 10)

#: The named spaces, of which a weight that a method does not have is left out; it may have its own version of one.
SPACES: Final[Mapping[str, Grid]] = {
    "paper": {"logit_kd": _PAPER, "feature_kd": _PAPER, "pod": (0, 0.1, 1), "lr": (0.1, 0.05)},
    "joint": {"logit_kd": _PAPER, "feature_kd": _PAPER, "lr": (0.1, 0.05), "classifier": ("fc", "ncm")},
    "wide": {
        "logit_kd": (0, 0.1, 0.5, 1),
        "feature_kd": (0, 0.1, 0.5, 1, 2, 4),
        "lr": (0.1, 0.05, 0.02, 0.01, 0.005),
    },
    "online": {
        "logit_kd": (0, 1),
        "feature_kd": (0.5, 1),
        "pod": (0.1, 1),
        "adjustment": (0, 1),
        "lr": (0.1, 0.05, 0.02),
        "backbone_rate": (0, 0.01, 0.1),
        "ridge": (0, 1e2, 1e4, 1e6, 1e8),
    },
}

#: What a name of a space may end with: RMM's ρ is then one more axis of it, with these values.
WITH_ALLOCATION: Final = "+allocation"
ALLOCATIONS: Final = (0.2, 0.5, 0.8)


@dataclass(frozen=True)
class ActionSpace:
    """A finite, ordered grid of actions around a base action, or several grids one after the other.

    The base action (the method's own, perhaps changed by the user) is always among the actions, so that
    leaving it alone is always possible: where it is not on the grid it is appended as one more arm.

    Attributes:
        name: `paper`, `joint`, `wide`, `online`, all also with `+allocation`, or `grid` for one's own.
        grids: the tuned axes of each grid with their values, in the order in which its product runs (the last one
            fastest).
        default: the index of the base action.
        favourite: the index of the action that is known to do well where little can be seen, if there is one.
    """

    name: str
    grids: tuple[Mapping[str, tuple[AxisValue, ...]], ...]
    actions: tuple[Action, ...]
    default: int
    favourite: int | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __str__(self) -> str:
        grids = " + ".join(
            " × ".join(f"{name} {{{', '.join(map(_short, values))}}}" for name, values in grid.items())
            for grid in self.grids
        )
        own, count = self.actions[self.default], f"{len(self)} action{'s' if len(self) > 1 else ''}"
        on_grid = any(all(own[axis] in values for axis, values in grid.items()) for grid in self.grids)
        return f"{self.name}: {grids or 'nothing tuned'}: {count}" + (
            "" if on_grid else " (the default among them, off the grid)"
        )

    @cached_property
    def axes(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The tuned axes, each with all of its values."""
        if self.is_product:
            return self.grids[0]
        names = dict.fromkeys(axis for grid in self.grids for axis in grid)
        return {axis: tuple(dict.fromkeys(action[axis] for action in self.actions)) for axis in names}

    @property
    def is_product(self) -> bool:
        """Whether it is one grid: every value of an axis goes with every value of the others."""
        return len(self.grids) == 1

    def as_json(self) -> dict[str, object]:
        """The space as plain values, as a report prints it."""
        axes = {name: list(values) for name, values in self.axes.items()}
        own = dict(self.actions[self.default])
        found: dict[str, object] = {"name": self.name, "axes": axes, "actions": len(self), "default": own}
        if self.favourite is not None:
            found["favourite"] = dict(self.actions[self.favourite])
        if not self.is_product:
            found["grids"] = [{axis: list(values) for axis, values in grid.items()} for grid in self.grids]
            found["arms"] = [{axis: action[axis] for axis in axes} for action in self.actions]
        return found


def make_space(
    space: Space,
    base: Action,
    tune: Collection[str] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> ActionSpace:
    """The named space, or the product of a grid of one's own (or of several), around the base action.

    `tune` keeps only the axes of some kinds (`kd`: every distillation weight, `classifier`, `lr`); everything else
    then stays as in the base action. `choices` are the words of an axis that mean something to the method; of an axis
    without any, nothing is tuned in a named space. An empty grid is the space of the base action alone.
    """
    if tune is not None:
        _check_tuned(tune)
    known, named = choices or {}, named_space(space)
    given = named.grids if named.name == OWN else _meaningful(named.grids, base, known)
    grids, actions = list[dict[str, tuple[AxisValue, ...]]](), dict[Action, None]()
    for grid in given:
        values = {axis: _axis_values(axis, each, base) for axis, each in grid.items()}
        tuned = {axis: each for axis, each in values.items() if tune is None or axis_named(axis).kind in tune}
        count = sum(math.prod(map(len, each.values())) for each in [*grids, tuned])
        if count > MOST_ACTIONS:  # before they are made
            raise UserError(f"the space has {shown(count)} actions; name fewer values, {MOST_ACTIONS} actions at most")
        found = (base.replace(**dict(zip(tuned, each, strict=True))) for each in itertools.product(*tuned.values()))
        more = [action for action in found if action not in actions]
        if more or not grids:
            actions.update(dict.fromkeys(more))
            grids.append(tuned)
    arms = (*actions,) if base in actions else (*actions, base)
    for axis, words in known.items():
        for value in {action[axis]: None for action in arms if words and axis in action}:
            if value not in words:
                raise UserError(f"{axis}={value} means nothing to this method; {suggestion(str(value), words)}")
    favourite = named.favourite
    best = base.replace(**favourite) if favourite is not None and {*favourite} <= {*base} else None
    return ActionSpace(named.name, tuple(grids), arms, arms.index(base), arms.index(best) if best in arms else None)


def named_space(space: Space, versions: Mapping[str, Named] = MappingProxyType({})) -> Named:
    """The grids of a space, which `OWN` is the name of where they are one's own.

    A word is looked up, first among a method's own `versions`; `NAME+allocation` has ρ as an axis too.

    >>> named_space("online+allocation", {"online": Named("online", ({"lr": (0.1, 0.05)},))}).grids
    ({'lr': (0.1, 0.05), 'allocation': (0.2, 0.5, 0.8)},)
    """
    if isinstance(space, Named):
        return space
    if not isinstance(space, str):
        return Named(OWN, (space,) if isinstance(space, Mapping) else tuple(space))
    name = space.removesuffix(WITH_ALLOCATION)
    if name not in SPACES:
        raise UserError(f"unknown action space '{space}'; {suggestion(name, SPACES)}")
    found = versions.get(name) or Named(name, (SPACES[name],))
    if name == space:
        return found
    return found._replace(name=space, grids=tuple({**grid, "allocation": ALLOCATIONS} for grid in found.grids))


def _meaningful(grids: Iterable[Grid], base: Action, known: Mapping[str, Sequence[str]]) -> tuple[Grid, ...]:
    """The settings of an action, from named grids, that the method has; a grid of other words is left out."""
    found: list[Grid] = []
    for grid in grids:
        fitting = {
            axis: [value for value in values if value in known.get(axis, values)]
            for axis, values in grid.items()
            if axis in base and known.get(axis) != ()
        }
        found += [fitting] if all(fitting.values()) else []
    return tuple(found) or ({},)


def _check_tuned(kinds: Collection[str]) -> None:
    """Refuse a kind of axes that there is not."""
    tunable = {DISTILLATION, *(axis.kind for axis in AXES.values() if axis.kind is not None)}
    for word in kinds:
        if word not in tunable:
            raise UserError(f"tune cannot be {shown(word)}; {suggestion(word, tunable)}")


def _axis_values(axis: str, values: Sequence[AxisValue], base: Action) -> tuple[AxisValue, ...]:
    if axis not in base:
        raise UserError(
            f"the space has an axis '{axis}' that the method's action does not have; {suggestion(axis, base)}"
        )
    accepted = tuple(axis_named(axis).checked(value) for value in values)
    if not accepted or len(set(accepted)) < len(accepted):
        raise UserError(f"the axis '{axis}' of the space needs values, each once, e.g. {axis}=[{base[axis]!r}]")
    return accepted


def _short(value: AxisValue) -> str:
    return f"{value:g}" if isinstance(value, int | float) else value
