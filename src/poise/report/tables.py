"""The tables of a report: average accuracy with gains, times, stored images, and all runs."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from poise.report.statistics import Spread, paired_difference, spread
from poise.report.study import EXPLAINED, REPEATED, Comparison, Row, StreamKind, Study
from poise.runs.findings import SECONDS
from poise.runs.record import UNKNOWN, PhaseRecord, RunRecord
from poise.words import counted, one_line

Value = float | int | str | None

ACCURACY: Final = (
    "Average accuracy in percent over the exams after every phase, phase 0 included; mean ± deviation over seeds. "
    "Under a figure its difference to {reference}: paired by seed, with the 95 % interval of the mean difference "
    "(Student's t). It is coloured only with at least three paired seeds and an "
    "interval without zero, and never that of an oracle or a leak. 'by the classifier' is the part of a gain that the "
    "choice of the classifier brings: what the method's own networks gain when they are read with the classifiers that "
    "the policy used."
)
TIME: Final = (
    "Seconds, mean ± deviation over seeds; the ratio is that of the totals to the same method with its own "
    "hyperparameters on the same processor or GPU; a run that was resumed on another one has none. Where some runs "
    "trained phase 0 and others started after it, it is that of the times after phase 0, if those were measured. Runs "
    "that shared a machine waited for each other, which is in their totals."
)
STORED: Final = (
    "Kept images of old classes, reserve included. Below, how many were held in the phase, those that arrived "
    "included, and how many may be held by the budget. Means over seeds where they differ."
)
SUMMARY: Final = (
    "Mean ± deviation over the seeds of finished runs, in percent: average accuracy over all exams, accuracy in the "
    "last one, average forgetting and backward transfer."
)
ALL_RUNS: Final = (
    "Average and last accuracy, average forgetting and backward transfer in percent; a run that is not finished has "
    "none of them yet."
)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Note:
    """A small note under a figure; `tone` sets its look: `gain`, `loss`, or plain."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Cell:
    """A figure or a word. `value` is for sorting and for programs; `runs` names the runs it was computed from."""

    text: str = ""
    value: float | None = None
    notes: tuple[Note, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A column's heading, and the one above it."""

    title: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table of the report: what a person reads, and the same figures as flat rows for a program."""

    name: str  # for its files
    title: str  # in a few words
    caption: str  # what the figures are
    columns: Sequence[Column]  # one per cell of a row
    rows: Sequence[Sequence[Cell]]
    records: Sequence[Mapping[str, Value]]

    def lines(self, escape: Callable[[str], str]) -> list[list[str]]:
        """Headings and rows as a person reads them, each text escaped."""
        heads = [" ".join(word for word in (column.group, column.title) if word) for column in self.columns]
        body = [[" · ".join([cell.text, *(note.text for note in cell.notes)]) for cell in row] for row in self.rows]
        return [list(map(escape, line)) for line in (heads, *body)]

    def markdown(self) -> str:
        """The table in Markdown."""
        ruler = ["---:" if column.numeric else "---" for column in self.columns]
        heads, *body = self.lines(_markdown_text)
        table = "\n".join(f"| {' | '.join(line)} |" for line in [heads, ruler, *body])
        return f"## {_markdown_text(self.title)}\n\n{table}\n\n{_markdown_text(self.caption)}\n"

    def latex(self) -> str:
        """The table as LaTeX's `tabular`, for the package booktabs; the caption is a comment above it."""
        heads, *body = (f"{' & '.join(line)} \\\\" for line in self.lines(_latex_text))
        places = "".join("r" if column.numeric else "l" for column in self.columns)
        inside = [r"\toprule", heads, r"\midrule", *body, r"\bottomrule"]
        said = f"% {one_line(self.title)}: {one_line(self.caption)}"
        return "\n".join([said, rf"\begin{{tabular}}{{{places}}}", *inside, r"\end{tabular}", ""])


def make_tables(study: Study) -> list[Table]:
    """Every table that has a row, all runs first."""
    accuracy = [_accuracy_table(study, where, rows) for where, rows in study.by_exam.items()]
    tables = [_all_runs_table(study), *accuracy, _summary_table(study), _time_table(study), _stored_table(study)]
    return [table for table in tables if table.rows]


def csv_of(rows: Sequence[Mapping[str, Value]]) -> str:
    """Flat rows as CSV; unknown values are empty, and no text is a formula."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writerow({name: _csv_value(name) for name in names})
    writer.writerows({name: _csv_value(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


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
    few = f" ({pairs})" if verdict == "few" else ""
    tone = verdict if judged and verdict in ("gain", "loss") else ""
    return Note(f"{with_sign(difference.mean)} [{with_sign(low)}, {with_sign(high)}]{few}", tone)


def _mean_cell(found: Spread, notes: Sequence[Note] = (), runs: Sequence[str] = (), digits: int = 2) -> Cell:
    """A cell with a mean over seeds, `63.10 ± 0.71`; a single figure has no deviation."""
    deviation = "" if found.deviation is None else f" ± {found.deviation:.{digits}f}"
    return Cell(f"{found.mean:.{digits}f}{deviation}", found.mean, tuple(notes), tuple(runs))


def _number_cell(value: float | None, digits: int = 2) -> Cell:
    return Cell("–" if value is None else f"{value:.{digits}f}", value)


def _with_lines(caption: str, lines: Sequence[str]) -> str:
    return " ".join([caption, *(f"{line}." for line in lines)])


def _csv_value(value: Value) -> Value:
    """A value of a CSV file. Spreadsheets compute a text that looks like a formula, so it gets a quote before it.

    >>> [_csv_value(value) for value in (-0.5, "-0.5", "=1+1", "lucir")]
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


def _latex_text(text: str) -> str:
    """A text without any command of LaTeX."""
    signs = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
    }
    signs |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(signs.get(sign, sign) for sign in one_line(text))


