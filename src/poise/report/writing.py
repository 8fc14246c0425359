"""A report on the disk: the page, and its tables and figures as files beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from poise import store
from poise.errors import UserError
from poise.report.draw import Figure
from poise.report.figures import make_figures
from poise.report.page import Contents, make_page
from poise.report.study import Study
from poise.report.tables import csv_of, make_tables
from poise.report.text import comparison_table
from poise.runs.folder import PAGE, refuse_file
from poise.runs.record import read_runs
from poise.words import printable


@dataclass(frozen=True)
class Report(Study):
    """A study that can be shown: as text, or as a page with tables and figures."""

    @property
    def finished(self) -> bool:
        """Whether every run is finished."""
        return all(run.finished for run in self.runs)

    def text(self) -> str:
        """The report as text: finished runs, and what is not finished."""
        done = [run for run in self.runs if run.finished]
        going = [f"{run.name}: {run.state} so far" for run in self.runs if not run.finished]
        return "\n\n".join(text for text in (comparison_table(done) if done else "", "\n".join(going)) if text)

    def write(self, out: Path, more: Sequence[Figure] = (), *, refresh: int | None = None) -> Path:
        """Write the page with its tables and figures into a folder; returns the page.

        `more` are further figures, such as activation maps; `refresh` makes a browser reload the page every `refresh`
        seconds.
        """
        _claim(out)
        tables = make_tables(self)
        figures = [(figure, figure.svgs()) for figure in [*make_figures(self), *more]]
        for table in tables:
            _write(out / "tables", f"{table.name}.csv", csv_of(table.records))
            _write(out / "tables", f"{table.name}.md", table.markdown())
            _write(out / "tables", f"{table.name}.tex", table.latex())
        for figure, svgs in figures:
            _write(out / "figures", f"{figure.name}.csv", csv_of(figure.data))
            for number, svg in enumerate(svgs, start=1):
                _write(out / "figures", f"{figure.name}-{number}.svg", svg)
        links = {run.name: f"./{quote(os.fsencode(os.path.relpath(run.path, out)))}" for run in self.runs}
        page = make_page(Contents(self, tables, figures, links), refresh)
        store.write_bytes(out / PAGE, page.encode())
        return out / PAGE


def gather(paths: Sequence[Path], against: str | None = None) -> Report:
    """The runs at these paths; paths that cannot be read are listed with the reason.

    `against` is the label of a row, such as `lucir, fixed`, that all others are compared with.
    """
    runs, unread = read_runs(paths)
    found = Report(tuple(runs), tuple(unread), against)
    known = {row.label for row in found.rows}
    if against is not None and known and against not in known:
        raise UserError(f"--against {against} is no row of this report; its rows are {'; '.join(sorted(known))}")
    return found


def watch(look: Callable[[], Report], out: Path, seconds: int, say: Callable[[str], None]) -> Report:
    """Rewrite the page whenever the runs have made progress, until all are finished or Ctrl-C; returns the last report.

    `look` reads the runs as they are now.
    """
    seen: list[tuple[str, int]] | None = None
    while True:
        report = look()
        changed = [(str(each.path), sum(each.events.values()) + each.finished) for each in report.runs]
        if changed != seen:
            page = report.write(out, refresh=None if report.finished and report.runs else seconds)
            words = ", ".join(f"{run.name}: {run.state}" for run in report.runs[:4])
            waiting = ", ".join(f"{each.path} {each.reason}" for each in report.unread[:4])
            say(f"{page} ({words or f'no run yet: {waiting}'})")
            seen = changed
        if report.finished and report.runs:
            return report
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            return report


def _claim(out: Path) -> None:
    """Make the folder; refuse one whose index.html was not written by poise."""
    refuse_file(out)
    page = out / PAGE
    if page.exists():
        with page.open("rb") as file:
            if b'name="generator" content="poise ' not in file.read(4096):
                raise UserError(f"{page} is not a report of poise; choose another --out")
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)


def _write(folder: Path, name: str, text: str) -> None:
    store.write_bytes(folder / name, printable(text).encode(), sync=False)
