"""Trials: temporary trainings of single actions on local environments, and what comes of them."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import Feed, ImageSet, Memory, herd
from poise.errors import Diverged
from poise.nets import Model
from poise.policies import Outcome, Trial
from poise.training.environment import Environment, local_environment
from poise.training.evaluate import both_classifiers, class_means, extract
from poise.training.events import EpochDone, Event
from poise.training.phase import PhaseStart
from poise.training.trainer import Trainer


@dataclass(frozen=True)
class Split:
    """A round: one draw of the environment and what all of its trials share."""

    environment: Environment
    model: Model  # grown, its new rows imprinted from the local training part
    feed: Feed


@dataclass
class _Running:
    """A trial's training, which a later trial of the same arm may continue."""

    trainer: Trainer
    events: Generator[Event, None, None]
    hits: dict[int, dict[str, list[int]]]  # by epoch, then classifier: hits of every class in B
    epochs: int = 0  # done, over all stages


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial: for the policy an outcome, for the record the hits on the way."""

    outcome: Outcome
    classes: list[int]
    images: list[int]
    hits: Mapping[int, Mapping[str, list[int]]]

    def as_json(self) -> dict[str, Any]:
        """The record of the trial."""
        by_epoch = {str(epoch): dict(found) for epoch, found in self.hits.items()}
        return {"classes": self.classes, "images": self.images, "hits": by_epoch}


class Trials:
    """Runs the trials of one phase. Models live as long as the phase, so that survivors go on where they were."""

    def __init__(self, start: PhaseStart, memory: Memory, new: ImageSet, reserve: ImageSet, quota: int) -> None:
        self._start, self._memory, self._new, self._reserve, self._quota = start, memory, new, reserve, quota
        self._splits: dict[int, Split] = {}  # the newest only: any round can be drawn again
        self._running: dict[tuple[int, int, bool], _Running] = {}

    @cached_property
    def _teacher(self) -> Model | None:
        return self._start.teacher()

    @cached_property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        return self._environment(0) is not None

    def run(self, trial: Trial, action: Action, classifier: str, short: int) -> TrialResult:
        """Train until the trial's epoch and validate; a loss that diverges is a reward of 0 and stops nothing."""
        split = self._split(trial.round)
        key = (trial.arm, trial.round, trial.full)
        running = self._running.get(key)
        if running is None or running.epochs > trial.epochs:
            running = self._running[key] = self._begun(split, trial, action, short)
        last = trial.epochs == running.trainer.schedule.epochs
        valid = split.environment.valid
        classes = sorted(set(valid.labels.tolist()))
        images = [int((valid.labels == label).sum()) for label in classes]
        try:
            while trial.epochs not in running.hits:
                event = next(running.events, None)
                running.epochs += isinstance(event, EpochDone)
                done = trial.epochs if event is None else running.epochs
                pausing = isinstance(event, EpochDone) and _is_looked_at(done, trial.epochs)
                if event is None or (pausing and not (last and done == trial.epochs)):  # the last trial ends all stages
                    running.hits[done] = self._validated(split, running.trainer.model, classes)
        except Diverged:
            del self._running[key]
            return TrialResult(Outcome(trial, 0.0, (), diverged=True), classes, images, dict(running.hits))
        if last:  # nothing can continue it
            del self._running[key]
        found = running.hits[trial.epochs][classifier]
        per_class = tuple(hits / count for hits, count in zip(found, images, strict=True))
        reward = sum(per_class) / len(per_class)
        past = {epoch: hits for epoch, hits in running.hits.items() if _is_looked_at(epoch, trial.epochs)}
        return TrialResult(Outcome(trial, reward, per_class), classes, images, past)

    def _begun(self, split: Split, trial: Trial, action: Action, short: int) -> _Running:
        trainer = self._start.trainer(
            copy.deepcopy(split.model),
            self._teacher,
            action,
            split.feed,
            epochs=None if trial.full else short,
            address=("round", trial.round),
        )
        return _Running(trainer, trainer.run(), {})

    def _split(self, number: int) -> Split:
        if number not in self._splits:
            environment = self._environment(number)
            assert environment is not None, "trials are run only where they are possible"
            start = self._start
            feed = start.feed(environment.kept, environment.new)
            self._splits = {number: Split(environment, start.grown(environment.new), feed)}
        return self._splits[number]

    def _environment(self, number: int) -> Environment | None:
        generator = draws.generator(self._start.seed, "environment", self._start.phase, number)
        return local_environment(self._memory, self._new, self._reserve, generator)

    def _validated(self, split: Split, model: Model, classes: list[int]) -> dict[str, list[int]]:
        """Hits of both classifiers; class means come from the local training part only."""
        environment, preprocessing, backend = split.environment, self._start.preprocessing, self._start.backend
        ranks = herd(
            extract(model, environment.new.pixels, preprocessing, backend).features,
            environment.new.labels.to(backend.device),
            self._quota,
        )
        exemplars = [environment.kept, *(environment.new.select(ranks[label].cpu()) for label in sorted(ranks))]
        total = self._start.growth.old + self._start.growth.new
        means = class_means(model, ImageSet.joined(exemplars), total, preprocessing, backend)
        found = both_classifiers(extract(model, environment.valid.pixels, preprocessing, backend), means)
        labels = environment.valid.labels.to(backend.device)
        return {name: _hits(scores.argmax(dim=1), labels, classes) for name, scores in found.items()}


def _hits(guesses: Tensor, labels: Tensor, classes: list[int]) -> list[int]:
    right = torch.bincount(labels[guesses == labels], minlength=max(classes) + 1).tolist()
    return [right[label] for label in classes]


def _is_looked_at(epoch: int, last: int) -> bool:
    """Epochs 1, 2, 4, 8, … and the last, so that estimators can be compared offline."""
    return epoch == last or (epoch < last and epoch & (epoch - 1) == 0)
