"""What studies add to a report: the paper's assumptions, and what probes found and know in hindsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poise import store
from poise.actions import Action, AxisValue
from poise.errors import PoiseError
from poise.report import Hindsight, Report, RunRecord, UnreadPath, gather
from poise.runfolder import (
    FULL,
    PHASE_0_KEYS,
    PROBE,
    TRAINING_KEYS,
    is_whole,
    saved_recipe,
    without_empty_keys,
)
from poise.studies.assumptions import assumptions, beginnings
from poise.studies.probe_file import check_probe
from poise.studies.probe_table import ProbeTable, probe_summary

_NO_DIGEST = "\nunverified: this table has no digest by which a change could be seen; 'poise digest' adds it"


def gather_with_studies(paths: Sequence[Path]) -> Report:
    """What lies at these paths, runs and tables of probes, with what studies of them found.

    What cannot be read, or shown, is listed with the reason and stops nothing else.
    """
    tables = {path: table for path in paths if (table := _table_in(path)) is not None}
    report, probes, summaries = gather([path for path in paths if path not in tables]), list[ProbeTable](), list[str]()
    unread, together = list[UnreadPath](), ""
    for path, probe in tables.items():
        try:
            check_probe(path, probe.table)
            summary = f"{probe_summary(probe)}{'' if probe.verified else _NO_DIGEST}"
            together = beginnings([*probes, probe])
            probes, summaries = [*probes, probe], [*summaries, summary]
        except Exception as error:
            unread.append(UnreadPath.because(path, error))
    report, held = replace(report, unread=[*report.unread, *unread]).without_failing(lambda it: assumptions(it.runs))
    report, hindsight = report.without_failing(lambda it: _hindsight(it.runs, probes))
    texts = [("How far the paper's assumptions held", held)]
    texts += [(f"Probe of phase {probe.table['phase']}", text) for probe, text in zip(probes, summaries, strict=True)]
    texts.append(("Probes after different beginnings", together))
    report = replace(report, texts=[each for each in texts if each[1]], hindsight=hindsight)
    return report.without_failing(Report.text)[0]


def _hindsight(runs: Sequence[RunRecord], probes: Sequence[ProbeTable]) -> dict[str, Hindsight]:
    return {run.name: found for run in runs if (found := judge_by_probes(run, probes)) is not None}


def _table_in(path: Path) -> ProbeTable | None:
    """What a file says to be the table of a probe, not yet checked; None for runs and all else."""
    try:
        found = ProbeTable(*store.read_verified(path)) if path.is_file() else None
    except (PoiseError, OSError):
        return None
    return found if found is not None and found.table.get("kind") == PROBE else None


def judge_by_probes(run: RunRecord, probes: Sequence[ProbeTable]) -> Hindsight | None:
    """The best constant action against the run's own ones in the probed phases; None where no probe is of this run."""
    exams: list[NDArray[np.float64]] = []
    own: list[float] = []
    phases: list[int] = []
    for probe in probes:
        phase = int(probe.table["phase"])
        if _trains_alike(run, probe.table["recipe"]) and probe.has_exam and phase < len(run.phases):
            arm = _arm(probe, run.phases[phase].action)
            if arm is not None and (not exams or len(probe.space) == len(exams[0])):
                length = FULL if probe.table["full"] else probe.lengths[-1]
                exams.append(100 * probe.exam(length, probe.classifier))
                own.append(float(exams[-1][arm]))
                phases.append(phase)
    if not exams:
        return None
    return Hindsight(float(np.mean(exams, axis=0).max()), float(np.mean(own)), tuple(phases))


def _trains_alike(run: RunRecord, recipe: Mapping[str, Any]) -> bool:
    """Whether nothing but its actions may differ from those of a run of this recipe, as far as both are known."""
    other = saved_recipe(recipe)
    keys = (*TRAINING_KEYS, *(PHASE_0_KEYS if is_whole(run.recipe) and is_whole(other) else ()))
    return all(without_empty_keys(run.recipe.get(key)) == without_empty_keys(other.get(key)) for key in keys)


def _arm(probe: ProbeTable, action: Mapping[str, AxisValue]) -> int | None:
    """The probe's arm with these weights and rates; the classifier is judged apart."""
    wanted = Action(**{**action, "classifier": "auto"})
    for arm, known in enumerate(probe.space.actions):
        if Action(**{**known, "classifier": "auto"}) == wanted:
            return arm
    return None
