"""Recipes: what a run is, as one flat TOML file that a person can read, and overrides on top of it."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Self

from pydantic import model_validator

from poise.data import ImageSet
from poise.errors import UserError, shown
from poise.learner import KEYS, Runtime, Settings, fill_in_defaults
from poise.recipes import read_recipe
from poise.settings import KEYS as RECIPE_KEYS
from poise.settings import MemoryKeys, RecipeKeys, ScheduleKeys, TrialSettings

_MOST_PARTS: Final = 4  # parts of a key with dots between
_KINDS: Final = {key.name: tuple(key.kind.split(" or ")) for key in RECIPE_KEYS}  # what the value of a key can be


class Recipe(RecipeKeys):
    """A recipe whose words are known to mean something: its method, policy, actions and options exist."""

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        if self.policy == "crossval":
            raise UserError("crossval is an oracle with a command of its own: 'poise crossval RECIPE …'")
        _ = self.settings  # resolved and checked here, for all that follows
        if self.setting == "groups" and self.groups is None:
            raise UserError("setting=groups needs groups, e.g. groups=[5,3,2] or groups=[[0,1],[2,3]]")
        if self.setting != "groups" and self.groups is not None:
            raise UserError(f"groups goes with setting=groups, not with setting={self.setting}")
        return self

    @cached_property
    def settings(self) -> Settings:
        """The learner's settings that these keys stand for, resolved once."""
        return Settings.of(self, image_size=None)  # which is for the data: they scale their images to it

    def chosen_for(self, images: ImageSet) -> Recipe:
        """The recipe with all that it does not say chosen for the images of the first phase, if it asks for that.

        From then on it says everything but whether images are shifted and mirrored, which is judged when they arrive.
        """
        if not self.choose:
            return self
        said = {name: value for name, value in self.said().items() if value not in (None, {}, TrialSettings())}
        keys = {name: value for name, value in said.items() if name in KEYS and name != "image_size"}
        keys |= {"trials": self.trials.said()} if "trials" in keys else {}
        settings = Settings.resolve(automatic=True, **keys)
        found = fill_in_defaults(settings, images, Runtime.of(settings, self.device))
        written = {name: getattr(found, name) for name in ("net", "action", "first_lr", "policy_options", "space")}
        written |= {name: getattr(found, name) for name in ScheduleKeys.model_fields}
        return self.replace(
            choose=False,
            augmentation=self.augmentation if "augmentation" in said else "judged",
            trials=found.trials,
            **written,
        )

    def resolved(self, **paths: str) -> Recipe:
        """The recipe with what policy and method bring along written out: later defaults change no run begun before.

        Its settings are the same, and are not resolved again; nor do the paths of data and start matter to them.
        """
        brought = ("method", "options", "net", "policy_options", "space", "trials")
        written = {name: getattr(self.settings, name) for name in brought}
        return self.model_copy(update={**written, "memory": MemoryKeys(**dict(self.settings.memory)), **paths})


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name (or the TOML file at that path) with `key=value` overrides."""
    return make_recipe(read_recipe(name), overrides)


def make_recipe(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A validated recipe from plain values; every mistake is one line that names the right word."""
    if isinstance(overrides, str | Mapping) or not all(isinstance(word, str) for word in overrides):
        raise UserError(f"overrides={shown(overrides)} must be a list of texts, such as ['setting=tfs', 'epochs=2']")
    return recipe_with(values, [parse_override(text) for text in overrides])


def recipe_with(values: Mapping[str, Any], changes: Sequence[tuple[list[str], Any]]) -> Recipe:
    """A recipe with some keys changed, each given by its path in the tables; what belonged to others goes."""
    merged = dict(values)
    for path, value in changes:
        set_key(merged, path, value)
    keys = {path[0] for path, _ in changes}
    if "groups" in keys and "setting" not in keys and isinstance(merged.get("setting", ""), str):  # no table is lost
        merged["setting"] = "groups"
    if "setting" in keys and "groups" not in keys and merged["setting"] != "groups":
        merged.pop("groups", None)
    if merged.get("groups") is not None:
        merged.setdefault("setting", "groups")
    if "policy" in keys and "policy_options" not in keys and merged["policy"] != values.get("policy"):
        merged.pop("policy_options", None)  # they belong to another policy
    return Recipe(**merged)


