"""`fc`, `ncm` or `auto`: which classifier counts, and how it is judged where an action leaves it open.

In the trials themselves a classifier is given. What `auto` becomes is decided by hits on images that the judged models
were not trained on: those of a reserve, or of a training on a local environment.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass

from poise.actions import Action
from poise.policies import Trial
from poise.training.events import Event, Progress, TrialDone
from poise.tuning.results import Judged, decided_trials
from poise.tuning.search import Task
from poise.tuning.trials import Attempt

AUTO = "auto"


def first_classifier(action: Action) -> str:
    """The classifier that counts after the first phase."""
    return "fc" if action.classifier == AUTO else action.classifier


@dataclass(frozen=True)
class ClassifierRule:
    """Which classifier counts: the method's `own`, the one `in_force` when a phase begins, and what a phase changes."""

    own: str
    in_force: str
    phases: int

    def classifier_for(self, action: Action) -> str:
        """The classifier whose hits are the reward of an action: its own; where that is `auto`, the one in force."""
        if action.classifier != AUTO:
            return action.classifier
        return self.in_force if self.phases > 1 or self.own == AUTO else self.own

    def classifier_after(self, action: Action, hits: Mapping[str, int]) -> str:
        """The classifier after this phase: FC in the first one, then the one with more hits where it was judged.

        With as many hits, or none, the method's own classifier counts; where that is `auto` too, the one in force.
        """
        if action.classifier != AUTO or self.phases == 0:
            return first_classifier(action)
        if hits["fc"] == hits["ncm"]:
            return self.own if self.own != AUTO else self.in_force
        return max(hits, key=lambda name: hits[name])


def judge_before(task: Task, action: Action) -> Generator[Event, None, None]:
    """Count hits of both classifiers before a training whose action leaves it open, as `trials.classifier` says.

    `full`: of a model trained with the decided action at full length on a local training part, perhaps a finalist of
    the policy. `trials`: of the decided action's trials, where there were any. With a reserve, its images judge, after
    the training.
    """
    if task.phase == 0 or any(isinstance(entry, Judged) for entry in task.history):
        return
    trials, inputs = task.trials, task.trials.inputs
    if len(inputs.reserve) or len(inputs.memory.reserve) or not trials.possible:
        return
    decided = next(decided_trials(task.history), None)
    if decided is not None and (decided.outcome.trial.full or inputs.settings.classifier == "trials"):
        task.history.append(Judged(task.phase, decided.hits))
    elif inputs.settings.classifier == "full":
        trial, before = Trial(0, arm=-1, epochs=inputs.planned, full=True), trials.trained  # which continues none
        for results in trials.run([Attempt(trial, action, "fc")]):
            for result in results:
                task.history.append(Judged(task.phase, result.totals()))
                tried = {**asdict(trial), "purpose": "classifier"}, dict(action), "fc"
                reward, diverged = result.outcome.reward, result.outcome.diverged
                yield TrialDone(task.phase, *tried, reward, diverged, result.as_json())
            if not results:
                yield Progress(task.phase, "classifiers", trials.trained - before, 0, "judging the classifiers")
