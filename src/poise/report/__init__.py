"""What people read: tables of results."""

from poise.report.tables import comparison_table, load_result, run_table

__all__ = ["comparison_table", "load_result", "run_table"]
