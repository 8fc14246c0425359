"""Tables 1 and 2: methods with their own hyperparameters and with a policy, beside the paper's; and all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poise.report.comparisons import classifier_parts
from poise.report.reading import (
    EXPLAINED,
    REPEATED,
    Configuration,
    RunRecord,
    StreamKind,
    baselines,
    by_exam,
    configurations,
    remarks,
)
from poise.report.statistics import Spread, paired_difference, spread
from poise.report.tables.paper import Published, published_accuracy
from poise.report.tables.table import (
    Column,
    Note,
    ReportTable,
    TableCell,
    Value,
    gain_note,
    mean_cell,
    text_cell,
    with_sign,
)
from poise.runfolder import SECONDS

ACCURACY = (
    "Average accuracy in percent over the exams after every phase, phase 0 included; mean ± deviation over seeds. "
    "Under a policy's figure its gain over the same method's own hyperparameters: paired by seed, with the 95 % "
    "interval of the mean difference (Student's t). It is coloured only with at least three paired seeds and an "
    "interval without zero, and never that of an oracle or a leak. `by the classifier` is the part of a gain that the "
    "choice of the classifier brings: what the method's own networks gain when they are read with the classifiers that "
    "the policy used. The paper's figure, and ours minus it, stand beside "
    "runs with its memory, epochs, network and test images."
)


def accuracy_tables(runs: Sequence[RunRecord]) -> list[ReportTable]:
    """One table for each data set and exam."""
    tables = [_accuracy_table(where, inside) for where, inside in by_exam(runs).items()]
    return [table for table in tables if table.records]


def _accuracy_table(where: str, runs: Sequence[RunRecord]) -> ReportTable:
    rows = configurations(runs)
    against = baselines(rows)
    columns = _columns(rows)
    cells, records = [], []
    for row in rows:
        made = [_accuracy_cell(row, against.get(row.label), column) for column in columns]
        if any(record for _, record in made):
            first = [text_cell(row.first.method), text_cell(row.label_without_method)]
            cells.append((*first, *(cell for cell, _ in made)))
            records += [record for _, record in made if record]
    heads = (Column("method", numeric=False), Column("policy", numeric=False))
    return ReportTable(
        f"accuracy-{runs[0].exam_name}",
        f"Average accuracy on {where}",
        " ".join([ACCURACY, *(f"{line}." for line in remarks(runs, [*EXPLAINED, REPEATED]))]),
        (*heads, *(Column(column.title, column.group) for column in columns)),
        cells,
        records,
    )


@dataclass(frozen=True)
class _StreamColumn:
    """One stream, or the average of TFH and TFS with the same number of phases."""

    title: str
    group: str
    setting: str
    phases: int
    streams: tuple[StreamKind, ...]

    def averages(self, row: Configuration) -> dict[int, float]:
        """Averages by seed, for seeds that have all the streams."""
        return _mean_by_seed([row.averages(stream) for stream in self.streams])

    def by_classifier(self, row: Configuration, baseline: Configuration) -> dict[int, float]:
        """By seed, the part of a gain that the choice of the classifier brings."""
        return _mean_by_seed([classifier_parts(row, baseline, stream) for stream in self.streams])

    def run_names(self, row: Configuration) -> list[str]:
        return [run.name for stream in self.streams for run in row.by_stream.get(stream, ()) if run.finished]


def _mean_by_seed(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean of several figures for each seed that has all of them."""
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in parts[0] if all(seed in p for p in parts)}


def _columns(rows: Sequence[Configuration]) -> list[_StreamColumn]:
    streams = sorted({stream for row in rows for stream in row.by_stream})
    columns = []
    for phases in sorted({stream.phases for stream in streams if not stream.groups}):
        both = [stream for stream in streams if stream.phases == phases and not stream.groups]
        group = f"N = {phases}"
        columns += [_StreamColumn(each.setting.upper(), group, each.setting, phases, (each,)) for each in both]
        if len(both) == 2:
            columns.append(_StreamColumn("Avg.", group, "average", phases, tuple(both)))
    other = [stream for stream in streams if stream.groups]
    return columns + [_StreamColumn(str(each), "", each.setting, each.phases, (each,)) for each in other]


