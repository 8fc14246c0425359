"""Studies: what looks at exams or at many runs at once, and says so in every table. Nothing here enters a reward.

But for one: the leak audit, whose reward is the exam. Everything it writes is labelled so.
"""

from poise.studies.audit import Audit, audit_folder, runner_in
from poise.studies.crossval import crossval_folder, run_crossval
from poise.studies.probe import Probe, Question, reach, reopen_for_probe
from poise.studies.probe_table import (
    ProbeTable,
    load_probe,
    probe_summary,
    simulation_summary,
    simulation_table,
)
from poise.studies.reporting import gather_with_studies, judge_by_probes

__all__ = [
    "Audit",
    "Probe",
    "ProbeTable",
    "Question",
    "audit_folder",
    "crossval_folder",
    "gather_with_studies",
    "judge_by_probes",
    "load_probe",
    "probe_summary",
    "reach",
    "reopen_for_probe",
    "run_crossval",
    "runner_in",
    "simulation_summary",
    "simulation_table",
]
