"""The table of keys: what a learner, a recipe and a saved file can say, each key declared once.

Every key has its type, range, default and one line of meaning here. `Learner`, recipes, `poise recipes --keys`, saved
files and reports read this table. There is no torch here; what the keys make is in `poise.learner` and `poise.runs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from poise.actions import AXES, MOST_EPOCHS
from poise.errors import LARGEST_NUMBER, LARGEST_WHOLE, MOST, UserError, shown, suggestion

#: The command that lists the keys of a recipe, for help texts and error lines.
LIST_KEYS: Final = "poise recipes --keys"
#: The smallest side of an image that the backbones can take: they halve it twice.
LEAST_SIZE: Final = 8
#: The largest side: images are kept in memory, decoded.
LARGEST_SIZE: Final = 4096
#: The rule that keeps all images, and the short word for the memory that has it.
ALL_IMAGES: Final = "all"
#: The largest horizon: each step of it is one more training.
MOST_REPEATED: Final = 100

# Numbers as they are written: neither text nor true or false stand for one.
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict(), Field(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
Count = Annotated[int, Strict(), Field(ge=0, le=MOST)]
Positive = Annotated[int, Strict(), Field(ge=1, le=MOST)]
Number = Annotated[float, Strict()]
Rate = Annotated[float, Strict(), Field(gt=0, le=LARGEST_NUMBER)]
Part = Annotated[float, Strict(), Field(gt=0, le=1)]  # of a whole, and not nothing
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Below1 = Annotated[float, Strict(), Field(ge=0, lt=1)]
Grid = dict[str, list[Number | str]]

#: Sections of the list of keys, in its order.
SECTIONS: Final = ("data", "stream", "method", "memory", "training", "policy", "run")
#: The words for JSON's types, as TOML has them.
_KINDS: Final = {
    **{"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"},
    **{"array": "list", "object": "table"},
}
#: Our words for those of pydantic, in this order.
_WORDS: Final = {
    **{"Input should be": "must be", "String should": "must"},
    **{"greater than or equal to": "at least", "less than or equal to": "at most"},
    **{"greater than": "above", "less than": "below", "a valid integer": "a whole number"},
    **{"a valid number": "a number", "a valid boolean": "true or false", "a valid string": "text"},
    **{"a valid dictionary": "a table", " or instance of TrialSettings": "", "a valid list": "a list"},
}
#: Where to find what is often looked for under another name.
_ELSEWHERE: Final = {"safe": "policy_options.safe", "every": "policy_options.every"}


def key(default: Any, meaning: str, *tags: str, form: str | None = None, kind: str | None = None) -> Any:  # noqa: ANN401
    """A key of the table.

    Args:
        default: its value where nothing is said.
        meaning: one line.
        tags: its section, and what reports and resumed runs ask for: `chance` (does not say what was compared),
            `stream` (how classes arrive), `policy` (how actions are chosen), `phase 0` (how phase 0 is trained),
            `result` (is repeated in a result).
        form: what to give, where pydantic would only say what one of several forms lacks.
        kind: what its value may be, where the type does not say it all.
    """
    extra: dict[str, Any] = {"tags": list(tags), "form": form, "kind": kind}
    if isinstance(default, dict):
        return Field(default_factory=dict, description=meaning, json_schema_extra=extra)
    return Field(default, description=meaning, json_schema_extra=extra)


class Keys(BaseModel):
    """A part of the table. A mistake in its values is a `UserError` of one line."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    #: What stands before the names of these keys where they are in a table of others.
    prefix: ClassVar[str] = ""

    def __init__(self, *first: Any, **values: Any) -> None:  # noqa: ANN401 - whatever a user gives, checked here
        given = {**dict(zip(type(self).model_fields, first, strict=False)), **values}
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise own_error(error) or UserError(explain(error, type(self), given)) from None

    @model_validator(mode="before")
    @classmethod
    def _plain_values(cls, values: Any) -> Any:  # noqa: ANN401
        """Copies as JSON would have them, one of numpy's numbers as the plain one."""
        if not isinstance(values, Mapping):
            return values  # refused by the type
        for name, value in values.items():
            field = cls.model_fields.get(name)
            if value == "none" and field is not None and field.default is None:
                raise UserError(f"key '{cls.prefix}{name}' cannot be set to none; leave it out")
        return {name: plain_copy(value) for name, value in values.items()}

    def said(self) -> dict[str, Any]:
        """The keys that were given, also where they were given their defaults."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def whole(self) -> Self:
        """Equal keys, all of which count as given: later defaults do not change them."""
        return type(self)(**dict(self))

    def changed(self) -> dict[str, Any]:
        """The keys that differ from their defaults."""
        defaults = dict(type(self)())
        return {name: value for name, value in dict(self).items() if value != defaults[name]}

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - a value of any key
        """These keys with some changes, checked together."""
        return type(self)(**{**self.said(), **changes})

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return self.model_dump(mode="json")


class MemoryKeys(Keys):
    """`memory = 20` is short for `memory.per_class = 20`, `memory = "all"` for `memory.rule = "all"`."""

    prefix = "memory."

    per_class: Count | None = key(20, "images kept of each class; 0: none")
    total: Positive | None = key(None, "images kept in total, shared evenly; in place of memory.per_class")
    reserve: Count = key(0, "kept images of each class only used for validation, never trained on")
    rule: Literal["plain", "rmm", "all"] = key(
        "plain", "plain, rmm (exemplars share the room for new images), or all: every image"
    )
    allocation: Share | Annotated[tuple[Share, ...], Field(min_length=1)] | None = key(
        None,
        "of rmm: the share ρ of the room for new images that goes to exemplars, or one for each phase; if not set 0.5",
        form="a share between 0 and 1, or a list with one for each phase, e.g. [0.8,0.5]",
    )
    knows_increment: Flag = key(False, "of rmm: the released rule, which knows the size of the next phase")
    after_phase_0: Literal["rmm", "plain"] | None = key(
        None, "of rmm: what is kept after phase 0, rmm or plain; if not set rmm"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_size(cls, values: Any) -> Any:  # noqa: ANN401
        if not isinstance(values, Mapping):
            return values
        if "per_class" not in values and (values.get("total") is not None or values.get("rule") == ALL_IMAGES):
            values = {**values, "per_class": None}
        if values.get("rule") == "rmm" and values.get("after_phase_0") is None:
            values = {**values, "after_phase_0": "rmm"}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rule == ALL_IMAGES:
            given = (self.per_class, self.total, self.allocation, self.after_phase_0)
            if any(value is not None for value in given) or self.reserve or self.knows_increment:
                raise UserError("memory=all keeps every image; leave the other keys of memory out")
            return self
        if (self.per_class is None) == (self.total is None):
            raise UserError("memory is either per_class or total, not both and not neither")
        if self.per_class is not None and self.reserve >= max(self.per_class, 1):
            raise UserError(f"memory.reserve={self.reserve} must be below memory.per_class")
        if self.rule == "plain":
            for name in ("allocation", "knows_increment", "after_phase_0"):
                value = getattr(self, name)
                if value is not None and value is not False:  # a ρ of 0 is not the same as none
                    raise UserError(f"memory.{name} goes with memory.rule=rmm; set that too")
            return self
        if self.per_class == 0:
            raise UserError("memory.rule=rmm shares out kept images, and memory=0 keeps none; leave the rule out")
        if self.after_phase_0 == "plain" and self.knows_increment:
            raise UserError("memory.knows_increment keeps exemplars for phase 1; leave memory.after_phase_0 out")
        return self


class TrialSettings(Keys):
    """How actions are tried: `trials` of a learner or a recipe. What is not said is as the policy brings it along."""

    prefix = "trials."

    environment: Literal["local", "lookahead", "both"] = key(
        "local",
        "local (the paper's), lookahead (two pseudo phases of new classes) or both; if not set local, for online both",
    )
    horizon: Annotated[int, Strict(), Field(ge=0, le=MOST_REPEATED)] = key(
        0, "repeats of a local training, with itself as teacher (the paper's n); if not set 0"
    )
    validation: Positive = key(10, "images held out of each class; if not set 10, for online 30")
    length: Part = key(0.1, "length of a trial, M₁, as a share of epochs, M₂; if not set 0.1, for online 0.3")
    classifier: Literal["full", "trials"] = key(
        "full",
        "how auto is decided without a reserve: full (one more training of full length) or trials (those of the chosen "
        "action); if not set full, for online trials",
    )
    longest: Positive | None = key(None, "the most epochs of a trial; if not set no limit, for online 16")
    even: Flag = key(True, "hold out equally many images of each class; if not set true, for online false")
    balance_length: Part | None = key(
        None,
        "least length of a trial's balanced fine-tuning, as a share of the phase's; if not set shortened as the trial",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.environment != "local" and self.horizon:
            raise UserError(
                "trials.horizon repeats the local environment, a look-ahead has two phases already; "
                "use it with trials.environment=local"
            )
        return self

    def short(self, full: int) -> int:
        """M₁ for a phase of M₂ epochs."""
        return min(ceiling(self.length * full), full if self.longest is None else self.longest)

    def trainings(self, new_classes: int) -> int:
        """How many trainings over the images of a phase a trial is, where so many classes are new."""
        return 2 if self.environment == "both" and new_classes > 1 else 1 + self.horizon


class ScheduleKeys(Keys):
    """How long and how hard a phase trains, whatever the action."""

    epochs: Annotated[int, Strict(), Field(ge=1, le=MOST_EPOCHS)] = key(
        160, "epochs of the main stage of every phase", "training", "phase 0", "result"
    )
    batch: Annotated[int, Strict(), Field(ge=2, le=MOST)] = key(  # one image has no batch statistics
        128, "images in a training step, at least 2", "training", "phase 0"
    )
    momentum: Below1 = key(0.9, "momentum of SGD; the first β of AdamW", "training", "phase 0")
    weight_decay: Annotated[float, Strict(), Field(ge=0, le=LARGEST_NUMBER)] = key(
        5e-4, "weight decay: part of the gradient in SGD, decoupled in AdamW", "training", "phase 0"
    )
    optimiser: Literal["sgd", "adamw"] = key("sgd", "sgd or adamw", "training", "phase 0")
    decay: Literal["steps", "cosine"] = key(
        "steps", "how the learning rate falls: steps, as the method's stages say, or cosine", "training", "phase 0"
    )
    warmup: Below1 = key(
        0.0, "share of a stage's epochs in which the learning rate rises to its full value", "training", "phase 0"
    )
    images: Positive | None = key(
        None, "number of images that epochs is meant for; other phases are scaled", "training", "phase 0"
    )
    milestones: tuple[Number, ...] | None = key(
        None,
        "shares of the main stage after which the learning rate is ×0.1; none: the method's own",
        *("training", "phase 0"),
        form="a rising list of shares of the main stage, e.g. [0.5,0.75]",
    )
    balance_share: Rate | None = key(
        None, "length of balance=finetune as a share of epochs; none: the method's own", "training"
    )
    balance_lr: Rate | None = key(None, "learning rate of balance=finetune; none: the method's own", "training")

    @field_validator("milestones", mode="after")
    @classmethod
    def _rising(cls, values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if values is not None and (list(values) != sorted({*values}) or not all(0 < each < 1 for each in values)):
            raise UserError(f"milestones={list(values)} must be rising shares of the main stage, such as [0.5, 0.75]")
        return values


class LearnerKeys(ScheduleKeys):
    """The keys that a learner is made with."""

    method: str = key(
        "lucir",
        "lucir, icarl, lwf, podnet, aanets, der, foster, simplecil, ranpac, slca, … or FILE.py:NAME",
        *("method", "phase 0", "result"),
    )
    options: dict[str, Whole | Number | str] = key(
        {}, "options of the method, e.g. options.lambda_base=10", "method", "phase 0", "result"
    )
    net: str | None = key(
        None, "small, resnet32, resnet18, …, PACKAGE:NAME; none: what suits the data", "method", "phase 0"
    )
    action: dict[str, Number | str] = key(
        {},
        "changes to the method's default action from phase 1 on, e.g. action.lr=0.05; classifier and adjustment count "
        "in phase 0 too",
        "method",
    )
    first_lr: Rate | None = key(None, "learning rate of phase 0; none: the method's own", "method", "phase 0")
    memory: MemoryKeys | None = key(
        None,
        "images kept of each class (0: none), or all; none: what the method keeps, nearly always 20 per class",
        *("memory", "result"),
        form="the number of images kept of each class (0: none), all for every image, or a table, e.g. {total=2000}",
        kind="whole number or text or table",
    )
    policy: str = key(
        "online", "what chooses the action of a phase: online, fixed, race, exp3, …", "policy", "policy", "result"
    )
    policy_options: dict[str, Flag | Whole | Number | str] = key(
        {}, "options of the policy and its wrappers, e.g. policy_options.safe=1.0", "policy", "policy"
    )
    space: str | Grid | list[Grid] | None = key(
        None,
        "the actions: paper, joint, …, or a grid; none: the policy's own",
        *("policy", "policy"),
        form="a name such as paper, or a grid with a list of values for each axis, e.g. {lr=[0.1,0.05]}, or several",
    )
    tune: list[str] | None = key(
        None,
        'tune only these kinds of axes, e.g. ["kd","classifier","lr"]; none: all',
        *("policy", "policy"),
        form='a list of kinds, e.g. ["kd","lr"]',
    )
    trials: TrialSettings = key(
        TrialSettings(), "how actions are tried; keys not set have the policy's own values", "policy", "policy"
    )
    image_size: Annotated[int, Strict(), Field(ge=LEAST_SIZE, le=LARGEST_SIZE)] | None = key(
        None, "height and width of images from class folders or a pack, 8 to 4096", "data", "phase 0"
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = key(
        "auto", "auto (bf16 on a GPU that has it, else fp32), fp32, tf32 or bf16", "run", "chance"
    )
    deterministic: Flag = key(False, "byte-identical runs on a GPU too, more slowly", "run", "chance")
    seed: Annotated[int, Strict(), Field(ge=0, le=LARGEST_WHOLE)] = key(
        0, "seed of every random draw", "run", "chance", "result"
    )

    @field_validator("memory", mode="before")
    @classmethod
    def _short_memory(cls, value: object) -> object:
        if value == ALL_IMAGES:
            return {"rule": ALL_IMAGES}
        if not isinstance(value, int):
            return value
        try:
            return MemoryKeys(per_class=value)
        except UserError as error:  # nobody typed that key
            raise UserError(str(error).replace("memory.per_class=", "memory=")) from None

    @field_validator("tune", mode="before")
    @classmethod
    def _single_word(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_serializer("memory", "trials")
    def _only_said(self, value: Keys | None) -> dict[str, Any] | None:
        return None if value is None else {name: plain_copy(each) for name, each in value.said().items()}


class RecipeKeys(LearnerKeys):
    """Every key of a run. What does not change the result (folder, progress) is not a key."""

    data: Annotated[str, Field(min_length=1)] = key(
        "digits", "a data set ('poise data' lists them), a folder of class folders, or a pack", "data", "result"
    )
    images_per_class: Whole | list[Whole] | None = key(
        None,
        "training images of each class, at most; [100, 5]: from 100 down to 5",
        *("data", "phase 0", "result"),
        form="a whole number, or two for a long tail, e.g. [100,5]",
    )
    augmentation: Literal["data", "judged", "resized", "autoaugment", "cutout", "autoaugment+cutout"] = key(
        "data",
        "data (its own), judged, resized, autoaugment, cutout, autoaugment+cutout",
        *("data", "phase 0", "result"),
    )
    exam: Literal["test", "dev"] = key(
        "test", "what each phase is tested on: test, or dev, held-out training images", "data", "result"
    )
    setting: Literal["tfh", "tfs", "groups"] = key(
        "tfh",
        "kind of stream: tfh (half of the classes first), tfs (equal phases) or groups",
        *("stream", "stream", "result"),
    )
    phases: Whole = key(5, "phases after the first half (tfh), or in all (tfs)", "stream", "stream", "result")
    groups: list[Whole] | list[list[Whole]] | None = key(
        None,
        "sizes of groups of classes, e.g. [5,3,2], or the classes, [[0,1],[2,3]]",
        *("stream", "stream"),
        form="either sizes of groups, e.g. [5,3,2], or the classes of each group, e.g. [[0,1],[2,3]]",
    )
    order: Whole | str | list[Whole] = key(
        1993,
        "class order: a seed, sorted, podnet-1 …, or a list",
        *("stream", "result"),
        form="a seed, a name such as sorted, or a list of all classes, e.g. [2,0,1]",
    )
    start: Annotated[str, Field(min_length=1)] | None = key(
        None, "folder of another run; start from its state after phase 0", "run", "chance"
    )
    device: str = key("auto", "auto, cpu, cuda or cuda:N", "run", "chance")
    choose: Flag = key(False, "choose keys that are not set for the images of the first phase", "run")


def ceiling(epochs: float) -> int:
    """The next whole number of epochs, safe from rounding: 0.07 · 100 is 7."""
    return math.ceil(round(epochs, 6))


def tagged(tag: str) -> tuple[str, ...]:
    """The keys of a recipe with this tag (see `key`), in the order of their declaration.

    >>> tagged("stream")
    ('setting', 'phases', 'groups')
    """
    return tuple(name for name, field in RecipeKeys.model_fields.items() if tag in _extra(field)["tags"][1:])


def plain_copy(value: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """A copy as JSON has it: dictionaries, lists and Python's own numbers; what is neither is left as it is."""
    if isinstance(value, Mapping):
        return {name: plain_copy(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)  # a file holds lists, and no order but this one is always the same
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain_copy(each) for each in value]
    if isinstance(value, Real) and not isinstance(value, bool):  # numpy's, of which other draws would be made
        return int(value) if isinstance(value, Integral) else float(value)
    return value