# Average accuracy -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StreamColumn:
    """One stream, or the average of TFH and TFS with the same number of phases."""

    column: Column
    setting: str
    streams: tuple[StreamKind, ...]


def _accuracy_table(study: Study, where: str, rows: Sequence[Row]) -> Table:
    columns = _stream_columns({stream for row in rows for stream in row.by_stream})
    cells: list[list[Cell]] = []
    records: list[Mapping[str, Value]] = []
    for row in rows:
        made = [_accuracy_cell(study, row, column) for column in columns]
        if found := [record for _, record in made if record]:
            method = row.first.method
            policy = row.label.removeprefix(f"{method}, ")
            cells.append([Cell(method), Cell(policy), *(cell for cell, _ in made)])
            records += found
    lines = [line for line in study.differences if line.startswith(f"{where}, ")]
    return Table(
        f"accuracy-{rows[0].first.exam_name}",
        f"Average accuracy on {where}",
        _with_lines(ACCURACY.replace("{reference}", study.reference), [*study.remarks([*EXPLAINED, REPEATED]), *lines]),
        [Column("method", numeric=False), Column("policy", numeric=False), *(each.column for each in columns)],
        cells,
        records,
    )


def _stream_columns(streams: set[StreamKind]) -> list[_StreamColumn]:
    columns = []
    for phases in sorted({stream.phases for stream in streams if not stream.groups}):
        both = sorted(stream for stream in streams if stream.phases == phases and not stream.groups)
        group = f"N = {phases}"
        columns += [_StreamColumn(Column(each.setting.upper(), group), each.setting, (each,)) for each in both]
        if len(both) == 2:
            columns.append(_StreamColumn(Column("Avg.", group), "average", tuple(both)))
    others = sorted(stream for stream in streams if stream.groups)
    return columns + [_StreamColumn(Column(str(each)), each.setting, (each,)) for each in others]


def _accuracy_cell(study: Study, row: Row, column: _StreamColumn) -> tuple[Cell, Mapping[str, Value]]:
    own = _mean_by_seed([row.averages(stream) for stream in column.streams])
    if not own:
        return Cell(), {}
    found, judged = spread([*own.values()]), not row.first.informed
    compared = [study.comparisons.get((row.full_label, stream)) for stream in column.streams]
    difference, part = _gain([each for each in compared if each is not None]) if all(compared) else (None, None)
    notes = [gain_note(difference, judged)] if difference else []
    notes += [Note(f"{with_sign(part)} by the classifier")] if part else []
    low, high = difference.interval() if difference and difference.count > 1 else (None, None)
    names = [run.name for stream in column.streams for run in row.finished(stream).values()]
    return _mean_cell(found, notes, names), {
        **row.identity,
        "setting": column.setting,
        "phases": column.streams[0].phases,
        "groups": column.streams[0].groups.replace(" ", "") or None,
        "seeds": found.count,
        "mean": found.mean,
        "deviation": found.deviation,
        "gain": difference.mean if difference else None,
        "gain_low": low,
        "gain_high": high,
        "paired_seeds": difference.count if difference else None,
        "verdict": difference.verdict() if difference and judged else None,
        "gain_by_classifier": part,
    }


