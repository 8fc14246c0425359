"""Recipes: what a run is, as one flat TOML file that a person can read, and overrides on top of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from poise.actions import AXES
from poise.data import ALL_IMAGES, LARGEST_SIZE, LEAST_SIZE, Budget, ImageSet
from poise.errors import UserError, check_plain, shown, suggestion
from poise.learner import KEYS, Settings, Surroundings, suit
from poise.methods import METHODS, Method
from poise.policies import WRAPPER_OPTIONS
from poise.recipes import read_recipe
from poise.recipes.keys import refuse_unknown_keys, said_by
from poise.runs.overrides import parse_override, set_key
from poise.training import PRECISIONS
from poise.tuning import tuner_names

#: Numbers as they are written: neither text nor true or false stand for one.
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
SettingName = Literal["tfh", "tfs", "groups"]
ExamName = Literal["test", "dev"]
AugmentationName = Literal["data", "judged", "resized", "autoaugment", "cutout", "autoaugment+cutout"]
#: Keys that are left out of a written recipe where they say nothing: recipes are written as they always were.
LEFT_OUT: Final = {
    "choose": False,
    "images": None,
    "augmentation": "data",
    "milestones": None,
    "balance_share": None,
    "balance_lr": None,
}


_TABLES: Final = ("options", "action", "policy_options")  # keys that hold names of the method, the action, the policy
#: What to give for keys that have several forms, or lists: of these pydantic only tells what one form lacks.
_FORMS: Final = {
    "images_per_class": "a whole number, or two for a long tail, e.g. [100,5]",
    "groups": "either sizes of groups, e.g. [5,3,2], or the classes of each group, e.g. [[0,1],[2,3]]",
    "order": "a seed, a name such as sorted, or a list of all classes, e.g. [2,0,1]",
    "memory": "the number of images kept of each class (0: none), all for every image, or a table, e.g. {total=2000}",
    "memory.allocation": "a number, or a list with one for each phase, e.g. [0.8,0.5]",
    "space": "a name such as paper, or a grid with a list of values for each axis, e.g. {lr=[0.1,0.05]}, or several",
    "tune": 'a list of kinds, e.g. ["kd","lr"]',
    "milestones": "a list of shares of the main stage, e.g. [0.5,0.75]",
}
#: The words of TOML for pydantic's names of types.
_KINDS: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text, in quotation marks",
    "dict_type": "a table",
    "model_type": "a table",
}


class MemoryKeys(BaseModel):
    """`memory = 20` is short for `memory.per_class = 20`, `memory = "all"` for `memory.rule = "all"`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per_class: Whole | None = None
    total: Whole | None = None
    reserve: Whole = 0
    rule: str = "plain"
    allocation: Number | list[Number] | None = None
    knows_increment: Flag = False
    after_phase_0: str | None = None

    @model_serializer(mode="wrap")
    def _leave_out_unused_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The keys of RMM only where it is used, so that other recipes are written as they always were."""
        written: dict[str, Any] = dump(self)
        own = ("rule", "allocation", "knows_increment", "after_phase_0")
        more = {*own} - {*{"plain": (), ALL_IMAGES: ("rule",)}.get(self.rule, own)}
        return {key: value for key, value in written.items() if key not in more}

    def budget(self, own: int | str = Method.own_memory) -> Budget:
        """The budget these keys describe; where no size is said, the method's own."""
        if self == MemoryKeys():
            return Budget.of(own)
        sized = self.per_class is not None or self.total is not None or self.rule == ALL_IMAGES
        per_class = self.per_class if sized else Budget.of(own).per_class
        allocation = tuple(self.allocation) if isinstance(self.allocation, list) else self.allocation
        rule = self.rule, allocation, self.knows_increment, self.after_phase_0
        return Budget(per_class, self.total, self.reserve, *rule)

    @staticmethod
    def of(budget: Budget) -> MemoryKeys:
        """The keys that describe this budget."""
        return MemoryKeys(**asdict(budget))


