"""What a learner is made with: one list of keys, resolved once. A recipe embeds it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from torch import nn

from poise.actions import AXES, OWN, Action, ActionSpace, AxisValue, make_space, named_space
from poise.data import ALL_IMAGES, Augmentation, Budget
from poise.errors import UserError, shown
from poise.methods import Growth, Method, is_registered, make_method
from poise.nets import check_backbone
from poise.nets.adapt import absolute_word, is_named
from poise.policies import DEFAULT_POLICY, UNTUNED, Setup
from poise.settings import LearnerKeys, MemoryKeys, ScheduleKeys, TrialSettings
from poise.training.device import Backend, make_backend
from poise.training.lanes import Executor
from poise.training.optimiser import Schedule
from poise.tuning.search import Tuner, TunerKind, tuner_kind, tuner_names

#: The word of `balance` that adds a training on as many images of old classes as of new ones.
BALANCED: Final = "finetune"

#: Keys that can be left open until the first images arrive.
AUTOMATIC: Final = (
    *("method", "net", "epochs", "batch", "weight_decay", "decay", "warmup", "momentum", "optimiser"),
    *("action", "first_lr", "policy", "space", "trials", "policy_options"),
)
#: What `Learner` and `Settings.resolve` take.
KEYS: Final = frozenset(LearnerKeys.model_fields)


class Settings(LearnerKeys):
    """The keys that a learner was made with, resolved: saved with it. `resolve` makes them of what a user gives.

    `automatic` names the keys that are left open until the first images arrive (`poise.learner.defaults`).
    """

    memory: Budget = Budget()
    policy: str = UNTUNED
    automatic: tuple[str, ...] = ()

    @classmethod
    def resolve(cls, *, automatic: bool = False, **given: Any) -> Self:  # noqa: ANN401 - whatever a user gives, checked
        """The settings as given, with what the policy brings along and every default written out.

        All words are checked: a method, action, space, policy or option that does not exist is refused. With
        `automatic`, what is None is left open for the first images.
        """
        left_open = tuple(name for name in AUTOMATIC if automatic and given.get(name) is None)
        said = LearnerKeys(**{name: value for name, value in given.items() if value is not None})
        if isinstance(given.get("trials"), TrialSettings) and tuner_kind(said.policy).tunes:  # complete as they are
            return cls.of(said, left_open, trials=said.trials.whole())
        return cls.of(said, left_open)

    @classmethod
    def of(cls, keys: LearnerKeys, automatic: tuple[str, ...] = (), **own: Any) -> Self:  # noqa: ANN401 - checked values
        """The settings that keys stand for of which each is checked already; `own` replaces some of them."""
        said = keys.model_copy(update=own)
        values = {name: getattr(said, name) for name in LearnerKeys.model_fields}
        values |= {"automatic": automatic, "method": absolute_word(said.method)}
        values["net"] = said.net if said.net is None else absolute_word(said.net)
        method, kind = make_method(said.method, said.options), tuner_kind(said.policy)
        values |= {"policy": kind.name, "policy_options": kind.resolve(said.policy_options)}
        values["memory"] = _budget(said.memory, method)
        if kind.tunes:  # else it chooses from no space, and tries nothing
            values["space"], trials = kind.own_space(said.space, said.tune), kind.trial_settings(said.trials)
            values["trials"] = _possible(trials, said.trials, method, values["memory"])
        settings = cls.model_construct(**values)
        settings.check()
        return settings

    @cached_property
    def schedule(self) -> Schedule:
        """How long and how hard a phase trains."""
        return Schedule.model_construct(**{name: getattr(self, name) for name in ScheduleKeys.model_fields})

    def check(self) -> None:
        """Refuse words that mean nothing, by making what they stand for: the method, the space and the tuner."""
        if self.net is not None:
            check_backbone(self.net, self.made_method.variant)
        if self.memory.per_class == 0:
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
            if any(each is not None and each.select is not None for each in (stage, stage.after)):
                raise UserError(
                    f"{self.method} with these options trains on as many old images as new ones (its stage "
                    f"{stage.name}), and memory=0 keeps none; set other options or keep images, such as memory=20"
                )
        grids = () if isinstance(self.space, str) or not self.kind.tunes else named_space(self.space or {}).grids
        balance = {**method.default_action, **self.action}.get("balance")
        if BALANCED in (balance, *(word for grid in grids for word in grid.get("balance", ()))):
            raise UserError(
                f"{self.method} with balance={BALANCED} ends a phase on as many old images as new ones, and memory=0 "
                "keeps none; set action.balance=none"
            )

    def predicting(self) -> Settings:
        """The settings of a learner that only predicts: nothing is left of what decided its actions."""
        return self.replace(policy=UNTUNED, policy_options={}, space=None, tune=None, trials=TrialSettings())

    @property
    def unregistered(self) -> str | None:
        """The method or the policy of one's own that nobody registered here: without it, a learner only predicts."""
        if not is_registered(self.method):
            return f"method '{self.method}'"
        return f"policy '{self.policy}'" if self.policy not in tuner_names() else None

    # What they make, once --------------------------------------------------------------------------------------

    @cached_property
    def kind(self) -> TunerKind:
        """The kind of tuner that `policy` names."""
        return tuner_kind(self.policy)

    @cached_property
    def made_method(self) -> Method:
        """The method with its options."""
        return make_method(self.method, self.options)

    @cached_property
    def names_net(self) -> bool:
        """Whether the network is one that poise did not make, by a word."""
        return is_named(self.net)

    @property
    def choices(self) -> Mapping[str, Sequence[str]]:
        """The words of an axis that mean something here, where not all do."""
        choices = self.made_method.choices
        if self.memory.per_class != 0:
            return choices
        words = choices.get("balance", AXES["balance"].words)
        return {**choices, "balance": tuple(word for word in words if word != BALANCED)}

    @cached_property
    def action_space(self) -> ActionSpace:
        """The actions that the policy chooses from, around the method's own action with the user's changes.

        Where something is tuned, so is the classifier, apart from the trials (`auto`), unless the user set it, it is an
        axis of the space, or `tune` leaves it out. Some axes are there only where they are named, in the space or among
        the changes: `epochs`, which starts from the length of the schedule; `allocation`, which starts from that of the
        memory; and `backbone_rate`, which starts from 1 unless the method has its own. A space by name leaves out what
        is not there.
        """
        method, tunes, choices = self.made_method, self.kind.tunes, self.choices
        space = named_space(self.space or {}, method.spaces)  # refuses a wrong word, tuned or not
        own = method.default_action
        for axis, value in (("lr", "0.1"), ("classifier", '"fc"')):
            if axis not in own:
                lacks = f"method {self.method}: its default_action lacks {axis}"
                raise UserError(f"{lacks}; add one, such as {axis}={value}")
        named = {axis for grid in space.grids for axis in grid}
        changing = (named if space.name == OWN else named & {"allocation"}) if tunes else set()
        memory = self.memory
        allocation = memory.rho(1) if memory.rule == "rmm" and not memory.knows_increment else None
        if "allocation" in {*self.action, *changing} and allocation is None:
            raise UserError(
                "an action with an allocation needs RMM's memory: set memory.rule=rmm, and leave "
                "memory.knows_increment out"
            )
        optional = {"epochs": float(self.epochs), "allocation": allocation or 0.0, "backbone_rate": 1.0}
        more = {axis: value for axis, value in optional.items() if axis in {*self.action, *changing} - {*own}}
        base = Action(**own, **more).replace(**self.action)
        if tunes and "classifier" not in {*self.action, *named} and (self.tune is None or "classifier" in self.tune):
            base = base.replace(classifier="auto")
        return make_space(space if tunes else {}, base, self.tune, choices)

    @cached_property
    def tuner(self) -> Tuner:
        """The tuner that chooses the action of each phase."""
        setup = Setup(self.action_space, self.trials.short(self.epochs), self.epochs, self.seed)
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

    def first_action(self, *, given: bool = True) -> Action:
        """The action of the first phase: plain classification, in which nothing is tuned.

        A network that was not `given`, and so starts from random weights, learns at the full rate.
        """
        own, default = self.made_method.default_action, self.default_action
        lr = own.lr if self.first_lr is None else self.first_lr
        counts = {"adjustment": default.adjustment} if "adjustment" in own else {}
        full = {"backbone_rate": 1.0} if "backbone_rate" in own and not given else {}
        return own.replace(lr=lr, classifier=default.classifier, **counts, **full)

    def remarks(self) -> list[str]:
        """Lines for the user about keys that change nothing here, and about what trials cannot judge."""
        if not self.kind.tunes:
            keys = LearnerKeys.model_fields
            unused = [name for name in ("space", "tune", "trials") if getattr(self, name) != keys[name].default]
            return [f"policy={self.policy} tries nothing, so it does not use {' and '.join(unused)}"] if unused else []
        lines = []
        usual = self.policy == DEFAULT_POLICY and isinstance(self.space, str) and self.tune is None
        if self.kind.space is not None and len(self.action_space) == 1 and not usual:
            rest = " but the classifier" if self.default_action.classifier == "auto" else ""
            advice = "name values to choose from (space, tune), or set policy=fixed"
            lines.append(f"policy={self.policy} has nothing to tune{rest}: there is one action; {advice}")
        local = self.kind.asks and self.trials.environment == "local" and "trials" not in self.automatic
        if local and len({action.allocation for action in self.action_space.actions}) > 1:
            lines.append(
                "the local environment cannot judge an allocation, which pays only in the next phase: its default "
                "stays; set trials.environment to lookahead or both"
            )
        return lines

    def resolved_policy(self) -> dict[str, Any]:
        """The policy for the record: its name, its options, its space, and how actions are tried."""
        found = self.tuner.describe()
        if not self.kind.tunes:
            return found
        return {**found, "space": self.action_space.as_json(), "trials": self.trials.as_json()}


