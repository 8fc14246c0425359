"""Run folders and kept results read into `RunRecord`s. Nothing here trains or examines.

A folder is read whether its run is finished, still running or was stopped. One that cannot be read becomes an
`UnreadPath` with the reason, and the others are still read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from poise import store
from poise.errors import Damaged, PoiseError, UserError, kind_and_line, shown
from poise.journal import PACKED
from poise.report.reading.journals import JournalEvents
from poise.report.reading.phase_0 import with_phase_0
from poise.report.reading.runs import DIGITS, LABELS, PhaseRecord, RunRecord
from poise.runfolder import (
    CROSSVAL,
    JOURNAL,
    MACHINE,
    OWN_NETWORK,
    PAGE,
    PHASE_0,
    RECIPE,
    RESULT,
    SECONDS,
    SECONDS_PHASE_0,
    START_FINGERPRINT,
    holds_more_after_phase_0,
    recipe_of_result,
)
from poise.schema import LARGEST
from poise.settings import flat_keys
from poise.words import one_line, one_line_each

#: What the journal of a kept result is called: `NAME.journal.jsonl.xz` beside `NAME.json`.
KEPT_JOURNAL: Final = f".{JOURNAL}{PACKED}"
#: By how much the accuracies of a journal and of its result may differ, in percent.
ROUNDING: Final = 1e-3


@dataclass(frozen=True)
class UnreadPath:
    """A path without a readable run, and the reason."""

    path: Path
    reason: str
    damaged: bool = False  # whether there is a file of poise's that is not as it was written

    @classmethod
    def because(cls, path: Path, error: Exception) -> UnreadPath:
        """A path whose contents cannot be read or shown."""
        return cls(path, reason_for(path, error), not isinstance(error, UserError | OSError))

    @property
    def error(self) -> PoiseError:
        """The same as an error, for a command that needs this path."""
        return (Damaged if self.damaged else UserError)(f"{self.path} {self.reason}")


def read_runs(paths: Sequence[Path]) -> tuple[list[RunRecord], list[UnreadPath]]:
    """The runs at these paths, each once; a folder that holds only folders stands for the runs in it."""
    runs: list[RunRecord] = []
    unread: list[UnreadPath] = []
    taken: set[str] = set()
    for path in _each_once(paths):
        try:
            run = read_run(path, _free_name(path, taken))
        except Exception as error:
            unread.append(UnreadPath.because(path, error))
        else:
            runs.append(run)
            taken.add(run.name)
    return with_phase_0(_with_same_data(runs)), unread


def _with_same_data(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, those of equal images at several paths with the first of these: they are of the same data."""
    first: dict[str, str] = {}
    found = []
    for run in runs:
        data = run.recipe.get("data")
        if run.fingerprint and isinstance(data, str) and Path(data).is_absolute():
            found.append(replace(run, same_data=first.setdefault(run.fingerprint, data)))
        else:
            found.append(run)
    return found


def reason_for(path: Path, error: Exception) -> str:
    """Why what lies at a path is not shown, in one line that follows its name."""
    if isinstance(error, PoiseError):
        return str(error).removeprefix(f"{path} ").removeprefix(f"{path}{os.sep}")
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"is not as poise writes it ({kind_and_line(error, 200)})"


