"""Actions: what can be tuned in a phase, as plain frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

from poise.errors import LARGEST_NUMBER, UserError, check_number, shown, suggestion

AxisValue = float | str
T = TypeVar("T")


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


class _Setting(Generic[T]):
    """A setting as an attribute of an action."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, action: Action, kind: object = None) -> T:
        return cast("T", action.setting(self.name))


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

    def setting(self, name: str) -> AxisValue | None:
        """The value of a setting: as this action says, else its default; None where something else says it."""
        return self._axes.get(name, AXES[name].default)

    #: The learning rate λ at the start of the phase.
    lr = _Setting[float]()
    #: Which classifier counts: `fc`, `ncm`, or `auto`.
    classifier = _Setting[str]()
    #: Whether the head rows of old classes are `frozen` or `trained`.
    old_rows = _Setting[str]()
    #: How the head is balanced after training: `none`, `align` (weight alignment) or `finetune`.
    balance = _Setting[str]()
    #: τ: how much of the logarithm of its share of the training images is added to each class's logit.
    adjustment = _Setting[float]()
    #: The learning rate of the backbone as a multiple of the head's; 0 keeps it frozen in this phase.
    backbone_rate = _Setting[float]()
    #: RanPAC's κ; 0 where held-out images say it.
    ridge = _Setting[float]()
    #: FOSTER's β₁: how far logits are aligned to the numbers of images; 0 is not at all.
    beta1 = _Setting[float]()
    #: The length of the phase in epochs; None where the schedule says it.
    epochs = _Setting[float | None]()
    #: RMM's ρ: the share of the room for new images that is given to exemplars; None where the budget says it.
    allocation = _Setting[float | None]()

    @property
    def step_key(self) -> tuple[AxisValue | None, ...]:
        """A key: two actions with equal keys can be trained by one captured step."""
        return tuple(self.setting(name) for name, axis in sorted(AXES.items()) if axis.changes_step)

    def weight(self, term: str) -> float:
        """The weight of a loss term, 1 where the action does not name it."""
        return float(self._axes.get(term, 1.0))

    def replace(self, **axes: AxisValue) -> Action:
        """This action with some axes changed; an axis it does not have is refused."""
        if unknown := sorted({*axes} - {*self._axes}):
            raise UserError(f"unknown action axis '{unknown[0]}'; {suggestion(unknown[0], self._axes)}")
        return Action(**{**self._axes, **axes})
