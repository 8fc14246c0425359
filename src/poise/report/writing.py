"""A report on the disk: the page, and its tables and figures as files beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from poise import store
from poise.errors import UserError
from poise.report.ablation import ablation_sheets
from poise.report.comparison import accuracy_sheets, runs_sheet
from poise.report.costs import stored_sheet, time_sheet
from poise.report.exhibits import exhibits
from poise.report.page import Contents, Drawn, make_page
from poise.report.probes import ProbeTable
from poise.report.regret import regret_sheet
from poise.report.runs import Broken, Run
from poise.report.sheet import Sheet, rows_as_csv

PAGE: Final = "index.html"
#: How many bytes of figures for print a page carries; the rest are files beside it.
CARRIED: Final = 4_000_000


@dataclass(frozen=True)
class Report:
    """What goes into a report. `drawn`: also draw the figures for print, which takes seconds."""

    runs: Sequence[Run]
    broken: Sequence[Broken] = ()
    probes: Sequence[ProbeTable] = ()
    texts: Sequence[tuple[str, str]] = ()
    drawn: bool = True

    def tables(self) -> list[Sheet]:
        """Every table that has a row, that of all runs first."""
        runs = self.runs
        sheets = [runs_sheet(runs), *accuracy_sheets(runs), *ablation_sheets(runs)]
        sheets += [time_sheet(runs), stored_sheet(runs), regret_sheet(runs, self.probes)]
        return [sheet for sheet in sheets if sheet.rows]

    def write(self, out: Path, refresh: int | None = None) -> Path:
        """Write everything into a folder of its own; returns the page."""
        _claim(out)
        tables, shown = self.tables(), exhibits(self.runs)
        for sheet in tables:
            _write(out / "tables" / f"{sheet.name}.csv", sheet.csv())
            _write(out / "tables" / f"{sheet.name}.md", sheet.markdown())
        for exhibit in shown:
            _write(out / "figures" / f"{exhibit.name}.csv", rows_as_csv(exhibit.rows))
        links = {run.name: os.path.relpath(run.path, out) for run in self.runs}
        contents = Contents(self.runs, self.broken, tables, self.texts, self._figures(out), links)
        store.write_bytes(out / PAGE, make_page(contents, shown, refresh).encode())
        return out / PAGE

    def _figures(self, out: Path) -> list[Drawn]:
        return []


def _claim(out: Path) -> None:
    """Make the folder; refuse one whose page is somebody else's."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; choose a folder")
    page = out / PAGE
    if page.exists() and b'name="generator" content="poise ' not in page.read_bytes()[:4096]:
        raise UserError(f"{page} is not a report of poise; choose another --out")
    for folder in (out / "tables", out / "figures"):
        folder.mkdir(parents=True, exist_ok=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
