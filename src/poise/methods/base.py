"""What a method is: how the model grows, the named terms of its loss, its stages and its own action."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from poise.actions import Action, AxisValue, Grid, Named
from poise.data import herd
from poise.errors import UserError, check_number, refuse_taken, suggestion
from poise.nets import HEADS, Branches, Concatenated, Head, Model, Output, Part, ResNet, Specialised
from poise.nets.adapt import file_digest, find_in_file
from poise.settings import ceiling


@dataclass(frozen=True)
class Growth:
    """How many classes the model knew before this phase, and how many arrive.

    In a trial on some of the new classes, `trial_of` is the growth of the whole phase: weights that adapt to these
    numbers read them from `real_phase`.

    >>> sum(Growth(50, 10)), Growth(50, 5, trial_of=Growth(50, 10)).real_phase.new
    (60, 10)
    """

    old: int
    new: int
    trial_of: Growth | None = None

    def __iter__(self) -> Iterator[int]:
        return iter((self.old, self.new))

    @property
    def real_phase(self) -> Growth:
        """The growth of the phase, in its trials too."""
        return self.trial_of or self


class GrowthInputs(NamedTuple):
    """The inputs of `Method.grow`: counts, a source of initial values, and features.

    `features()` gives the features of the new classes' training images under the model of the last
    phase, and their classes as 0, 1, … in the order of the new rows. They are computed when asked for.
    """

    growth: Growth
    generator: torch.Generator
    features: Callable[[], tuple[Tensor, Tensor]]


class TrainedPhase(NamedTuple):
    """The inputs of `Method.fit_head` when a training is over: counts, the action, a source of draws, and features.

    `features()` gives the features of the new images under the trained model, in eval mode, and the rows of their
    classes; kept images are not among them. They are computed when asked for.
    """

    growth: Growth
    action: Action
    generator: torch.Generator
    features: Callable[[], tuple[Tensor, Tensor]]


#: Of an option: its default, a number from 0 on or any text; or all words that it may be, the default first.
Known = float | str | tuple[str, ...]
#: The name of the model that a phase trains.
MODEL: Final = "model"
#: The name of the model of the phase before, which every phase after the first has.
PREVIOUS: Final = "previous"

#: Places of images, from the labels of all of them, a way to compute their features under the phase's model, and a
#: source of draws.
Select = Callable[[Tensor, Callable[[], Tensor], np.random.Generator], Tensor]


def herd_evenly(labels: Tensor, features: Callable[[], Tensor], generator: np.random.Generator) -> Tensor:
    """Select equally many images of each class, as many as the smallest one has, by herding."""
    ranks = herd(features(), labels, int(torch.unique(labels, return_counts=True)[1].min()))
    return torch.cat([ranks[label] for label in sorted(ranks)])


def draw_evenly(labels: Tensor, features: Callable[[], Tensor], generator: np.random.Generator) -> Tensor:
    """Select equally many images of each class, as many as the smallest one has, at random."""
    labels = labels.cpu()
    order = torch.from_numpy(generator.permutation(len(labels)))
    classes, counts = torch.unique(labels, return_counts=True)
    return torch.cat([order[labels[order] == label][: int(counts.min())] for label in classes])


@dataclass(frozen=True)
class Stage:
    """One stretch of training inside a phase.

    `share` is its length as a share of the phase's epochs; a stage whose part of the network is frozen for good is left
    out. The learning rate starts at the action's (or at `lr`) and falls tenfold at each of `milestones`,
    given as shares of the stage; with `cosine` it falls to 0 along half a wave besides. During the share `warmup` it
    rises to its start.

    Attributes:
        keeps_milestones: whether a recipe's milestones are for other stages than this one.
        clamp: the largest size of any single value of a gradient, if there is one.
        weight_decay: in the place of the schedule's, if there is one.
        temperature: by which logits are divided where they are compared with labels (`Output.adjusted`).
        prepare: changes the student in place, with draws of its own.
        prepare_at: the share of the stage after which it is prepared; 0: before it.
        select: which images it trains on, if not on all: see `herd_evenly` and `draw_evenly`.
        trains: `all` (apart from what the action and the network keep frozen); the `backbone` with the extras, but no
            head; or the `head`, its `rows` (old ones too, but no scale) or the `fusion` of two branches alone.
        moves_statistics: whether batch statistics still move; if not, the backbone stays in eval mode.
        student: which model is trained: the phase's own (`MODEL`), or one that the method makes under this name when
            the stage begins (`Method.student`).
        teacher: which model is distilled from: the last phase's (`PREVIOUS`), a student of an earlier stage by its
            name, frozen as it is when this stage begins; or None, then the terms are those of a first phase.
        after: a stage of which one epoch is trained after each epoch of this one, with a rate that falls in step. It
            does not make the phase longer.
    """

    name: str = "main"
    share: float = 1.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    keeps_milestones: bool = False
    cosine: bool = False
    warmup: float = 0.0
    lr: float | None = None
    clamp: float | None = None
    weight_decay: float | None = None
    temperature: float = 1.0
    prepare: Callable[[Model, torch.Generator], None] | None = None
    prepare_at: float = 0.0
    select: Select | None = None
    trains: Part = "all"
    moves_statistics: bool = True
    student: str = MODEL
    teacher: str | None = PREVIOUS
    after: Stage | None = None

    def epochs(self, phase_epochs: int) -> int:
        """The number of epochs of this stage in a phase of that many."""
        return max(1, ceiling(self.share * phase_epochs)) if self.share else 0

    def without_missing(self, model: Model) -> Stage:
        """The stage without what would train a part that this network does not have, or keeps frozen for good."""
        if not model.has(self.trains):
            return replace(self, share=0.0, after=None)
        missing = self.after is not None and not model.has(self.after.trains)
        return replace(self, after=None) if missing else self


def online_space(*grids: Grid, favourite: Mapping[str, AxisValue] | None = None) -> Mapping[str, Named]:
    """A method's own version of the space `online`."""
    return {"online": Named("online", grids, favourite)}


