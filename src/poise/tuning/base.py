"""What chooses the action of a phase: tuners behind one call, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from poise.actions import Action
from poise.errors import UserError, suggestion
from poise.policies import Planned, Setup
from poise.settings import TrialSettings
from poise.spaces import ActionSpace, Grids
from poise.training import Event, Progress
from poise.tuning.attempt import Attempt
from poise.tuning.history import Entry, History
from poise.tuning.rewards import Reward, TrialResult
from poise.tuning.trials import Trials

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """A phase whose action is to be chosen.

    Attributes:
        trials: tries actions on what may be trained on; its inputs say what that is.
        classifier_for: the classifier that is rewarded with an action.
        past: what happened in earlier phases.
        history: what happened in this one so far; a tuner continues it, so that it can be resumed.
        reward: what a policy is told of a trial.
    """

    trials: Trials
    classifier_for: Callable[[Action], str]
    past: History
    history: list[Entry] = field(default_factory=list)
    reward: Reward = field(default_factory=Reward)

    @property
    def phase(self) -> int:
        """The number of the phase."""
        return self.trials.inputs.situation.phase

    def run(
        self,
        attempts: Sequence[Attempt],
        told: Callable[[Attempt, TrialResult], Event],
        what: str,
        words: Sequence[str],
        before: float = 0.0,
    ) -> Iterator[Event]:
        """Run attempts: the events that `told` makes of their results, and on the way how far they have come.

        `words` say what each of them is; `before` are the images that this part of the phase was trained on already.
        """
        finished, begun = 0, self.trials.trained - round(before)
        for results in self.trials.running(attempts):
            for result in results:
                finished += 1
                yield told(attempts[finished - 1], result)
            if not results:
                yield Progress(self.phase, what, self.trials.trained - begun, 0, words[finished])


@dataclass(frozen=True)
class Choice:
    """The chosen action, and the policy's distribution over the space when it was chosen, if it has one."""

    action: Action
    distribution: list[float] | None = None


class Tuner(ABC):
    """Chooses the action of each phase after the first. It has no state but the history it is handed."""

    def __init__(self, kind: TunerKind, setup: Setup, options: Options) -> None:
        self.kind, self.setup, self.options = kind, setup, options

    @property
    def space(self) -> ActionSpace:
        """The actions it chooses from."""
        return self.setup.space

    @property
    def default(self) -> Action:
        """The action where nothing is chosen."""
        return self.space.actions[self.space.default]

    def prepare(self, task: Task, first: Action) -> Generator[Event, None, None]:
        """Before the first phase is trained with its action: most tuners have nothing to do then."""
        yield from ()

    @abstractmethod
    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """The action of this phase, from where its history ends."""

    def plan(self, phase: int) -> Planned:
        """About how many trials this phase will see, and what they cost."""
        return Planned()

    def refuse_foreign(self, history: History) -> None:  # noqa: B027 - most tuners ask nothing of a history
        """Refuse a history that this tuner cannot have made."""

    @property
    def has_choice(self) -> bool:
        """Whether there is anything to choose among: more than one action."""
        return len(self.space) > 1

    def describe(self) -> dict[str, Any]:
        """Its name and options, for the record."""
        return {"name": self.kind.name, **self.options}


@dataclass(frozen=True)
class TunerKind:
    """What is known of a tuner by its name, before one is made.

    Attributes:
        make: a tuner of this kind, from its setup and its resolved options.
        resolve: all options, those that are not given by their defaults; refuses unknown ones.
        space: the actions it chooses from if the user names none; None: it moves freely, and the user can name none.
        trials: how actions are tried, where that differs from the usual.
        tunes: whether it chooses anything.
        asks: whether it is a policy, which is told rewards of trials.
        least_classes: in the first phase.
        before_phase_0: whether it learns before the first phase, and so cannot start after it.
        needs_old_images: whether it has nothing to validate on where no image is kept.
    """

    name: str
    make: Callable[[TunerKind, Setup, Options], Tuner]
    resolve: Callable[[Options], dict[str, Any]]
    space: str | None = "paper"
    trials: Options = field(default_factory=dict)
    tunes: bool = True
    asks: bool = False
    least_classes: int = 1
    before_phase_0: bool = False
    needs_old_images: bool = False

    def own_space(self, space: str | Grids | None, tune: object) -> str | Grids:
        """The space as given, else the one that this kind brings along."""
        if self.space is not None:
            return self.space if space is None else space
        if space or tune is not None:
            raise UserError(f"policy={self.name} moves weights and learning rate freely; leave space and tune out")
        return {}

    def trial_settings(self, given: Options) -> TrialSettings:
        """How actions are tried: as given, else as this kind brings along, else by default."""
        return TrialSettings(**{**self.trials, **given}).whole()

    def check_first_phase(self, classes: int) -> None:
        """Refuse a first phase of too few classes."""
        if classes < self.least_classes:
            raise UserError(
                f"{self.name} learns on pseudo tasks made of the first phase, which needs at least "
                f"{self.least_classes} classes of two images or more and has {classes}; "
                "use another policy or a larger first phase"
            )


def resolve_options(name: str, kind: type[Any], given: Options) -> dict[str, Any]:
    """All options of a tuner that describes them as a dataclass, checked, and filled up with their defaults."""
    known = [each.name for each in fields(kind)]
    for key in given:
        if key not in known:
            raise UserError(f"policy {name} has no option '{key}'; {suggestion(key, known)}")
    return asdict(kind(**given))
