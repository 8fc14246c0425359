"""Actions and action spaces: what can be tuned in a phase, as plain frozen values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from poise.errors import UserError, suggestion

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
        scale: how a smooth surrogate sees the numbers, `log` or `linear`.
        kind: the word of `tune` that tunes it alone; None: it is tuned only where nothing is switched.
        changes_step: whether a training step that was captured with one value cannot serve another. A step reads
            learning rate and weights anew each time; whatever else it depends on says so here.
    """

    name: str
    default: AxisValue | None = None
    words: tuple[str, ...] = ()
    positive: bool = False
    most: float = math.inf
    scale: str = "log"
    kind: str | None = None
    changes_step: bool = False

    def checked(self, value: object) -> AxisValue:
        """The value, refused where the axis does not accept it."""
        if self.words:
            if value not in self.words:
                raise UserError(f"action {self.name}={value!r}; {suggestion(str(value), self.words)}")
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"action {self.name}={value!r} must be a number")
        if not 0 <= value < math.inf or (self.positive and value == 0):
            least = "above" if self.positive else "at least"
            raise UserError(f"action {self.name}={value!r} must be {least} 0 and finite")
        if value > self.most:
            raise UserError(f"action {self.name}={value!r} must be a share between 0 and {self.most:g}")
        return float(value)


#: The settings by their names. Every other axis of an action is the weight of the loss term of that name.
AXES: Final[dict[str, Axis]] = {}


def register_axis(axis: Axis) -> Axis:
    """Make a setting known by its name, for actions, spaces and recipes."""
    AXES[axis.name] = axis
    return axis


for _axis in (
    Axis("lr", 0.1, positive=True, kind="lr"),
    Axis("classifier", "fc", words=("fc", "ncm", "auto"), kind="classifier"),
    Axis("old_rows", "trained", words=("frozen", "trained"), changes_step=True),
    Axis("balance", "none", words=("none", "align", "finetune"), changes_step=True),
    Axis("epochs", positive=True),
    Axis("allocation", most=1, scale="linear"),
    Axis("backbone_rate", 1.0, kind="lr", changes_step=True),
    Axis("ridge", 0.0),
):
    register_axis(_axis)


def is_weight(name: str) -> bool:
    """Whether an axis is the weight of a loss term."""
    return name not in AXES


class Action(Mapping[str, AxisValue]):
    """One choice for every axis: the weights of the named loss terms and the settings of a phase.

    An axis that is not one of `AXES` is the weight of the loss term of that name; a term without
    an axis has weight 1. An action is frozen, hashable, compares by value and prints as a short line.

    >>> Action(lr=0.1, classifier="fc", feature_kd=1.0)
    Action(classifier='fc', feature_kd=1.0, lr=0.1)
    """

    def __init__(self, **axes: AxisValue) -> None:
        self._axes: dict[str, AxisValue] = {name: _checked(name, axes[name]) for name in sorted(axes)}

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

    def setting(self, name: str) -> AxisValue | None:
        """The value of a setting: as this action says, else its default; None where something else says it."""
        return self._axes.get(name, AXES[name].default)

    @property
    def lr(self) -> float:
        """The learning rate λ at the start of the phase."""
        return float(self.setting("lr") or 0.0)

    @property
    def classifier(self) -> str:
        """Which classifier counts: `fc`, `ncm`, or `auto`."""
        return str(self.setting("classifier"))

    @property
    def old_rows(self) -> str:
        """Whether the head rows of old classes are `frozen` or `trained`."""
        return str(self.setting("old_rows"))

    @property
    def balance(self) -> str:
        """How the head is balanced after training: `none`, `align` (weight alignment) or `finetune`."""
        return str(self.setting("balance"))

    @property
    def backbone_rate(self) -> float:
        """The learning rate of the backbone as a multiple of the head's; 0 keeps it frozen in this phase."""
        return float(self.setting("backbone_rate") or 0.0)

    @property
    def ridge(self) -> float:
        """RanPAC's κ; 0 where held-out images say it."""
        return float(self.setting("ridge") or 0.0)

    @property
    def epochs(self) -> float | None:
        """The length of the phase in epochs, None where the schedule says it."""
        return float(self._axes["epochs"]) if "epochs" in self._axes else None

    @property
    def allocation(self) -> float | None:
        """RMM's ρ: the share of the room for new images that is given to exemplars; None where the budget says it."""
        return float(self._axes["allocation"]) if "allocation" in self._axes else None

    @property
    def step_key(self) -> tuple[AxisValue | None, ...]:
        """What two actions must agree in to be trained by one captured step."""
        return tuple(self.setting(name) for name, axis in sorted(AXES.items()) if axis.changes_step)

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
    return AXES.get(name, Axis(name)).checked(value)


# Action spaces ------------------------------------------------------------------------------------------------------

Grid = Mapping[str, Sequence[AxisValue]]

