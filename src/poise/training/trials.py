"""Trials: temporary trainings of single actions on environments, and what comes of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import ImageSet, Memory, herd
from poise.errors import Diverged, UserError, check_number, check_whole, suggestion
from poise.methods import Growth
from poise.nets import Model
from poise.policies import Outcome, Trial
from poise.training.environment import VALIDATION, Environment, local_environment, look_ahead
from poise.training.evaluate import both_classifiers, class_means, extract
from poise.training.events import EpochDone
from poise.training.lanes import Lane, Lanes, Leg
from poise.training.phase import PhaseStart
from poise.training.trainer import Trainer

ENVIRONMENTS = ("local", "lookahead")
CLASSIFIER_RULES = ("full", "paper")

#: Looks at a temporary model and its class means; what it returns is recorded and never enters a reward.
Witness = Callable[[Model, Tensor], Any]
Hits = Mapping[str, list[int]]  # of every class in B, by classifier


@dataclass(frozen=True)
class TrialSettings:
    """How actions are tried.

    Attributes:
        environment: `local` (the paper's), or `lookahead` (two pseudo phases made of the new classes).
        horizon: the paper's n: so often a local training is repeated with its own result as teacher.
        validation: images of each class in B.
        length: M₁ as a share of M₂.
        classifier: what decides `auto` where there is no reserve: `full`, a training of the decided action at full
            length on the local training part; or `paper`, two short trainings in the first tuned phase.
    """

    environment: str = "local"
    horizon: int = 0
    validation: int = VALIDATION
    length: float = 0.1
    classifier: str = "full"

    def __post_init__(self) -> None:
        for key, known in (("environment", ENVIRONMENTS), ("classifier", CLASSIFIER_RULES)):
            if getattr(self, key) not in known:
                raise UserError(f"trials.{key}={getattr(self, key)!r}; {suggestion(str(getattr(self, key)), known)}")
        check_whole("trials.horizon", self.horizon, 0)
        check_whole("trials.validation", self.validation, 1)
        check_number("trials.length", self.length, positive=True)
        if self.length > 1:
            raise UserError(f"trials.length={self.length} must be a share of the phase's epochs, at most 1")
        if self.environment == "lookahead" and self.horizon:
            raise UserError("trials.horizon repeats the local environment; a look-ahead has two phases already")

    def short(self, full: int) -> int:
        """M₁ for a phase of M₂ epochs."""
        return math.ceil(self.length * full)


@dataclass(frozen=True)
class Split:
    """A round: one draw of the environment and what all of its trials start from."""

    environment: Environment
    first: Leg


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial: for the policy an outcome, for the record what was seen on the way."""

    outcome: Outcome
    classes: list[int]
    images: list[int]
    old: int
    hits: Mapping[int, Hits]
    split: Mapping[str, Any]
    legs: tuple[float, ...] = ()  # rewards of the trainings before the last one
    witnessed: Mapping[int, Any] = field(default_factory=dict)

    def totals(self) -> dict[str, int]:
        """All hits of each classifier at the end; none if it diverged."""
        last = self.hits[max(self.hits)] if self.hits and not self.outcome.diverged else {"fc": [], "ncm": []}
        return {name: sum(counts) for name, counts in last.items()}

    def as_json(self) -> dict[str, Any]:
        """The record of the trial."""
        return {
            "classes": self.classes,
            "images": self.images,
            "split": dict(self.split),
            "rewards": {str(epoch): self._parts(hits) for epoch, hits in self.hits.items()},
            "hits": {str(epoch): dict(hits) for epoch, hits in self.hits.items()},
            **({"legs": list(self.legs)} if self.legs else {}),
        }

    def _parts(self, hits: Hits) -> dict[str, dict[str, float | None]]:
        """The reward on old and on new classes apart, for both classifiers."""
        found: dict[str, dict[str, float | None]] = {}
        for name, counts in hits.items():
            shares = [right / images for right, images in zip(counts, self.images, strict=True)]
            parts = {
                part: [share for share, label in zip(shares, self.classes, strict=True) if (label < self.old) is is_old]
                for part, is_old in (("old", True), ("new", False))
            }
            found[name] = {part: sum(values) / len(values) if values else None for part, values in parts.items()}
        return found


@dataclass(frozen=True)
class _Paused:
    """A trial that stopped at some epoch of its last leg, where another one may continue it."""

    leg: Leg
    number: int = 0
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None
    hits: Mapping[int, Hits] = field(default_factory=dict)
    witnessed: Mapping[int, Any] = field(default_factory=dict)
    rewards: tuple[Outcome, ...] = ()  # of earlier legs
    epochs: int = 0


class Trials:
    """Runs the trials of one phase. What they reached is kept as long as the phase, so that survivors can go on."""

    def __init__(
        self,
        start: PhaseStart,
        memory: Memory,
        new: ImageSet,
        reserve: ImageSet,
        quota: int,
        settings: TrialSettings | None = None,
        *,
        lanes: Lanes | None = None,
        classes: Sequence[Any] = (),
        witness: Witness | None = None,
    ) -> None:
        self._start, self._memory, self._new, self._reserve, self._quota = start, memory, new, reserve, quota
        self.settings, self.classes, self._witness = settings or TrialSettings(), tuple(classes), witness
        self._lanes = lanes or Lanes(start.backend)
        self._splits: dict[int, Split] = {}  # those under way: any round can be drawn again
        self._paused: dict[tuple[int, int, bool], _Paused] = {}

    @cached_property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        return self._environment(0) is not None

    def run(self, trial: Trial, action: Action, classifier: str, short: int) -> TrialResult:
        """Train until the trial's epoch and validate; a loss that diverges is a reward of 0 and stops nothing."""
        return next(self.run_all([(trial, action, classifier)], short))

    def run_all(self, wanted: Sequence[tuple[Trial, Action, str]], short: int) -> Iterator[TrialResult]:
        """The same for several trials, as many side by side as there are lanes; results in the order of asking."""
        return self._start.backend.guarded(self._waves(list(wanted), short))

    def _waves(self, left: list[tuple[Trial, Action, str]], short: int) -> Generator[TrialResult, None, None]:
        while left:
            wave = left[: len(self._lanes)]
            rounds = {trial.round for trial, _, _ in wave}
            self._splits = {number: self._split(number) for number in sorted(rounds)}
            try:
                results = self._lanes.side_by_side(
                    [self._trial(self._lanes[place], *each, short) for place, each in enumerate(wave)]
                )
            except torch.cuda.OutOfMemoryError:
                if len(self._lanes) == 1:
                    raise
                self._lanes.fewer()
                continue
            left = left[len(wave) :]
            yield from results

    def _trial(
        self, lane: Lane, trial: Trial, action: Action, classifier: str, short: int
    ) -> Generator[None, None, TrialResult]:
        split = self._splits[trial.round]
        full = self._start.schedule.epochs
        scale = (action.epochs or full) / full
        until, total = math.ceil(trial.epochs * scale), math.ceil((full if trial.full else short) * scale)
        key = (trial.arm, trial.round, trial.full)
        at = self._paused.get(key)
        if at is None or at.epochs > until:
            at = _Paused(split.first)
        try:
            while at.number < self._legs(split) - 1:
                at = yield from self._passed(lane, split, at, action, total, trial.round, classifier)
            at = yield from self._advanced(lane, split, at, action, until, total, trial.round)
        except Diverged:
            self._paused.pop(key, None)
            return self._result(split, Outcome(trial, 0.0, (), diverged=True), at, until)
        self._paused[key] = at
        if until == total:  # nothing can continue it
            del self._paused[key]
        last = self._outcome(trial, split, at.hits[until][classifier])
        return self._result(split, _mean_outcome([*at.rewards, last]), at, until)

    def _passed(
        self, lane: Lane, split: Split, at: _Paused, action: Action, total: int, round_: int, classifier: str
    ) -> Generator[None, None, _Paused]:
        """Train a leg that is not the last one to its end, and go to the next."""
        trainer = self._trainer(lane, at, action, total, round_)
        for _ in trainer.run():
            yield
        rewards = at.rewards
        if split.environment.later is None:  # the paper's sum of rewards over the repetitions
            hits = self._validated(split, at.leg, trainer.model)[0]
            rewards = (*rewards, self._outcome(Trial(0, 0, 1), split, hits[classifier]))
        leg = self._next_leg(at.leg, split.environment, trainer.model)
        return _Paused(leg, at.number + 1, rewards=rewards)

    def _advanced(
        self, lane: Lane, split: Split, at: _Paused, action: Action, until: int, total: int, round_: int
    ) -> Generator[None, None, _Paused]:
        """Train the last leg until that epoch, looking at it on the way."""
        if until in at.hits:
            return at
        trainer = self._trainer(lane, at, action, total, round_)
        hits, witnessed, epochs = dict(at.hits), dict(at.witnessed), at.epochs
        for event in trainer.run():
            yield
            epochs += isinstance(event, EpochDone)
            if not isinstance(event, EpochDone) or epochs > until or (epochs == until == total):
                continue  # the last epoch is looked at when all stages have ended
            if _is_looked_at(epochs, until):
                hits[epochs], witnessed[epochs] = self._validated(split, at.leg, trainer.model)
            if epochs == until:
                tensors, position = trainer.state()
                state = {name: value.clone() for name, value in tensors.items()}, position
                return replace(at, state=state, hits=hits, witnessed=witnessed, epochs=epochs)
        hits[until], witnessed[until] = self._validated(split, at.leg, trainer.model)
        return replace(at, hits=hits, witnessed=witnessed, epochs=until)

    def _trainer(self, lane: Lane, at: _Paused, action: Action, total: int, round_: int) -> Trainer:
        address: tuple[int | str, ...] = ("round", round_, *(("leg", at.number) if at.number else ()))
        trainer = lane.trainer(at.leg, action, total, address)
        if at.state is not None:
            trainer.restore(*at.state)
        return trainer

    # The environment --------------------------------------------------------------------------------------------

    def _legs(self, split: Split) -> int:
        return 2 if split.environment.later is not None else 1 + self.settings.horizon

    def _next_leg(self, leg: Leg, environment: Environment, model: Model) -> Leg:
        """The second pseudo phase of a look-ahead; or the same images again, for the model that they gave."""
        model = copy.deepcopy(model)  # a lane trains its own on
        known = sum(leg.start.growth)
        if environment.later is None:
            start = replace(leg.start, model=model, growth=Growth(known, 0))
            return Leg.of(start, leg.kept, leg.new)
        start = replace(leg.start, model=model, growth=Growth(known, len(environment.rows or ()) - known))
        return Leg.of(start, self._exemplars(leg, model), environment.later)

    def _split(self, number: int) -> Split:
        if number in self._splits:
            return self._splits[number]
        environment, start = self._environment(number), self._start
        assert environment is not None, "trials are run only where they are possible"
        if environment.later is not None:
            arrived = {label for label in environment.new.labels.tolist() if label >= start.growth.old}
            start = replace(start, growth=Growth(start.growth.old, len(arrived)))
        return Split(environment, Leg.of(start, environment.kept, environment.new))

    def _environment(self, number: int) -> Environment | None:
        generator = draws.generator(self._start.seed, "environment", self._start.phase, number)
        images, count = (self._memory, self._new, self._reserve), self.settings.validation
        if self.settings.environment == "lookahead":
            found = look_ahead(*images, self._start.growth.old, generator, count)
            if found is not None:
                return found
        return local_environment(*images, generator, count)

    # Validation -------------------------------------------------------------------------------------------------

    def _exemplars(self, leg: Leg, model: Model) -> ImageSet:
        """What the memory would be after this leg: what was kept, and the new images cut to their quota by herding."""
        backend, new = self._start.backend, leg.new
        features = extract(model, new.pixels, self._start.preprocessing, backend).features
        ranks = herd(features, new.labels.to(backend.device), self._quota)
        return ImageSet.joined([leg.kept, *(new.select(ranks[label]) for label in sorted(ranks))])

    def _validated(self, split: Split, leg: Leg, model: Model) -> tuple[Hits, Any]:
        """Hits of both classifiers on B; class means come from the local training part only."""
        environment, preprocessing, backend = split.environment, self._start.preprocessing, self._start.backend
        means = class_means(model, self._exemplars(leg, model), sum(leg.start.growth), preprocessing, backend)
        found = both_classifiers(extract(model, environment.valid.pixels, preprocessing, backend), means)
        labels = environment.valid.labels.to(backend.device)
        hits = {name: _hits(scores.argmax(dim=1), labels) for name, scores in found.items()}
        seen = self._witness(model, means) if self._witness is not None and environment.later is None else None
        return hits, seen

    def _outcome(self, trial: Trial, split: Split, hits: list[int]) -> Outcome:
        _, images, _ = _judged(split.environment)
        per_class = tuple(right / count for right, count in zip(hits, images, strict=True))
        return Outcome(trial, sum(per_class) / len(per_class), per_class)

    def _result(self, split: Split, outcome: Outcome, at: _Paused, until: int) -> TrialResult:
        environment = split.environment
        classes, images, order = _judged(environment)
        trained = len(split.first.feed) + (len(environment.later) if environment.later is not None else 0)
        legs = tuple(each.reward for each in at.rewards)
        return TrialResult(
            replace(outcome, per_class=tuple(outcome.per_class[place] for place in order) if outcome.per_class else ()),
            [classes[place] for place in order],
            [images[place] for place in order],
            self._start.growth.old,
            {
                epoch: {name: [counts[place] for place in order] for name, counts in hits.items()}
                for epoch, hits in at.hits.items()
                if _is_looked_at(epoch, until)
            },
            {"digest": environment.digest(), "trained": trained, "validated": len(environment.valid)},
            legs,
            {epoch: seen for epoch, seen in at.witnessed.items() if seen is not None and _is_looked_at(epoch, until)},
        )


def _judged(environment: Environment) -> tuple[list[int], list[int], list[int]]:
    """The real rows of the classes in B, their images, and in which order the rows ascend."""
    labels, counts = torch.unique(environment.valid.labels, return_counts=True)
    rows = [environment.rows[label] if environment.rows else label for label in labels.tolist()]
    return rows, counts.tolist(), sorted(range(len(rows)), key=rows.__getitem__)


def _hits(guesses: Tensor, labels: Tensor) -> list[int]:
    """How many images of each label that is there were guessed right, by ascending label."""
    classes, places = torch.unique(labels, return_inverse=True)
    right: list[int] = torch.bincount(places[guesses == labels], minlength=len(classes)).tolist()
    return right


def _mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean over the legs that are rewarded, of the last one's trial."""
    if len(outcomes) == 1:
        return outcomes[0]
    per_class = [sum(values) / len(outcomes) for values in zip(*(each.per_class for each in outcomes), strict=True)]
    return Outcome(outcomes[-1].trial, sum(per_class) / len(per_class), tuple(per_class))


def _is_looked_at(epoch: int, last: int) -> bool:
    """Epochs 1, 2, 4, 8, … and the last, so that estimators can be compared offline."""
    return epoch == last or (epoch < last and epoch & (epoch - 1) == 0)
