"""Run folders as values, and the configurations they compare."""

from poise.report.reading.configurations import (
    Configuration,
    StreamKind,
    baselines,
    by_exam,
    configurations,
    flat_keys,
    remarks,
)
from poise.report.reading.folders import UnreadPath, load_result, read_run, read_runs, reason_for, run_of_result
from poise.report.reading.runs import LABELS, MORE_HELD, UNVERIFIED, PhaseRecord, RunRecord, TrialRecord

__all__ = [
    "LABELS",
    "MORE_HELD",
    "UNVERIFIED",
    "Configuration",
    "PhaseRecord",
    "RunRecord",
    "StreamKind",
    "TrialRecord",
    "UnreadPath",
    "baselines",
    "by_exam",
    "configurations",
    "flat_keys",
    "load_result",
    "read_run",
    "read_runs",
    "reason_for",
    "remarks",
    "run_of_result",
]
