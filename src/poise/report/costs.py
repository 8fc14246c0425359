"""Table S2 (time, absolute and as a ratio of the baseline) and the images stored after each phase."""

from __future__ import annotations

from collections.abc import Sequence

from poise.report.paper import published_hours
from poise.report.rows import Row, Stream, baselines, rows_of
from poise.report.runs import Run
from poise.report.sheet import Cell, Column, Line, Sheet, Value, figure, mean_text, word
from poise.report.statistics import spread

PARTS = ("train", "policy", "evaluate", "total")


def time_sheet(runs: Sequence[Run]) -> Sheet:
    """Seconds of finished runs, and as a ratio of the same method's without a policy on the same machine."""
    rows = rows_of([run for run in runs if run.finished])
    against = baselines(rows)
    cells, records = [], []
    for row in rows:
        for stream, group in sorted(row.cells.items()):
            for machine, there in _by_machine(group).items():
                base = against.get(row.label)
                ratio = _ratio(there, base, stream, machine)
                spent = {part: spread([run.seconds[part] for run in there]) for part in PARTS}
                paper = _paper_ratio(row, base, stream)
                names = [run.name for run in there]
                lines = (Line(f"paper {paper:.2f}", "paper"),) if paper and ratio else ()
                cells.append(
                    (
                        word(row.label, names),
                        word(str(stream)),
                        word(machine),
                        *(Cell(mean_text(spent[part], 1), spent[part].mean) for part in PARTS),
                        Cell("–" if ratio is None else f"{ratio:.2f}", ratio, lines),
                    )
                )
                records.append(_record(row, stream, machine, {part: spent[part].mean for part in PARTS}, ratio, paper))
    heads = [Column(title, numeric=False) for title in ("row", "setting", "machine")]
    return Sheet(
        "time",
        "Time",
        "Seconds, mean ± deviation over seeds; the ratio is that of the totals to the same method with its own "
        "hyperparameters on the same processor or GPU. Runs that shared a machine waited for each other, "
        "which is in their totals.",
        (*heads, *(Column(part, "seconds") for part in PARTS), Column("ratio")),
        tuple(cells),
        tuple(records),
    )


def _record(
    row: Row, stream: Stream, machine: str, spent: dict[str, float], ratio: float | None, paper: float | None
) -> dict[str, Value]:
    return {
        "row": row.label,
        "setting": str(stream),
        "machine": machine,
        **{f"seconds_{part}": mean for part, mean in spent.items()},
        "ratio": ratio,
        "paper_ratio": paper,
    }


def machine_name(run: Run) -> str:
    """The GPU it ran on, or the processor."""
    hardware = run.machine.get("hardware") or {}
    return str(hardware.get("gpu") or hardware.get("processor") or "unknown")


def _by_machine(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(machine_name(run), []).append(run)
    return found


def _ratio(runs: Sequence[Run], base: Row | None, stream: Stream, machine: str) -> float | None:
    there = _by_machine(base.cells.get(stream, [])).get(machine, []) if base and machine != "unknown" else []
    totals = [spread([run.seconds["total"] for run in group]).mean for group in (runs, there) if group]
    return totals[0] / totals[1] if len(totals) == 2 and totals[1] > 0 else None


def _paper_ratio(row: Row, base: Row | None, stream: Stream) -> float | None:
    hours = published_hours(row.first, stream)
    own = published_hours(base.first, stream) if base else None
    return hours / own if hours and own else None


def stored_sheet(runs: Sequence[Run]) -> Sheet:
    """Images in memory after each phase, reserve included, and the most that were held; the mean where seeds differ."""
    cells: list[tuple[Cell, ...]] = []
    records: list[dict[str, Value]] = []
    longest = max((len(run.phases) for run in runs), default=0)
    for row in rows_of([run for run in runs if run.phases]):
        for stream, group in sorted(row.cells.items()):
            means = [_stored(group, phase) for phase in range(longest)]
            if any(mean is not None for mean in means):
                figures = [Cell("") if mean is None else figure(mean, 0 if mean == int(mean) else 1) for mean in means]
                held = figure(_held(group), 0)
                cells.append((word(row.label, [run.name for run in group]), word(str(stream)), *figures, held))
                records += [
                    {
                        "row": row.label,
                        "setting": str(stream),
                        "phase": phase,
                        "stored": mean,
                        "held": _mean([run.phases[phase].held for run in group if len(run.phases) > phase]),
                        "budget": _mean([run.phases[phase].budget for run in group if len(run.phases) > phase]),
                    }
                    for phase, mean in enumerate(means)
                    if mean is not None
                ]
    heads = (Column("row", numeric=False), Column("setting", numeric=False))
    return Sheet(
        "stored",
        "Stored images after each phase",
        "Kept images of old classes, reserve included; the mean over seeds where they differ. Held: the most images at "
        "any moment of any phase, new ones included, in percent of what a plain memory would hold then.",
        (*heads, *(Column(str(phase), "phase") for phase in range(longest)), Column("held, %")),
        tuple(cells),
        tuple(records),
    )


def _stored(runs: Sequence[Run], phase: int) -> float | None:
    return _mean([run.phases[phase].stored for run in runs if len(run.phases) > phase])


def _held(runs: Sequence[Run]) -> float | None:
    """The most that any of them held in a phase, in percent of that phase's budget."""
    phases = [phase for run in runs for phase in run.phases]
    shares = [100 * phase.held / phase.budget for phase in phases if phase.held is not None and phase.budget]
    return max(shares, default=None)


def _mean(found: Sequence[int | None]) -> float | None:
    known = [count for count in found if count is not None]
    return sum(known) / len(known) if known else None
