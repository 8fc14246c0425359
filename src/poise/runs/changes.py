"""What a run folder says it holds must not change between a stop and its resume: digests, kept in every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from poise.errors import UserError
from poise.learner import KEYS, Settings
from poise.runfolder import START_FINGERPRINT
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan
from poise.runs.recipe import Recipe
from poise.store import digest_of

#: Of `recipe.json`, what is no key of the recipe and must not change.
DESCRIBED: Final = (
    *("name", "fingerprint", START_FINGERPRINT, "runner"),
    *("exam_images", "class_names", "space", "pretrained_on"),
)
#: Recipe keys that may change: where a run is computed, and where its data and its start lie, which have fingerprints.
_FREE: Final = ("device", "data", "start")
#: Recipe keys that the saved settings of the learner are compared by.
_OF_LEARNER: Final = KEYS - {"image_size"}


def pin(plan: Plan, described: Mapping[str, Any]) -> dict[str, str]:
    """A digest of everything that must not change, by the name of its key; `described` is what `recipe.json` says."""
    recipe = plan.recipe.model_dump(mode="json")
    keys = [key for key in Recipe.model_fields if key not in _FREE and key not in _OF_LEARNER]
    values = {**{key: described.get(key) for key in DESCRIBED}, **{key: recipe.get(key) for key in keys}}
    return {key: digest_of(value) for key, value in values.items()}


def changed_keys(pinned: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The keys that were changed; one that was not pinned, by an older poise, is not compared."""
    return [key for key, digest in pinned.items() if key in now and now[key] != digest]


def refuse_changed(folder: RunFolder, keys: Sequence[str]) -> None:
    """Refuse to resume a run of which these keys were changed, if any were."""
    if keys:
        raise UserError(f"recipe.json in {folder.path} was changed since ({', '.join(keys)}); restore it")


def differing_keys(one: Settings, other: Settings) -> list[str]:
    """The keys in which two settings differ, apart from what was still open."""
    saved, mine = one.as_json(), other.as_json()
    return [key for key, value in saved.items() if value != mine.get(key) and key != "automatic"]
