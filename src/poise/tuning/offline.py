"""The tuner `offline-rl` (Table 3, row 6): a policy learned before the run, on pseudo tasks made of the first phase.

As in RMM, the first phase's classes are played through as pseudo streams: some classes first, the others phase by
phase, with actions drawn from a policy that REINFORCE improves after every stream. In the run itself it is applied
unchanged. It saves the trials of every phase and pays with two assumptions: that the first phase is like the later
ones, and that what is learned on few classes holds for many.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch

from poise import draws
from poise.actions import Action, ActionSpace
from poise.data import ImageSet, Memory, on_arrival, per_class
from poise.data.images import all_but
from poise.errors import Diverged, UserError
from poise.methods import Growth
from poise.nets import Model
from poise.policies import Planned, Setup
from poise.policies.reinforce import Reinforce, state_of
from poise.settings import Keys, Part, Rate, ceiling, key
from poise.training.context import LocalPhase, PhaseContext, keep_memory, measure_means
from poise.training.events import Event, Progress
from poise.training.trainer import Trainer
from poise.tuning.classifier import ClassifierRule
from poise.tuning.environments import TrialInputs, draw_held_out
from poise.tuning.results import Episode, Experienced, History, count_hits
from poise.tuning.search import OTHERS, Choice, Few, Options, Task, Tuner, TunerKind

_SHARE: Final = 10  # one image in so many of each class validates and is never trained on


class OfflineOptions(Keys):
    """The options of `offline-rl`: how much is spent before the run."""

    prefix = "policy_options."

    episodes: Few = key(20, "pseudo streams that are played")
    phases: Few = key(3, "pseudo phases after the first, at most; fewer where the classes do not suffice")
    rate: Rate = key(0.2, "step of REINFORCE")
    length: Part = key(0.1, "length of a pseudo phase after the first, as a share of the epochs of a real one")


class OfflineTuner(Tuner):
    """A policy learned on pseudo tasks made of the first phase, applied unchanged to the later ones."""

    def __init__(self, kind: TunerKind, setup: Setup, options: Options) -> None:
        super().__init__(kind, setup, options)
        self.effort = OfflineOptions(**options)

    def accept(self, task: Task, action: Action) -> Generator[Event, None, Choice]:
        """Play the episodes that are left, before the first phase is trained with this action."""
        if task.phase == 0:
            tasks = PseudoTasks(task.trials.inputs, self.space, self.effort, action)
            yield from self.note(task, tasks.episodes(_episodes_in(task.history)))
        return Choice(action)

    def choose(self, task: Task) -> Generator[Event, None, Choice]:
        """The policy's decision in the context of this phase."""
        yield from ()
        inputs, played = task.trials.inputs, _episodes_in(task.past)
        if len(played) < self.effort.episodes:
            raise UserError("this learner's first phase was learned without offline-rl; start from the first phase")
        state = state_of(inputs.context.growth.old, inputs.context.growth.new, len(inputs.memory.exemplars))
        return Choice(self.space.actions[reinforce_after(self.space, self.effort, played).decide(state)])

    def plan(self, phase: int) -> Planned:
        """The expected cost of all episodes before phase 0: about half of its images at length, then short phases."""
        if phase > 0:
            return Planned()
        effort = self.effort
        return Planned(effort.episodes, epochs=effort.episodes * self.setup.full * (0.5 + effort.length))


OFFLINE: Final = TunerKind(
    "offline-rl",
    make=OfflineTuner,
    resolve=lambda given: OfflineOptions(**given).as_json(),
    before_phase_0=True,
)
OTHERS[OFFLINE.name] = OFFLINE


def _episodes_in(history: History) -> list[Episode]:
    return [entry for entry in history if isinstance(entry, Episode)]


def reinforce_after(space: ActionSpace, options: OfflineOptions, done: Sequence[Episode]) -> Reinforce:
    """The policy after these episodes."""
    policy = Reinforce(space, options.rate)
    for episode in done:
        policy.update(episode.steps)
    return policy


# An episode -----------------------------------------------------------------------------------------------------------


class StreamState(NamedTuple):
    """How far a pseudo stream has come."""

    context: PhaseContext  # what the next pseudo phase starts from, apart from the classes that will arrive
    predictor: Model  # that predicts after the last one
    kept: ImageSet  # the memory, all of it exemplars
    rho: float = 0.0  # the allocation that it was stored with

    @property
    def known(self) -> int:
        """How many classes were learned."""
        return sum(self.context.growth)


