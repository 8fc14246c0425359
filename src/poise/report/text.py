"""Runs as plain text tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from poise.actions import Action
from poise.report.study import EXPLAINED, StreamKind, distinguish, remarks
from poise.runs.record import UNVERIFIED, RunRecord
from poise.words import one_line


def run_table(run: RunRecord) -> str:
    """A finished run: the accuracy after each phase, the images stored after it and held in it, and the averages."""
    rows = [
        [
            str(phase.phase),
            str(phase.classes),
            *(f"{accuracy:.2f}" for accuracy in (phase.accuracy, phase.accuracy_fc, phase.accuracy_ncm)),
            _count(phase.stored),
            f"{_count(phase.held)} of {_count(phase.budget)}",
            str(Action(**phase.action)),
        ]
        for phase in run.phases
    ]
    table = align_columns(["phase", "classes", "accuracy", "fc", "ncm", "stored", "held", "action"], rows)
    warning = "".join(f"\n{line}" for line in remarks([run]))
    return (
        f"{table}\n\naverage accuracy {run.average:.2f}, last {run.last:.2f}, "
        f"forgetting {run.forgetting:.2f} (percent, exam {run.exam}), "
        f"{run.seconds['total']:.1f} s{warning}"
    )


def comparison_table(runs: Sequence[RunRecord]) -> str:
    """Finished runs, one row each, with the images stored at the end and the most held in any phase after the first.

    Beside the policy are the keys in which runs of one method and policy differ, and the names of those runs that
    cannot be told apart otherwise.
    """
    kinds = {StreamKind.of(run) for run in runs}
    pairs = zip(runs, distinguish(runs), strict=True)
    heads = []
    for run, words in pairs:
        own = StreamKind.of(run)  # groups are named in full where there are others of the same number
        alike = [kind for kind in kinds if (kind.setting, kind.phases) == (own.setting, own.phases)]
        stream = f"{run.setting} {run.stream}" if len(alike) == 1 else str(own)
        heads.append((run.method, run.data, stream, words, str(run.seed), run.exam))
    rows = [
        [
            *head[:3],
            ", ".join([head[3], *([run.name] if run.name and heads.count(head) > 1 else [])]),
            *head[4:],
            *(f"{value:.2f}" for value in (run.average, run.last, run.forgetting)),
            run.phases[-1].classifier,
            _count(run.phases[-1].stored),
            _count(max((phase.held or 0 for phase in run.phases[1:]), default=0) or None),
            f"{run.seconds['total']:.1f}",
        ]
        for run, head in zip(runs, heads, strict=True)
    ]
    header = "method data setting policy seed exam average last forgetting counts stored held seconds"
    return "\n\n".join([align_columns(header.split(), rows), *remarks(runs, [*EXPLAINED, UNVERIFIED])])


def _count(images: int | None) -> str:
    """A number of images; `–` where it is unknown."""
    return "–" if images is None else str(images)


def actions_table(result: Mapping[str, Any], count: int = 10) -> str:
    """The best actions of an oracle that ran all of them; an action without a figure diverged."""
    lines = result["actions"]
    ranked = sorted(lines, key=lambda line: math.inf if line["average_accuracy"] is None else -line["average_accuracy"])
    rows = [
        [
            str(place),
            *(f"{line[name]:.2f}" if line[name] is not None else "–" for name in ("average_accuracy", "last_accuracy")),
            str(Action(**line["action"])),
        ]
        for place, line in enumerate(ranked[:count], start=1)
    ]
    table = align_columns(["", "average", "last", "action"], rows)
    return f"{table}\n{len(lines)} candidates in all, ranked by their exams"


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flat rows with the same keys, such as a figure's data."""
    header = list(rows[0]) if rows else []
    return align_columns(header, [["–" if row[key] is None else str(row[key]) for key in header] for row in rows])


def align_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are as wide as their contents, each row in one line."""
    header, rows = [one_line(cell) for cell in header], [[one_line(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    # In columns of a terminal: characters such as 日 take two.
    lines = [
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    ]
    return "\n".join(line.rstrip() for line in [lines[0], "  ".join("─" * width for width in widths), *lines[1:]])
