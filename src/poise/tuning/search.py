"""The policy learning of Algorithm 1: ask a policy for trials, try them, tell it their rewards, let it decide.

`PolicyTuner.choose` is the loop. A tuner is what chooses the action of a phase: every policy, and what is none
(`fixed`, `bilevel`, `offline-rl`), each by the word that `policy` names it with.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Final

from pydantic import Field, Strict

from poise.actions import Action, Grids
from poise.errors import Damaged, UserError, suggestion
from poise.policies import (
    POLICIES,
    UNTUNED,
    Decided,
    Planned,
    Policy,
    Setup,
    Tried,
    make_policy,
    plan_trials,
    replay,
    resolved_options,
)
from poise.policies.base import MOST_TRIALS
from poise.settings import TrialSettings
from poise.training.events import Event, Progress, TrialDone, TuningDone
from poise.tuning.results import Entry, Episode, History, HyperStep, Reward
from poise.tuning.trials import Attempt, Trials

log = logging.getLogger(__name__)

LEAST_CLASSES: Final = 4  # of a first phase that is learned on before it is trained

Options = Mapping[str, Any]
Few = Annotated[int, Strict(), Field(ge=1, le=MOST_TRIALS)]  # an option that counts rounds, steps, episodes


@dataclass(frozen=True)
class Task:
    """A phase whose action is to be chosen.

    Attributes:
        make_trials: makes this phase's trials; called at most once, when something is first tried.
        classifier_for: the classifier that is rewarded with an action.
        past: what happened in earlier phases.
        history: what happened in this one so far; a tuner continues it, so that it can be resumed.
        reward: what a policy is told of a trial.
    """

    phase: int
    make_trials: Callable[[], Trials]
    classifier_for: Callable[[Action], str]
    past: History
    history: list[Entry] = field(default_factory=list)
    reward: Reward = field(default_factory=Reward)

    @cached_property
    def trials(self) -> Trials:
        """Tries actions on what may be trained on."""
        return self.make_trials()

    def release(self) -> None:
        """Give back the memory of trials, if there were any."""
        if "trials" in vars(self):
            self.trials.release()


@dataclass(frozen=True)
class Choice:
    """The chosen action, and the policy's distribution over the space when it was chosen, if it has one."""

    action: Action
    distribution: list[float] | None = None


class Tuner:
    """Chooses the action of each phase after the first: here always the default, the method's own or the user's.

    It has no state but the history it is handed.
    """

    def __init__(self, kind: TunerKind, setup: Setup, options: Options) -> None:
        self.kind, self.setup, self.options, self.space = kind, setup, options, setup.space
        self.default = self.space.actions[self.space.default]  # the action where nothing is chosen

    def accept(self, task: Task, action: Action) -> Generator[Event, None, Choice]:
        """An action that is given: the first phase's own, or the caller's. Most tuners have nothing to do then."""
        yield from ()
        return Choice(action)

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """The action of this phase, from where its history ends."""
        yield from ()
        return Choice(self.default)

    def plan(self, phase: int) -> Planned:
        """The expected number of trials of this phase, and their cost."""
        return Planned()

    def note(self, task: Task, steps: Iterable[HyperStep | Episode | Progress]) -> Iterator[Event]:
        """Remember and tell every step of a tuner that is no policy."""
        for step in steps:
            if isinstance(step, Progress):
                yield step
            else:
                task.history.append(step)
                yield TuningDone(task.phase, self.kind.name, step.as_json())

    def refuse_foreign(self, history: History) -> None:
        """Refuse a history that this tuner cannot have made."""

    def describe(self) -> dict[str, Any]:
        """Its name and options, for the record; the action, where it is always the same."""
        found = {"name": self.kind.name, **self.options}
        return found if self.kind.tunes else {**found, "action": dict(self.default)}