@dataclass(frozen=True)
class Runtime:
    """A learner's device, perhaps a network of the user's own, and where trials run: all that is not a setting."""

    backend: Backend
    net: nn.Module | None = None
    augmentation: Augmentation | None = None
    executor: Executor | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        device: str = "auto",
        *,
        net: nn.Module | None = None,
        augmentation: Augmentation | None = None,
        executor: Executor | None = None,
    ) -> Runtime:
        """Resolve device and precision; copy the user's network, which stays as it is."""
        if executor is not None and not callable(getattr(executor, "run", None)):
            raise UserError(f"executor={shown(executor)} does not run attempts; see poise.training.Executor")
        if not isinstance(augmentation, Augmentation | None):
            raise UserError(f"augmentation={augmentation!r}: give one like Augmentation(autoaugment=True, cutout=0.5)")
        backend = make_backend(str(device), settings.precision, settings.deterministic)
        return cls(backend, copy.deepcopy(net), augmentation, executor)


def is_given(settings: Settings, runtime: Runtime) -> bool:
    """Whether the network is one that poise did not make: a module, or one by name; pretrained perhaps."""
    return runtime.net is not None or settings.names_net


def _budget(given: MemoryKeys | None, method: Method) -> Budget:
    """The budget of the memory: as given, else the method's own."""
    own = Budget(rule=ALL_IMAGES) if method.own_memory == ALL_IMAGES else Budget(per_class=method.own_memory)
    if given is None:
        return own.whole()
    sized = given.total is not None or given.rule == ALL_IMAGES or "per_class" in given.model_fields_set
    budget = Budget(**{**dict(given), **({} if sized else {"per_class": own.per_class})})
    if own.rule == ALL_IMAGES and budget.rule != ALL_IMAGES:
        raise UserError(
            f"{method.name} trains on every image seen so far; leave memory out, or set memory={ALL_IMAGES}"
        )
    return budget


def _possible(settings: TrialSettings, given: TrialSettings, method: Method, memory: Budget) -> TrialSettings:
    """How actions are tried with this method and memory, of which some of what is `given` may leave no choice.

    Without old images only a look-ahead is possible, for a network that starts anew only the local environment.
    """
    only = "local" if method.starts_anew else "lookahead" if memory.per_class == 0 else None
    if only is None:
        return settings
    if "environment" in given.model_fields_set and given.environment != only:
        why = "needs old images to validate on, and memory=0 keeps none"
        if only == "local":
            why = "continues a network, and this method starts anew"
        raise UserError(f"trials.environment={given.environment} {why}; leave it out, or set {only}")
    if settings.horizon:
        raise UserError(
            f"trials.horizon={settings.horizon} needs old images and a network that continues; leave it out"
        )
    return settings.replace(environment=only)
