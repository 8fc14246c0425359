"""The tuner `offline-rl` (Table 3, row 6): a policy learned before the run, on pseudo tasks made of the first phase.

As in RMM, the first phase's classes are played through as pseudo streams: some classes first, the others phase by
phase, with actions drawn from a policy that REINFORCE improves after every stream. In the run itself it is applied
unchanged. It saves the trials of every phase and pays with two assumptions: that the first phase is like the later
ones, and that what is learned on few classes holds for many.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from poise import draws
from poise.actions import Action, ActionSpace
from poise.data import ImageSet, Memory, on_arrival, per_class
from poise.errors import Damaged, Diverged, UserError, check_number, check_whole
from poise.methods import Growth
from poise.nets import Model
from poise.policies.reinforce import FEATURES, Reinforce, state_of
from poise.training.evaluate import class_means, guesses, herded
from poise.training.lanes import Leg
from poise.training.situation import PhaseStart, ceiling
from poise.tuning.environment import others, relabelled

LEAST_CLASSES: Final = 4  # two that are known and two that arrive

_SHARE: Final = 10  # one image in so many of each class validates and is never trained on

Experienced = tuple[tuple[float, ...], int, float]  # the state of a pseudo phase, the arm taken, the reward


@dataclass(frozen=True)
class OfflineOptions:
    """How much is spent before the run.

    Attributes:
        episodes: pseudo streams that are played.
        phases: pseudo phases after the first, at most; fewer where the classes do not suffice.
        rate: the step of REINFORCE.
        length: of a pseudo phase after the first, as a share of the epochs of a real one; at least one epoch.
    """

    episodes: int = 20
    phases: int = 3
    rate: float = 0.2
    length: float = 0.1

    def __post_init__(self) -> None:
        check_whole("offline-rl episodes", self.episodes, 1)
        check_whole("offline-rl phases", self.phases, 1)
        check_number("offline-rl rate", self.rate, positive=True)
        check_number("offline-rl length", self.length, positive=True)
        if self.length > 1:
            raise UserError(f"offline-rl length={self.length} must be a share of a phase's epochs, at most 1")


@dataclass(frozen=True)
class Episode:
    """One pseudo stream: the phases after its first, in order. The last of them has reward 0 if it diverged.

    An episode without steps taught nothing: its first pseudo phase diverged already.
    """

    number: int
    steps: tuple[Experienced, ...]

    def as_json(self) -> dict[str, Any]:
        """The episode as plain values."""
        return {"number": self.number, "steps": [[list(state), arm, reward] for state, arm, reward in self.steps]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The episode that `as_json` wrote, to the last bit."""
        return cls(value["number"], tuple((tuple(state), arm, reward) for state, arm, reward in value["steps"]))


def check_classes(count: int) -> None:
    """Refuse a first phase of too few classes to make pseudo tasks of."""
    if count < LEAST_CLASSES:
        raise UserError(
            f"offline-rl learns on pseudo tasks made of the first phase, which needs at least {LEAST_CLASSES} classes "
            f"of two images or more and has {count}; use another policy or a larger first phase"
        )


def episodes(
    start: PhaseStart,
    images: ImageSet,
    quota: int,
    space: ActionSpace,
    options: OfflineOptions,
    done: Sequence[Episode],
    first: Action | None = None,
    rho: float = 0.0,
) -> Iterator[Episode]:
    """Play the episodes after those already done, so that a killed run goes on exactly.

    In each, a tenth of every class's images is held out. The others arrive as a pseudo stream, its classes in a random
    order: by a draw, from half of them (as in TFH) or in even slices (as in TFS), so that the policy sees both. The
    reward of a pseudo phase is the accuracy on the held-out images of all classes so far, every class counting the
    same, with the classifier of the action (`auto`: the method's own).

    Args:
        start: the situation of the first phase: a model that has learned nothing.
        images: what the first phase may train on, and nothing else.
        quota: images of a class that stay after its pseudo phase.
        space: the arms.
        options: how much is played.
        done: earlier episodes, from the first on.
        first: the action of the first phase of every pseudo stream; the method's own if not given.
        rho: the memory's allocation after the phases that follow, where the action does not say it.
    """
    assert start.growth.old == 0, "pseudo tasks are made of the first phase"
    playable = _playable(images)
    check_classes(len(torch.unique(playable.labels)))
    tasks = _PseudoTasks(start, playable, quota, space, options, first or start.method.default_action, rho)
    return start.backend.guarded(_following(tasks, learned(space, options, done), len(done)))