def _gain(compared: Sequence[Comparison]) -> tuple[Spread | None, float | None]:
    """The paired difference over these streams, and the part of it that the choice of the classifier brings."""
    own, theirs, moved = (
        _mean_by_seed([getattr(each, name) for each in compared]) for name in ("own", "theirs", "moved")
    )
    difference = paired_difference(own, theirs)
    return difference, spread([*moved.values()]).mean if moved and len(moved) == len(own) else None


def _mean_by_seed(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several figures for each seed that has all of them."""
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in parts[0] if all(seed in p for p in parts)}


def _summary_table(study: Study) -> Table:
    """Average and last accuracy, forgetting and transfer of each row and stream, over seeds."""
    names = ("average", "last", "forgetting", "transfer")
    cells, records = [], []
    for row, stream, group in study.by_stream:
        runs = [run for run in group if run.finished]
        values = ((run.average, run.last, run.forgetting, run.backward_transfer) for run in runs)
        known = ([value for value in each if value is not None] for each in zip(*values, strict=True))
        found = {name: spread(each) for name, each in zip(names, known, strict=False) if each}
        if found:
            label = Cell(row.full_label, runs=tuple(run.name for run in runs))
            figures = (_mean_cell(found[name]) if name in found else _number_cell(None) for name in names)
            cells.append([label, Cell(str(stream)), _number_cell(len(runs), 0), *figures])
            means = {name: found[name].mean if name in found else None for name in names}
            spreads = {f"{name}_deviation": found[name].deviation if name in found else None for name in names}
            records.append({**row.identity, "setting": str(stream), "seeds": len(runs), **means, **spreads})
    heads = [Column("row", numeric=False), Column("setting", numeric=False)]
    columns = [*heads, *map(Column, ("seeds", *names))]
    return Table(
        "summary",
        "Last accuracy and forgetting",
        _with_lines(SUMMARY, study.remarks([REPEATED])),
        columns,
        cells,
        records,
    )


# Time and images ------------------------------------------------------------------------------------------------------


def _time_table(study: Study) -> Table:
    """Seconds of finished runs, and their ratio to the same method without a policy on the same machine."""
    cells, records = [], []
    for row, stream, machine, there in _by_machine(study):
        untimed = sum(run.starts_elsewhere for run in there)
        ratio, after = _time_ratio(there, study.baselines.get(row.full_label), stream, machine)
        spent = {part: spread([run.seconds[part] for run in there]) for part in SECONDS}
        share = f" in {untimed} of {len(there)} runs" if untimed < len(there) else ""
        notes = (Note(f"without phase 0{share}"),) if untimed else ()
        beside = (Note("after phase 0"),) if ratio and after else ()
        cells.append(
            [
                Cell(row.full_label, notes=notes, runs=tuple(run.name for run in there)),
                Cell(str(stream)),
                Cell(machine),
                *(_mean_cell(each, digits=1) for each in spent.values()),
                Cell(_number_cell(ratio).text, ratio, beside),
            ]
        )
        records.append(
            {
                **{"row": row.full_label, "setting": str(stream), "machine": machine},
                **{f"seconds_{part}": each.mean for part, each in spent.items()},
                "ratio": ratio,
                "runs_without_phase_0": untimed,
                "ratio_after_phase_0": int(after),
            }
        )
    heads = [Column(title, numeric=False) for title in ("row", "setting", "machine")]
    columns = [*heads, *(Column(part, "seconds") for part in SECONDS), Column("ratio")]
    return Table("time", "Time", _with_lines(TIME, study.remarks([REPEATED])), columns, cells, records)


def _by_machine(study: Study) -> Iterator[tuple[Row, StreamKind, str, list[RunRecord]]]:
    """The finished runs of each row and stream, those on other machines apart."""
    for row, stream, runs in study.by_stream:
        machines: dict[str, list[RunRecord]] = {}
        for run in runs:
            if run.finished:
                machines.setdefault(", then ".join(run.machines), []).append(run)
        yield from ((row, stream, machine, there) for machine, there in machines.items())


def _time_ratio(
    runs: Sequence[RunRecord], base: Row | None, stream: StreamKind, machine: str
) -> tuple[float | None, bool]:
    """The ratio of total times, or of the times after phase 0 where only some totals have it; and which of both.

    None without a baseline there, where those times are not known, and where not all was computed on one machine.
    """
    if base is None or machine == UNKNOWN or len(runs[0].machines) != 1:
        return None, False
    there = [run for run in base.finished(stream).values() if run.machines == (machine,)]
    after = len({run.starts_elsewhere for run in [*runs, *there]}) > 1
    spent = [[run.seconds_after_phase_0 if after else run.seconds["total"] for run in group] for group in (runs, there)]
    known = [[each for each in group if each is not None] for group in spent]
    if known != spent or not there or sum(known[1]) <= 0:
        return None, False
    return spread(known[0]).mean / spread(known[1]).mean, after


def _stored_table(study: Study) -> Table:
    """Images in memory after each phase, images held during it, and the budget; means where seeds differ."""
    cells: list[list[Cell]] = []
    records: list[dict[str, Value]] = []
    longest = max((len(run.phases) for run in study.runs), default=0)
    for row, stream, group in study.by_stream:
        exams = [[run.phases[place] for run in group if len(run.phases) > place] for place in range(longest)]
        counts = [*map(_counts, exams)]
        if any(each["stored"] is not None for each in counts):
            names = Cell(row.full_label, runs=tuple(run.name for run in group))
            cells.append([names, Cell(str(stream)), *map(_stored_cell, counts)])
            records += [
                {"row": row.full_label, "setting": str(stream), "phase": phase, **each}
                for phase, each in enumerate(counts)
                if each["stored"] is not None
            ]
    heads = [Column("row", numeric=False), Column("setting", numeric=False)]
    columns = [*heads, *(Column(str(phase), "phase") for phase in range(longest))]
    caption = _with_lines(STORED, study.remarks([*EXPLAINED, REPEATED]))
    return Table("stored", "Stored images after each phase", caption, columns, cells, records)


def _counts(phases: Sequence[PhaseRecord]) -> dict[str, float | None]:
    """Means over the seeds for which the numbers are known."""
    found: dict[str, float | None] = {}
    for name in ("stored", "held", "budget"):
        known = [count for phase in phases if (count := getattr(phase, name)) is not None]
        found[name] = sum(known) / len(known) if known else None
    return found


def _stored_cell(counts: Mapping[str, float | None]) -> Cell:
    stored, held, budget = (counts[name] for name in ("stored", "held", "budget"))
    if stored is None:
        return Cell()
    notes = (Note(f"held {_plain(held)} of {_plain(budget)}"),) if held is not None and budget is not None else ()
    return Cell(_plain(stored), stored, notes)


def _plain(mean: float) -> str:
    return f"{mean:.0f}" if mean == int(mean) else f"{mean:.1f}"


# All runs -------------------------------------------------------------------------------------------------------------


def _all_runs_table(study: Study) -> Table:
    """One row for each run."""
    words = ("run", "method", "data", "setting", "policy", "exam", "state")
    numbers = ("average", "last", "forgetting", "transfer")
    cells, records = [], []
    for run in study.runs:
        said = (run.name, run.method, run.data, str(StreamKind.of(run)), run.policy_label, run.exam, run.state)
        figures = (run.average, run.last, run.forgetting, run.backward_transfer)
        cells.append(
            [
                Cell(run.name, runs=(run.name,)),
                *map(Cell, said[1:]),
                _number_cell(run.seed, 0),
                *map(_number_cell, figures),
                _number_cell(run.seconds.get("total"), 1),
            ]
        )
        records.append(
            {
                **dict(zip(words, said, strict=True)),
                "seed": run.seed,
                **dict(zip(numbers, figures, strict=True)),
                **{f"seconds_{part}": run.seconds.get(part) for part in sorted(SECONDS)},
            }
        )
    columns = [*(Column(word, numeric=False) for word in words), *map(Column, ("seed", *numbers, "seconds"))]
    return Table("runs", "All runs", ALL_RUNS, columns, cells, records)
