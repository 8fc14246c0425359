"""Tables of a report: those of the page, which are files too, and those that are printed as text."""

from poise.report.tables.ablation import ablation_tables
from poise.report.tables.accuracy import Comparison, accuracy_tables, all_runs_table, comparisons
from poise.report.tables.costs import stored_table, time_table
from poise.report.tables.regret import Hindsight, regret_table
from poise.report.tables.table import Column, ReportTable, csv_of_rows
from poise.report.tables.text import actions_table, aligned, comparison_table, rows_table, run_table

__all__ = [
    "Column",
    "Comparison",
    "Hindsight",
    "ReportTable",
    "ablation_tables",
    "accuracy_tables",
    "actions_table",
    "aligned",
    "all_runs_table",
    "comparison_table",
    "comparisons",
    "csv_of_rows",
    "regret_table",
    "rows_table",
    "run_table",
    "stored_table",
    "time_table",
]
