"""`fc`, `ncm` or `auto`: which classifier counts, and how it is judged where an action leaves it open.

In the trials themselves a classifier is given. What `auto` becomes is decided by hits on images that the judged models
were not trained on: those of a reserve, or of a training on a local environment.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from poise.actions import Action
from poise.policies import Trial
from poise.settings import TrialSettings
from poise.training import Event, Progress
from poise.tuning.environments import TrialInputs
from poise.tuning.results import CLASSIFIERS, Hits, Judged, decided_totals
from poise.tuning.search import Task
from poise.tuning.trials import Attempt

AUTO = "auto"
#: Of a trial that no policy asked for, and that continues none: from here downwards.
NO_ARM = -1


def first_classifier(action: Action) -> str:
    """The classifier that counts after the first phase."""
    return "fc" if action.classifier == AUTO else action.classifier


@dataclass(frozen=True)
class ClassifierRule:
    """What is known about classifiers when a phase begins.

    Attributes:
        own: the method's own classifier.
        in_force: the one that counts at present.
        phases: how many phases were learned.
        hits: of each classifier in all judgements so far.
    """

    own: str
    in_force: str
    phases: int
    hits: Hits

    def classifier_for(self, action: Action) -> str:
        """The classifier whose hits are the reward of an action: its own; where that is `auto`, the one in force."""
        if action.classifier != AUTO:
            return action.classifier
        return self.in_force if self.phases > 1 or self.own == AUTO else self.own

    def classifier_after(self, action: Action, hits: Mapping[str, int]) -> str:
        """What `auto` becomes after this phase: FC in the first one, then the one with more hits where it was judged.

        With as many hits, or none, the method's own classifier counts; where that is `auto` too, the one in force.
        """
        if action.classifier != AUTO or self.phases == 0:
            return first_classifier(action)
        if hits["fc"] == hits["ncm"]:
            return self.own if self.own != AUTO else self.in_force
        return max(hits, key=lambda name: hits[name])


def judge_before(task: Task, rule: ClassifierRule, action: Action) -> Generator[Event, None, None]:
    """Count hits of both classifiers before the training, as `trials.classifier` says, where the action leaves it open.

    `full`: of a model trained with the decided action at full length on a local training part, perhaps a finalist of
    the policy. `trials`: of the decided action's trials, where there were any. `paper`: in the first tuned phase only,
    of a short training that suits FC and of one that suits NCM. With a reserve, its images judge, after the training.
    """
    if task.phase == 0 or action.classifier != AUTO:
        return
    trials, inputs = task.trials, task.trials.inputs
    if len(inputs.reserve) or len(inputs.memory.reserve) or not trials.possible:
        return
    done, judge = sum(isinstance(entry, Judged) for entry in task.history), inputs.settings.classifier
    attempts = list[Attempt]()
    if judge == "paper":
        attempts = _paper_attempts(inputs, action) if not any(rule.hits.values()) else []
    elif (totals := decided_totals(task.history)) is not None:
        if not done:
            task.history.append(Judged(task.phase, totals))
    elif judge == "full":
        attempts = [Attempt(Trial(0, NO_ARM, inputs.planned_epochs, full=True), action, "fc")]
    for attempt in attempts[done:]:
        before = trials.trained
        for results in trials.run([attempt]):
            for result in results:
                hits = result.totals()
                if judge == "paper":
                    hits = {name: count if name == attempt.classifier else 0 for name, count in hits.items()}
                task.history.append(Judged(task.phase, hits))
                yield attempt.event(task.phase, result.outcome, result.as_json(), purpose="classifier")
            if not results:
                yield Progress(task.phase, "classifiers", trials.trained - before, 0, "judging the classifiers")


def judging_epochs(settings: TrialSettings, action: Action, phase: int, full: int) -> int:
    """About how many epochs judging the classifiers takes in a phase of so many without a reserve."""
    if phase < 1 or action.classifier != AUTO:
        return 0
    if settings.classifier == "full":
        return full
    return len(CLASSIFIERS) * settings.short(full) if settings.classifier == "paper" and phase == 1 else 0


def _paper_attempts(inputs: TrialInputs, action: Action) -> list[Attempt]:
    """The released code's two candidates: FC with feature distillation, NCM with logit distillation."""
    suited = {
        "fc": {"feature_kd": 1.0, "logit_kd": 0.0, "margin": 1.0},
        "ncm": {"feature_kd": 0.0, "logit_kd": 1.0, "margin": 0.0},
    }
    short = inputs.settings.short(inputs.planned_epochs)
    return [
        Attempt(
            Trial(number, NO_ARM - number, short),
            action.replace(**{axis: value for axis, value in suited[name].items() if axis in action}),
            name,
        )
        for number, name in enumerate(CLASSIFIERS)
    ]
