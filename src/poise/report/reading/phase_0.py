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
from poise.report.reading.runs import RunRecord
from poise.runfolder import PHASE_0, PHASE_0_KEYS, RECIPE, without_empty_keys
from poise.settings import flat_keys

#: A start may have started elsewhere itself; so many folders are looked through.
_DEEPEST: Final = 8
#: In place of a fingerprint: a run trained its phase 0 itself, and no other run of the report has that one.
_OWN: Final = "own"


def with_phase_0(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, with what their phase 0 is recognised by and how it was trained, where others of their seed have one.

    Runs that trained their phase 0 themselves can only be told apart by it where another run started from one of them:
    otherwise they repeat each other.
    """
    seeds = {str(run.recipe["seed"]) for run in runs if run.starts_elsewhere}
    found = [run.phase_0 or (_fingerprint(run.path) if str(run.recipe["seed"]) in seeds else None) for run in runs]
    begun = {phase_0 for run, phase_0 in zip(runs, found, strict=True) if run.starts_elsewhere}
    trained: dict[str, list[dict[str, Any]]] = {}
    known = []
    for run, phase_0 in zip(runs, found, strict=True):
        if phase_0 is not None and not run.starts_elsewhere:
            trained.setdefault(phase_0, []).append(_phase_0_keys(run.recipe))
        known.append(replace(run, phase_0=phase_0 if phase_0 is None or phase_0 in begun else _OWN))
    return [replace(run, other_start=_find_differences(run, trained)) for run in known]


def _find_differences(run: RunRecord, trained: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The keys with which its start was trained otherwise than the run says; empty where that is not known.

    `trained` are the keys by which the phases 0 of this report were trained.
    """
    start = run.recipe.get("start")
    if not isinstance(start, str) or run.phase_0 is None:
        return {}
    origin = _read_origin(start, run.phase_0) if run.phase_0 not in trained else None
    theirs = trained.get(run.phase_0, [_phase_0_keys(origin)] if origin else [])
    own = _phase_0_keys(run.recipe)
    return min((_compare(each, own) for each in theirs), key=len, default={})


def _compare(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
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
            recipe = store.read_json(folder / RECIPE)["recipe"]
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