# Overrides: `key=value` as a command line gives it --------------------------------------------------------------------


def parse_override(text: str) -> tuple[list[str], Any]:
    """`memory.total=2000` → (["memory", "total"], 2000); values as in TOML, a bare word is a string.

    For a key that takes only text, a number, a date and true or false are strings, too, as they were typed.
    """
    key, found, value = text.partition("=")
    if not found or not key.strip() or not value.strip():
        raise UserError(f"{shown(text)} is not key=value, e.g. setting=tfs")
    if len(text.splitlines()) > 1 or any(character < " " for character in text):
        raise UserError(f"{shown(text)} must be one key=value, on one line")
    if len(key.split()) > 1:
        raise UserError(
            f"{shown(text)} is more than one key=value; give each as a word of its own, the recipe before it"
        )
    path = key.strip().split(".")
    if len(path) > _MOST_PARTS:
        raise UserError(f"there is no key {shown(key.strip())}; a key has at most {_MOST_PARTS} parts")
    kinds = _KINDS.get(".".join(path), ())
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        parsed = value.strip()
        if parsed[0] in "[{" and {"list", "table"} & {*kinds}:
            raise UserError(
                f"the value of '{'.'.join(path)}' is not TOML: {shown(parsed)}; close every bracket and put each word "
                """in quotation marks, e.g. tune='["kd","lr"]' in a shell"""
            ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UserError(f"the value of '{'.'.join(path)}' is too long or nested too deep: {shown(value)}") from error
    if kinds == ("text",) and not isinstance(parsed, str | list | dict):
        parsed = value.strip()  # a folder that is called 2024, or by a date
    return path, parsed


def in_order(overrides: Sequence[str]) -> list[tuple[list[str], Any]]:
    """The overrides of a command line, whole tables first; what is given twice, or would undo another, is refused."""
    pairs = [(".".join(path), value) for path, value in map(parse_override, overrides)]
    for (one, value), (other, another) in itertools.combinations(pairs, 2):
        if one == other:
            raise UserError(f"{one} is given twice, as {shown(value)} and {shown(another)}; give it once")
        if contradict(one, value, other, another):
            raise UserError(f"{one} and {other} are both given, and one would undo the other; give one of them")
    return [(key.split("."), value) for key, value in tables_first(pairs)]


def tables_first(pairs: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Keys with their values, a whole table such as `memory` before keys of it, which then add to it."""
    return sorted(pairs, key=lambda pair: pair[0].count("."))


def contradict(one: str, value: object, other: str, another: object) -> bool:
    """Whether one of two overrides would undo the other: a table and a key of it, or two sizes of the memory."""
    if {one, other} == {"memory.per_class", "memory.total"}:
        return True
    for whole, size, key in ((one, value, other), (other, another, one)):
        if key.startswith(f"{whole}."):
            short = whole == "memory" and isinstance(
                size, int
            )  # for memory.per_class, beside which there are other keys
            return not short or key in ("memory.per_class", "memory.total")
    return False


def set_key(values: dict[str, Any], path: list[str], value: object) -> None:
    """Set the key at this path of nested tables, in place."""
    name, rest = path[0], path[1:]
    if not rest:
        values[name] = value
        return
    inner = values.get(name, {})
    inner = {"per_class": inner} if name == "memory" and isinstance(inner, int) else inner
    inner = dict(inner) if isinstance(inner, dict) else {}
    if name == "memory" and rest[0] in ("per_class", "total"):
        inner.pop("per_class", None)
        inner.pop("total", None)
    set_key(inner, rest, value)
    values[name] = inner
