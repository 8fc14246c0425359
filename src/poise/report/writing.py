"""A report on the disk: the page, and its tables and figures as files beside it."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from poise import store
from poise.errors import UserError, is_disk_full
from poise.report.figures import Figure, describe_figures
from poise.report.figures.print import save_all
from poise.report.page.page import Contents, make_page
from poise.report.reading import RunRecord, UnreadPath, read_runs
from poise.report.tables import Hindsight, make_tables
from poise.report.tables.table import csv_of_rows
from poise.report.tables.text import comparison_table
from poise.runfolder import PAGE
from poise.words import printable

log = logging.getLogger(__name__)
T = TypeVar("T")

#: With at least this many rows of data, figures are drawn in parallel.
WORTH_FORKING: Final = 1000


@dataclass(frozen=True)
class Report:
    """What goes into a report."""

    runs: Sequence[RunRecord]
    unread: Sequence[UnreadPath] = ()
    texts: Sequence[tuple[str, str]] = ()  # findings of studies: a heading and lines each
    hindsight: Mapping[str, Hindsight] = field(default_factory=dict)  # what probes say about runs, by run name

    @property
    def finished(self) -> bool:
        """Whether every run is finished."""
        return all(run.finished for run in self.runs)

    def text(self) -> str:
        """The report as text: finished runs, what is not finished, and what studies found."""
        done = [run for run in self.runs if run.finished]
        going = [f"{run.name}: {run.state} so far" for run in self.runs if not run.finished]
        found = [comparison_table(done) if done else "", "\n".join(going)]
        return "\n\n".join(text for text in (*found, *(text for _, text in self.texts)) if text)

    def write(
        self, out: Path, more: Sequence[Figure] = (), *, printed: bool = False, refresh: int | None = None
    ) -> Path:
        """Write the page, its tables and the numbers of its figures into a folder; returns the page.

        `more` are further figures, such as activation maps. `printed` also writes all figures as files for print, and
        `refresh` makes a browser reload the page every `refresh` seconds.
        """
        _claim(out)

        def write_page(report: Report, folder: Path = out) -> Path:
            return report._write(folder, more if folder == out else (), printed=printed, refresh=refresh)

        with _without_garbage_collection():
            report, page = self.without_failing(write_page, alone=lambda each: _try_writing(write_page, each))
        for each in report.unread[len(self.unread) :]:
            log.warning("not shown: %s %s", each.path, each.reason)
        return page

    def _write(self, out: Path, more: Sequence[Figure], *, printed: bool, refresh: int | None) -> Path:
        figures = [*describe_figures(self.runs), *more]
        with _save_figures(figures if printed else [], out / "figures"):
            tables = make_tables(self.runs, self.hindsight)
            for table in tables:
                _write(out / "tables", f"{table.name}.csv", table.csv())
                _write(out / "tables", f"{table.name}.md", table.markdown())
            for figure in figures:
                _write(out / "figures", f"{figure.name}.csv", csv_of_rows(figure.data))
            links = {run.name: _relative_address(run.path, out) for run in self.runs}
            contents = Contents(self.runs, self.unread, tables, self.texts, figures, printed, links)
            store.write_bytes(out / PAGE, make_page(contents, refresh).encode())
        return out / PAGE

    def without_failing(
        self, make: Callable[[Report], T], alone: Callable[[Report], object] | None = None
    ) -> tuple[Report, T]:
        """What `make` gives; where it fails, what it gives without the runs that it fails for, which are then unread.

        Those are found by trying each run `alone`, or one more at a time if none fails by itself.
        """
        try:
            return self, make(self)
        except Exception as error:
            if is_disk_full(error):
                raise
            left = self._leave_out(alone or make)
            if len(left.unread) == len(self.unread):
                raise
            log.debug("left out", exc_info=error)
        return left, make(left)

    def _leave_out(self, attempt: Callable[[Report], object]) -> Report:
        singly = [_find_failure(attempt, replace(self, runs=[run])) for run in self.runs]
        kept, unread = list[RunRecord](), list(self.unread)
        for run, single in zip(self.runs, singly, strict=True):
            together = replace(self, runs=[*kept, run])
            failure = single or (None if any(singly) else _find_failure(attempt, together))
            if failure is None:
                kept.append(run)
            else:
                unread.append(UnreadPath.because(run.path, failure))
        return replace(self, runs=kept, unread=unread)


def _find_failure(attempt: Callable[[Report], object], report: Report) -> Exception | None:
    try:
        attempt(report)
    except Exception as error:
        if is_disk_full(error):  # no fault of the run
            raise
        return error
    return None


def _try_writing(write: Callable[[Report, Path], Path], report: Report) -> None:
    """Write a page to see whether that works, and throw it away."""
    with tempfile.TemporaryDirectory() as folder:
        _claim(Path(folder))
        write(report, Path(folder))


def gather(paths: Sequence[Path]) -> Report:
    """The runs at these paths; paths that cannot be read are listed with the reason."""
    with _without_garbage_collection():
        return Report(*read_runs(paths))


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
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; choose a folder")
    page = out / PAGE
    if page.exists() and b'name="generator" content="poise ' not in _read_beginning(page):
        raise UserError(f"{page} is not a report of poise; choose another --out")
    try:
        for folder in (out / "tables", out / "figures"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made ({error.strerror}); choose another folder") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"--out {out} cannot be written to; choose another folder")


@contextmanager
def _save_figures(figures: Sequence[Figure], folder: Path) -> Iterator[None]:
    """Write the figures for print; where there are many, in parallel with each other and with the body of the `with`.

    The processes are forks of this one, so that they need not import everything again. Where forking is not safe,
    figures are drawn one after the other.
    """
    workers = min(4, len(os.sched_getaffinity(0)), len(figures)) if sys.platform == "linux" else 1
    if workers < 2 or sum(len(figure.data) for figure in figures) < WORTH_FORKING:
        yield
        for figure in figures:
            save_all(figure, folder)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are idle, and no fork needs them
        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            saved = pool.map(save_all, figures, [folder] * len(figures))
            yield
            list(saved)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: with the many small objects of many runs each pass would take long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read_beginning(page: Path) -> bytes:
    with page.open("rb") as file:
        return file.read(4096)


def _relative_address(path: Path, out: Path) -> str:
    """The link from a page in `out` to a path: never anything but a file's, whatever the path is called."""
    return f"./{quote(os.fsencode(os.path.relpath(path, out)))}"


def _write(folder: Path, name: str, text: str) -> None:
    if os.path.basename(name) != name:  # noqa: PTH119 - whatever a result.json says, nothing is written elsewhere
        raise UserError(f"{name!r} cannot be the name of a file in {folder}")
    store.write_bytes(folder / name, printable(text).encode(), sync=False)