class PolicyTuner(Tuner):
    """Algorithm 1's policy learning, with any policy."""

    def __init__(self, kind: TunerKind, setup: Setup, options: Options) -> None:
        super().__init__(kind, setup, options)
        self.policy_after(())  # which refuses options that no policy can be made with

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """Ask for trials, try them, tell their rewards, until the policy has enough; then let it decide.

        Where nothing can be held out to validate on, the default stays.
        """
        policy, actions = self.policy_after([*task.past, *task.history]), self.space.actions
        if policy.phase != task.phase:  # else it was replayed into the middle of this phase
            policy.begin(task.phase)
        if policy.epochs:  # trained before the run was killed; counted for those who watch
            task.trials.trained = round(task.trials.images_an_epoch * policy.epochs)
        planned = self.plan(task.phase).trials
        while asked := policy.ask():
            trials = task.trials
            if not trials.possible:
                log.warning("phase %d has nothing to validate on; its action is not tuned", task.phase)
                return Choice(self.default)
            chances = _distribution(policy)
            left = deque(Attempt(trial, actions[trial.arm], task.classifier_for(actions[trial.arm])) for trial in asked)
            for results in trials.run([*left]):
                for result in results:  # in the order of asking, wherever they were made
                    attempt = left.popleft()
                    outcome, record = task.reward.told(result, attempt.classifier)
                    policy.tell([outcome])
                    task.history.append(Tried(task.phase, outcome, result.totals()))
                    tried = asdict(attempt.trial), dict(attempt.action), attempt.classifier
                    yield TrialDone(task.phase, *tried, outcome.reward, outcome.diverged, record, chances)
                if not results:
                    yield Progress(task.phase, "trials", trials.trained, 0, self._describe(left[0], planned))
        decided = Decided(task.phase, policy.decide_checked())
        if decided not in task.history:  # else the run was killed after it
            task.history.append(decided)
        return Choice(actions[decided.arm], _distribution(policy))

    def policy_after(self, history: History) -> Policy:
        """A policy that knows what this history says, and no more."""
        told = [entry for entry in history if isinstance(entry, Tried | Decided)]
        return replay(make_policy(self.kind.name, self.setup, self.options), told)

    def plan(self, phase: int) -> Planned:
        """The trials that the policy asks for where all but the default action are equally good."""
        return plan_trials(self.policy_after(()), phase)

    def _describe(self, attempt: Attempt, planned: int) -> str:
        """A few words on the attempt under way."""
        number = attempt.trial.id + 1
        changes = {axis: value for axis, value in attempt.action.items() if self.default.get(axis) != value}
        return f"trial {number} of {max(planned, number)}: {Action(**changes) if changes else 'the default action'}"

    def refuse_foreign(self, history: History) -> None:
        """Refuse trials that this policy would not have asked for."""
        try:
            self.policy_after(history)
        except Damaged as error:
            raise Damaged(
                f"policy {self.kind.name} does not repeat itself: {error}. The file is damaged, or a policy of your "
                "own does not decide the same from the same rewards: restore its code, and let it draw from setup.seed"
            ) from error


def _distribution(policy: Policy) -> list[float] | None:
    found = policy.distribution()
    return found.tolist() if found is not None else None


# Tuners by their names ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunerKind:
    """The facts about a tuner that its name stands for, before one is made.

    Attributes:
        make: a tuner of this kind, from its setup and its resolved options.
        resolve: all options, those that are not given by their defaults; refuses unknown ones.
        space: the actions it chooses from if the user names none; None: it moves freely, and the user can name none.
        trials: how actions are tried, where that differs from the usual.
        tunes: whether it chooses anything.
        asks: whether it is a policy, which is told rewards of trials.
        before_phase_0: whether it learns before the first phase, on its classes, and so cannot start after it.
        needs_old_images: whether it has nothing to validate on where no image is kept.
    """

    name: str
    make: Callable[[TunerKind, Setup, Options], Tuner]
    resolve: Callable[[Options], dict[str, Any]]
    space: str | None = "paper"
    trials: Options = field(default_factory=dict)
    tunes: bool = True
    asks: bool = False
    before_phase_0: bool = False
    needs_old_images: bool = False

    def own_space(self, space: str | Grids | None, tune: object) -> str | Grids:
        """The space as given, else the one that this kind brings along."""
        if self.space is not None:
            return self.space if space is None else space
        if space or tune is not None:
            raise UserError(f"policy={self.name} moves weights and learning rate freely; leave space and tune out")
        return {}

    def trial_settings(self, given: TrialSettings) -> TrialSettings:
        """How actions are tried: as given, else as this kind brings along, else by default."""
        return TrialSettings(**{**dict(given), **self.trials, **given.said()})

    def check_first_phase(self, classes: int) -> None:
        """Refuse a first phase of too few classes to be learned on: two that are known and two that arrive."""
        if classes < LEAST_CLASSES:
            raise UserError(
                f"{self.name} learns on pseudo tasks made of the first phase, which needs at least {LEAST_CLASSES} "
                f"classes of two images or more and has {classes}; use another policy or a larger first phase"
            )


def _no_options(given: Options) -> dict[str, Any]:
    if given:
        raise UserError(f"policy {UNTUNED} chooses nothing; leave {', '.join(given)} out, or name another policy")
    return {}


#: The tuners that are not policies, by their names; the modules that make others add them.
OTHERS: Final = {UNTUNED: TunerKind(UNTUNED, Tuner, _no_options, tunes=False)}


def tuner_names() -> list[str]:
    """Every word that `policy` can be."""
    return [*POLICIES, *OTHERS]


def tuner_kind(name: str) -> TunerKind:
    """The kind of the tuner of that name."""
    if name in OTHERS:
        return OTHERS[name]
    if name not in POLICIES:
        raise UserError(f"unknown policy '{name}'; {suggestion(name, tuner_names())}")
    preset, resolve = POLICIES[name], partial(resolved_options, name)
    return TunerKind(name, PolicyTuner, resolve, preset.space, preset.trials, asks=True)
