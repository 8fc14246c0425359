"""Studies: what looks at exams or at many runs at once, and says so in every table. Nothing here enters a reward."""

from poise.studies.assumptions import assumptions, beginnings
from poise.studies.probe_table import (
    TRUTHS,
    ProbeTable,
    load_probe,
    probe_summary,
    simulation_summary,
    simulation_table,
)
from poise.studies.reporting import gather_with_studies, judge_by_probes

__all__ = [
    "TRUTHS",
    "ProbeTable",
    "assumptions",
    "beginnings",
    "gather_with_studies",
    "judge_by_probes",
    "load_probe",
    "probe_summary",
    "simulation_summary",
    "simulation_table",
]
