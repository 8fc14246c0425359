"""The leak audit: the same policy, told the exam accuracy of its trials, so that the size of the leak can be published.

A learner cannot do this: it holds no exam image. Here the runner hands it another reward, whose witness is the
examiner. Everything it writes says `leak`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from poise.errors import UserError
from poise.learner import Learner
from poise.policies import Outcome
from poise.runs.examiner import Examiner
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan
from poise.runs.run import Run, runner_of
from poise.tuning import Reward, TrialResult


class ExamReward(Reward):
    """The accuracy of a temporary model on the exam images: each class has the same weight, as in the local reward."""

    def __init__(self, examiner: Examiner, learner: Learner) -> None:
        self.witness = lambda model, means, classes: {
            **examiner.score(model, means, classes, learner.evaluator),
            "images": examiner.counts(classes),
        }

    def outcome(self, result: TrialResult, classifier: str) -> Outcome:
        """What the examiner saw at the end, in place of the validation part."""
        if result.outcome.diverged:
            return result.outcome
        seen = result.witnessed[max(result.witnessed)]
        shares = tuple(right / count for right, count in zip(seen[classifier], seen["images"], strict=True) if count)
        return Outcome(result.outcome.trial, sum(shares) / len(shares), shares)

    def record(self, result: TrialResult) -> dict[str, Any]:
        """The record of the trial, labelled, with the local reward that was not used."""
        exam = {
            str(epoch): {name: hits for name, hits in seen.items() if name != "images"}
            for epoch, seen in result.witnessed.items()
        }
        return {**result.as_json(), "leak": True, "local_reward": result.outcome.reward, "exam": exam}


@dataclass
class Audit(Run):
    """A run whose policy is rewarded by the exam. It can be killed anywhere and resumed, like a run."""

    runner: ClassVar[str] = "audit"

    def __post_init__(self) -> None:
        policy, settings = self.plan.recipe.policy, self.plan.settings
        if not settings.kind.tunes:
            raise UserError(
                f"policy={policy} tries nothing, so nothing can leak; name another policy, e.g. policy=race"
            )
        if not settings.kind.asks:
            raise UserError(f"policy={policy} is told no rewards of trials that could leak; name another policy")
        if settings.trials.environment == "lookahead":
            raise UserError("the exam can be told only of models of the real classes; use trials.environment=local")

    def _reward(self, learner: Learner, examiner: Examiner) -> Reward:
        return ExamReward(examiner, learner)

    def _result(self, learner: Learner) -> dict[str, Any]:
        result = super()._result(learner)
        resolved = {**result["resolved_policy"], "reward": f"exam {self.plan.recipe.exam} (leak)"}
        return {**result, "resolved_policy": resolved, "leak": True}


def audit_folder(plan: Plan) -> Path:
    """As that of a run, with the word `leak` in it."""
    usual = plan.default_folder()
    return usual.with_name(f"{usual.name}-leak")


def runner_in(folder: RunFolder) -> type[Run]:
    """What resumes the run in this folder."""
    return Audit if runner_of(folder) == Audit.runner else Run
