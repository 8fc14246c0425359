"""How the action of a phase is chosen: one call, behind which every policy and tuner stands.

`search` is the loop of Algorithm 1 and finds a tuner by its name, `trials` tries actions on `environments`, `results`
are what came of it and the history that all tuners remember, `classifier` says which classifier counts, `bilevel` and
`offline` are the tuners that are not policies.
"""

from poise.tuning.bilevel import BilevelTuner
from poise.tuning.classifier import AUTO, ClassifierRule, first_classifier, judge_before
from poise.tuning.environments import TrialInputs
from poise.tuning.offline import OfflineTuner
from poise.tuning.results import (
    CLASSIFIERS,
    Entry,
    Reward,
    TrialResult,
    decided_rewards,
    entry_as_json,
    entry_from_json,
    judged_hits,
)
from poise.tuning.search import Choice, PolicyTuner, Task, Tuner, TunerKind, tuner_kind, tuner_names
from poise.tuning.trials import Attempt, Trials

__all__ = [
    "AUTO",
    "CLASSIFIERS",
    "Attempt",
    "BilevelTuner",
    "Choice",
    "ClassifierRule",
    "Entry",
    "OfflineTuner",
    "PolicyTuner",
    "Reward",
    "Task",
    "TrialInputs",
    "TrialResult",
    "Trials",
    "Tuner",
    "TunerKind",
    "decided_rewards",
    "entry_as_json",
    "entry_from_json",
    "first_classifier",
    "judge_before",
    "judged_hits",
    "tuner_kind",
    "tuner_names",
]
