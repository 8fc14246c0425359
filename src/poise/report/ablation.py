"""Table 3 (what is tuned, and other ways to tune it) and Table S1 (every how many phases)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poise.report.comparison import paper_line
from poise.report.paper import Published, ablation_number, every, published_ablation, published_every, tuned_kinds
from poise.report.rows import Row, Stream, rows_of
from poise.report.runs import Run
from poise.report.sheet import Cell, Column, Sheet, Value, mean_text, word
from poise.report.statistics import spread

Paper = Callable[[Run, Stream], Published | None]


def ablation_sheets(runs: Sequence[Run]) -> list[Sheet]:
    """Both tables, for each data set, exam and method that has runs for them."""
    homes: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.finished:
            homes.setdefault((run.data, run.exam, run.method), []).append(run)
    sheets = []
    for (data, exam, method), inside in sorted(homes.items()):
        rows = rows_of(inside)
        name = f"{method}-{data}" + ("" if exam == "test" else f"-{exam}")
        numbered = [row for row in rows if ablation_number(row.first) is not None]
        if any(ablation_number(row.first) not in (1, 4) for row in numbered):
            sheets.append(_table_3(name, numbered))
        seldom = [row for row in rows if not row.first.fixed and not row.first.informed and every(row.first) != 1]
        if seldom:
            plain = [row for row in numbered if ablation_number(row.first) in (1, 4)]
            sheets.append(_table_s1(name, [*plain, *seldom]))
    return sheets


def _table_3(name: str, rows: Sequence[Row]) -> Sheet:
    ordered = sorted(rows, key=lambda row: ablation_number(row.first) or 0)
    heads = [Column("No."), *(Column(title, "tuned", numeric=False) for title in ("β, γ", "δ", "λ"))]
    return _sheet(
        f"ablation-{name}",
        f"What is tuned, and how: {name}",
        "Average accuracy in percent, mean ± deviation over seeds; numbers as in the paper's Table 3, "
        "whose figures stand below ours. "
        "Row 5 is an oracle: it was chosen with the exam of whole runs.",
        [*heads, Column("policy", numeric=False)],
        [
            (row, [Cell(str(ablation_number(row.first)), ablation_number(row.first)), *_ticks(row.first), _policy(row)])
            for row in ordered
        ],
        published_ablation,
    )


def _table_s1(name: str, rows: Sequence[Row]) -> Sheet:
    return _sheet(
        f"every-{name}",
        f"Every how many phases the policy decides: {name}",
        "Average accuracy in percent, mean ± deviation over seeds; the paper's Table S1 below ours.",
        [Column("every", numeric=False), Column("policy", numeric=False)],
        [(row, [word("–" if row.first.fixed else f"{every(row.first)}"), _policy(row)]) for row in rows],
        published_every,
    )


def _ticks(run: Run) -> list[Cell]:
    kinds = tuned_kinds(run)
    return [word("✓" if kind in kinds else "") for kind in ("kd", "classifier", "lr")]


def _policy(row: Row) -> Cell:
    return word(row.first.policy_label)


def _sheet(
    name: str,
    title: str,
    caption: str,
    heads: Sequence[Column],
    rows: Sequence[tuple[Row, list[Cell]]],
    paper: Paper,
) -> Sheet:
    streams = sorted({stream for row, _ in rows for stream in row.cells})
    columns = [*heads, *(Column(stream.setting.upper(), f"N = {stream.phases}") for stream in streams)]
    records: list[dict[str, Value]] = []
    cells = []
    for row, first in rows:
        made = []
        for stream in streams:
            averages = row.averages(stream)
            figure = paper(row.first, stream)
            made.append(_cell(row, stream, averages, figure))
            if averages:
                found = spread([*averages.values()])
                records.append(
                    {
                        **{column.title: cell.text for column, cell in zip(heads, first, strict=True)},
                        "row": row.label,
                        "setting": str(stream),
                        "seeds": found.count,
                        "mean": found.mean,
                        "deviation": found.deviation if found.count > 1 else None,
                        "paper": figure.figure if figure else None,
                    }
                )
        cells.append((*first, *made))
    return Sheet(name, title, caption, tuple(columns), tuple(cells), tuple(records))


def _cell(row: Row, stream: Stream, averages: dict[int, float], paper: Published | None) -> Cell:
    if not averages:
        return Cell("")
    found = spread([*averages.values()])
    lines = (paper_line(found.mean, paper),) if paper else ()
    return Cell(mean_text(found), found.mean, lines, tuple(run.name for run in row.cells[stream]))
