"""Trials: temporary trainings of single actions on environments. An attempt is a plain value; running it is work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import ImageSet, Memory, on_arrival, per_class
from poise.errors import Diverged
from poise.methods import Growth
from poise.nets import Model
from poise.policies import Outcome, Trial
from poise.settings import ceiling
from poise.training.context import LocalPhase, keep_memory, measure_means
from poise.training.events import EpochDone
from poise.training.lanes import Executor, Lane, Lanes, Work
from poise.training.trainer import Trainer
from poise.tuning.environments import Environment, TrialInputs, draw_environments
from poise.tuning.results import CLASSIFIERS, HitsPerClass, TrialResult, Witness, count_hits


@dataclass(frozen=True)
class Attempt:
    """A trial with its action and the classifier that is rewarded: a plain value, which can be sent elsewhere."""

    trial: Trial
    action: Action
    classifier: str


@dataclass(frozen=True)
class _TrialProgress:
    """Where a trial stands on one environment; a longer trial of the same action may continue there."""

    environment: Environment
    begun: LocalPhase  # what the present training began with
    number: int = 0  # which of the trainings on this environment that is
    epochs: int = 0  # of it that are done,
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None  # and the trainer's state then
    hits: HitsPerClass = field(default_factory=dict)  # that validation found then
    witnessed: Any = None  # what a witness saw then
    earlier: tuple[HitsPerClass, ...] = ()  # hits after the trainings before, which are rewarded too


class Trials:
    """Runs the trials of one phase. What they reached is kept as long as the phase, so that survivors can continue.

    It is the bench of its attempts: made of plain inputs, and sent elsewhere without what it reached here.
    """

    def __init__(
        self, inputs: TrialInputs, *, executor: Executor | None = None, witness: Witness | None = None
    ) -> None:
        self.inputs, self._witness = inputs, witness
        self._lanes = Lanes(inputs.context.backend)
        if executor is None or witness is not None:  # a witness, which only studies have, stays here
            executor = self._lanes
        self._executor = executor
        self._begun: dict[int, list[_TrialProgress]] = {}  # of the rounds under way: any round can be drawn again
        self._reached: dict[tuple[int, int, bool, int], _TrialProgress] = {}
        self.trained = 0  # images that trials were trained on here

    def __reduce__(self) -> tuple[type[Trials], tuple[TrialInputs]]:
        return Trials, (self.inputs,)

    @cached_property
    def possible(self) -> bool:
        """Whether there is anything to validate on, which is the same in every round."""
        return bool(draw_environments(self.inputs, 0))

    @property
    def images_an_epoch(self) -> float:
        """About how many images an epoch of a trial trains on: all that the phase trains on, in each local phase."""
        inputs = self.inputs
        images = len(inputs.memory.exemplars) + len(inputs.new)
        pace = inputs.context.schedule.epochs / inputs.planned
        return images * pace * inputs.settings.trainings(inputs.context.growth.new)

    def run(self, attempts: Sequence[Attempt]) -> Iterator[list[TrialResult]]:
        """The results of all attempts in the order of asking, each time those that became known: none, one or more.

        Each trains until its trial's epoch and validates. A loss that diverges is a reward of 0 and stops nothing.
        """
        inputs, rounds = self.inputs, {attempt.trial.round for attempt in attempts}
        self._begun = {number: begun for number, begun in self._begun.items() if number in rounds}
        for results in self._executor.run(self, attempts):
            yield [inputs.context.backend.broadcast(result) for result in results]

    def run_all(self, attempts: Sequence[Attempt]) -> list[TrialResult]:
        """The results of all attempts, in the order of asking, where no learner has set up the device."""
        with self.inputs.context.backend.active():
            return [result for results in self.run(attempts) for result in results]

    def release(self) -> None:
        """Give all memory back: nothing continues from what was reached, and any round can be drawn again."""
        self._reached.clear()
        self._begun.clear()
        self._lanes.keep()

    # A bench: one attempt, wherever it is run ----------------------------------------------------------------------

    def work(self, attempt: Attempt, lane: Lane) -> Work[TrialResult]:
        """Run one attempt on each environment of its round; after one that diverges, all have failed."""
        inputs, number, reached = self.inputs, attempt.trial.round, list[_TrialProgress]()
        if number not in self._begun:
            self._begun[number] = [
                _TrialProgress(each, each.begin(inputs)) for each in draw_environments(inputs, number)
            ]
            lane.backend.synchronise()  # other lanes start from there, too
        begun = self._begun[number]
        for place, first in enumerate(begun):
            at = yield from self._train(attempt, place, first, lane)
            if at is None:
                break
            reached.append(at)
        return self._result(attempt, [first.environment for first in begun], reached)

    def waits(self, attempt: Attempt) -> None:
        """Report nothing while a trial waits for memory."""

    def failed(self, attempt: Attempt, error: Exception) -> TrialResult:
        """Raise the error: a trial that does not fit into memory even alone fails the phase."""
        raise error

    def _train(self, attempt: Attempt, place: int, first: _TrialProgress, lane: Lane) -> Work[_TrialProgress | None]:
        """Train on one environment, from where an earlier trial stopped if there is one; None: it diverged.

        The last training stops at the trial's epoch and is validated there. Those before it run to their ends: the
        first half of a look-ahead, and the repetitions of a horizon, whose rewards count too.
        """
        trial, inputs, full = attempt.trial, self.inputs, self.inputs.planned
        last = 1 if first.environment.later is not None else inputs.settings.horizon
        length = full if trial.full else inputs.settings.short(full)
        scale = (attempt.action.epochs or inputs.context.schedule.epochs) / full  # an action may change the length
        until, total = ceiling(trial.epochs * scale), ceiling(length * scale)
        key = (trial.arm, trial.round, trial.full, place)
        at = self._reached.get(key)
        if at is None or at.epochs > until:
            at = first
        try:
            while not at.hits or at.epochs < until:
                address = ("round", trial.round, *(("leg", at.number) if at.number else ()))
                trainer = lane.trainer(at.begun, attempt.action, total, address)
                if at.state is not None:
                    trainer.restore(*at.state)
                before, epochs, state = trainer.done, at.epochs, None
                for event in trainer.run():
                    self.trained, before = self.trained + trainer.done - before, trainer.done
                    yield event
                    epochs += isinstance(event, EpochDone)
                    if isinstance(event, EpochDone) and at.number == last and epochs == until < total:
                        state = trainer.state()
                        break
                if at.number == last:
                    hits, witnessed = self._validate(at, trainer)
                    at = replace(at, epochs=until, state=state, hits=hits, witnessed=witnessed)
                else:
                    at = self._next(attempt, at, trainer)
        except Diverged:
            at = None
        self._reached.pop(key, None)
        if at is not None and until < total:  # else nothing can continue it
            self._reached[key] = at
        return at

    def _next(self, attempt: Attempt, at: _TrialProgress, trainer: Trainer) -> _TrialProgress:
        """Begin the next training, once one that is not the last has ended."""
        environment, begun = at.environment, at.begun
        model = trainer.start.copy()  # a lane trains its own further
        model.extras.clear()
        known = sum(begun.context.growth)
        if environment.later is None:  # the same images again, for the model that they gave
            earlier = (*at.earlier, self._validate(at, trainer)[0])
            context = replace(begun.context, model=model, growth=Growth(known, 0))
            following = begun.followed_by(context, begun.kept, begun.new)
            return _TrialProgress(environment, following, at.number + 1, earlier=earlier)
        # Memory and new images are cut by the rule of real phases. The draw is that of the round: actions differ in how
        # many images they keep, not in which ones come first.
        exemplars = self._exemplars(at, trainer.model, attempt.action)
        means = None if len(exemplars) else measure_means(begun.context, trainer.model, exemplars, begun.new)
        growth = Growth(known, len(environment.rows or ()) - known, begun.context.growth.real_phase)
        context = replace(begun.context, model=model, growth=growth, means=means)
        generator = draws.generator(context.seed, "arrival", context.phase, "round", attempt.trial.round)
        quota, rho = self.inputs.pseudo_quota(attempt.action), self.inputs.allocation(attempt.action)
        memory, new = on_arrival(Memory.of(exemplars), environment.later, quota, known, rho, generator)
        return _TrialProgress(environment, begun.followed_by(context, memory.exemplars, new), at.number + 1)

    # Validation ----------------------------------------------------------------------------------------------------

    def _exemplars(self, at: _TrialProgress, model: Model, action: Action) -> ImageSet:
        """The exemplars after this training: every class cut to its quota, the new ones by herding.

        The local environment stands for the phase itself, with all the images that arrived in it.
        """
        inputs, begun, later = self.inputs, at.begun, at.environment.later
        plain, arrived = float(inputs.quota), inputs.arrived
        if later is not None:
            plain, arrived = inputs.pseudo_quota(action), len(later if begun.follows else begun.new)
        quota = per_class(plain, sum(begun.context.growth), arrived, inputs.allocation(action))
        return keep_memory(inputs.context.evaluator, model, Memory.of(begun.kept), begun.new, quota).exemplars

    def _validate(self, at: _TrialProgress, trainer: Trainer) -> tuple[HitsPerClass, Any]:
        """Count hits of both classifiers on B, and call the witness of a study.

        Class means come from the local training part only. A look-ahead's classes are told from each other alone.
        """
        evaluator, model, environment = self.inputs.context.evaluator, trainer.model, at.environment
        exemplars = self._exemplars(at, model, trainer.action)
        means = measure_means(at.begun.context, model, exemplars, at.begun.new).vectors
        labels = environment.valid.labels.to(evaluator.backend.device)
        among = None if environment.later is None else torch.unique(labels)
        found = evaluator.guesses(model, means, environment.valid, among)
        hits = {name: count_hits(rows, labels) for name, rows in found.items()}
        if self._witness is None or environment.later is not None:
            return hits, None
        return hits, self._witness(model, means, self.inputs.classes)

    def _result(
        self, attempt: Attempt, environments: Sequence[Environment], reached: Sequence[_TrialProgress]
    ) -> TrialResult:
        """The result of a trial over its environments: every class of each of them has the same weight.

        So an environment counts by the classes that it can tell something about, however few images of each it has.
        Where fewer of them were reached, it diverged.
        """
        classes, images, shares = list[int](), list[int](), list[float]()
        hits: dict[str, list[int]] = {name: [] for name in CLASSIFIERS}
        reward = 0.0
        for environment, at in zip_longest(environments, reached):
            rows, counts = environment.judged
            order = sorted(range(len(rows)), key=rows.__getitem__)  # a look-ahead has new classes in another order
            classes += [rows[place] for place in order]
            images += [counts[place] for place in order]
            if at is not None:
                rewarded = [found[attempt.classifier] for found in (*at.earlier, at.hits)]
                legs = [[right / count for right, count in zip(found, counts, strict=True)] for found in rewarded]
                per_class = [sum(values) / len(values) for values in zip(*legs, strict=True)]
                reward = sum(per_class) / len(per_class)
                shares += [per_class[place] for place in order]
                for name in CLASSIFIERS:
                    hits[name] += [at.hits[name][place] for place in order]
        splits = [environment.record for environment in environments]
        split = splits[0] if len(splits) == 1 else {"parts": splits}
        if len(reached) < len(environments):
            return TrialResult(Outcome(attempt.trial, 0.0, diverged=True), classes, images, 0, {}, split)
        if len(environments) > 1:
            reward = min(1.0, sum(shares) / len(shares))
        witnessed = next((at.witnessed for at in reached if at.witnessed is not None), None)
        outcome = Outcome(attempt.trial, reward, tuple(shares))
        return TrialResult(outcome, classes, images, reached[0].epochs, hits, split, witnessed)
