"""Run folders as values, and the configurations they compare."""

from poise.report.reading.configurations import (
    Configuration,
    StreamKind,
    baselines,
    by_exam,
    configurations,
    distinguish,
    name_conditions,
    remarks,
)
from poise.report.reading.folders import (
    UnreadPath,
    check_result,
    load_result,
    read_run,
    read_runs,
    reason_for,
    run_folders_below,
    run_of_result,
)
from poise.report.reading.machines import UNKNOWN
from poise.report.reading.runs import EXPLAINED, REPEATED, UNVERIFIED, PhaseRecord, RunRecord, TrialRecord

__all__ = [
    "EXPLAINED",
    "REPEATED",
    "UNKNOWN",
    "UNVERIFIED",
    "Configuration",
    "PhaseRecord",
    "RunRecord",
    "StreamKind",
    "TrialRecord",
    "UnreadPath",
    "baselines",
    "by_exam",
    "check_result",
    "configurations",
    "distinguish",
    "load_result",
    "name_conditions",
    "read_run",
    "read_runs",
    "reason_for",
    "remarks",
    "run_folders_below",
    "run_of_result",
]
