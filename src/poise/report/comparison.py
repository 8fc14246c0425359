"""Tables 1 and 2: methods with their own hyperparameters and with a policy, beside the paper's; and all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poise.report.paper import Published, published
from poise.report.rows import Row, Stream, baselines, rows_of
from poise.report.runs import Run
from poise.report.sheet import Cell, Column, Line, Sheet, Value, figure, gain_line, mean_text, signed, word
from poise.report.statistics import Spread, paired, spread

CAPTION = (
    "Average accuracy in percent over the exams after every phase, phase 0 included; mean ± deviation over seeds. "
    "Under a policy's figure its gain over the same method's own hyperparameters: paired by seed, with the 95 % "
    "interval of the mean difference (Student's t). It is coloured only with at least three paired seeds and an "
    "interval without zero, and never that of an oracle or a leak. The paper's figure, and ours minus it, stand beside "
    "runs with its memory, epochs and test images."
)


@dataclass(frozen=True)
class Comparison:
    """A policy against the same method without it, in one stream."""

    row: Row
    stream: Stream
    own: Spread
    baseline: Spread
    difference: Spread


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Every row that has a baseline and no help of an exam, in every stream in which they share a seed."""
    rows = rows_of(runs)
    against = baselines(rows)
    found = []
    for row in rows:
        for stream in sorted(row.cells) if row.label in against and not row.first.informed else ():
            own, base = row.averages(stream), against[row.label].averages(stream)
            difference = paired(own, base)
            if difference is not None:
                means = (spread([*own.values()]), spread([*base.values()]))
                found.append(Comparison(row, stream, *means, difference))
    return found


def accuracy_sheets(runs: Sequence[Run]) -> list[Sheet]:
    """One table for each data set and exam."""
    homes: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        homes.setdefault((run.data, run.exam), []).append(run)
    sheets = [_accuracy_sheet(data, exam, inside) for (data, exam), inside in sorted(homes.items())]
    return [sheet for sheet in sheets if sheet.records]


def _accuracy_sheet(data: str, exam: str, runs: Sequence[Run]) -> Sheet:
    rows = rows_of(runs)
    against = baselines(rows)
    columns = _columns(rows)
    cells, records = [], []
    for row in rows:
        made = [_cell(row, against.get(row.label), column) for column in columns]
        if any(record for _, record in made):
            first = [word(row.first.method), word(_marked(row))]
            cells.append((*first, *(cell for cell, _ in made)))
            records += [record for _, record in made if record]
    heads = (Column("method", numeric=False), Column("policy", numeric=False))
    return Sheet(
        f"accuracy-{data}" + ("" if exam == "test" else f"-{exam}"),
        f"Average accuracy on {data}" + ("" if exam == "test" else f", {exam} exam"),
        CAPTION,
        (*heads, *(Column(column.title, column.group) for column in columns)),
        tuple(cells),
        tuple(records),
    )


@dataclass(frozen=True)
class _Column:
    """One stream, or the average of TFH and TFS with as many phases."""

    title: str
    group: str
    setting: str
    phases: int
    streams: tuple[Stream, ...]

    def averages(self, row: Row) -> dict[int, float]:
        """By seed, of the seeds that have all of it."""
        parts = [row.averages(stream) for stream in self.streams]
        return {
            seed: sum(part[seed] for part in parts) / len(parts) for seed in parts[0] if all(seed in p for p in parts)
        }

    def runs(self, row: Row) -> list[str]:
        return [run.name for stream in self.streams for run in row.cells.get(stream, ()) if run.finished]


def _columns(rows: Sequence[Row]) -> list[_Column]:
    streams = sorted({stream for row in rows for stream in row.cells})
    columns = []
    for phases in sorted({stream.phases for stream in streams if not stream.groups}):
        both = [stream for stream in streams if stream.phases == phases and not stream.groups]
        group = f"N = {phases}"
        columns += [_Column(each.setting.upper(), group, each.setting, phases, (each,)) for each in both]
        if len(both) == 2:
            columns.append(_Column("Avg.", group, "average", phases, tuple(both)))
    other = [stream for stream in streams if stream.groups]
    return columns + [_Column(str(each), "", each.setting, each.phases, (each,)) for each in other]


