"""Hindsight regret: what the best constant action would have given, minus what was reached.

Two sources know that action: `poise crossval`, which ran every one as a whole run, and probes, which tried every one
in some phases. Both looked at exams, so the best is one that nobody could have known, and is better than it will be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from poise.actions import Action, AxisValue
from poise.report.probes import FULL, ProbeTable
from poise.report.rows import Row, Stream, rows_of
from poise.report.runs import Run
from poise.report.sheet import Cell, Column, Sheet, Value, figure, mean_text, word
from poise.report.statistics import spread

CAPTION = (
    "Best constant action in hindsight minus the row's own figure, in points, mean ± deviation over seeds. Whole "
    "runs: average accuracy, the best of 'poise crossval' with the same seed. Probes: exam accuracy of temporary "
    "models after the probed phases, the best constant action of the probe against the actions that the run decided on."
)
_SAME = ("data", "method", "setting", "phases", "groups", "order", "memory", "epochs", "exam", "seed")


def regret_sheet(runs: Sequence[Run], probes: Sequence[ProbeTable] = ()) -> Sheet:
    """A row for everything that an oracle or a probe can be compared with; none where there is neither."""
    found = [*_from_oracles(runs), *_from_probes(runs, probes)]
    heads = [Column(title, numeric=False) for title in ("row", "setting", "judged by")]
    columns = [*heads, Column("best constant"), Column("own"), Column("regret"), Column("seeds")]
    return Sheet(
        "regret",
        "Hindsight regret",
        CAPTION,
        tuple(columns),
        tuple(cells for cells, _ in found),
        tuple(record for _, record in found),
    )


Made = tuple[tuple[Cell, ...], dict[str, Value]]


def _from_oracles(runs: Sequence[Run]) -> list[Made]:
    rows = rows_of([run for run in runs if run.finished])
    best = {row.baseline_key(): row for row in rows if row.first.policy == "crossval"}
    made = []
    for row in rows:
        oracle = best.get(row.baseline_key())
        if oracle is None or row.first.informed:
            continue
        for stream in sorted(row.cells):
            theirs, own = oracle.averages(stream), row.averages(stream)
            seeds = [seed for seed in own if seed in theirs]
            if seeds:
                pairs = [(theirs[seed], own[seed]) for seed in seeds]
                made.append(_made(row, stream, "whole runs", pairs, [run.name for run in row.cells[stream]]))
    return made


def _from_probes(runs: Sequence[Run], probes: Sequence[ProbeTable]) -> list[Made]:
    made = []
    for row in rows_of([run for run in runs if not run.informed]):
        for stream, group in sorted(row.cells.items()):
            judged = [(run, found) for run in group if (found := _probed(run, probes)) is not None]
            if judged:
                phases = sorted({phase for _, (_, _, phases) in judged for phase in phases})
                words = f"probe of phase {', '.join(map(str, phases))}"
                pairs = [(best, own) for _, (best, own, _) in judged]
                made.append(_made(row, stream, words, pairs, [run.name for run, _ in judged]))
    return made


def _probed(run: Run, probes: Sequence[ProbeTable]) -> tuple[float, float, list[int]] | None:
    """Percent of the best constant action and of the run's own ones in the probed phases, and which these are."""
    exams: list[NDArray[np.float64]] = []
    own: list[float] = []
    phases: list[int] = []
    for probe in probes:
        phase = int(probe.table["phase"])
        same = all(run.recipe.get(key) == probe.table["recipe"].get(key) for key in _SAME)
        if same and probe.has_exam and phase < len(run.phases):
            arm = _arm(probe, run.phases[phase].action)
            if arm is not None and (not exams or len(probe.space) == len(exams[0])):
                length = FULL if probe.table["full"] else probe.lengths[-1]
                exams.append(100 * probe.exam(length, probe.classifier))
                own.append(float(exams[-1][arm]))
                phases.append(phase)
    if not exams:
        return None
    return float(np.mean(exams, axis=0).max()), float(np.mean(own)), phases


def _arm(probe: ProbeTable, action: Mapping[str, AxisValue]) -> int | None:
    """The probe's arm with these weights and rates; the classifier is judged apart."""
    wanted = Action(**{**action, "classifier": "auto"})
    for arm, known in enumerate(probe.space.actions):
        if Action(**{**known, "classifier": "auto"}) == wanted:
            return arm
    return None


def _made(row: Row, stream: Stream, judge: str, pairs: Sequence[tuple[float, float]], runs: Sequence[str]) -> Made:
    best, own = (spread([pair[side] for pair in pairs]) for side in (0, 1))
    lost = spread([one - other for one, other in pairs])
    cells = (
        word(row.label, runs),
        word(str(stream)),
        word(judge),
        figure(best.mean),
        figure(own.mean),
        Cell(mean_text(lost), lost.mean),
        Cell(str(lost.count), lost.count),
    )
    return cells, {
        "row": row.label,
        "setting": str(stream),
        "judged_by": judge,
        "best_constant": best.mean,
        "own": own.mean,
        "regret": lost.mean,
        "seeds": lost.count,
    }