@dataclass
class PseudoTasks:
    """The data that episodes are played on.

    In each, a tenth of every class's images is held out. The others arrive as a pseudo stream, its classes in a random
    order: by a draw, from half of them (as in TFH) or in even slices (as in TFS), so that the policy sees both. The
    reward of a pseudo phase is the accuracy on the held-out images of all classes so far, every class with the same
    weight, with the classifier of the action (`auto`: the method's own).

    Attributes:
        inputs: the context of the first phase, what it may train on, and what may be kept after a phase.
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
        """The images of classes that have at least two, to be trained and judged; labels count from 0."""
        images = self.inputs.new
        classes, counts = torch.unique(images.labels, return_counts=True)
        found = images.of_labels(classes[counts > 1].tolist())
        return replace(found, labels=torch.unique(found.labels, return_inverse=True)[1])

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
        seed = self.inputs.context.seed
        phases, valid = pseudo_stream(self.images, self.options.phases, draws.generator(seed, "offline stream", number))
        at, steps = self.begin(draws.key(seed, "offline", number)), list[Experienced]()
        first, *later = phases
        with suppress(Diverged):  # which ends the episode: a first phase that diverges teaches nothing
            at = yield from self.learn(at, first, self.first)
            for phase, new in enumerate(later, start=1):
                state = state_of(at.known, _count(new), len(at.kept))
                arm = policy.sample(state, draws.generator(seed, "offline", number, phase))
                steps.append((tuple(state.tolist()), arm, 0.0))  # as it stays if the phase diverges
                at = yield from self.learn(at, new, self.space.actions[arm])
                steps[-1] = (*steps[-1][:2], self._accuracy(at, valid, self.space.actions[arm]))
        return Episode(number, tuple(steps))

    def begin(self, seed: int) -> StreamState:
        """Before anything was learned. A seed of its own makes all draws of this stream other than those elsewhere."""
        context = replace(self.inputs.context, growth=Growth(0, 0), seed=seed, phase=0)
        return StreamState(context, context.model, self.images.select(torch.empty(0, dtype=torch.long)))

    def learn(self, at: StreamState, new: ImageSet, action: Action) -> Generator[Progress, None, StreamState]:
        """The next pseudo phase, trained with that action and cut to memory.

        The first one is as long as a real phase: a policy that learns on half-trained models learns to forget. What is
        stored when it arrives and after it is as in a real phase.
        """
        inputs, quota, arrived = self.inputs, self.inputs.quota, len(new)
        context = replace(at.context, growth=Growth(at.known, _count(new)))
        kept, rho, epochs = at.kept, inputs.first_rho, context.schedule.epochs
        if at.known:
            generator = draws.generator(context.seed, "arrival", context.phase)
            memory, new = on_arrival(Memory.of(kept), new, quota, at.known, at.rho, generator)
            kept, rho = memory.exemplars, inputs.allocation(action)
            epochs = ceiling(self.options.length * (action.epochs or epochs))
        begun, before = LocalPhase.of(context, kept, new), self.trained
        trainer = Trainer(context, begun.model, begun.teacher, action, begun.feed, epochs=epochs)
        for _ in trainer.run():
            self.trained = before + trainer.done
            yield Progress(0, OFFLINE.name, self.trained, 0, f"pseudo phase {context.phase}")
        model = trainer.model.eval()
        most = per_class(quota, sum(context.growth), arrived, rho)
        kept = keep_memory(context.evaluator, model, Memory.of(begun.kept), new, most).exemplars
        means = None if len(kept) else measure_means(context, model, kept, new)
        starts = trainer.start
        starts.extras.clear()
        return StreamState(replace(context, model=starts, means=means, phase=context.phase + 1), model, kept, rho)

    def _accuracy(self, at: StreamState, valid: ImageSet, action: Action) -> float:
        """The accuracy on held-out images of the classes so far; class means come from the memory, if any."""
        judged, evaluator = valid.of_labels(range(at.known)), at.context.evaluator
        known = at.context.means
        means = known.vectors if known else evaluator.class_means(at.predictor, at.kept, at.known)
        own = self.inputs.context.method.default_action.classifier
        classifier = ClassifierRule(own, in_force="fc", phases=1).classifier_for(action)
        rows = evaluator.guesses(at.predictor, means, judged)[classifier]
        hits, counts = count_hits(rows.cpu(), judged.labels.cpu()), torch.bincount(judged.labels.cpu())
        return sum(right / int(count) for right, count in zip(hits, counts, strict=True)) / at.known


# Pseudo streams -------------------------------------------------------------------------------------------------------


def pseudo_stream(images: ImageSet, phases: int, generator: np.random.Generator) -> tuple[list[ImageSet], ImageSet]:
    """One draw of a pseudo stream: what arrives in its first phase and at most so many more, and what is held out.

    Labels are rows of the head, in the order of arrival. Of each class a tenth is held out, at least one image.
    """
    classes = torch.unique(images.labels).tolist()
    picks = draw_held_out(images.labels, classes, lambda size: max(1, size // _SHARE), generator)
    order = tuple(generator.permutation(len(classes)).tolist())
    ends = np.cumsum(phase_sizes(len(order), phases, from_half=bool(generator.integers(2)))).tolist()
    rest = images.select(all_but(len(images), picks)).relabelled(order)
    arriving = [rest.of_labels(range(first, end)) for first, end in pairwise([0, *ends])]
    return arriving, images.select(picks).relabelled(order)


def phase_sizes(classes: int, phases: int, *, from_half: bool) -> list[int]:
    """How many classes arrive in each pseudo phase.

    From half of them (rounded up), then as evenly as possible; or as evenly as possible throughout, then at least two
    at a time, for a first phase of a single class would teach nothing.
    """
    first = [math.ceil(classes / 2)] if from_half else []
    left = classes - sum(first)
    parts = min(phases, left) if from_half else min(phases + 1, classes // 2)
    return first + [left // parts + (part < left % parts) for part in range(parts)]


def _count(images: ImageSet) -> int:
    """How many classes there are."""
    return len(torch.unique(images.labels))
