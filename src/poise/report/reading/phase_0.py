"""Which phase 0 a run has, and how it was trained: runs that started elsewhere have the phase 0 of another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from poise import store
from poise.errors import PoiseError
from poise.recipes.keys import flat_keys
from poise.report.reading.runs import RunRecord
from poise.runfolder import PHASE_0, PHASE_0_KEYS, RECIPE, saved_recipe, without_empty_keys

#: A start may have started elsewhere itself; so many folders are looked through.
_DEEPEST: Final = 8


def with_phase_0(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, with what their phase 0 is recognised by and how it was trained, if any of them started elsewhere."""
    if all(run.recipe.get("start") is None for run in runs):
        return [*runs]
    known = [replace(run, phase_0=run.phase_0 or _fingerprint(run.path)) for run in runs]
    trained: dict[str, list[Mapping[str, Any]]] = {}
    for run in known:
        if run.phase_0 is not None and run.recipe.get("start") is None:
            trained.setdefault(run.phase_0, []).append(run.recipe)
    return [replace(run, other_start=_find_differences(run, trained)) for run in known]


def _find_differences(run: RunRecord, trained: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The keys with which its start was trained otherwise than the run says; empty where that is not known.

    `trained` are the recipes by which the phases 0 of this report were trained.
    """
    start = run.recipe.get("start")
    if not isinstance(start, str) or run.phase_0 is None:
        return {}
    origin = _read_origin(start, run.phase_0) if run.phase_0 not in trained else None
    recipes = trained.get(run.phase_0, [origin] if origin else [])
    differences = [_compare(recipe, run.recipe) for recipe in recipes]
    return min(differences, key=len, default={})


def _compare(theirs: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    there, here = _phase_0_keys(theirs), _phase_0_keys(own)
    return {name: there.get(name) for name in sorted({*there, *here}) if there.get(name) != here.get(name)}


def _phase_0_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    said = without_empty_keys({name: recipe.get(name) for name in PHASE_0_KEYS})
    return dict(flat_keys(said)) if isinstance(said, Mapping) else {}


def _read_origin(start: str, fingerprint: str) -> Mapping[str, Any] | None:
    """The recipe by which this phase 0 was trained, if it still lies in the folder that a run started from."""
    with suppress(Exception):  # no folder of those to be read: what is wrong with it does not matter here
        for _ in range(_DEEPEST):
            folder = Path(start)
            if _fingerprint(folder) != fingerprint:
                return None
            recipe = saved_recipe(store.read_json(folder / RECIPE)["recipe"])
            if recipe.get("start") is None:
                return recipe
            start = recipe["start"]
    return None


def _fingerprint(folder: Path) -> str | None:
    """As `RunFolder.phase_0_fingerprint`; None where there is no phase 0, or it cannot be read."""
    with suppress(OSError):
        about = (folder / PHASE_0).stat()
        return _read_fingerprint(folder / PHASE_0, about.st_mtime_ns, about.st_size)
    return None


@lru_cache(maxsize=1024)
def _read_fingerprint(file: Path, _time: int, _size: int) -> str | None:
    """Read once as long as the file stays as it is: a report that is watched looks again and again."""
    with suppress(PoiseError, OSError):
        return store.digest_of_tensors(store.read_tensors(file, kind="phase 0")[0])
    return None