class Method(ABC):
    """A class-incremental method. A new one is a short file: terms, default action, perhaps stages.

    A method knows nothing of phases to come, of data loading, of devices or of policies. It returns
    named terms; the action weighs them.
    """

    name: ClassVar[str]
    #: Which network variant and head it wants (see `poise.nets`).
    variant: str = "ordinary"
    head: str = "linear"
    #: The class of that head, if it is the method's own.
    own_head: type[Head] | None = None
    #: Brightness jitter of its line of work (0: none), a share of the image's own.
    brightness: float = 0.0
    #: Whether its terms look at the maps of levels, and not only at features and logits.
    uses_maps: bool = True
    #: What it does when nobody tunes it; also the axes that can be tuned.
    default_action: Action
    #: Words of an axis that mean something here, where not all do; none: a named space leaves it out.
    choices: Mapping[str, tuple[str, ...]] = {}
    #: By the name of an action space, what it is for this method, where it is not the one for all of them.
    spaces: Mapping[str, Named] = {}
    #: What `balance=finetune` adds to a phase: a short training of the head on the same number of images of each class.
    balancing: Stage = Stage(
        "balance",
        share=1 / 8,
        milestones=(0.5,),
        lr=0.01,
        select=herd_evenly,
        trains="head",
        moves_statistics=False,
        teacher=None,
    )
    #: What is kept between phases where the user does not say it: so many images of each class, or all images.
    own_memory: int | str = 20
    #: Whether every phase trains a new network, to which all classes are new; most continue with the last phase's.
    starts_anew: bool = False
    #: The student that the next phase starts from, where it is not the phase's own model, which predicts.
    starts_from: str | None = None
    #: The names of its own options with their defaults.
    options: Mapping[str, Known] = {}

    def __init__(self, **options: float | str) -> None:
        for name, value in options.items():
            if name not in self.options:
                raise UserError(f"method {self.name} has no option '{name}'; {suggestion(name, self.options)}")
            self.check_option(name, value)
        defaults = {name: known[0] if isinstance(known, tuple) else known for name, known in self.options.items()}
        self.settings = {**defaults, **options}

    def check_option(self, name: str, value: float | str) -> None:
        """Refuse a value that an option cannot have: none of its words, or no number where its default is one."""
        known = self.options[name]
        if isinstance(known, tuple):
            if value not in known:
                raise UserError(f"option {name}={value!r}; {suggestion(value, known)}")
        elif not isinstance(known, str):
            check_number(f"option {name}", value)

    @property
    def expands(self) -> bool:
        """Whether it makes another network of the present one, so that its code is needed to rebuild a saved model."""
        return type(self).expanded is not Method.expanded

    def configured_for(self, action: Action) -> Self:
        """The method as this action sets it: a copy, where your own axis is more than the weight of a term."""
        return self

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        """The network for a phase after the first in which classes arrive, before `grow`; it still knows the same.

        A saved model is rebuilt by calling this again for the same growths, then loading its weights: what is made here
        may depend on the method's options, the backbone and the growth, and on nothing else. Parts that are frozen here
        (`requires_grad_(False)`, and `eval()`) stay so.
        """
        return backbone

    def grow(self, model: Model, inputs: GrowthInputs) -> None:
        """Give the model rows for the new classes, before anything is trained."""
        model.head.grow(inputs.growth.new, inputs.generator)

    def refuse_other_nets(self, model: Model) -> None:
        """Refuse a network that is none of poise's own, before anything is trained."""
        if not isinstance(model.backbone, ResNet | Branches | Concatenated | Specialised):
            raise UserError(f"{self.name} makes other networks of one of poise's own; leave net out or name one")

    def freezes(self, phase: int, *, given: bool) -> bool:
        """Whether all of the backbone is frozen for good when this phase begins.

        `given`: the network is the user's own, pretrained perhaps, and not one of poise's that starts from random
        weights.
        """
        return False

    def fit_head(self, model: Model, trained: TrainedPhase) -> None:  # noqa: B027 - most methods compute nothing
        """Set what is not trained but computed, in place, when the last stage of a training (or trial) has ended."""

    def left_out(self, model: Model, features: Tensor, labels: Tensor, action: Action) -> Tensor | None:
        """The logits of images whose features `fit_head` used, as if each of them alone had been left out.

        None: that is not known, because the head was trained.
        """
        return None

    def class_values(self, stage: Stage, action: Action, counts: Tensor, growth: Growth) -> Tensor | None:
        """A value for each class, if the terms of this stage need one: they find it as `student.class_values`.

        `counts` are the numbers of images of each class that are trained on, at least 1. It is computed when the stage
        begins, and may depend on axes of the action that do not change a captured step.
        """
        return None

    def student(self, name: str, models: Mapping[str, Model], inputs: GrowthInputs) -> Model:
        """The model that a stage of this method trains under another name than `MODEL`.

        `models` are those there are: the phase's own, the last phase's, and students of earlier stages.
        """
        raise NotImplementedError(f"{self.name} has a stage with the student '{name}' and no way to make it")

    @abstractmethod
    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        """The named loss terms of a batch; `teacher` is None in the first phase."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        """The stages of a phase, in order."""
        return (Stage(),)


#: Every known method by its name; `register` adds one.
METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name, and a head of its own by that of the head (a class decorator)."""
    if not hasattr(method, "name") or inspect.isabstract(method):
        raise UserError(f"method {method.__qualname__} lacks a name or terms; see docs/own-method.md")
    refuse_taken("method", method.name, METHODS.get(method.name), method)
    METHODS[method.name] = method
    if method.own_head is not None:
        HEADS[method.head] = method.own_head
    return method


def is_registered(name: str) -> bool:
    """Whether there is a method of that name here. The class that `FILE.py:NAME` names is imported and registered."""
    if name not in METHODS and (kind := find_in_file("method", name)) is not None:
        if not (isinstance(kind, type) and issubclass(kind, Method)):
            raise UserError(f"method {name} is no class made of poise.methods.Method; see docs/own-method.md")
        METHODS[name] = register(kind)
    return name in METHODS


def make_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method of that name with its options."""
    if not isinstance(name, str) or not is_registered(name):
        if isinstance(name, str) and name.endswith(".py"):
            raise UserError(f"method {name} names no class of this file; write {name}:CLASS")
        file_digest(name, "method")  # refuses a file that is not there
        raise UserError(f"unknown method '{name}'; {suggestion(str(name), METHODS)}")
    return METHODS[name](**(options or {}))