def _each_once(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for given in paths:
        try:
            found |= {path.resolve(): path for path in run_folders_below(given)}
        except (OSError, RuntimeError):  # no permission, a loop of links: it is told when it is read
            found[given.absolute()] = given
    return [*found.values()]


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """The run in this folder or of this result file; raises if it cannot be read."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_dir():
        return _read_result(path, name or path.stem)
    kind = next((file for file in (RECIPE, CROSSVAL) if (path / file).exists()), None)
    if kind is None:
        raise UserError(f"{path} {'is empty' if not any(path.iterdir()) else 'is not a run folder'}")
    if not (path / RESULT).exists() and kind == CROSSVAL:
        raise UserError(f"{path} {_AGAIN}")
    events = JournalEvents.read(path / JOURNAL)
    result: Mapping[str, Any] | None = None
    verified = True
    if (path / RESULT).exists():
        result, verified = store.read_verified(path / RESULT)
    saved = {**store.read_json(path / kind), "machine": _read_machine(path / MACHINE)}
    if result is not None and kind == RECIPE:
        _refuse_contradiction(path, saved.get("recipe"), result)
    run = _make_record(path, name or path.name, saved, result, events)
    return replace(run, verified=verified, net_source=_read_net_source(run))


def _read_net_source(run: RunRecord) -> str | None:
    """The beginning of the digest of the file that a network of one's own is made by, if that is how it is named.

    It is that of the code with which the run began, which older runs say in their models alone. A final model may have
    been written again later.
    """
    net = run.recipe.get("net")
    if not isinstance(net, str) or ".py:" not in net:
        return None
    if (known := run.own_source(OWN_NETWORK)) is not None:
        return known
    for file, kind in ((PHASE_0, "phase 0"), (store.FINAL_MODEL, "learner")):
        with suppress(PoiseError, OSError, LookupError, TypeError):
            meta = store.read_summary(run.path / file, (), kind=kind).meta
            return str(meta.get("learner", meta)["net_info"]["digest"])[:DIGITS]
    return None


def _refuse_contradiction(path: Path, recipe: object, result: Mapping[str, Any]) -> None:
    """Refuse a recipe that says otherwise than the result what was run: one of them was changed.

    The result has a digest, the recipe has none. A key that one of them does not have is no contradiction.
    """
    if not isinstance(recipe, Mapping):
        return
    there, found = (dict(flat_keys(_repeated_keys(each))) for each in (recipe, result))
    for name, value in found.items():
        said = there.get(name)
        if value is not None and said not in (None, value):
            words = f"{name} is {shown(said)} in {RECIPE} and {shown(value)} in {RESULT}"
            raise UserError(f"{path} says two things of what was run ({words}): one of the files was changed")


def _repeated_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Of a recipe or a result, the keys that both have in the same words."""
    named = ["method", "policy", "epochs", "seed", "order", "exam", "setting", "images_per_class", "memory", "options"]
    return {name: keys.get(name) for name in [*named, *(["phases"] if keys.get("setting") != "groups" else [])]}


def _read_result(path: Path, name: str) -> RunRecord:
    """The run of a result that was kept, with its journal where that lies beside it, compressed."""
    result, verified = store.read_verified(path)
    check_result(path, result)
    journal = path.with_suffix(KEPT_JOURNAL)
    events = JournalEvents.read(journal)
    exams = zip(events.phases, result["curve"], strict=False)
    if any(abs(exam.accuracy - point["accuracy"]) > ROUNDING for exam, point in exams):
        raise UserError(f"{journal} is the journal of another run than {path}")
    return replace(_make_record(path, name, {}, result, events), verified=verified)


def run_of_result(result: Mapping[str, Any], path: Path = Path()) -> RunRecord:
    """A run of which only the result is known."""
    return _make_record(path, "", {}, result, JournalEvents())


def load_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run, as it was written: one that was changed since is refused."""
    if not folder.is_dir():
        fault = "is not a folder; give that of a finished run" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {fault}")
    if not (folder / RESULT).exists():
        todo = "is not a run folder"
        if (folder / RECIPE).exists():
            todo = f"is not finished; continue with 'poise resume {folder}'"
        raise UserError(f"{folder} {_AGAIN if (folder / CROSSVAL).exists() else todo}")
    result = store.read_json(folder / RESULT)
    check_result(folder / RESULT, result)
    return result


_AGAIN = "is not finished; give the same 'poise crossval' command again"


def run_folders_below(path: Path, depth: int = 3) -> Iterator[Path]:
    """The path itself, or the run folders below it if it only holds such folders."""
    if not path.is_dir() or any((path / name).exists() for name in (RECIPE, CROSSVAL, RESULT, JOURNAL)):
        yield path
        return
    inner = [child for child in sorted(path.iterdir()) if child.is_dir() and not child.name.startswith(".")]
    inner = [child for child in inner if not (child / PAGE).exists()]  # an earlier report
    if not inner or not depth:
        yield path
    for child in inner if depth else ():
        yield from run_folders_below(child, depth - 1)


def _free_name(path: Path, taken: set[str]) -> str:
    """The folder's name, preceded by parent folders as far as needed to make it unique."""
    parts = path.resolve().parts
    name = parts[-1].removesuffix(".json")
    for part in reversed(parts[:-1]):
        if name not in taken:
            return name
        name = f"{part}/{name}"
    return name


# From files to values -------------------------------------------------------------------------------------------------


def _make_record(
    path: Path, name: str, saved: Mapping[str, Any], result: Mapping[str, Any] | None, events: JournalEvents
) -> RunRecord:
    """A run: if it is finished, its result is authoritative and its journal adds details."""
    saved, result = one_line_each(saved), one_line_each(result)
    if result is None:
        memory, phases = saved["recipe"].get("memory") or {}, events.phases
        marks = {
            "leak": saved.get("runner") == "audit",
            "knows_increment": memory.get("knows_increment"),
            "oracle_all_images": memory.get("rule") == "all",
            "pretrained_on": saved.get("pretrained_on"),
        }
    else:
        check_result(path, result)
        details = {phase.phase: phase for phase in events.phases}
        phases = [_finished_phase(point, details.get(point["phase"])) for point in result["curve"]]
        marks = dict(result)
    recipe = dict(saved.get("recipe") or recipe_of_result(result or {}))
    marks |= {str(marks.get("augmentation") or recipe.get("augmentation")): True}
    marks["more_after_phase_0"] = holds_more_after_phase_0(recipe.get("memory"))
    for needed in ("method", "setting", "seed", "phases", "policy"):
        if recipe.get(needed) is None:
            raise UserError(f"{path} does not say its {needed}")
    return RunRecord(
        path=path,
        name=one_line(name),
        recipe=recipe,
        result=result,
        machine=saved.get("machine", {}),
        phases=tuple(phases),
        trials=tuple(events.trials),
        confusion=tuple((int(true), int(guess), int(count)) for true, guess, count in events.confusion),
        class_names=tuple(saved.get("class_names") or ()),
        space=(saved if result is None else result).get("space"),
        labels=tuple(word for key, (word, _) in LABELS.items() if marks.get(key)),
        events=events.counts,
        last_event=events.last,
        fingerprint=" ".join(str(saved[name]) for name in ("fingerprint", "exam_images") if saved.get(name)),
        phase_0=found if isinstance(found := saved.get(START_FINGERPRINT), str) else None,
    )


def check_result(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse anything that is not the result of a run or lacks a figure that tables show."""
    curve, seconds = result.get("curve"), result.get("seconds")
    points = isinstance(curve, list) and all(isinstance(point, Mapping) for point in curve)
    if not curve or not points or not isinstance(seconds, Mapping):
        raise UserError(f"{path} holds no result of a run")
    parts = [result, seconds, *curve]
    spent = [*SECONDS, *([SECONDS_PHASE_0] if SECONDS_PHASE_0 in seconds else [])]
    names: list[Sequence[str]] = [("average_accuracy", "last_accuracy", "average_forgetting"), spent]
    names += [("phase", "classes", "accuracy", "accuracy_fc", "accuracy_ncm")] * len(curve)
    for part, needed in zip(parts, names, strict=True):
        for name in needed:
            if not _is_number(found := part.get(name)):
                raise UserError(f"{path} holds a result in which {name} is {shown(found)}, which is not a number")
    _check_transfer(path, result)
    if not all(isinstance(point.get("action"), Mapping) and "classifier" in point["action"] for point in curve):
        raise UserError(f"{path} holds a result that does not say which classifier counted")


def _check_transfer(path: Path, result: Mapping[str, Any]) -> None:
    """Refuse a backward transfer or an accuracy matrix that is none; results of before there was one have neither."""
    if "backward_transfer" in result and not _is_number(found := result["backward_transfer"]):
        raise UserError(f"{path} holds a result in which backward_transfer is {shown(found)}, which is not a number")
    matrix = result.get("accuracy_matrix", [])
    rows = matrix if isinstance(matrix, list) and all(isinstance(row, list) for row in matrix) else [[]]
    triangle = not rows or [*map(len, rows)] == [*range(1, len(result["curve"]) + 1)]
    if not triangle or not all(_is_number(cell) for row in rows for cell in row):
        raise UserError(
            f"{path} holds a result whose accuracy_matrix is no triangle of numbers with a row for each exam"
        )


def _is_number(found: object) -> bool:
    return not isinstance(found, bool) and isinstance(found, int | float) and abs(found) <= LARGEST


def _finished_phase(point: Mapping[str, Any], journal: PhaseRecord | None) -> PhaseRecord:
    """A point of the result's curve with the details of the journal."""
    stored = point.get("stored", point.get("stored_images"))
    known = journal or PhaseRecord(int(point["phase"]), 0, 0.0, 0.0, 0.0, {})
    return replace(
        known,
        classes=int(point["classes"]),
        accuracy=float(point["accuracy"]),
        accuracy_fc=float(point["accuracy_fc"]),
        accuracy_ncm=float(point["accuracy_ncm"]),
        action=point["action"],
        stored=known.stored if stored is None else int(stored),
        held=point.get("held_images") or None,
        budget=point.get("budget_images"),
    )


def _read_machine(path: Path) -> Mapping[str, Any]:
    """What machine.json says; a report can do without it."""
    try:
        return store.read_json(path)
    except (OSError, PoiseError):
        return {}
