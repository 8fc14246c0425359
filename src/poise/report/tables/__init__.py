"""Tables of a report: those on the page and in files (`table`), and those printed in a terminal (`text`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poise.report.reading import RunRecord
from poise.report.tables.ablation import ablation_tables
from poise.report.tables.accuracy import accuracy_tables, all_runs_table
from poise.report.tables.costs import stored_table, time_table
from poise.report.tables.regret import Hindsight, regret_table
from poise.report.tables.table import ReportTable

__all__ = ["Hindsight", "ReportTable", "make_tables"]


def make_tables(runs: Sequence[RunRecord], hindsight: Mapping[str, Hindsight]) -> list[ReportTable]:
    """Every table that has a row, all runs first; `hindsight` is what probes say about runs, by run name."""
    tables = [all_runs_table(runs), *accuracy_tables(runs), *ablation_tables(runs)]
    tables += [time_table(runs), stored_table(runs), regret_table(runs, hindsight)]
    return [table for table in tables if table.rows]
