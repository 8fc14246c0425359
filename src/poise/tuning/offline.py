"""The tuner `offline-rl` (Table 3, row 6): a policy learned before the run, on pseudo tasks made of the first phase.

As in RMM, the first phase's classes are played through as pseudo streams: some classes first, the others phase by
phase, with actions drawn from a policy that REINFORCE improves after every stream. In the run itself it is applied
unchanged. It saves the trials of every phase and pays with two assumptions: that the first phase is like the later
ones, and that what is learned on few classes holds for many.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import ImageSet, Memory, on_arrival, per_class
from poise.data.images import all_but
from poise.errors import Damaged, Diverged, UserError
from poise.methods import Growth
from poise.nets import Model
from poise.policies import Planned
from poise.policies.reinforce import FEATURES, Reinforce, state_of
from poise.settings import Keys, Part, Rate, ceiling, key
from poise.spaces import ActionSpace
from poise.training import (
    Event,
    LocalPhase,
    PhaseContext,
    Progress,
    Trainer,
    TuningDone,
    keep_exemplars,
    remember_means,
)
from poise.tuning.classifier import AUTO, first_classifier
from poise.tuning.environments import TrialInputs
from poise.tuning.results import Chosen, Episode, Experienced, History, balanced_accuracy
from poise.tuning.search import Choice, Few, Task, Tuner, TunerKind, register_tuner

LEAST_CLASSES: Final = 4  # two that are known and two that arrive

_SHARE: Final = 10  # one image in so many of each class validates and is never trained on


class OfflineOptions(Keys):
    """How much is spent before the run."""

    prefix = "policy_options."

    episodes: Few = key(20, "pseudo streams that are played")
    phases: Few = key(3, "pseudo phases after the first, at most; fewer where the classes do not suffice")
    rate: Rate = key(0.2, "step of REINFORCE")
    length: Part = key(0.1, "length of a pseudo phase after the first, as a share of the epochs of a real one")


class OfflineTuner(Tuner):
    """A policy learned on pseudo tasks made of the first phase, applied unchanged to the later ones."""

    @property
    def _options(self) -> OfflineOptions:
        return OfflineOptions(**self.options)

    def prepare(self, task: Task, first: Action) -> Generator[Event, None, None]:
        """Play the episodes that are left, before the first phase is trained."""
        tasks = PseudoTasks(task.trials.inputs, self.space, self._options, first)
        played = _episodes_in(task.history)
        number = len(played)
        for episode in tasks.episodes(played):
            if isinstance(episode, Progress):
                yield episode
                continue
            number += 1
            task.history.append(episode)
            yield TuningDone(task.phase, self.kind.name, episode.as_json())

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """What the policy decides in this context."""
        yield from ()
        inputs, played = task.trials.inputs, _episodes_in(task.past)
        if len(played) < self._options.episodes:
            raise UserError("this learner's first phase was learned without offline-rl; start from the first phase")
        state = state_of(inputs.context.growth.old, inputs.context.growth.new, len(inputs.memory.exemplars))
        action = self.space.actions[reinforce_after(self.space, self._options, played).decide(state)]
        if not any(isinstance(entry, Chosen) for entry in task.history):
            task.history.append(Chosen(task.phase, action))
        return Choice(action)

    def plan(self, phase: int) -> Planned:
        """All episodes, before the first phase: about half of its images at full length, then short phases."""
        if phase > 0:
            return Planned()
        options = self._options
        return Planned(options.episodes, epochs=options.episodes * self.setup.full * (0.5 + options.length))


OFFLINE: Final = register_tuner(
    TunerKind(
        "offline-rl",
        make=OfflineTuner,
        resolve=lambda given: OfflineOptions(**given).as_json(),
        least_classes=LEAST_CLASSES,
        before_phase_0=True,
    )
)


def _episodes_in(history: History) -> list[Episode]:
    return [entry for entry in history if isinstance(entry, Episode)]


def reinforce_after(space: ActionSpace, options: OfflineOptions, done: Sequence[Episode]) -> Reinforce:
    """The policy after these episodes."""
    if [episode.number for episode in done] != list(range(len(done))):
        raise Damaged("episodes of offline-rl are missing or in another order; learn it again")
    policy = Reinforce(space, FEATURES, options.rate)
    for episode in done:
        policy.update(episode.steps)
    return policy


# An episode -----------------------------------------------------------------------------------------------------------


@dataclass
class PseudoTasks:
    """What episodes are played on.

    In each, a tenth of every class's images is held out. The others arrive as a pseudo stream, its classes in a random
    order: by a draw, from half of them (as in TFH) or in even slices (as in TFS), so that the policy sees both. The
    reward of a pseudo phase is the accuracy on the held-out images of all classes so far, every class with the same
    weight, with the classifier of the action (`auto`: the method's own).

    Attributes:
        inputs: the context of the first phase, what it may train on, and what may be kept after a phase.
        space: the arms.
        options: how much is played.
        first: the action of the first phase of every pseudo stream.
        trained: how many images were trained on so far.
    """

    inputs: TrialInputs
    space: ActionSpace
    options: OfflineOptions
    first: Action
    trained: int = 0

    @cached_property
    def images(self) -> ImageSet:
        """What is played with: the images of classes that have two."""
        return _keep_playable(self.inputs.new)

    def episodes(self, done: Sequence[Episode]) -> Iterator[Episode | Progress]:
        """Play the episodes after those already done, so that a killed run is resumed exactly."""
        OFFLINE.check_first_phase(_count(self.images))
        policy = reinforce_after(self.space, self.options, done)
        for number in range(len(done), self.options.episodes):
            episode = yield from self._play(policy, number)
            policy.update(episode.steps)
            yield episode

    def _play(self, policy: Reinforce, number: int) -> Generator[Progress, None, Episode]:
        """One pseudo stream from its first phase to its last, or to the one that diverges."""
        context = self.inputs.context
        seed = context.seed
        stream = _pseudo_stream(self.images, self.options.phases, draws.generator(seed, "offline stream", number))
        first, *later = stream.phases
        start = _StreamState.beginning(context, draws.key(seed, "offline", number), first)
        at = yield from start.after(first, self.first, self)
        steps: list[Experienced] = []
        for phase, new in enumerate(later, start=1):
            if at is None:
                break
            state = state_of(at.known, _count(new), len(at.kept))
            arm = policy.sample(state, draws.generator(seed, "offline", number, phase))
            at = yield from at.after(new, self.space.actions[arm], self)
            reward = at.accuracy(stream.valid, self.classifier_for(self.space.actions[arm])) if at is not None else 0.0
            steps.append((tuple(state.tolist()), arm, reward))
        return Episode(number, tuple(steps))

    def epochs(self, action: Action) -> int:
        """The length of a pseudo phase after the first; an action that changes the length of a phase scales it."""
        return ceiling(self.options.length * (action.epochs or self.inputs.context.schedule.epochs))

    def classifier_for(self, action: Action) -> str:
        """The classifier whose accuracy is the reward."""
        own = self.inputs.context.method.default_action.classifier
        return first_classifier(Action(classifier=own if action.classifier == AUTO else action.classifier))


@dataclass(frozen=True)
class _StreamState:
    """How far a pseudo stream has come.

    Attributes:
        context: what the next pseudo phase starts from, apart from the classes that will arrive.
        predictor: the model that predicts after the last one.
        kept: the memory, all of it exemplars.
        rho: the allocation that it was stored with.
    """

    context: PhaseContext
    predictor: Model
    kept: ImageSet
    rho: float = 0.0

    @staticmethod
    def beginning(context: PhaseContext, seed: int, images: ImageSet) -> _StreamState:
        """Before anything was learned. A seed of its own makes all draws of this stream other than those elsewhere."""
        nothing = images.select(torch.empty(0, dtype=torch.long))
        context = replace(context, growth=Growth(0, 0), seed=seed, phase=0)
        return _StreamState(context, context.model, nothing)

    @property
    def known(self) -> int:
        """How many classes were learned."""
        return sum(self.context.growth)

    def after(
        self, new: ImageSet, action: Action, tasks: PseudoTasks
    ) -> Generator[Progress, None, _StreamState | None]:
        """The next pseudo phase, trained with that action and cut to memory; None if it diverged.

        The first one is as long as a real phase: a policy that learns on half-trained models learns to forget. What is
        stored when it arrives and after it is as in a real phase.
        """
        quota = tasks.inputs.quota
        context, arrived = replace(self.context, growth=Growth(self.known, _count(new))), len(new)
        kept, rho = self.kept, tasks.inputs.first_rho
        if self.known:
            generator = draws.generator(context.seed, "arrival", context.phase)
            memory, new = on_arrival(Memory.of(kept), new, quota, self.known, self.rho, generator)
            kept, rho = memory.exemplars, tasks.inputs.allocation(action)
        begun = LocalPhase.of(context, kept, new)
        epochs = tasks.epochs(action) if self.known else context.schedule.epochs
        trainer = Trainer(context, begun.model, begun.teacher, action, begun.feed, epochs=epochs)
        try:
            before = tasks.trained
            for _ in trainer.run():
                tasks.trained = before + trainer.done
                yield Progress(0, OFFLINE.name, tasks.trained, 0, f"pseudo phase {context.phase}")
            model = trainer.predictor.eval()
            most = per_class(quota, sum(context.growth), arrived, rho)
            kept = keep_exemplars(context.evaluator, model, begun.kept, new, most)
            means = remember_means(context, model, kept, new)
        except Diverged:
            return None
        starts = trainer.finish().starts
        starts.extras.clear()
        return _StreamState(replace(context, model=starts, means=means, phase=context.phase + 1), model, kept, rho)

    def accuracy(self, valid: ImageSet, classifier: str) -> float:
        """On the held-out images of the classes so far; class means come from the memory, where there is one."""
        judged, evaluator = valid.of_labels(range(self.known)), self.context.evaluator
        known = self.context.means
        means = known.vectors if known else evaluator.class_means(self.predictor, self.kept, self.known)
        rows = evaluator.guesses(self.predictor, means, judged)[classifier]
        return balanced_accuracy(rows.cpu(), judged.labels.cpu())


# Pseudo streams -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PseudoStream:
    """What arrives in each pseudo phase, and the held-out images of all of them; labels are rows of the head."""

    phases: tuple[ImageSet, ...]
    valid: ImageSet


def _pseudo_stream(images: ImageSet, phases: int, generator: np.random.Generator) -> _PseudoStream:
    """One draw of a pseudo stream with at most so many phases after the first."""
    picks = _draw_held_out(images.labels, generator)
    order = tuple(generator.permutation(_count(images)).tolist())
    sizes = _sizes(len(order), phases, from_half=bool(generator.integers(2)))
    valid = images.select(picks).relabelled(order)
    rest = images.select(all_but(len(images), picks)).relabelled(order)
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
        return [half, *_split_evenly(classes - half, min(phases, classes - half))]
    return _split_evenly(classes, min(phases + 1, classes // 2))


def _split_evenly(count: int, parts: int) -> list[int]:
    """`count` in so many parts, the larger ones first."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def _draw_held_out(labels: Tensor, generator: np.random.Generator) -> Tensor:
    """Indices of a random tenth of the images of each class, at least one."""
    picks = []
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().flatten()
        count = max(1, len(members) // _SHARE)
        chosen = np.sort(generator.choice(len(members), size=count, replace=False))
        picks.append(members[torch.from_numpy(chosen)])
    return torch.cat(picks)


def _keep_playable(images: ImageSet) -> ImageSet:
    """The images of classes that have two, so that they can be both trained and judged; labels count from 0."""
    classes, counts = torch.unique(images.labels, return_counts=True)
    found = images.of_labels(classes[counts > 1].tolist())
    return replace(found, labels=torch.unique(found.labels, return_inverse=True)[1])


def _count(images: ImageSet) -> int:
    """How many classes there are."""
    return len(torch.unique(images.labels))
