"""A report on the disk: the page, and its tables and figures as files beside it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from poise import store
from poise.errors import PoiseError, UserError
from poise.report.ablation import ablation_sheets
from poise.report.assumptions import assumptions, beginnings
from poise.report.comparison import accuracy_sheets, runs_sheet, state
from poise.report.costs import stored_sheet, time_sheet
from poise.report.drawing import Figure
from poise.report.exhibits import exhibits
from poise.report.page import Contents, Drawn, data_address, make_page
from poise.report.probes import PROBE, ProbeTable, load_probe, probe_summary
from poise.report.regret import regret_sheet
from poise.report.runs import Broken, Run, read_runs
from poise.report.sheet import Sheet, rows_as_csv
from poise.report.tables import comparison_table

PAGE: Final = "index.html"
#: Of more runs than this the assumptions are measured on some only: a table each would be too many to read.
MANY: Final = 12
#: Figures for print that the page does not draw itself.
ONLY: Final = "activation-maps"
#: How many bytes of figures for print a page carries; the rest are files beside it.
CARRIED: Final = 4_000_000
#: From so many rows of data on, figures are drawn side by side.
WORTH_FORKING: Final = 1000


@dataclass(frozen=True)
class Report:
    """What goes into a report: runs, what could not be read, and probes."""

    runs: Sequence[Run]
    broken: Sequence[Broken] = ()
    probes: Sequence[ProbeTable] = ()

    @property
    def finished(self) -> bool:
        """Whether every run is."""
        return all(run.finished for run in self.runs)

    def text(self) -> str:
        """The report as text: finished runs, what is not finished, the assumptions, the probes."""
        done = [run.result for run in self.runs if run.result is not None]
        going = [f"{run.name}: {state(run)} so far" for run in self.runs if not run.finished]
        found = [comparison_table(done) if done else "", "\n".join(going)]
        return "\n\n".join(text for text in (*found, *(text for _, text in self.texts)) if text)

    @cached_property
    def texts(self) -> list[tuple[str, str]]:
        """What stands in the page as text: a heading and lines each."""
        texts = [("How far the paper's assumptions held", self._assumptions())]
        texts += [(f"Probe of phase {probe.table['phase']}", probe_summary(probe)) for probe in self.probes]
        texts.append(("Probes after different beginnings", beginnings(self.probes)))
        return [(heading, text) for heading, text in texts if text]

    def _assumptions(self) -> str:
        done = [run for run in self.runs if run.result is not None]
        if not any(run.trials for run in done):
            return ""
        seed = min(run.seed for run in done)
        told = done if len(done) <= MANY else [run for run in done if run.seed == seed][:MANY]
        note = f"{len(told)} of {len(done)} runs, seed {seed}\n\n" if len(told) < len(done) else ""
        text = assumptions([run.path for run in told], [run.result for run in told if run.result is not None])
        return text and f"{note}{text}"

    def tables(self) -> list[Sheet]:
        """Every table that has a row, that of all runs first."""
        runs = self.runs
        sheets = [runs_sheet(runs), *accuracy_sheets(runs), *ablation_sheets(runs)]
        sheets += [time_sheet(runs), stored_sheet(runs), regret_sheet(runs, self.probes)]
        return [sheet for sheet in sheets if sheet.rows]

    def write(self, out: Path, figures: Sequence[Figure] = (), refresh: int | None = None) -> Path:
        """Write the page, the tables and these figures into a folder; returns the page."""
        _claim(out)
        with _uncollected(), _saving(figures, out / "figures") as saved:
            tables, shown = self.tables(), exhibits(self.runs)
            for sheet in tables:
                _write(out / "tables" / f"{sheet.name}.csv", sheet.csv())
                _write(out / "tables" / f"{sheet.name}.md", sheet.markdown())
            for exhibit in shown:
                _write(out / "figures" / f"{exhibit.name}.csv", rows_as_csv(exhibit.rows))
            links = {run.name: os.path.relpath(run.path, out) for run in self.runs}
            contents = Contents(self.runs, self.broken, tables, self.texts, _drawn(figures, saved), links)
            store.write_bytes(out / PAGE, make_page(contents, shown, refresh).encode())
        return out / PAGE


def gather(paths: Sequence[Path]) -> Report:
    """What lies at these paths; what cannot be read is listed with its reason."""
    probes: list[ProbeTable] = []
    rest: list[Path] = []
    for path in paths:
        if _is_probe(path):
            probes.append(load_probe(path))
        else:
            rest.append(path)
    with _uncollected():
        return Report(*read_runs(rest), probes)


def _is_probe(path: Path) -> bool:
    try:
        return path.is_file() and store.read_json(path).get("kind") == PROBE
    except (PoiseError, OSError):
        return False


def watch(paths: Sequence[Path], out: Path, seconds: int, say: Callable[[str], None]) -> Report:
    """Write the page again whenever the runs have gone on, until all are finished or Ctrl-C; the last report."""
    seen: list[tuple[str, int]] | None = None
    while True:
        report = gather(paths)
        changed = [(str(each.path), sum(each.events.values()) + each.finished) for each in report.runs]
        if changed != seen:
            page = report.write(out, refresh=None if report.finished and report.runs else seconds)
            words = ", ".join(f"{run.name}: {state(run)}" for run in report.runs[:4])
            waiting = ", ".join(f"{each.path} {each.reason}" for each in report.broken[:4])
            say(f"{page} ({words or f'no run yet: {waiting}'})")
            seen = changed
        if report.finished and report.runs:
            return report
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            return report


def _claim(out: Path) -> None:
    """Make the folder; refuse one whose page is somebody else's."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; choose a folder")
    page = out / PAGE
    if page.exists() and b'name="generator" content="poise ' not in page.read_bytes()[:4096]:
        raise UserError(f"{page} is not a report of poise; choose another --out")
    try:
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made ({error.strerror}); choose another folder") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"--out {out} cannot be written to; choose another folder")


def _drawn(figures: Sequence[Figure], saved: Iterator[bytes]) -> list[Drawn]:
    """Figures that are files by now; the page carries their SVG as far as it stays light."""
    found, carried = [], 0
    for figure, content in zip(figures, saved, strict=True):
        carried += len(content)
        address = data_address(content, "image/svg+xml") if carried <= CARRIED else ""
        found.append(Drawn(figure.name, figure.title, figure.caption, address, figure.name.startswith(ONLY)))
    return found


@contextmanager
def _saving(figures: Sequence[Figure], folder: Path) -> Iterator[Iterator[bytes]]:
    """Write the figures, side by side and beside what else is to be done where there are many; gives their SVG.

    Side by side means by processes that are forks of this one, which need not import everything again: where forking
    is not safe, figures are drawn one after the other.
    """
    workers = min(4, len(os.sched_getaffinity(0)), len(figures)) if sys.platform == "linux" else 1
    if workers < 2 or sum(len(figure.data) for figure in figures) < WORTH_FORKING:
        yield (_save(figure, folder) for figure in figures)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are at rest, and no fork asks for them
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            yield pool.map(_save, figures, [folder] * len(figures))


def _save(figure: Figure, folder: Path) -> bytes:
    """Write a figure and its rows; its SVG."""
    _write(folder / f"{figure.name}.csv", rows_as_csv(figure.data))
    return figure.save_all(folder)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: among the many small objects of many runs each look would be long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