#: The named grids. An axis that the method's own action does not have is left out.
SPACES: Final[Mapping[str, Grid]] = {
    "paper": {"logit_kd": (0, 0.1, 0.5, 1, 10), "feature_kd": (0, 0.1, 0.5, 1, 10), "lr": (0.1, 0.05)},
    "joint": {
        "logit_kd": (0, 0.1, 0.5, 1, 10),
        "feature_kd": (0, 0.1, 0.5, 1, 10),
        "lr": (0.1, 0.05),
        "classifier": ("fc", "ncm"),
    },
    "wide": {
        "logit_kd": (0, 0.1, 0.5, 1),
        "feature_kd": (0, 0.1, 0.5, 1, 2, 4),
        "lr": (0.1, 0.05, 0.02, 0.01, 0.005),
    },
    "paper3": {
        "logit_kd": (0, 0.1, 0.5, 1, 10),
        "feature_kd": (0, 0.1, 0.5, 1, 10),
        "pod": (0, 0.1, 1),
        "lr": (0.1, 0.05),
    },
    "wide3": {
        "logit_kd": (0, 0.1, 0.5, 1),
        "feature_kd": (0, 0.1, 0.5, 1),
        "pod": (0, 0.1, 0.5, 1, 2),
        "lr": (0.1, 0.05, 0.02, 0.01),
    },
    "online": {
        "logit_kd": (0, 1),
        "feature_kd": (0.1, 0.5, 1),
        "pod": (0.1, 1),
        "lr": (0.1, 0.05),
        "backbone_rate": (0, 0.01, 0.1),
        "ridge": (0, 1e2, 1e4, 1e6, 1e8),
    },
    "full": {
        "logit_kd": (0, 0.5, 1),
        "feature_kd": (0, 0.1, 0.5, 1, 2),
        "lr": (0.1, 0.05, 0.02, 0.01),
        "old_rows": ("frozen", "trained"),
        "balance": ("none", "align", "finetune"),
    },
}

#: In the space `joint` the margin term goes with the classifier (methods.md A13).
_JOINT_MARGIN: Final[Mapping[AxisValue, float]] = {"fc": 1.0, "ncm": 0.0}

#: The word of `tune` for every distillation weight. Settings have their own (`Axis.kind`); the others are tuned only
#: when nothing is switched.
DISTILLATION: Final = "kd"


