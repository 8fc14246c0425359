"""Policies as tuners: ask, try, tell; then decide. The only place where that is done with real trials."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from poise.actions import Action
from poise.errors import Damaged, UserError
from poise.policies import (
    Decided,
    Planned,
    Policy,
    Setup,
    Tried,
    is_shipped,
    make_policy,
    new_epochs,
    plan_trials,
    replay,
)
from poise.training import Event
from poise.tuning.attempt import Attempt
from poise.tuning.base import Choice, Options, Task, Tuner, TunerKind
from poise.tuning.history import History, TriedWithHits, told_to_policy
from poise.tuning.rewards import TrialResult

log = logging.getLogger(__name__)


class PolicyTuner(Tuner):
    """Algorithm 1's policy learning."""

    def __init__(self, kind: TunerKind, setup: Setup, options: Options) -> None:
        super().__init__(kind, setup, options)
        self._plans: dict[int, Planned] = {}
        self.policy_after(())  # which refuses options that no policy can be made with

    def policy_after(self, history: History) -> Policy:
        """A policy that knows what this history says, and no more."""
        return replay(make_policy(self.kind.name, self.setup, self.options), told_to_policy(history))

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """Ask for trials, run them, tell their rewards, until the policy has enough; then let it decide.

        Where nothing can be held out to validate on, the default stays.
        """
        policy = replay(self.policy_after(task.past), told_to_policy(task.history))
        if not any(isinstance(entry, Decided) for entry in task.history):
            if policy.phase != task.phase:  # else it was replayed into the middle of this phase
                policy.begin(task.phase)
            while policy.ask():
                if not task.trials.possible:
                    log.warning("phase %d has nothing to validate on; its action is not tuned", task.phase)
                    return Choice(self.default, _chances(self.policy_after(task.past)))
                yield from self._try(task, policy)
            task.history.append(Decided(task.phase, policy.decide_checked()))
        return Choice(self.space.actions[policy.decide_checked()], _chances(policy))

    def _try(self, task: Task, policy: Policy) -> Generator[Event, None, None]:
        """Run what the policy asks for, and tell it what came of each."""
        chances, actions = _chances(policy), self.space.actions
        attempts = [
            Attempt(trial, actions[trial.arm], task.classifier_for(actions[trial.arm])) for trial in policy.ask()
        ]
        done = [entry.outcome.trial for entry in task.history if isinstance(entry, Tried)]
        most = max(self.plan(task.phase).trials, len(done) + len(attempts))
        words = [
            f"trial {number} of {most}: {_differences(attempt.action, self.default)}"
            for number, attempt in enumerate(attempts, len(done) + 1)
        ]

        def tell(attempt: Attempt, result: TrialResult) -> Event:
            outcome = task.reward.outcome(result, attempt.classifier)
            policy.tell([outcome])
            judges = attempt.trial.full or task.trials.inputs.settings.classifier == "trials"
            entry = TriedWithHits(task.phase, outcome, result.totals()) if judges else Tried(task.phase, outcome)
            task.history.append(entry)
            return attempt.event(task.phase, outcome, task.reward.record(result), distribution=chances)

        before = task.trials.images_an_epoch * sum(new_epochs(done).values())
        yield from task.run(attempts, tell, "trials", words, before)

    def plan(self, phase: int) -> Planned:
        """What the policy asks for where all but the default action are equally good."""
        if phase < 1:
            return Planned()
        if phase not in self._plans:
            self._plans[phase] = plan_trials(self.policy_after(()), phase)
        return self._plans[phase]

    def refuse_foreign(self, history: History) -> None:
        """Refuse trials that this policy would not have asked for.

        A policy of one's own is more often at fault than the file.
        """
        try:
            self.policy_after(history)
        except Damaged as error:
            if is_shipped(self.kind.name):
                raise
            raise UserError(
                f"policy {self.kind.name} does not repeat itself: {error}; a resume needs a policy that proposes and "
                "decides the same from the same rewards: restore its code, or draw from setup.seed and start again"
            ) from error

    def describe(self) -> dict[str, Any]:
        """What the policy turned out to be."""
        return self.policy_after(()).resolved()


def _differences(action: Action, default: Action) -> str:
    """In what the action differs from the default, in words."""
    found = {axis: value for axis, value in action.items() if axis not in default or default[axis] != value}
    return str(Action(**found)) if found else "the default action"


def _chances(policy: Policy) -> list[float] | None:
    found = policy.distribution()
    return found.tolist() if found is not None else None
