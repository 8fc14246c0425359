"""What people read: tables of results, of probes and of simulations."""

from poise.report.assumptions import assumptions, beginnings
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
from poise.report.tables import actions_table, comparison_table, load_result, policy_label, run_table

__all__ = [
    "FULL",
    "PROBE",
    "TRUTHS",
    "ProbeTable",
    "actions_table",
    "assumptions",
    "beginnings",
    "comparison_table",
    "load_probe",
    "load_result",
    "policy_label",
    "probe_summary",
    "run_table",
    "simulation_summary",
    "simulation_table",
]