# The list of keys ----------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A key of a recipe, for people.

    Attributes:
        name: with dots where it is in a table.
        default: as it is written in TOML; `none` where nothing is said.
    """

    name: str
    kind: str
    default: str
    meaning: str


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _listed(kind: type[Keys]) -> Iterator[Key]:
    schemas = kind.model_json_schema()["properties"]
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True)
        # A policy may bring along other values for its trials than the defaults: none of these is the default.
        unsaid = default is None or kind is TrialSettings
        toml = f'"{default}"' if isinstance(default, str) else str(default).lower()
        words = "{}" if isinstance(default, dict | Keys) else "none" if unsaid else toml
        types = [each.get("type", "object") for each in schemas[name].get("anyOf", [schemas[name]])]
        own = _extra(field)["kind"] or " or ".join(dict.fromkeys(_KINDS[each] for each in types if each != "null"))
        yield Key(f"{kind.prefix}{name}", own, words, field.description or "")
        if name in _TABLES:
            yield from _listed(_TABLES[name])


_TABLES: Final[Mapping[str, type[Keys]]] = {"memory": MemoryKeys, "trials": TrialSettings}
_ORDER: Final = {name: SECTIONS.index(_extra(field)["tags"][0]) for name, field in RecipeKeys.model_fields.items()}
#: Every key of a recipe, section by section.
KEYS: Final = tuple(sorted(_listed(RecipeKeys), key=lambda each: _ORDER[each.name.partition(".")[0]]))


def flat_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values flattened: keys joined by dots, and their values; a table without keys is a value.

    >>> list(flat_keys({"memory": {"total": 2000}, "seed": 1, "options": {}}))
    [('memory.total', 2000), ('seed', 1), ('options', {})]
    """
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def said_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values flattened, without the keys that hold nothing: one that was not given counts like one left empty.

    >>> said_keys({"memory": {"per_class": 20, "total": None}, "options": {}, "policy_options": {"every": None}})
    {'memory.per_class': 20}
    """
    return {name: value for name, value in flat_keys(values) if value not in (None, {}, [])}


# What is wrong with a value ------------------------------------------------------------------------------------------


def unknown_key(kind: type[Keys], name: str) -> str:
    """The line about a key that these keys do not have: the nearest one, or where it is to be found.

    >>> unknown_key(RecipeKeys, "total")
    "unknown key 'total'; did you mean 'memory.total'? (all keys: 'poise recipes --keys')"
    """
    elsewhere = dict(_ELSEWHERE) | {axis: f"action.{axis}" for axis in AXES}
    elsewhere |= {each.name.partition(".")[2]: each.name for each in KEYS if "." in each.name}
    nearest = suggestion(name, kind.model_fields, kind.prefix)
    if not kind.prefix and name in ("lr", "learning_rate"):
        nearest = "the learning rate is action.lr, that of phase 0 first_lr"
    elif not kind.prefix and name in elsewhere:
        nearest = f"did you mean '{elsewhere[name]}'?"
    return f"unknown key '{kind.prefix}{name}'; {nearest} (all keys: '{LIST_KEYS}')"


def own_error(error: Exception) -> UserError | None:
    """The first mistake that a check of our own found, which pydantic collects with its own."""
    errors = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    found = (each.get("ctx", {}).get("error") for each in errors)
    return next((each for each in found if isinstance(each, UserError)), None)


def explain(error: ValidationError, kind: type[Keys], given: Mapping[str, Any]) -> str:
    """One line on values that pydantic refused: the first bad key, and what is expected."""
    found = error.errors(include_url=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown_key(kind, name)
    field, path = kind.model_fields[name], f"{kind.prefix}{name}"
    alike = [each for each in found if each["loc"][0] == name]
    if form := _extra(field)["form"]:
        whole, part = given.get(name), max(alike, key=lambda each: len(each["loc"]))["input"]
        what = shown(whole) if part == whole or isinstance(whole, int | float) else f"{shown(part)} in {shown(whole)}"
        return f"{path}={what} cannot be used; give {form}"
    if len(alike) > 1:  # a value of a table, which may be of several kinds
        inner = f"{path}.{first['loc'][1]}"
        return f"{inner}={shown(value)} must be a number or text"
    if first["type"] == "literal_error":
        known = re.findall("'(.*?)'", first["ctx"]["expected"])
        return f"unknown {path} {shown(value)}; {suggestion(value, known)}"
    words = first["msg"]
    for theirs, ours in _WORDS.items():
        words = words.replace(theirs, ours)
    return f"{path}={shown(value)} {words}"