def learned(space: ActionSpace, options: OfflineOptions, done: Sequence[Episode]) -> Reinforce:
    """The policy after these episodes."""
    if [episode.number for episode in done] != list(range(len(done))):
        raise Damaged("episodes of offline-rl are missing or in another order; learn it again")
    policy = Reinforce(space, FEATURES, options.rate)
    for episode in done:
        policy.update(episode.steps)
    return policy


def _following(tasks: _PseudoTasks, policy: Reinforce, first: int) -> Generator[Episode, None, None]:
    for number in range(first, tasks.options.episodes):
        episode = tasks.play(policy, number)
        policy.update(episode.steps)
        yield episode


# An episode -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PseudoTasks:
    """What episodes are played on: all that they have in common."""

    start: PhaseStart
    images: ImageSet
    quota: int
    space: ActionSpace
    options: OfflineOptions
    first: Action
    rho: float = 0.0

    def play(self, policy: Reinforce, number: int) -> Episode:
        """One pseudo stream from its first phase to its last, or to the one that diverges."""
        seed = self.start.seed
        stream = _pseudo_stream(self.images, self.options.phases, draws.generator(seed, "offline stream", number))
        first, *later = stream.phases
        at = _At.beginning(self.start, draws.key(seed, "offline", number), first).after(first, self.first, self)
        steps: list[Experienced] = []
        for phase, new in enumerate(later, start=1):
            if at is None:
                break
            state = state_of(at.known, _count(new), len(at.kept))
            arm = policy.sample(state, draws.generator(seed, "offline", number, phase))
            at = at.after(new, self.space.actions[arm], self)
            reward = at.accuracy(stream.valid, self.counted(self.space.actions[arm])) if at is not None else 0.0
            steps.append((tuple(state.tolist()), arm, reward))
        return Episode(number, tuple(steps))

    def epochs(self, action: Action) -> int:
        """The length of a pseudo phase after the first; an action that changes the length of a phase scales it."""
        return ceiling(self.options.length * (action.epochs or self.start.schedule.epochs))

    def counted(self, action: Action) -> str:
        """The classifier whose accuracy is the reward."""
        own = self.start.method.default_action.classifier
        chosen = own if action.classifier == "auto" else action.classifier
        return "fc" if chosen == "auto" else chosen


@dataclass(frozen=True)
class _At:
    """How far a pseudo stream has come.

    Attributes:
        start: what the next pseudo phase starts from, apart from the classes that will arrive.
        kept: the memory, all of it exemplars.
        rho: the allocation that it was stored with; 0 after the first pseudo phase, as after a real one.
    """

    start: PhaseStart
    kept: ImageSet
    rho: float = 0.0

    @staticmethod
    def beginning(start: PhaseStart, seed: int, images: ImageSet) -> _At:
        """Before anything was learned. A seed of its own makes all draws of this stream other than those elsewhere."""
        nothing = images.select(torch.empty(0, dtype=torch.long))
        return _At(replace(start, growth=Growth(0, 0), seed=seed, phase=0), nothing)

    @property
    def known(self) -> int:
        """How many classes were learned."""
        return sum(self.start.growth)

    def after(self, new: ImageSet, action: Action, tasks: _PseudoTasks) -> _At | None:
        """The next pseudo phase, trained with that action and cut to memory; None if it diverged.

        The first one is as long as a real phase: a policy that learns on half-trained models learns to forget. What is
        stored when it arrives and after it is as in a real phase.
        """
        start, arrived = replace(self.start, growth=Growth(self.known, _count(new))), len(new)
        kept, rho = self.kept, 0.0
        if self.known:
            generator = draws.generator(start.seed, "arrival", start.phase)
            memory, new = on_arrival(Memory.of(kept), new, tasks.quota, self.known, self.rho, generator)
            kept, rho = memory.exemplars, tasks.rho if action.allocation is None else action.allocation
        leg = Leg.of(start, kept, new)
        epochs = tasks.epochs(action) if self.known else start.schedule.epochs
        trainer = start.trainer(leg.model, leg.teacher, action, leg.feed, epochs=epochs)
        try:
            for _ in trainer.run():
                pass
            quota = per_class(tasks.quota, sum(start.growth), arrived, rho)
            kept = herded(trainer.model.eval(), leg.kept, new, quota, start.preprocessing, start.backend)
        except Diverged:
            return None
        return _At(replace(start, model=trainer.model, phase=start.phase + 1), kept, rho)

    def accuracy(self, valid: ImageSet, classifier: str) -> float:
        """On the held-out images of the classes so far; class means come from the memory."""
        judged = valid.of_labels(range(self.known))
        rows = guessed(self.start, self.start.model, self.kept, judged.pixels)[classifier]
        return balanced_accuracy(rows.cpu(), judged.labels.cpu())


