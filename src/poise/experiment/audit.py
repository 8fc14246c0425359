"""The leak audit: the same policy, told the exam accuracy of its trials, so that the size of the leak can be published.

A learner cannot do this: it holds no exam image. Here the runner asks the policy, has its trials run with the examiner
as witness, tells it what the examiner saw, and hands the learner the decided action. Everything it writes says `leak`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from poise.actions import Action
from poise.data import ImageSet
from poise.errors import UserError
from poise.experiment.examiner import Examiner
from poise.experiment.folder import RunFolder
from poise.experiment.run import Going, Plan, Run, runner_of
from poise.learner import Learner
from poise.policies import POLICIES, Outcome, Policy, Trial, decision_entry, make_policy, replay
from poise.training import Event, TrialDone
from poise.tuning import TrialResult, Trials


@dataclass
class Audit(Run):
    """A run whose policy is rewarded by the exam. It can be killed anywhere and resumed, like a run.

    The trials so far and what came of them are kept with the checkpoints; a policy that is told them again asks for
    what is left.
    """

    runner: ClassVar[str] = "audit"

    history: list[dict[str, Any]] = field(default_factory=list)
    _examiner: Examiner | None = None

    def __post_init__(self) -> None:
        recipe = self.plan.recipe
        if recipe.policy == "fixed":
            raise UserError("policy=fixed tries nothing, so nothing can leak; name another policy, e.g. policy=race")
        if recipe.policy not in POLICIES:
            raise UserError(f"policy={recipe.policy} is told no rewards of trials that could leak; name another policy")
        if self.plan.trial_settings().environment == "lookahead":
            raise UserError("the exam can be told only of models of the real classes; use trials.environment=local")

    def _go(self, learner: Learner, train: ImageSet, examiner: Examiner) -> Going:
        self._examiner = examiner
        return (yield from super()._go(learner, train, examiner))

    def _events(self, learner: Learner, arrived: ImageSet, next_images: int | None) -> Iterator[Event]:
        action = None
        if learner.phases_:
            action = yield from self._decided(learner, arrived)
        yield from learner.fitting(
            arrived.pixels, arrived.labels, origins=arrived.origins, action=action, next_images=next_images
        )

    def _decided(self, learner: Learner, arrived: ImageSet) -> Generator[Event, None, Action]:
        """Algorithm 1's policy learning with the exam in place of the reward."""
        phase, policy = learner.phases_, self._policy(learner)
        last = self.history[-1] if self.history else {}
        if last.get("phase") == phase and "decided" in last:  # before it was interrupted
            return learner.space.actions[int(last["decided"])]
        if policy.phase != phase:
            policy.begin(phase)
        examiner = self._examiner
        assert examiner is not None, "the run holds an examiner before it learns"
        trials = learner.trials(
            arrived.pixels,
            arrived.labels,
            witness=lambda model, means: examiner.score(model, means, trials.classes, learner),
        )
        images = examiner.counts(trials.classes)
        while asked := policy.ask():
            if not trials.possible:  # as in a run, the default stays
                return learner.space.actions[learner.space.default]
            for event, outcome in learner.backend.guarded(self._tried(learner, policy, trials, asked, images)):
                policy.tell([outcome])
                self.history.append(outcome.as_json(phase))
                yield event
        arm = policy.decide()
        self.history.append(decision_entry(phase, arm))
        return learner.space.actions[arm]

    def _policy(self, learner: Learner) -> Policy:
        recipe = self.plan.recipe
        return replay(make_policy(recipe.policy, learner.policy.setup, recipe.policy_options), self.history)

    def _tried(
        self, learner: Learner, policy: Policy, trials: Trials, asked: list[Trial], images: list[int]
    ) -> Generator[tuple[TrialDone, Outcome], None, None]:
        actions = [learner.space.actions[trial.arm] for trial in asked]
        counts = [learner.counted(action) for action in actions]
        results = trials.run_all(list(zip(asked, actions, counts, strict=True)), policy.setup.short)
        for action, classifier, result in zip(actions, counts, results, strict=True):
            outcome = _leaked(result, classifier, images)
            record = {**result.as_json(), "leak": True, "local_reward": result.outcome.reward}
            record["exam"] = {str(epoch): seen for epoch, seen in result.witnessed.items()}
            yield (
                TrialDone(
                    learner.phases_,
                    asdict(outcome.trial),
                    dict(action),
                    classifier,
                    outcome.reward,
                    outcome.diverged,
                    record,
                ),
                outcome,
            )

    def _more_state(self) -> dict[str, Any]:
        return {"history": self.history}

    def _restored(self, tensors: dict[str, Tensor], meta: dict[str, Any], train: ImageSet) -> Learner:
        self.history = list(meta["history"])
        return super()._restored(tensors, meta, train)

    def _result(self, learner: Learner) -> dict[str, Any]:
        resolved = {**self._policy(learner).resolved(), "reward": f"exam {self.plan.recipe.exam} (leak)"}
        return {**super()._result(learner), "resolved_policy": resolved, "leak": True}


def _leaked(result: TrialResult, classifier: str, images: list[int]) -> Outcome:
    """The outcome with the exam in place of the validation part: every class counts the same, as there."""
    trial = result.outcome.trial
    if result.outcome.diverged:
        return result.outcome
    hits = result.witnessed[max(result.witnessed)][classifier]
    per_class = tuple(right / count for right, count in zip(hits, images, strict=True) if count)
    return Outcome(trial, sum(per_class) / len(per_class), per_class)


def audit_folder(plan: Plan) -> Path:
    """As that of a run, with the word `leak` in it."""
    usual = plan.default_folder()
    return usual.with_name(f"{usual.name}-leak")


def runner_in(folder: RunFolder) -> type[Run]:
    """What goes on with the run in this folder."""
    return Audit if runner_of(folder) == Audit.runner else Run
