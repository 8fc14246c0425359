"""What a learner is made with: one list of keys, resolved once. A recipe embeds it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Self

from poise.actions import Action, ActionSpace, AxisValue, tuned_space
from poise.data import LEAST_SIZE, Budget
from poise.errors import UserError, check_number, check_whole
from poise.methods import METHODS, Method, make_method
from poise.nets import absolute_word, check_backbone
from poise.training import Schedule
from poise.tuning import DEFAULT_POLICY, UNTUNED, Setup, TrialSettings, Tuner, TunerKind, tuner_kind, tuner_names

#: Keys that can be left open until the first images arrive.
AUTOMATIC: Final = (
    *("method", "net", "epochs", "batch", "weight_decay", "decay", "warmup", "momentum", "optimiser"),
    *("action", "first_lr", "space", "trials", "policy_options"),
)
#: Keys for which None means that nothing is said.
OPTIONAL: Final = frozenset(
    ("net", "action", "first_lr", "policy_options", "space", "tune", "trials", "options", "image_size")
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
    space: str | Mapping[str, Sequence[AxisValue]] = "paper"
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
        check_whole("seed", self.seed, 0)
        if self.image_size is not None:
            check_whole("image_size", self.image_size, LEAST_SIZE)
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
        keys = {name: _copy_plain(value) for name, value in given.items() if value is not None or name not in optional}
        for name, example in (("options", "lambda_base"), ("action", "lr"), ("policy_options", "safe")):
            if not isinstance(keys.get(name, {}), Mapping):
                raise UserError(f"{name}={keys[name]!r} must be a mapping, such as {{{example!r}: 1.0}}")
        kind = tuner_kind(keys.get("policy", DEFAULT_POLICY))
        trials, memory = keys.get("trials", {}), keys.get("memory", 20)
        keys["policy"] = kind.name
        keys |= {"net": absolute_word(keys["net"])} if isinstance(keys.get("net"), str) else {}
        keys["policy_options"] = kind.resolve(keys.get("policy_options", {}))
        keys["space"] = kind.own_space(keys.get("space"), keys.get("tune"))
        keys["trials"] = trials if isinstance(trials, TrialSettings) else kind.trial_settings(trials)
        keys["memory"] = memory if isinstance(memory, Budget) else Budget(per_class=memory)
        schedule = {each.name: keys.pop(each.name) for each in fields(Schedule) if each.name in keys}
        settings = cls(**keys, schedule=Schedule(**schedule), automatic=left_open)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuse words that mean nothing, by making what they stand for: the method, the space and the tuner."""
        if self.net is not None:
            check_backbone(self.net, self.made_method.variant)
        _ = self.tuner

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `as_json` turned into plain values."""
        memory, schedule = Budget(**values["memory"]), Schedule(**values["schedule"])
        return cls(**{**values, "memory": memory, "schedule": schedule, "trials": TrialSettings(**values["trials"])})

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

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
        if self.method not in METHODS:
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

    @cached_property
    def action_space(self) -> ActionSpace:
        """The actions that the policy chooses from."""
        method = self.made_method
        return tuned_space(
            method.default_action,
            self.action,
            tuned=self.kind.tunes,
            space=self.space,
            tune=self.tune,
            choices=method.choices,
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

    @property
    def first_action(self) -> Action:
        """The action of the first phase: plain classification, in which nothing is tuned."""
        own = self.made_method.default_action
        lr = own.lr if self.first_lr is None else self.first_lr
        return own.replace(lr=lr, classifier=self.default_action.classifier)

    def resolved_policy(self) -> dict[str, Any]:
        """What decides the actions, for the record: its name, its options, its space, and how actions are tried."""
        found = self.tuner.described()
        if not self.kind.tunes:
            return found
        return {**found, "space": self.action_space.as_json(), "trials": asdict(self.trials)}


def _copy_plain(value: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """A copy that later changes of the original do not touch: of dictionaries and lists, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _copy_plain(inner) for key, inner in value.items()}
    return [_copy_plain(inner) for inner in value] if isinstance(value, list | tuple) else copy.deepcopy(value)


#: What `Settings.resolve` takes: the keys above, those of the schedule one by one.
KEYS: Final = frozenset(each.name for kind in (Settings, Schedule) for each in fields(kind)) - {
    "schedule",
    "automatic",
}
