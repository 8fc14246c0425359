"""How the action of a phase is chosen: one call, behind which every policy and tuner stands.

`base` is the call, `catalog` finds a tuner by its name, `policy` asks, tries, tells and decides, `bilevel` and
`offline` are the tuners that are not policies, `history` is what all of them remember, `classifier` says which
classifier counts, `attempt`, `trials`, `environment` and `rewards` are how an action is tried.
"""

from poise.policies import DEFAULT_POLICY, UNTUNED, Setup
from poise.settings import TrialSettings
from poise.tuning.attempt import Attempt, TrialInputs
from poise.tuning.base import Choice, Task, Tuner, TunerKind
from poise.tuning.catalog import tuner_kind, tuner_names
from poise.tuning.classifier import ClassifierRule, first_classifier, judge_before, judging_epochs
from poise.tuning.history import (
    CLASSIFIERS,
    Entry,
    History,
    decided_rewards,
    entry_as_json,
    entry_from_json,
    judged_hits,
)
from poise.tuning.policy import PolicyTuner
from poise.tuning.rewards import Reward, TrialResult, Witness
from poise.tuning.splits import is_possible
from poise.tuning.trials import Trials

__all__ = [
    "CLASSIFIERS",
    "DEFAULT_POLICY",
    "UNTUNED",
    "Attempt",
    "Choice",
    "ClassifierRule",
    "Entry",
    "History",
    "PolicyTuner",
    "Reward",
    "Setup",
    "Task",
    "TrialInputs",
    "TrialResult",
    "TrialSettings",
    "Trials",
    "Tuner",
    "TunerKind",
    "Witness",
    "decided_rewards",
    "entry_as_json",
    "entry_from_json",
    "first_classifier",
    "is_possible",
    "judge_before",
    "judged_hits",
    "judging_epochs",
    "tuner_kind",
    "tuner_names",
]