def _cell(row: Row, baseline: Row | None, column: _Column) -> tuple[Cell, Mapping[str, Value] | None]:
    own = column.averages(row)
    if not own:
        return Cell(""), None
    found = spread([*own.values()])
    difference = paired(own, column.averages(baseline)) if baseline else None
    paper = published(row.first, column.phases, column.setting)
    lines = ([gain_line(difference, not row.first.informed)] if difference else []) + (
        [paper_line(found.mean, paper)] if paper else []
    )
    cell = Cell(mean_text(found), found.mean, tuple(lines), tuple(column.runs(row)))
    return cell, {
        **_identity(row),
        "setting": column.setting,
        "phases": column.phases,
        **_figures(found, difference, paper, not row.first.informed),
    }


def paper_line(mean: float, paper: Published) -> Line:
    """The paper's figure, and ours minus it."""
    deviation = f" ± {paper.deviation:.1f}" if paper.deviation is not None else ""
    return Line(f"paper {paper.figure:.1f}{deviation} ({signed(mean - paper.figure, 1)})", "paper")


def _identity(row: Row) -> dict[str, Value]:
    first = row.first
    return {
        "data": first.data,
        "exam": first.exam,
        "method": first.method,
        "policy": first.policy_label,
        "row": row.label,
    }


def _figures(found: Spread, difference: Spread | None, paper: Published | None, judged: bool) -> dict[str, Value]:
    low, high = difference.interval() if difference and difference.count > 1 else (None, None)
    return {
        "seeds": found.count,
        "mean": found.mean,
        "deviation": found.deviation if found.count > 1 else None,
        "gain": difference.mean if difference else None,
        "gain_low": low,
        "gain_high": high,
        "paired_seeds": difference.count if difference else None,
        "verdict": difference.verdict() if difference and judged else None,
        "paper": paper.figure if paper else None,
        "paper_deviation": paper.deviation if paper else None,
        "difference": found.mean - paper.figure if paper else None,
    }


def _marked(row: Row) -> str:
    """The row's label without the method and the data set, which stand beside it."""
    return row.label.removeprefix(f"{row.first.method}, ").split(" · ")[0]


# All runs -------------------------------------------------------------------------------------------------------------


def runs_sheet(runs: Sequence[Run]) -> Sheet:
    """Every run, a row each."""
    heads = "run method data setting policy exam state"
    columns = [Column(title, numeric=False) for title in heads.split()]
    columns += [Column(title) for title in ("seed", "average", "last", "forgetting", "seconds")]
    return Sheet(
        "runs",
        "All runs",
        "Average and last accuracy and average forgetting in percent; a run that is not finished has none of them yet.",
        tuple(columns),
        tuple(_run_row(run) for run in runs),
        tuple(_run_record(run) for run in runs),
    )


def state(run: Run) -> str:
    """How far a run is."""
    return "finished" if run.finished else f"{len(run.phases)} of {run.exams} phases"


def _run_row(run: Run) -> tuple[Cell, ...]:
    words = (run.method, run.data, str(Stream.of(run)), run.policy_label, run.exam, state(run))
    return (
        word(run.name, [run.name]),
        *map(word, words),
        Cell(str(run.seed), run.seed),
        *(figure(value) for value in (run.average, run.last, run.forgetting)),
        figure(run.seconds.get("total"), 1),
    )


def _run_record(run: Run) -> dict[str, Value]:
    return {
        "run": run.name,
        "method": run.method,
        "data": run.data,
        "setting": str(Stream.of(run)),
        "policy": run.policy_label,
        "exam": run.exam,
        "state": state(run),
        "seed": run.seed,
        "average": run.average,
        "last": run.last,
        "forgetting": run.forgetting,
        **{f"seconds_{part}": spent for part, spent in sorted(run.seconds.items())},
    }
