"""Runners that look at exams, and say so in every table: probes, cross-validation, the leak audit."""

from poise.studies.audit import Audit, audit_folder, runner_in
from poise.studies.crossval import crossval_folder, run_crossval
from poise.studies.probe import Probe, Question, reach, reopened

__all__ = [
    "Audit",
    "Probe",
    "Question",
    "audit_folder",
    "crossval_folder",
    "reach",
    "reopened",
    "run_crossval",
    "runner_in",
]