# Pseudo streams -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PseudoStream:
    """What arrives in each pseudo phase, and the held-out images of all of them; labels are rows of the head."""

    phases: tuple[ImageSet, ...]
    valid: ImageSet


def _pseudo_stream(images: ImageSet, phases: int, generator: np.random.Generator) -> _PseudoStream:
    """One draw of a pseudo stream with at most so many phases after the first."""
    picks = _held_out(images.labels, generator)
    order = tuple(generator.permutation(_count(images)).tolist())
    sizes = _sizes(len(order), phases, from_half=bool(generator.integers(2)))
    valid = relabelled(images.select(picks), order)
    rest = relabelled(images.select(others(len(images), picks)), order)
    ends = np.cumsum(sizes).tolist()
    bounds = zip([0, *ends], ends, strict=False)
    return _PseudoStream(tuple(rest.of_labels(range(first, end)) for first, end in bounds), valid)


def _sizes(classes: int, phases: int, *, from_half: bool) -> list[int]:
    """How many classes arrive in each pseudo phase.

    From half of them (rounded up), then as evenly as possible; or as evenly as possible throughout, then at least two
    at a time, for a first phase of a single class would teach nothing.
    """
    if from_half:
        half = math.ceil(classes / 2)
        return [half, *_evenly(classes - half, min(phases, classes - half))]
    return _evenly(classes, min(phases + 1, classes // 2))


def _evenly(count: int, parts: int) -> list[int]:
    """`count` in so many parts, the larger ones first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _held_out(labels: Tensor, generator: np.random.Generator) -> Tensor:
    """Indices of a random tenth of the images of each class, at least one."""
    picks = []
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().flatten()
        count = max(1, len(members) // _SHARE)
        chosen = np.sort(generator.choice(len(members), size=count, replace=False))
        picks.append(members[torch.from_numpy(chosen)])
    return torch.cat(picks)


def _playable(images: ImageSet) -> ImageSet:
    """The images of classes that have two, so that they can be both trained and judged; labels count from 0."""
    classes, counts = torch.unique(images.labels, return_counts=True)
    found = images.of_labels(classes[counts > 1].tolist())
    return replace(found, labels=torch.unique(found.labels, return_inverse=True)[1])


def _count(images: ImageSet) -> int:
    """How many classes there are."""
    return len(torch.unique(images.labels))


# What trials do too ---------------------------------------------------------------------------------------------------


def guessed(start: PhaseStart, model: Model, exemplars: ImageSet, pixels: Tensor) -> dict[str, Tensor]:
    """The row that each classifier gives to every image; class means come from these exemplars."""
    means = class_means(model, exemplars, model.head.classes, start.preprocessing, start.backend)
    return guesses(model, means, pixels, start.preprocessing, start.backend)


def balanced_accuracy(rows: Tensor, labels: Tensor) -> float:
    """The share of right guesses, every label that is there counting the same."""
    right = (rows == labels).double()
    shares = [float(right[labels == label].mean()) for label in torch.unique(labels).tolist()]
    return sum(shares) / len(shares)