@dataclass(frozen=True)
class ActionSpace:
    """A finite, ordered grid of actions around a base action.

    The base action (the method's own, perhaps changed by the user) is always among the actions, so that
    leaving it alone is always possible: where it is not on the grid it is appended as one more arm.

    Attributes:
        name: `paper`, `joint`, `wide`, `paper3`, `wide3`, `full`, `online`, or `grid` for a grid of one's own.
        axes: the tuned axes with their values, in the order in which the product runs (the last one fastest).
        actions: the arms.
        default: the index of the base action.
    """

    name: str
    axes: Mapping[str, tuple[AxisValue, ...]]
    actions: tuple[Action, ...]
    default: int

    def __hash__(self) -> int:
        return hash((self.name, self.actions, self.default))

    def __len__(self) -> int:
        return len(self.actions)

    def __str__(self) -> str:
        axes = " × ".join(f"{name} {{{', '.join(map(_short, values))}}}" for name, values in self.axes.items())
        count = f"{len(self)} action{'s' if len(self) > 1 else ''}"
        extra = " (the default among them, off the grid)" if len(self) > self._grid_size else ""
        return f"{self.name}: {axes or 'nothing tuned'}: {count}{extra}"

    @property
    def _grid_size(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    @cached_property
    def _places(self) -> dict[Action, int]:
        return {action: index for index, action in enumerate(self.actions)}

    def index(self, action: Action) -> int:
        """The arm that is this action."""
        if action not in self._places:
            raise UserError(f"the action '{action}' is not in the space {self}")
        return self._places[action]

    def coordinates(self) -> NDArray[np.float64]:
        """The position of every action (rows) on every tuned axis (columns), for a smooth surrogate.

        Weights are log10(w + 0.03), so that 0 lies about as far below 0.1 as 0.1 below 0.5; learning rates and
        epochs log10; an allocation is itself; two words are 0 and 1; three or more get a column each.
        """
        columns = [column for axis in self.axes for column in self._columns(axis)]
        return np.array(columns, dtype=np.float64).reshape(len(columns), len(self)).T.copy()

    def _columns(self, axis: str) -> list[list[float]]:
        values = [action[axis] for action in self.actions]
        known = AXES.get(axis)
        if known is not None and known.words:
            words = sorted(set(values), key=known.words.index)
            marked = words[1:] if len(words) <= 2 else words
            return [[float(value == word) for value in values] for word in marked]
        numbers = [float(value) for value in values]
        if known is not None and known.scale == "linear":
            return [numbers]
        nudge = 0.03 if is_weight(axis) or not AXES[axis].positive else 0.0
        return [[math.log10(number + nudge) for number in numbers]]

    def as_json(self) -> dict[str, object]:
        """What a report needs to print the space."""
        axes = {name: list(values) for name, values in self.axes.items()}
        return {"name": self.name, "axes": axes, "actions": len(self), "default": dict(self.actions[self.default])}


def make_space(
    space: str | Grid,
    base: Action,
    tune: str | Collection[str] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> ActionSpace:
    """The named space, or the product of a grid of one's own, around the base action.

    `tune` keeps only the axes of some kinds (`kd`: every distillation weight, `classifier`, `lr`); everything else
    then stays as in the base action. `choices` are the words of an axis that mean something to the method; of an axis
    without any, nothing is tuned in a named space. An empty grid is the space of the base action alone.
    """
    known = choices or {}
    if isinstance(space, str):
        named = {axis: values for axis, values in _known(space).items() if axis in base and known.get(axis) != ()}
        name = space
        grid: dict[str, Sequence[AxisValue]] = {
            axis: [value for value in values if value in known.get(axis, values)] for axis, values in named.items()
        }
    else:
        name, grid = "grid", dict(space)
    kinds = _kinds(tune)
    for axis, words in known.items():
        for value in (*grid.get(axis, ()), *([base[axis]] if axis in base else [])):
            if words and value not in words:
                raise UserError(f"{axis}={value} means nothing to this method; {suggestion(str(value), words)}")
    checked = {axis: _axis_values(axis, values, base) for axis, values in grid.items()}
    axes = {axis: values for axis, values in checked.items() if kinds is None or _kind(axis) in kinds}
    tied = name == "joint" and "classifier" in axes and "margin" in base
    actions = []
    for values in itertools.product(*axes.values()):
        changed = dict(zip(axes, values, strict=True))
        actions.append(base.replace(**changed, **({"margin": _JOINT_MARGIN[changed["classifier"]]} if tied else {})))
    if base not in actions:
        actions.append(base)
    return ActionSpace(name, axes, tuple(actions), actions.index(base))


def tuned_space(
    own: Action,
    changes: Mapping[str, AxisValue],
    *,
    tuned: bool,
    space: str | Grid,
    tune: str | Collection[str] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
    epochs: int = 160,
    allocation: float | None = None,
) -> ActionSpace:
    """The space a policy chooses from, around the method's own action with the user's changes.

    Where something is tuned, so is the classifier, apart from the trials (`auto`), unless the user set it, it is an
    axis of the space, or `tune` leaves it out. Some axes are there only where they are named, in the space or among the
    changes: `epochs`, which starts from the length of the schedule; `allocation`, which starts from that of the memory
    (None means that its rule has none); and `backbone_rate`, which starts from 1 unless the method has its own.
    """
    named = _known(space) if isinstance(space, str) else space  # a wrong word is one where nothing is tuned, too
    if tuned and not isinstance(named, Mapping):
        raise UserError(f"space={space!r} is neither a name nor a table of axes, such as {{lr = [0.1, 0.05]}}")
    asked = {*changes, *(named if tuned and named is space else ())}  # a space by name leaves out what is not there
    if "allocation" in asked and allocation is None:
        raise UserError("an action with an allocation needs memory.rule=rmm without knows_increment; see the docs")
    optional = {"epochs": float(epochs), "allocation": allocation, "backbone_rate": AXES["backbone_rate"].default}
    more = {axis: value for axis, value in optional.items() if axis in asked and value is not None and axis not in own}
    base = Action(**own, **more).replace(**changes)
    kinds = _kinds(tune)
    apart = "classifier" in own and "classifier" not in changes and "classifier" not in named
    if tuned and apart and (kinds is None or "classifier" in kinds):
        base = base.replace(classifier="auto")
    return make_space(space if tuned else {}, base, tune, choices)


def _known(space: str) -> Grid:
    if space not in SPACES:
        raise UserError(f"unknown action space '{space}'; {suggestion(space, SPACES)}")
    return SPACES[space]


def _kinds(tune: str | Collection[str] | None) -> tuple[str, ...] | None:
    if tune is None:
        return None
    if not isinstance(tune, Collection):
        raise UserError(f"tune={tune!r} must be a list of words, such as ['kd', 'lr']")
    kinds = (tune,) if isinstance(tune, str) else tuple(tune)
    tunable = {DISTILLATION, *(axis.kind for axis in AXES.values() if axis.kind is not None)}
    for word in kinds:
        if word not in tunable:
            raise UserError(f"tune cannot be '{word}'; {suggestion(word, tunable)}")
    return kinds


def _axis_values(axis: str, values: object, base: Action) -> tuple[AxisValue, ...]:
    if axis not in base:
        raise UserError(
            f"the space has an axis '{axis}' that the method's action does not have; {suggestion(axis, base)}"
        )
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UserError(f"the axis '{axis}' of the space needs a list of values, e.g. {axis}=[{base[axis]!r}]")
    checked = tuple(_checked(axis, value) for value in values)
    if len(set(checked)) < len(checked):
        raise UserError(f"the axis '{axis}' of the space names a value twice: {', '.join(map(_short, checked))}")
    return checked


def _kind(axis: str) -> str | None:
    """The word of `tune` that tunes this axis; None: only tuned where nothing is switched."""
    if is_weight(axis):
        return DISTILLATION if axis != "margin" else None
    return AXES[axis].kind


def _short(value: AxisValue) -> str:
    return f"{value:g}" if isinstance(value, int | float) else value
