"""Table 3 (what is tuned, and other ways to tune it) and Table S1 (how often the policy decides)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poise.report.reading import Configuration, RunRecord, StreamKind, configurations
from poise.report.statistics import spread
from poise.report.tables.accuracy import paper_note
from poise.report.tables.paper import (
    Published,
    ablation_number,
    every,
    published_ablation,
    published_every,
    tuned_kinds,
)
from poise.report.tables.table import Column, ReportTable, TableCell, Value, mean_cell, text_cell
from poise.words import file_word

Paper = Callable[[RunRecord, StreamKind], Published | None]


def ablation_tables(runs: Sequence[RunRecord]) -> list[ReportTable]:
    """Both tables for each data set, exam and method with runs for them."""
    homes: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        if run.finished:
            homes.setdefault((run.data, run.exam, run.method), []).append(run)
    tables = []
    for inside in (homes[key] for key in sorted(homes)):
        rows = configurations(inside)
        name = file_word(f"{inside[0].method}-{inside[0].exam_name}")
        numbered = [row for row in rows if ablation_number(row.first) is not None]
        if any(ablation_number(row.first) not in (1, 4) for row in numbered):
            tables.append(_table_3(name, numbered))
        seldom = [row for row in rows if not row.first.fixed and not row.first.informed and every(row.first) != 1]
        if seldom:
            plain = [row for row in numbered if ablation_number(row.first) in (1, 4)]
            tables.append(_table_s1(name, [*plain, *seldom]))
    return tables


def _table_3(name: str, rows: Sequence[Configuration]) -> ReportTable:
    ordered = sorted(rows, key=lambda row: ablation_number(row.first) or 0)
    heads = [Column("No."), *(Column(title, "tuned", numeric=False) for title in ("β, γ", "δ", "λ"))]
    return _make_table(
        f"ablation-{name}",
        f"What is tuned, and how: {name}",
        "Average accuracy in percent, mean ± deviation over seeds; numbers as in the paper's Table 3, "
        "whose figures stand below ours. "
        "Row 5 is an oracle: it was chosen with the exam of whole runs.",
        [*heads, Column("policy", numeric=False)],
        [
            (row, [TableCell(str(number), number), *_ticks(row.first), _policy(row)])
            for row in ordered
            for number in (ablation_number(row.first),)
        ],
        published_ablation,
    )


def _table_s1(name: str, rows: Sequence[Configuration]) -> ReportTable:
    return _make_table(
        f"every-{name}",
        f"Every how many phases the policy decides: {name}",
        "Average accuracy in percent, mean ± deviation over seeds; the paper's Table S1 below ours.",
        [Column("every", numeric=False), Column("policy", numeric=False)],
        [(row, [text_cell("–" if row.first.fixed else f"{every(row.first)}"), _policy(row)]) for row in rows],
        published_every,
    )


def _ticks(run: RunRecord) -> list[TableCell]:
    kinds = tuned_kinds(run)
    return [text_cell("✓" if kind in kinds else "") for kind in ("kd", "classifier", "lr")]


def _policy(row: Configuration) -> TableCell:
    return text_cell(row.label_without_method)


def _make_table(
    name: str,
    title: str,
    caption: str,
    heads: Sequence[Column],
    rows: Sequence[tuple[Configuration, list[TableCell]]],
    paper: Paper,
) -> ReportTable:
    streams = sorted({stream for row, _ in rows for stream in row.by_stream})
    columns = [*heads, *(Column(stream.setting.upper(), f"N = {stream.phases}") for stream in streams)]
    records: list[dict[str, Value]] = []
    cells = []
    for row, first in rows:
        named: dict[str, Value] = {column.title: cell.text for column, cell in zip(heads, first, strict=True)}
        line = [*first]
        for stream in streams:
            averages, figure = [*row.averages(stream).values()], paper(row.first, stream)
            if not averages:
                line.append(TableCell(""))
                continue
            found = spread(averages)
            notes = [paper_note(found.mean, figure)] if figure else []
            line.append(mean_cell(found, notes, [run.name for run in row.by_stream[stream]]))
            records.append(
                {
                    **named,
                    **{"row": row.label, "setting": str(stream), "seeds": found.count, "mean": found.mean},
                    "deviation": found.known_deviation,
                    "paper": figure.figure if figure else None,
                }
            )
        cells.append(line)
    return ReportTable(name, title, caption, columns, cells, records)
