"""What a learner is made with: one list of keys, resolved once. A recipe embeds it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, Final, Self

from poise.actions import AXES, Action, AxisValue
from poise.data import ALL_IMAGES, LARGEST_SIZE, LEAST_SIZE, Budget
from poise.errors import (
    LARGEST_WHOLE,
    UserError,
    check_flag,
    check_number,
    check_plain,
    check_whole,
    plain_number,
    shown,
)
from poise.methods import Growth, Method, is_registered, make_method
from poise.nets import absolute_word, check_backbone
from poise.recipes import FORMER_OPTIONS, saved_options
from poise.spaces import ActionSpace, Grids, all_grids, check_tuned, make_space, named_space, tuned_space
from poise.training import Schedule
from poise.tuning import (
    DEFAULT_POLICY,
    ENVIRONMENTS,
    UNTUNED,
    Setup,
    TrialSettings,
    Tuner,
    TunerKind,
    tuner_kind,
    tuner_names,
)

#: The word of `balance` that adds a training on as many images of old classes as of new ones.
BALANCED: Final = "finetune"

#: Keys that can be left open until the first images arrive.
AUTOMATIC: Final = (
    *("method", "net", "epochs", "batch", "weight_decay", "decay", "warmup", "momentum", "optimiser"),
    *("action", "first_lr", "space", "trials", "policy_options"),
)
#: Keys for which None means that nothing is said.
OPTIONAL: Final = frozenset(
    (
        *("net", "memory", "action", "first_lr", "policy_options", "space", "tune", "trials", "options", "image_size"),
        *("milestones", "balance_share", "balance_lr"),
    )
)


@dataclass(frozen=True)
class Settings:
    """What a learner was made with: plain values, saved with it. `resolve` makes them of what a user gives.

    `automatic` names the keys that are left open until the first images arrive (`poise.learner.defaults`).
    """

    method: str = "lucir"
    options: Mapping[str, float | str] = field(default_factory=dict)
    net: str | None = None
    action: Mapping[str, AxisValue] = field(default_factory=dict)
    first_lr: float | None = None
    policy: str = UNTUNED
    policy_options: Mapping[str, bool | float | str] = field(default_factory=dict)
    space: str | Grids = "paper"
    tune: Sequence[str] | None = None
    trials: TrialSettings = field(default_factory=TrialSettings)
    memory: Budget = field(default_factory=Budget)
    schedule: Schedule = field(default_factory=Schedule)
    image_size: int | None = None
    precision: str = "auto"
    deterministic: bool = False
    seed: int = 0
    automatic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "automatic", tuple(self.automatic))
        check_whole("seed", self.seed, 0, LARGEST_WHOLE)
        check_flag("deterministic", self.deterministic)
        if self.image_size is not None:
            check_whole("image_size", self.image_size, LEAST_SIZE, LARGEST_SIZE)
        if self.first_lr is not None:
            check_number("first_lr", self.first_lr, positive=True)

    @classmethod
    def resolve(cls, *, automatic: bool = False, **given: Any) -> Self:  # noqa: ANN401 - whatever a user gives, checked
        """The settings as given, with what the policy brings along and every default written out.

        All words are checked: a method, action, space, policy or option that does not exist is refused. With
        `automatic`, what is None is left open for the first images.
        """
        left_open = tuple(name for name in AUTOMATIC if automatic and given.get(name) is None)
        optional = OPTIONAL.union(left_open)
        for name, value in given.items():
            check_plain(name, value)
        for name, example in (("options", "lambda_base"), ("action", "lr"), ("policy_options", "safe")):
            table = {} if given.get(name) is None else given[name]
            if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
                raise UserError(f"{name}={shown(table)} must be a mapping of names, such as {{{example!r}: 1.0}}")
        check_tuned(given.get("tune"))
        if isinstance(given.get("tune"), set | frozenset):
            given["tune"] = sorted(given["tune"])  # a file holds lists, and no order but this one is always the same
        keys = {name: copy_plain(value) for name, value in given.items() if value is not None or name not in optional}
        kind = tuner_kind(keys.get("policy", DEFAULT_POLICY))
        method = make_method(keys.get("method", cls.method), keys.get("options"))
        written = {name: method.settings[name] for name in FORMER_OPTIONS.get(method.name, {})}
        keys |= {"options": {**written, **keys.get("options", {})}} if written else {}
        keys["policy"] = kind.name
        keys |= {"net": absolute_word(keys["net"])} if isinstance(keys.get("net"), str) else {}
        keys["policy_options"] = kind.resolve(keys.get("policy_options", {}))
        keys["space"] = kind.own_space(keys.get("space"), keys.get("tune"))
        keys["memory"] = memory = _budget(keys.get("memory"), method)
        keys["trials"] = _trial_settings(keys.get("trials", {}), kind, only_environment(method, memory))
        schedule = {each.name: keys.pop(each.name) for each in fields(Schedule) if each.name in keys}
        settings = cls(**keys, schedule=Schedule(**schedule), automatic=left_open)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuse words that mean nothing, by making what they stand for: the method, the space and the tuner."""
        for axis, value in (("lr", "0.1"), ("classifier", '"fc"')):
            if axis not in self.made_method.default_action:
                raise UserError(
                    f"method {self.method}: its default_action lacks {axis}; add one, such as {axis}={value}"
                )
        if self.net is not None:
            check_backbone(self.net, self.made_method.variant)
        if not self.memory.keeps_images:
            self._check_without_memory()
        if self.made_method.starts_anew and self.kind.before_phase_0:
            raise UserError(f"policy={self.policy} continues a network, and {self.method} starts anew; choose another")
        _ = self.tuner

    def _check_without_memory(self) -> None:
        """Refuse what needs old images where none are kept."""
        if self.kind.needs_old_images:
            raise UserError(f"policy={self.policy} validates on old images, and memory=0 keeps none; choose another")
        method = self.made_method
        for stage in method.stages(Growth(1, 1)):
            if stage.balanced or (stage.after is not None and stage.after.balanced):
                raise UserError(
                    f"{self.method} with these options trains on as many old images as new ones (its stage "
                    f"{stage.name}), and memory=0 keeps none; set other options or keep images, such as memory=20"
                )
        grids = () if isinstance(self.space, str) or not self.kind.tunes else all_grids(self.space)
        balance = {**method.default_action, **self.action}.get("balance")
        if BALANCED in (balance, *(word for grid in grids for word in grid.get("balance", ()))):
            raise UserError(
                f"{self.method} with balance={BALANCED} ends a phase on as many old images as new ones, and memory=0 "
                "keeps none; set action.balance=none"
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `as_json` turned into plain values."""
        values = dict(values)
        values["options"] = saved_options(values["method"], values["options"])
        memory, schedule = Budget.restored(values["memory"]), Schedule(**values["schedule"])
        return cls(**{**values, "memory": memory, "schedule": schedule, "trials": TrialSettings(**values["trials"])})

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "memory": self.memory.as_json(), "schedule": self.schedule.as_json()}

    def untuned(self) -> Settings:
        """The same settings for a learner in which nothing is tuned."""
        return replace(self, policy=UNTUNED, policy_options={})

    def predicting(self) -> Settings:
        """The settings of a learner that only predicts: nothing is left of what decided its actions."""
        space = self.kind.space if self.policy in tuner_names() else None
        return replace(self.untuned(), space=space or "paper", tune=None)

    @property
    def unregistered(self) -> str | None:
        """The method or the policy of one's own that nobody registered here: without it, a learner only predicts."""
        if not is_registered(self.method):
            return f"method '{self.method}'"
        return f"policy '{self.policy}'" if self.policy not in tuner_names() else None

    def refuse_unregistered(self) -> None:
        """Refuse to learn where the method or the policy is not there."""
        if self.unregistered is not None:
            raise UserError(
                f"this learner learns with the {self.unregistered}, which is not registered here; "
                "import the module that registers it first"
            )

    # What they make, once --------------------------------------------------------------------------------------

    @property
    def kind(self) -> TunerKind:
        """What is known of the policy by its name."""
        return tuner_kind(self.policy)

    @cached_property
    def made_method(self) -> Method:
        """The method with its options."""
        return make_method(self.method, self.options)

    @property
    def choices(self) -> Mapping[str, Sequence[str]]:
        """The words of an axis that mean something here, where not all do."""
        choices = self.made_method.choices
        if self.memory.keeps_images:
            return choices
        words = choices.get("balance", AXES["balance"].words)
        return {**choices, "balance": tuple(word for word in words if word != BALANCED)}

    @cached_property
    def action_space(self) -> ActionSpace:
        """The actions that the policy chooses from."""
        method, space = self.made_method, self.space
        return tuned_space(
            method.default_action,
            self.action,
            tuned=self.kind.tunes,
            space=named_space(space, method.spaces) if isinstance(space, str) else space,
            tune=self.tune,
            choices=self.choices,
            epochs=self.schedule.epochs,
            allocation=self.memory.default_allocation,
        )

    @cached_property
    def tuner(self) -> Tuner:
        """What chooses the action of each phase."""
        full = self.schedule.epochs
        setup = Setup(self.action_space, self.trials.short(full), full, self.seed)
        return self.kind.make(self.kind, setup, self.policy_options)

    @property
    def default_action(self) -> Action:
        """The action of a phase in which nothing is chosen."""
        return self.action_space.actions[self.action_space.default]

    def given_action(self, changes: Mapping[str, AxisValue], phase: int) -> Action:
        """The action of a phase for which the caller decides: the default one with these changes."""
        own = self.default_action
        if phase == 0 and own.allocation is not None:
            own = own.replace(allocation=self.memory.rho(0))
        given = own.replace(**changes)
        make_space({}, given, choices=self.choices)  # refuses words without meaning here
        return given

    @property
    def first_action(self) -> Action:
        """The action of the first phase: plain classification, in which nothing is tuned."""
        own, default = self.made_method.default_action, self.default_action
        lr = own.lr if self.first_lr is None else self.first_lr
        counts = {"adjustment": default.adjustment} if "adjustment" in own else {}
        return own.replace(lr=lr, classifier=default.classifier, **counts)

    @property
    def tunes_allocation(self) -> bool:
        """Whether trials decide how the memory is shared out."""
        return self.kind.asks and len({action.allocation for action in self.action_space.actions}) > 1

    def doubts(self) -> str | None:
        """A line for the user where the trials cannot judge what they are to decide."""
        local = self.trials.environment == "local" and self.unregistered is None
        if not local or "trials" in self.automatic or not self.tunes_allocation:
            return None
        return (
            "the local environment cannot judge an allocation, which pays only in the next phase: its default stays; "
            "set trials.environment to lookahead or both"
        )

    def remarks(self) -> list[str]:
        """Lines for the user about keys that change nothing here."""
        if not self.kind.tunes:
            only = only_environment(self.made_method, self.memory)
            own = {"space": self.kind.space, "tune": None, "trials": _trial_settings({}, self.kind, only)}
            unused = [name for name, value in own.items() if getattr(self, name) != value]
            return [f"policy={self.policy} tries nothing, so it does not use {' and '.join(unused)}"] if unused else []
        usual = self.policy == DEFAULT_POLICY and isinstance(self.space, str) and self.tune is None
        if self.tuner.has_choice or usual:
            return []
        rest = " but the classifier" if self.default_action.classifier == "auto" else ""
        advice = "name values to choose from (space, tune), or set policy=fixed"
        return [f"policy={self.policy} has nothing to tune{rest}: there is one action; {advice}"]

    def resolved_policy(self) -> dict[str, Any]:
        """What decides the actions, for the record: its name, its options, its space, and how actions are tried."""
        found = self.tuner.describe()
        if not self.kind.tunes:
            return found
        return {**found, "space": self.action_space.as_json(), "trials": asdict(self.trials)}


def _budget(given: Any, method: Method) -> Budget:  # noqa: ANN401 - a user's word
    """What may be kept: as given, else the method's own."""
    own = Budget.of(method.own_memory)
    budget = own if given is None else given if isinstance(given, Budget) else Budget.of(given)
    if own.keeps_all and not budget.keeps_all:
        raise UserError(
            f"{method.name} trains on every image seen so far; leave memory out, or set memory={ALL_IMAGES}"
        )
    return budget


def only_environment(method: Method, memory: Budget) -> str | None:
    """The environment that actions must be tried in, where only one is possible.

    Without old images that is a look-ahead, for a network that starts anew the local one.
    """
    return "local" if method.starts_anew else None if memory.keeps_images else "lookahead"


def _trial_settings(given: Any, kind: TunerKind, only: str | None) -> TrialSettings:  # noqa: ANN401 - a user's word
    """How actions are tried: as given, else as the policy brings along; perhaps in `only` one environment."""
    if only and isinstance(given, Mapping) and given.get("environment", only) in {*ENVIRONMENTS} - {only}:
        why = "needs old images to validate on, and memory=0 keeps none"
        if only == "local":
            why = "continues a network, and this method starts anew"
        raise UserError(f"trials.environment={given['environment']} {why}; leave it out, or set {only}")
    settings = given if isinstance(given, TrialSettings) else kind.trial_settings(given)
    return settings if only is None else settings.tried_once(only)


def copy_plain(value: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """A copy that later changes of the original do not touch: dictionaries, lists and numbers as JSON has them.

    One of numpy's numbers becomes the plain one, from which the same draws are made.
    """
    if isinstance(value, Real):
        return plain_number(value)
    if isinstance(value, Mapping):
        return {key: copy_plain(inner) for key, inner in value.items()}
    return [copy_plain(inner) for inner in value] if isinstance(value, list | tuple) else copy.deepcopy(value)


#: What `Settings.resolve` takes: the keys above, those of the schedule one by one.
KEYS: Final = frozenset(each.name for kind in (Settings, Schedule) for each in fields(kind)) - {
    "schedule",
    "automatic",
}
