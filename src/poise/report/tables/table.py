"""A table as a value: columns, cells with a figure and notes, and its form as CSV and Markdown."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from poise.report.statistics import Spread
from poise.words import counted, one_line

Value = float | int | str | None
NOTHING: Final = "–"
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Note:
    """A small note under a figure; `tone` sets its look: `gain`, `loss`, `paper`, or plain."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class TableCell:
    """A figure or a word. `value` is for sorting and for programs; `runs` names the runs it was computed from."""

    text: str
    value: float | None = None
    notes: tuple[Note, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column's heading, and the one above it."""

    title: str
    group: str = ""
    numeric: bool = True
    digits: int = 2


TableLine = tuple[Mapping[str, Value], Mapping[str, TableCell]]  # a record, and cells that replace some of its values


@dataclass(frozen=True)
class ReportTable:
    """A table of the report."""

    name: str  # for its files
    title: str  # in a few words
    caption: str  # what the figures are
    columns: Sequence[Column]  # one per cell of a row
    rows: Sequence[Sequence[TableCell]]
    records: Sequence[Mapping[str, Value]]  # the same figures as flat rows, for a program

    @classmethod
    def of_records(
        cls, words: tuple[str, str, str], columns: Mapping[str, Column], lines: Sequence[TableLine]
    ) -> ReportTable:
        """A table with a record in each row: a column for each of these keys, with name, title and caption.

        A cell given in a line replaces the record's plain figure or word.
        """
        rows = [
            [said.get(key) or _plain_cell(record[key], column) for key, column in columns.items()]
            for record, said in lines
        ]
        return cls(*words, list(columns.values()), rows, [record for record, _ in lines])

    def csv(self) -> str:
        """The records."""
        return csv_of_rows(self.records)

    def markdown(self) -> str:
        """The table as a person reads it."""
        heads = [" ".join(word for word in (column.group, column.title) if word) for column in self.columns]
        ruler = ["---:" if column.numeric else "---" for column in self.columns]
        body = [[" · ".join([cell.text, *(note.text for note in cell.notes)]) for cell in row] for row in self.rows]
        written = [list(map(_markdown_text, line)) for line in (heads, *body)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in [written[0], ruler, *written[1:]])
        return f"## {_markdown_text(self.title)}\n\n{table}\n\n{_markdown_text(self.caption)}\n"


def csv_of_rows(rows: Sequence[Mapping[str, Value]]) -> str:
    """Flat rows as CSV; unknown values are empty, and no text is a formula."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writerow({name: _plain_value(name) for name in names})
    writer.writerows({name: _plain_value(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _plain_value(value: Value) -> Value:
    """A value of a CSV file. Spreadsheets compute a text that looks like a formula, so it gets a quote before it.

    >>> [_plain_value(value) for value in (-0.5, "-0.5", "=1+1", "lucir")]
    [-0.5, '-0.5', "'=1+1", 'lucir']
    """
    if not isinstance(value, str):
        return value
    line = one_line(value)
    begins = line.lstrip(" ").startswith(("=", "+", "-", "@"))
    return f"'{line}" if begins and not _NUMBER.fullmatch(line) else line


def _markdown_text(text: str) -> str:
    """A text that stays in its cell and is no HTML."""
    escapes = (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("](", "]\\("))
    return functools.reduce(lambda made, each: made.replace(*each), escapes, " ".join(text.split()))


def text_cell(text: str, runs: Sequence[str] = ()) -> TableCell:
    """A cell with a word."""
    return TableCell(text, runs=tuple(runs))


def mean_cell(found: Spread, notes: Sequence[Note] = (), runs: Sequence[str] = (), digits: int = 2) -> TableCell:
    """A cell with a mean over seeds, `63.10 ± 0.71`; a single figure has no deviation."""
    deviation = f" ± {found.deviation:.{digits}f}" if found.count > 1 else ""
    return TableCell(f"{found.mean:.{digits}f}{deviation}", found.mean, tuple(notes), tuple(runs))


def _plain_cell(value: Value, column: Column) -> TableCell:
    if not column.numeric or isinstance(value, str):
        return TableCell(str(value))
    digits = 0 if isinstance(value, int) else column.digits
    return TableCell(NOTHING if value is None else f"{value:.{digits}f}", value)


def with_sign(value: float, digits: int = 2) -> str:
    """A difference, with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def gain_note(difference: Spread, judged: bool = True) -> Note:
    """A paired difference with its interval, coloured only if it is certain and may be judged."""
    verdict = difference.verdict()
    pairs = counted(difference.count, "seed")
    if difference.count < 2:
        return Note(f"{with_sign(difference.mean)} ({pairs})")
    low, high = difference.interval()
    text = f"{with_sign(difference.mean)} [{with_sign(low)}, {with_sign(high)}]" + (
        f" ({pairs})" if verdict == "few" else ""
    )
    return Note(text, verdict if judged and verdict in ("gain", "loss") else "")
