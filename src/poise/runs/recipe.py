"""Recipes: what a run is, as one flat TOML file that a person can read, and overrides on top of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from pydantic import model_validator

from poise.data import ImageSet
from poise.errors import UserError, check_plain, shown, suggestion
from poise.learner import KEYS, Runtime, Settings, suit
from poise.methods import METHODS
from poise.recipes import read_recipe
from poise.runs.overrides import parse_override, set_key
from poise.settings import MemoryKeys, RecipeKeys, ScheduleKeys, TrialSettings, refuse_unknown
from poise.tuning import tuner_names


class Recipe(RecipeKeys):
    """A recipe whose words are known to mean something: its method, policy, actions and options exist."""

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        if self.policy == "crossval":
            raise UserError("crossval is an oracle with a command of its own: 'poise crossval RECIPE …'")
        for name, known in (("method", METHODS), ("policy", tuner_names())):
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
        return Settings.resolve(**self._learner_keys(KEYS))

    def _learner_keys(self, keys: Collection[str]) -> dict[str, Any]:
        """What these keys say to a learner; `image_size` is for the data, which scale their images to it."""
        said = {name: getattr(self, name) for name in KEYS if name in keys and name != "image_size"}
        return {**said, **({"trials": self.trials.said()} if "trials" in said else {})}

    def chosen_for(self, images: ImageSet) -> Recipe:
        """The recipe with all that it does not say chosen for the images of the first phase, if it asks for that.

        From then on it says everything but whether images are shifted and mirrored, which is judged when they arrive.
        """
        if not self.choose:
            return self
        said = {name for name, value in self.said().items() if value not in (None, {}) and value != TrialSettings()}
        settings = Settings.resolve(automatic=True, **self._learner_keys(said))
        found = suit(settings, images, Runtime.of(settings, self.device))
        written = {name: getattr(found, name) for name in ("net", "action", "first_lr", "policy_options", "space")}
        written |= {name: getattr(found, name) for name in ScheduleKeys.model_fields}
        return self.replace(
            choose=False,
            augmentation=self.augmentation if "augmentation" in said else "judged",
            trials=found.trials if found.kind.tunes else self.trials,
            **written,
        )

    def resolved(self, **paths: str) -> Recipe:
        """The recipe with what policy and method bring along written out: later defaults change no run begun before.

        Its settings are the same, and are not resolved again; nor do the paths of data and start matter to them.
        """
        settings, written = self.settings, dict[str, Any]()
        if settings.kind.tunes:
            written = {name: getattr(settings, name) for name in ("policy_options", "space", "trials")}
        return self.model_copy(
            update={**written, "memory": MemoryKeys(**dict(settings.memory)), "options": settings.options, **paths}
        )


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
    refuse_unknown(merged)
    return Recipe(**merged)