def _accuracy_cell(
    row: Configuration, baseline: Configuration | None, column: _StreamColumn
) -> tuple[TableCell, Mapping[str, Value] | None]:
    own = column.averages(row)
    if not own:
        return TableCell(""), None
    found = spread([*own.values()])
    difference = paired_difference(own, column.averages(baseline)) if baseline else None
    paper = published_accuracy(row.first, column.phases, column.setting)
    parts = list(column.by_classifier(row, baseline).values()) if baseline and difference else []
    by_classifier = spread(parts).mean if difference and len(parts) == difference.count else None
    gains = [gain_note(difference, not row.first.informed)] if difference else []
    gains += [Note(f"{with_sign(by_classifier)} by the classifier")] if by_classifier and any(parts) else []
    notes = (*gains, *([paper_note(found.mean, paper)] if paper else []))
    return mean_cell(found, notes, column.run_names(row)), {
        **row.identity,
        "setting": column.setting,
        "phases": column.phases,
        "groups": column.streams[0].groups.replace(" ", "") or None,
        **_figures(found, difference, paper, not row.first.informed),
        "gain_by_classifier": by_classifier,
    }


def paper_note(mean: float, paper: Published) -> Note:
    """The paper's figure, and ours minus it; or why that would say nothing."""
    if paper.unlike:
        return Note(f"paper {paper.figure:.1f}, not comparable: {paper.unlike}", "paper")
    deviation = f" ± {paper.deviation:.1f}" if paper.deviation is not None else ""
    return Note(f"paper {paper.figure:.1f}{deviation} ({with_sign(mean - paper.figure, 1)})", "paper")


def _figures(found: Spread, difference: Spread | None, paper: Published | None, judged: bool) -> dict[str, Value]:
    low, high = difference.interval() if difference and difference.count > 1 else (None, None)
    return {
        "seeds": found.count,
        "mean": found.mean,
        "deviation": found.known_deviation,
        "gain": difference.mean if difference else None,
        "gain_low": low,
        "gain_high": high,
        "paired_seeds": difference.count if difference else None,
        "verdict": difference.verdict() if difference and judged else None,
        "paper": paper.figure if paper else None,
        "paper_deviation": paper.deviation if paper else None,
        "difference": found.mean - paper.figure if paper and not paper.unlike else None,
    }


# All runs -------------------------------------------------------------------------------------------------------------


def all_runs_table(runs: Sequence[RunRecord]) -> ReportTable:
    """One row for each run."""
    words = "run method data setting policy exam state"
    columns = {word: Column(word, numeric=False) for word in words.split()}
    columns |= {word: Column(word) for word in ("seed", "average", "last", "forgetting", "transfer")}
    columns["seconds_total"] = Column("seconds", digits=1)
    caption = (
        "Average and last accuracy, average forgetting and backward transfer in percent; a run that is not finished "
        "has none of them yet, and a kept result of an older version no transfer."
    )
    lines = [(_describe_run(run), {"run": text_cell(run.name, [run.name])}) for run in runs]
    return ReportTable.of_records(("runs", "All runs", caption), columns, lines)


def _describe_run(run: RunRecord) -> dict[str, Value]:
    return {
        "run": run.name,
        "method": run.method,
        "data": run.data,
        "setting": str(StreamKind.of(run)),
        "policy": run.policy_label,
        "exam": run.exam,
        "state": run.state,
        "seed": run.seed,
        "average": run.average,
        "last": run.last,
        "forgetting": run.forgetting,
        "transfer": run.backward_transfer,
        **{f"seconds_{part}": run.seconds.get(part) for part in sorted(SECONDS)},
    }