class TrialKeys(BaseModel):
    """How actions are tried (see `poise.tuning.TrialSettings`); what is not said is as the policy brings it along."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: str | None = None
    horizon: Whole | None = None
    validation: Whole | None = None
    length: Number | None = None
    classifier: str | None = None
    longest: Whole | None = None
    even: Flag | None = None
    balance_length: Number | None = None


class Recipe(BaseModel):
    """Every key of a run. What does not change the result (folder, progress) is not a key."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data: str = Field("digits", min_length=1)
    image_size: Whole | None = Field(None, ge=LEAST_SIZE, le=LARGEST_SIZE)
    images_per_class: Whole | list[Whole] | None = None
    method: str = "lucir"
    options: dict[str, Whole | Number | str] = Field(default_factory=dict)
    net: str | None = None
    setting: SettingName = "tfh"
    phases: Whole = 5
    groups: list[Whole] | list[list[Whole]] | None = None
    order: Whole | str | list[Whole] = 1993
    memory: MemoryKeys = MemoryKeys()
    epochs: Whole = Field(160, ge=1)
    batch: Whole = Field(128, ge=2)
    momentum: Number = Field(0.9, ge=0, lt=1)
    weight_decay: Number = Field(5e-4, ge=0)
    optimiser: str = "sgd"
    decay: str = "steps"
    warmup: Number = Field(0.0, ge=0, lt=1)
    policy: str = "online"
    policy_options: dict[str, Flag | Whole | Number | str] = Field(default_factory=dict)
    space: str | dict[str, list[Number | str]] | list[dict[str, list[Number | str]]] | None = None
    tune: list[str] | None = None
    trials: TrialKeys = TrialKeys()
    action: dict[str, Number | str] = Field(default_factory=dict)
    first_lr: Number | None = Field(None, gt=0)
    exam: ExamName = "test"
    start: str | None = Field(None, min_length=1)
    seed: Whole = Field(0, ge=0)
    device: str = "auto"
    precision: str = "auto"
    deterministic: Flag = False
    choose: Flag = False
    images: Whole | None = Field(None, ge=1)
    augmentation: AugmentationName = "data"
    milestones: list[Number] | None = None
    balance_share: Number | None = None
    balance_lr: Number | None = None

    @model_serializer(mode="wrap")
    def _leave_out_unused_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = dump(self)
        return {key: value for key, value in written.items() if key not in LEFT_OUT or value != LEFT_OUT[key]}

    @field_validator("memory", mode="before")
    @classmethod
    def _short_memory(cls, value: object) -> object:
        if value == ALL_IMAGES:
            return {"rule": ALL_IMAGES}
        return {"per_class": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("tune", mode="before")
    @classmethod
    def _single_word(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.policy == "crossval":
            raise UserError("crossval is an oracle with a command of its own: 'poise crossval RECIPE …'")
        for name, known in (("method", METHODS), ("policy", tuner_names()), ("precision", PRECISIONS)):
            word = getattr(self, name)
            if word not in known:
                raise UserError(f"unknown {name} '{word}'; {suggestion(word, known)}")
        _ = self.settings  # resolved and checked here, for all that follows
        if self.setting == "groups" and self.groups is None:
            raise UserError("setting=groups needs groups, e.g. groups=[5,3,2] or groups=[[0,1],[2,3]]")
        if self.setting != "groups" and self.groups is not None:
            raise UserError(f"groups goes with setting=groups, not with setting={self.setting}")
        return self

    @cached_property
    def settings(self) -> Settings:
        """What the learner is made with: these keys, resolved once."""
        trials = self.trials.model_dump(exclude_none=True)
        return Settings.resolve(**{**self._learner_keys(KEYS), "trials": trials})

    def _learner_keys(self, keys: Collection[str]) -> dict[str, Any]:
        """What these keys say to a learner; those that it has, too."""
        shared = KEYS & Recipe.model_fields.keys() & {*keys} - {"image_size"}  # to which the data scale images
        memory = self.memory.budget(METHODS[self.method].own_memory)
        return {**{name: getattr(self, name) for name in shared}, "memory": memory}

    def chosen_for(self, images: ImageSet) -> Recipe:
        """The recipe with all that it does not say chosen for the images of the first phase, if it asks for that.

        From then on it says everything but whether images are shifted and mirrored, which is judged when they arrive.
        """
        if not self.choose:
            return self
        said = {name for name in self.model_fields_set if getattr(self, name) not in (None, {}, TrialKeys())}
        given = self._learner_keys(said)
        if "trials" in given:
            given["trials"] = self.trials.model_dump(exclude_none=True)
        settings = Settings.resolve(automatic=True, **given)
        found = suit(settings, images, Surroundings.of(settings, self.device))
        longest = found.trials.longest or found.schedule.epochs  # no bound at all
        trials = TrialKeys(**{**asdict(found.trials), "longest": longest}) if found.kind.tunes else self.trials
        written = {name: getattr(found, name) for name in ("net", "action", "first_lr", "policy_options", "space")}
        return self.changed(
            choose=False,
            augmentation=self.augmentation if "augmentation" in said else "judged",
            trials=trials,
            **asdict(found.schedule),
            **{name: dict(value) if isinstance(value, Mapping) else value for name, value in written.items()},
        )

    def changed(self, **keys: Any) -> Recipe:  # noqa: ANN401 - a value of any key
        """The recipe with some keys changed."""
        return Recipe.model_validate({**{name: getattr(self, name) for name in Recipe.model_fields}, **keys})

    def resolved(self, **paths: str) -> Recipe:
        """The recipe with what policy and method bring along written out: later defaults change no run begun before.

        Its settings are the same, and are not resolved again; nor do the paths of data and start matter to them.
        """
        settings, written = self.settings, dict[str, Any]()
        if settings.kind.tunes:
            trials = TrialKeys(**asdict(settings.trials))
            written = {"policy_options": dict(settings.policy_options), "space": settings.space, "trials": trials}
        if self.memory == MemoryKeys():
            written["memory"] = MemoryKeys.of(settings.memory)
        elif settings.memory.after_phase_0 is not None:
            written["memory"] = self.memory.model_copy(update={"after_phase_0": settings.memory.after_phase_0})
        if settings.options != self.options:
            written["options"] = dict(settings.options)
        return self.model_copy(update={**written, **paths})


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name (or the TOML file at that path) with `key=value` overrides."""
    return make_recipe(read_recipe(name), overrides)


def make_recipe(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A validated recipe from plain values; every mistake is one line that names the right word."""
    for name, value in values.items():
        check_plain(name, value)
    if isinstance(overrides, str | Mapping) or not all(isinstance(word, str) for word in overrides):
        raise UserError(f"overrides={shown(overrides)} must be a list of texts, such as ['setting=tfs', 'epochs=2']")
    merged = dict(values)
    given = [parse_override(text) for text in overrides]
    for path, value in given:
        set_key(merged, path, value)
    keys = {path[0] for path, _ in given}
    if "groups" in keys and "setting" not in keys:
        merged["setting"] = "groups"
    if "setting" in keys and "groups" not in keys and merged["setting"] != "groups":
        merged.pop("groups", None)
    if merged.get("groups") is not None:
        merged.setdefault("setting", "groups")
    if "policy" in keys and "policy_options" not in keys and merged["policy"] != values.get("policy"):
        merged.pop("policy_options", None)  # they belong to another policy
    _refuse_unknown(merged)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as error:
        raise UserError(_first_line(error, merged)) from error


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    refuse_unknown_keys(values, {"action": AXES, "policy_options": WRAPPER_OPTIONS})
    choices = {
        "setting": SettingName,
        "exam": ExamName,
        "augmentation": AugmentationName,
    }
    for name, words in ((name, get_args(choice)) for name, choice in choices.items()):
        word = values.get(name, words[0])
        if word not in words:
            raise UserError(f"unknown {name} {shown(word)}; {suggestion(word, words)}")


def _first_line(error: ValidationError, values: Mapping[str, Any]) -> str:
    """What is wrong with the values of a recipe, said of one key."""
    telling = ("float_type", "finite_number")  # where a value may have several forms, these say most
    first = max(
        error.errors(include_url=False),
        key=lambda each: (len(each["loc"]), telling.index(each["type"]) if each["type"] in telling else -1),
    )
    known = {*Recipe.model_fields, *MemoryKeys.model_fields, *TrialKeys.model_fields}
    loc = [str(part) for part in first["loc"]]
    inner = {1} if loc[0] in _TABLES else {}  # the name that the user gave
    parts = [part for place, part in enumerate(loc) if part in known or part.isdigit() or place in inner]
    key = ".".join(parts) or loc[0]
    name = ".".join(part for part in parts if not part.isdigit())
    if name in _FORMS:
        given, part = said_by(values, name), first["input"]
        what = shown(given) if part == given else f"{shown(part)} in {shown(given)}"
        return f"key '{name}': {what} cannot be used; give {_FORMS[name]}"
    kind = _KINDS.get(first["type"])
    message = f"must be {kind}" if kind else first["msg"].replace("Input should", "must", 1)
    return f"key '{key}': {message}, not {shown(first['input'])}"
