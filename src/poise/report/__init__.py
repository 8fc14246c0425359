"""Reports on runs: run folders as values, tables beside the paper's figures, plots, and the page.

`reading` turns run folders into values; `tables` and `figures` are made from those; `page` and `writing` put them on
disk. Each figure is described once (`figures.description`) and rendered for the page and for print.
"""

from poise.report.digests import add_digests
from poise.report.figures import Figure, describe_figures
from poise.report.figures.activation_maps import Subject, cam_figure, look
from poise.report.figures.print import check_picture
from poise.report.reading import RunRecord, UnreadPath, load_result, read_run, reason_for, run_of_result
from poise.report.tables import Hindsight
from poise.report.tables.text import actions_table, align_columns, comparison_table, rows_table, run_table
from poise.report.writing import Report, gather, watch

__all__ = [
    "Figure",
    "Hindsight",
    "Report",
    "RunRecord",
    "Subject",
    "UnreadPath",
    "actions_table",
    "add_digests",
    "align_columns",
    "cam_figure",
    "check_picture",
    "comparison_table",
    "describe_figures",
    "gather",
    "load_result",
    "look",
    "read_run",
    "reason_for",
    "rows_table",
    "run_of_result",
    "run_table",
    "watch",
]
