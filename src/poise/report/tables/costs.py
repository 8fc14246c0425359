"""Table S2 (time, absolute and relative to the baseline) and the images stored after each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from poise.report.reading import (
    EXPLAINED,
    REPEATED,
    UNKNOWN,
    Configuration,
    PhaseRecord,
    RunRecord,
    StreamKind,
    baselines,
    configurations,
    remarks,
)
from poise.report.statistics import spread
from poise.report.tables.paper import published_hours
from poise.report.tables.table import Column, Note, ReportTable, TableCell, TableLine, Value, mean_cell, text_cell
from poise.runfolder import SECONDS

TIME = (
    "Seconds, mean ± deviation over seeds; the ratio is that of the totals to the same method with its own "
    "hyperparameters on the same processor or GPU; a run that was resumed on another one has none. Where some runs "
    "trained phase 0 and others started after it, it is that of the times after phase 0, if those were measured. Runs "
    "that shared a machine waited for each other, which is in their totals."
)
STORED = (
    "Kept images of old classes, reserve included. Below, how many were held in the phase, those that arrived "
    "included, and how many may be held by the budget. Means over seeds where they differ."
)


def time_table(runs: Sequence[RunRecord]) -> ReportTable:
    """Seconds of finished runs, and their ratio to the same method without a policy on the same machine."""
    rows = configurations([run for run in runs if run.finished])
    against = baselines(rows)
    lines: list[TableLine] = []
    for row in rows:
        for stream, group in sorted(row.by_stream.items()):
            for machine, there in _by_machine(group).items():
                base, untimed = against.get(row.label), sum(run.starts_elsewhere for run in there)
                ratio, after = _ratio(there, base, stream, machine)
                paper = _paper_ratio(row, base, stream) if not untimed and not after else None
                spent = {f"seconds_{part}": spread([run.seconds[part] for run in there]) for part in SECONDS}
                record: dict[str, Value] = {"row": row.label, "setting": str(stream), "machine": machine}
                record |= {key: each.mean for key, each in spent.items()}
                cells = {key: mean_cell(each, digits=1) for key, each in spent.items()}
                cells["row"] = text_cell(row.label, [run.name for run in there])
                if untimed:
                    share = f" in {untimed} of {len(there)} runs" if untimed < len(there) else ""
                    cells["row"] = replace(cells["row"], notes=(Note(f"without phase 0{share}"),))
                beside = [Note("after phase 0")] * after + ([Note(f"paper {paper:.2f}", "paper")] if paper else [])
                if ratio and beside:
                    cells["ratio"] = TableCell(f"{ratio:.2f}", ratio, tuple(beside))
                record |= {"ratio": ratio, "paper_ratio": paper, "runs_without_phase_0": untimed}
                record |= {"ratio_after_phase_0": int(after)}
                lines.append((record, cells))
    columns = {title: Column(title, numeric=False) for title in ("row", "setting", "machine")}
    columns |= {f"seconds_{part}": Column(part, "seconds") for part in SECONDS} | {"ratio": Column("ratio")}
    return ReportTable.of_records(
        ("time", "Time", " ".join([TIME, *(f"{line}." for line in remarks(runs, [REPEATED]))])), columns, lines
    )


def _by_machine(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(", then ".join(run.machines), []).append(run)
    return found


def _ratio(
    runs: Sequence[RunRecord], base: Configuration | None, stream: StreamKind, machine: str
) -> tuple[float | None, bool]:
    """Of the totals, or of the times after phase 0 where that is in some of the totals only; and which of both.

    None without a baseline there, where those times are not known, and where not all was computed on one machine.
    """
    comparable = machine != UNKNOWN and len(runs[0].machines) == 1
    there = _by_machine(base.by_stream.get(stream, [])).get(machine, []) if base and comparable else []
    after = len({run.starts_elsewhere for run in [*runs, *there]}) > 1
    spent = [[run.seconds_after_phase_0 if after else run.seconds["total"] for run in group] for group in (runs, there)]
    known = [[each for each in group if each is not None] for group in spent]
    if known != spent or not there or sum(known[1]) <= 0:
        return None, False
    return spread(known[0]).mean / spread(known[1]).mean, after


def _paper_ratio(row: Configuration, base: Configuration | None, stream: StreamKind) -> float | None:
    hours = published_hours(row.first, stream)
    own = published_hours(base.first, stream) if base else None
    return hours / own if hours and own else None


def stored_table(runs: Sequence[RunRecord]) -> ReportTable:
    """Images in memory after each phase, images held during it, and the budget; means where seeds differ."""
    cells: list[tuple[TableCell, ...]] = []
    records: list[dict[str, Value]] = []
    longest = max((len(run.phases) for run in runs), default=0)
    for row in configurations([run for run in runs if run.phases]):
        for stream, group in sorted(row.by_stream.items()):
            exams = [[run.phases[place] for run in group if len(run.phases) > place] for place in range(longest)]
            counts = [*map(_counts, exams)]
            if any(each["stored"] is not None for each in counts):
                names = text_cell(row.label, [run.name for run in group])
                cells.append((names, text_cell(str(stream)), *map(_stored_cell, counts)))
                records += [
                    {"row": row.label, "setting": str(stream), "phase": phase, **each}
                    for phase, each in enumerate(counts)
                    if each["stored"] is not None
                ]
    heads = (Column("row", numeric=False), Column("setting", numeric=False))
    return ReportTable(
        "stored",
        "Stored images after each phase",
        " ".join([STORED, *(f"{line}." for line in remarks(runs, [*EXPLAINED, REPEATED]))]),
        (*heads, *(Column(str(phase), "phase") for phase in range(longest))),
        cells,
        records,
    )


def _counts(phases: Sequence[PhaseRecord]) -> dict[str, float | None]:
    """Means over the seeds for which the numbers are known."""
    found: dict[str, float | None] = {}
    for name in ("stored", "held", "budget"):
        known = [count for phase in phases if (count := getattr(phase, name)) is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def _stored_cell(counts: Mapping[str, float | None]) -> TableCell:
    stored, held, budget = (counts[name] for name in ("stored", "held", "budget"))
    if stored is None:
        return TableCell("")
    notes = (Note(f"held {_plain(held)} of {_plain(budget)}"),) if held is not None and budget is not None else ()
    return TableCell(_plain(stored), stored, notes)


def _plain(mean: float) -> str:
    return f"{mean:.0f}" if mean == int(mean) else f"{mean:.1f}"
