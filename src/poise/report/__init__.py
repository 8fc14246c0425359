"""Reports on runs: what is compared (`study`), tables, figures, and the page with all of them.

A `Study` is made once of the runs at some paths, and every table and figure is made of it. Nothing here knows of the
paper's printed figures: those are in `paper/`.
"""

from poise.report.activation_maps import activation_maps, look, report_maps
from poise.report.draw import Figure, check_picture
from poise.report.figures import make_figures
from poise.report.study import Study
from poise.report.text import actions_table, align_columns, comparison_table, rows_table, run_table
from poise.report.writing import Report, gather, watch

__all__ = [
    "Figure",
    "Report",
    "Study",
    "actions_table",
    "activation_maps",
    "align_columns",
    "check_picture",
    "comparison_table",
    "gather",
    "look",
    "make_figures",
    "report_maps",
    "rows_table",
    "run_table",
    "watch",
]
