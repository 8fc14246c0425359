"""What people read: tables of results, of probes and of simulations."""

from poise.report.assumptions import assumptions, beginnings
from poise.report.cam import Subject, cam_figure, look
from poise.report.drawing import Figure, check_picture
from poise.report.figures import figures
from poise.report.probes import (
    FULL,
    PROBE,
    TRUTHS,
    ProbeTable,
    load_probe,
    probe_summary,
    simulation_summary,
    simulation_table,
)
from poise.report.runs import method_name, read_run, read_runs
from poise.report.tables import actions_table, comparison_table, load_result, policy_label, rows_table, run_table
from poise.report.writing import PAGE, Report, gather, watch

__all__ = [
    "FULL",
    "PAGE",
    "PROBE",
    "TRUTHS",
    "Figure",
    "ProbeTable",
    "Report",
    "Subject",
    "actions_table",
    "assumptions",
    "beginnings",
    "cam_figure",
    "check_picture",
    "comparison_table",
    "figures",
    "gather",
    "load_probe",
    "load_result",
    "look",
    "method_name",
    "policy_label",
    "probe_summary",
    "read_run",
    "read_runs",
    "rows_table",
    "run_table",
    "simulation_summary",
    "simulation_table",
    "watch",
]
