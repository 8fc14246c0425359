"""Hindsight regret: what the best constant action would have given, minus what was reached.

Two sources know that action: `poise crossval`, which ran every action as a whole run, and probes, which tried every
action in some phases. Both looked at exams: nobody could have known the best action, and its figure is optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poise.report.reading import Configuration, RunRecord, StreamKind, configurations
from poise.report.statistics import spread
from poise.report.tables.table import Column, ReportTable, TableLine, Value, mean_cell, text_cell

REGRET = (
    "Best constant action in hindsight minus the row's own figure, in points, mean ± deviation over seeds. Whole "
    "runs: average accuracy, the best of 'poise crossval' with the same seed. Probes: exam accuracy of temporary "
    "models after the probed phases, the best constant action of the probe against the actions that the run decided on."
)


@dataclass(frozen=True)
class Hindsight:
    """What probes say about a run, in percent: the best constant action, the run's own actions, and the phases."""

    best: float
    own: float
    phases: tuple[int, ...]


def regret_table(runs: Sequence[RunRecord], hindsight: Mapping[str, Hindsight] | None = None) -> ReportTable:
    """A row for everything that can be compared with an oracle or a probe; empty if there is neither.

    `hindsight` is what probes say about runs, by run name.
    """
    columns = {key: Column(key.replace("_", " "), numeric=False) for key in ("row", "setting", "judged_by")}
    columns |= {key: Column(key.replace("_", " ")) for key in ("best_constant", "own", "regret", "seeds")}
    lines = [*_from_oracles(runs), *_from_probes(runs, hindsight or {})]
    return ReportTable.of_records(("regret", "Hindsight regret", REGRET), columns, lines)


def _from_oracles(runs: Sequence[RunRecord]) -> list[TableLine]:
    rows = configurations([run for run in runs if run.finished])
    best = {row.baseline_key(): row for row in rows if "oracle" in row.first.labels}
    lines = []
    for row in rows:
        oracle = best.get(row.baseline_key())
        if oracle is None or row.first.informed:
            continue
        for stream in sorted(row.by_stream):
            theirs, own = oracle.averages(stream), row.averages(stream)
            seeds = [seed for seed in own if seed in theirs]
            if seeds:
                pairs = [(theirs[seed], own[seed]) for seed in seeds]
                lines.append(_make_line(row, stream, "whole runs", pairs, [run.name for run in row.by_stream[stream]]))
    return lines


def _from_probes(runs: Sequence[RunRecord], hindsight: Mapping[str, Hindsight]) -> list[TableLine]:
    lines = []
    for row in configurations([run for run in runs if not run.informed]):
        for stream, group in sorted(row.by_stream.items()):
            judged = {run.name: hindsight[run.name] for run in group if run.name in hindsight}
            if judged:
                phases = sorted({phase for each in judged.values() for phase in each.phases})
                words = f"probe of phase {', '.join(map(str, phases))}"
                pairs = [(each.best, each.own) for each in judged.values()]
                lines.append(_make_line(row, stream, words, pairs, list(judged)))
    return lines


def _make_line(
    row: Configuration, stream: StreamKind, judge: str, pairs: Sequence[tuple[float, float]], runs: Sequence[str]
) -> TableLine:
    best, own = (spread([pair[side] for pair in pairs]) for side in (0, 1))
    lost = spread([one - other for one, other in pairs])
    record: dict[str, Value] = {
        "row": row.label,
        "setting": str(stream),
        "judged_by": judge,
        "best_constant": best.mean,
        "own": own.mean,
        "regret": lost.mean,
        "seeds": lost.count,
    }
    return record, {"row": text_cell(row.label, runs), "regret": mean_cell(lost)}
