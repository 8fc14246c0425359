"""Trials: temporary trainings of single actions on environments, and what comes of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import ImageSet, Memory, on_arrival, per_class
from poise.errors import Diverged, UserError, check_number, check_whole, suggestion
from poise.methods import Growth
from poise.nets import Model
from poise.policies import Outcome, Trial, preset
from poise.training.evaluate import class_means, guesses, herded
from poise.training.events import EpochDone, trained_images
from poise.training.lanes import Lane, Lanes, Leg
from poise.training.pace import Piece
from poise.training.situation import PhaseStart, ceiling
from poise.training.trainer import Trainer
from poise.tuning.environment import VALIDATION, Environment, local_environment, look_ahead

T = TypeVar("T")
ENVIRONMENTS = ("local", "lookahead", "both")
CLASSIFIER_RULES = ("full", "paper")

#: Looks at a temporary model and its class means; what it returns is recorded and never enters a reward.
Witness = Callable[[Model, Tensor], Any]
Hits = Mapping[str, list[int]]  # of every class in B, by classifier


@dataclass(frozen=True)
class TrialSettings:
    """How actions are tried.

    Attributes:
        environment: `local` (the paper's); `lookahead` (two pseudo phases made of the new classes); or `both`, one
            after the other, each counting by how many images it validates on.
        horizon: the paper's n: so often a local training is repeated with its own result as teacher.
        validation: images of each class in B.
        length: M₁ as a share of M₂.
        longest: M₁ at most, in epochs.
        classifier: what decides `auto` where there is no reserve: `full`, a training of the decided action at full
            length on the local training part; or `paper`, two short trainings in the first tuned phase.
    """

    environment: str = "local"
    horizon: int = 0
    validation: int = VALIDATION
    length: float = 0.1
    classifier: str = "full"
    longest: int | None = None

    def __post_init__(self) -> None:
        for key, known in (("environment", ENVIRONMENTS), ("classifier", CLASSIFIER_RULES)):
            if getattr(self, key) not in known:
                raise UserError(f"trials.{key}={getattr(self, key)!r}; {suggestion(str(getattr(self, key)), known)}")
        check_whole("trials.horizon", self.horizon, 0)
        check_whole("trials.validation", self.validation, 1)
        check_number("trials.length", self.length, positive=True)
        if self.length > 1:
            raise UserError(f"trials.length={self.length} must be a share of the phase's epochs, at most 1")
        if self.longest is not None:
            check_whole("trials.longest", self.longest, 1)
        if self.environment != "local" and self.horizon:
            raise UserError(
                "trials.horizon repeats the local environment, a look-ahead has two phases already; "
                "use it with trials.environment=local"
            )

    def short(self, full: int) -> int:
        """M₁ for a phase of M₂ epochs."""
        return min(ceiling(self.length * full), full if self.longest is None else self.longest)


def trial_settings(policy: str, given: Mapping[str, Any]) -> TrialSettings:
    """How that policy's actions are tried: as given, else as it brings along, else by default."""
    if not isinstance(given, Mapping):
        raise UserError(f"trials={given!r} must be a mapping, such as {{'length': 0.2}}")
    known = [each.name for each in fields(TrialSettings)]
    for name in given:
        if name not in known:
            raise UserError(f"unknown key 'trials.{name}'; {suggestion(str(name), known)}")
    return TrialSettings(**{**preset(policy).trials, **given})


@dataclass(frozen=True)
class Course:
    """One draw of an environment, and the leg that every trial on it starts with."""

    environment: Environment
    first: Leg

    @property
    def trained(self) -> int:
        """How many images are trained on."""
        later = self.environment.later
        return len(self.first.feed) + (len(later) if later is not None else 0)


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial: for the policy an outcome, for the record what was seen on the way.

    Classes are rows of the head, ascending within each environment that was used; images and hits belong to them.
    """

    outcome: Outcome
    classes: list[int]
    images: list[int]
    old: int
    hits: Mapping[int, Hits]
    split: Mapping[str, Any]
    legs: tuple[float, ...] = ()  # rewards of the trainings before the last one
    witnessed: Mapping[int, Any] = field(default_factory=dict)
    parts: tuple[int, ...] = ()  # how many of the classes belong to each environment, where there are several

    @property
    def weights(self) -> list[float]:
        """How much each class counts in the reward: the same within an environment; those count by their images."""
        sizes, weights, first = self.parts or (len(self.classes),), list[float](), 0
        for size in sizes:
            share = sum(self.images[first : first + size]) / sum(self.images) if len(sizes) > 1 else 1.0
            weights += [share / size] * size
            first += size
        return weights

    def totals(self) -> dict[str, int]:
        """All hits of each classifier at the end; none if it diverged."""
        last = self.hits[max(self.hits)] if self.hits and not self.outcome.diverged else {"fc": [], "ncm": []}
        return {name: sum(counts) for name, counts in last.items()}

    def as_json(self) -> dict[str, Any]:
        """The record of the trial."""
        return {
            "classes": self.classes,
            "images": self.images,
            **({"weights": self.weights} if self.parts else {}),
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
        rho: float = 0.0,
        lanes: Lanes | None = None,
        classes: Sequence[Any] = (),
        witness: Witness | None = None,
    ) -> None:
        self._start, self._memory, self._new, self._reserve, self._quota = start, memory, new, reserve, quota
        self._rho = rho  # of the memory's rule, where the action does not say it
        self.settings, self.classes, self._witness = settings or TrialSettings(), tuple(classes), witness
        size = sum(parameter.numel() for parameter in start.model.backbone.parameters())
        self._lanes = lanes or Lanes(start.backend, kind=(size, start.schedule.batch, *new.shape))
        self._rounds: dict[int, list[Course]] = {}  # those under way: any round can be drawn again
        self._paused: dict[tuple[int, int, bool, int], _Paused] = {}

    @cached_property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        return bool(self._environments(0))

    def run(self, trial: Trial, action: Action, classifier: str, short: int) -> TrialResult:
        """Train until the trial's epoch and validate; a loss that diverges is a reward of 0 and stops nothing."""
        return next(self.run_all([(trial, action, classifier)], short))

    def run_all(self, wanted: Sequence[tuple[Trial, Action, str]], short: int) -> Iterator[TrialResult]:
        """The same for several trials, as many side by side as there are lanes; results in the order of asking."""
        return self._start.backend.guarded(self._waves(list(wanted), short))

    def _waves(self, left: list[tuple[Trial, Action, str]], short: int) -> Generator[TrialResult, None, None]:
        while left:
            try:
                for result in self._wave(left, short):
                    left = left[1:]
                    yield result
            except torch.cuda.OutOfMemoryError:
                if len(self._lanes) == 1:
                    raise
            else:
                return
            self._lanes.fewer()  # outside the handler, which would keep the failed trainings alive

    def _wave(self, wanted: Sequence[tuple[Trial, Action, str]], short: int) -> Generator[TrialResult, None, None]:
        """These trials, as many side by side as there are lanes."""
        rounds = {trial.round for trial, _, _ in wanted}
        self._rounds = {number: self._courses(number) for number in sorted(rounds)}
        yield from self._lanes.side_by_side([partial(self._trial, *each, short) for each in wanted])

    def _trial(self, trial: Trial, action: Action, classifier: str, short: int, lane: Lane) -> Piece[TrialResult]:
        """All courses of a round, one after the other."""
        parts: list[TrialResult] = []
        for place, course in enumerate(self._rounds[trial.round]):
            if parts and parts[-1].outcome.diverged:
                parts.append(self._failed(course, trial))
                continue
            parts.append((yield from self._tried(lane, course, place, trial, action, classifier, short)))
        return _joined(parts)

    def _failed(self, course: Course, trial: Trial) -> TrialResult:
        """What a course counts where an earlier one of the round diverged."""
        failed = Outcome(trial, 0.0, (), diverged=True)
        return self._result(course, failed, _Paused(course.first), trial.epochs)

    def rest(self) -> None:
        """Give back the memory of all lanes but those that a trial `beside` other work needs; nothing continues."""
        self._paused.clear()
        self._lanes.keep(len(self._environments(0)))

    def beside(self, trial: Trial, action: Action, classifier: str, short: int) -> Piece[TrialResult]:
        """The same as `run`, a little at a time beside other work: each course on a lane of its own, all at once."""
        self._rounds = {trial.round: self._courses(trial.round)}
        courses = self._rounds[trial.round]
        self._start.backend.synchronise()  # what they start from was queued elsewhere
        pieces = {
            place: self._tried(self._lanes[place], course, place, trial, action, classifier, short)
            for place, course in enumerate(courses)
        }
        parts: dict[int, TrialResult] = {}
        while pieces:
            images = 0
            for place, piece in list(pieces.items()):
                try:
                    images += _steps(self._lanes[place], piece)
                except StopIteration as end:
                    parts[place] = end.value
                    del pieces[place]
            diverged = [place for place, part in parts.items() if part.outcome.diverged]
            if diverged:  # it fails as a whole, whatever the later ones would give
                pieces = {place: piece for place, piece in pieces.items() if place < min(diverged)}
                parts = {place: part for place, part in parts.items() if place <= min(diverged)}
            yield images
        return _joined([parts.get(place) or self._failed(course, trial) for place, course in enumerate(courses)])

    def _tried(
        self, lane: Lane, course: Course, place: int, trial: Trial, action: Action, classifier: str, short: int
    ) -> Piece[TrialResult]:
        full = self._start.schedule.epochs
        scale = (action.epochs or full) / full
        until, total = ceiling(trial.epochs * scale), ceiling((full if trial.full else short) * scale)
        key = (trial.arm, trial.round, trial.full, place)
        at = self._paused.get(key)
        if at is None or at.epochs > until:
            at = _Paused(course.first)
        try:
            while at.number < self._legs(course) - 1:
                at = yield from self._passed(lane, course, at, action, total, trial.round, classifier)
            at = yield from self._advanced(lane, course, at, action, until, total, trial.round)
        except Diverged:
            self._paused.pop(key, None)
            return self._result(course, Outcome(trial, 0.0, (), diverged=True), _Paused(course.first), until)
        self._paused[key] = at
        if until == total:  # nothing can continue it
            del self._paused[key]
        last = self._outcome(trial, course, at.hits[until][classifier])
        return self._result(course, _mean_outcome([*at.rewards, last]), at, until)

    def _passed(
        self, lane: Lane, course: Course, at: _Paused, action: Action, total: int, round_: int, classifier: str
    ) -> Piece[_Paused]:
        """Train a leg that is not the last one to its end, and go to the next."""
        trainer = self._trainer(lane, at, action, total, round_)
        for event in trainer.run():
            yield trained_images(event)
        rewards = at.rewards
        if course.environment.later is None:  # the paper's sum of rewards over the repetitions
            hits = self._validated(course, at.leg, trainer)[0]
            rewards = (*rewards, self._outcome(Trial(0, 0, 1), course, hits[classifier]))
        leg = self._next_leg(at.leg, course.environment, trainer.model, action, round_)
        return _Paused(leg, at.number + 1, rewards=rewards)

    def _advanced(
        self, lane: Lane, course: Course, at: _Paused, action: Action, until: int, total: int, round_: int
    ) -> Piece[_Paused]:
        """Train the last leg until that epoch, looking at it on the way."""
        if until in at.hits:
            return at
        trainer = self._trainer(lane, at, action, total, round_)
        hits, witnessed, epochs = dict(at.hits), dict(at.witnessed), at.epochs
        for event in trainer.run():
            yield trained_images(event)
            epochs += isinstance(event, EpochDone)
            if not isinstance(event, EpochDone) or epochs > until or (epochs == until == total):
                continue  # the last epoch is looked at when all stages have ended
            if _is_looked_at(epochs, until):
                hits[epochs], witnessed[epochs] = self._validated(course, at.leg, trainer)
            if epochs == until:
                tensors, position = trainer.state()
                state = {name: value.clone() for name, value in tensors.items()}, position
                return replace(at, state=state, hits=hits, witnessed=witnessed, epochs=epochs)
        hits[until], witnessed[until] = self._validated(course, at.leg, trainer)
        return replace(at, hits=hits, witnessed=witnessed, epochs=until)

    def _trainer(self, lane: Lane, at: _Paused, action: Action, total: int, round_: int) -> Trainer:
        address: tuple[int | str, ...] = ("round", round_, *(("leg", at.number) if at.number else ()))
        trainer = lane.trainer(at.leg, action, total, address)
        if at.state is not None:
            trainer.restore(*at.state)
        return trainer

    # The environment --------------------------------------------------------------------------------------------

    def _legs(self, course: Course) -> int:
        return 2 if course.environment.later is not None else 1 + self.settings.horizon

    def _next_leg(self, leg: Leg, environment: Environment, model: Model, action: Action, round_: int) -> Leg:
        """The second pseudo phase of a look-ahead; or the same images again, for the model that they gave.

        In a second pseudo phase the memory is cut and new images are discarded as the action's allocation says. The
        draw is that of the round: actions differ in how many images they keep, not in which ones come first.
        """
        model = copy.deepcopy(model)  # a lane trains its own on
        known = sum(leg.start.growth)
        if environment.later is None:
            start = replace(leg.start, model=model, growth=Growth(known, 0))
            return Leg.of(start, leg.kept, leg.new)
        start = replace(leg.start, model=model, growth=Growth(known, len(environment.rows or ()) - known))
        memory = Memory.of(self._exemplars(leg, model, action))
        generator = draws.generator(start.seed, "arrival", start.phase, "round", round_)
        memory, new = on_arrival(memory, environment.later, self._quota, known, self._allocation(action), generator)
        return Leg.of(start, memory.exemplars, new)

    def _courses(self, number: int) -> list[Course]:
        if number in self._rounds:
            return self._rounds[number]
        courses = []
        for environment in self._environments(number):
            start = self._start
            if environment.later is not None:
                arrived = {label for label in environment.new.labels.tolist() if label >= start.growth.old}
                start = replace(start, growth=Growth(start.growth.old, len(arrived)))
            courses.append(Course(environment, Leg.of(start, environment.kept, environment.new)))
        return courses

    def local(self) -> Environment | None:
        """The local environment of the first round, for tuners that are no policies."""
        generator = draws.generator(self._start.seed, "environment", self._start.phase, 0)
        return local_environment(self._memory, self._new, self._reserve, generator, self.settings.validation)

    def _environments(self, number: int) -> list[Environment]:
        """This round's draw of each environment; where no look-ahead is possible, of the local one alone."""
        seed, phase, wanted = self._start.seed, self._start.phase, self.settings.environment
        images, count = (self._memory, self._new, self._reserve), self.settings.validation
        found: list[Environment | None] = []
        if wanted != "local":
            generator = draws.generator(seed, "look-ahead", phase, number)
            found.append(look_ahead(*images, self._start.growth.old, generator, count))
        if wanted != "lookahead" or found == [None]:
            generator = draws.generator(seed, "environment", phase, number)
            found.insert(0, local_environment(*images, generator, count))
        return [environment for environment in found if environment is not None]

    # Validation -------------------------------------------------------------------------------------------------

    def _allocation(self, action: Action) -> float:
        return self._rho if action.allocation is None else action.allocation

    def _exemplars(self, leg: Leg, model: Model, action: Action) -> ImageSet:
        """What the memory would be after this leg: every class cut to its quota, the new ones by herding."""
        quota = per_class(self._quota, sum(leg.start.growth), len(leg.new), self._allocation(action))
        return herded(model, leg.kept, leg.new, quota, self._start.preprocessing, self._start.backend)

    def _validated(self, course: Course, leg: Leg, trainer: Trainer) -> tuple[Hits, Any]:
        """Hits of both classifiers on B; class means come from the local training part only."""
        environment, preprocessing, backend = course.environment, self._start.preprocessing, self._start.backend
        model = trainer.model
        exemplars = self._exemplars(leg, model, trainer.action)
        means = class_means(model, exemplars, sum(leg.start.growth), preprocessing, backend)
        found = guesses(model, means, environment.valid.pixels, preprocessing, backend)
        labels = environment.valid.labels.to(backend.device)
        hits = {name: _hits(rows, labels) for name, rows in found.items()}
        seen = self._witness(model, means) if self._witness is not None and environment.later is None else None
        return hits, seen

    def _outcome(self, trial: Trial, course: Course, hits: list[int]) -> Outcome:
        _, images, _ = _judged(course.environment)
        per_class = tuple(right / count for right, count in zip(hits, images, strict=True))
        return Outcome(trial, sum(per_class) / len(per_class), per_class)

    def _result(self, course: Course, outcome: Outcome, at: _Paused, until: int) -> TrialResult:
        environment = course.environment
        classes, images, order = _judged(environment)
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
            {
                "environment": "local" if environment.later is None else "lookahead",
                "digest": environment.digest(),
                "trained": course.trained,
                "validated": len(environment.valid),
            },
            legs,
            {epoch: seen for epoch, seen in at.witnessed.items() if seen is not None and _is_looked_at(epoch, until)},
        )


def _steps(lane: Lane, piece: Piece[T]) -> int:
    """Let a piece go on until it has trained on something; raises `StopIteration` with its result when it ends."""
    while not (images := lane.turn(piece)):
        pass
    return images


def _judged(environment: Environment) -> tuple[list[int], list[int], list[int]]:
    """The real rows of the classes in B, their images, and in which order the rows ascend."""
    labels, counts = torch.unique(environment.valid.labels, return_counts=True)
    rows = [environment.rows[label] if environment.rows else label for label in labels.tolist()]
    return rows, counts.tolist(), sorted(range(len(rows)), key=rows.__getitem__)


def _hits(rows: Tensor, labels: Tensor) -> list[int]:
    """How many images of each label that is there were guessed right, by ascending label."""
    classes, places = torch.unique(labels, return_inverse=True)
    right: list[int] = torch.bincount(places[rows == labels], minlength=len(classes)).tolist()
    return right


def _mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean over the legs that are rewarded, of the last one's trial."""
    if len(outcomes) == 1:
        return outcomes[0]
    per_class = [sum(values) / len(outcomes) for values in zip(*(each.per_class for each in outcomes), strict=True)]
    return Outcome(outcomes[-1].trial, sum(per_class) / len(per_class), tuple(per_class))


def _joined(parts: Sequence[TrialResult]) -> TrialResult:
    """The result over all environments of a round; each counts by how many images it validates on."""
    if len(parts) == 1:
        return parts[0]
    last = parts[-1].outcome
    per_class = () if last.diverged else tuple(share for part in parts for share in part.outcome.per_class)
    epochs = [epoch for epoch in parts[0].hits if all(epoch in part.hits for part in parts)]
    joined = TrialResult(
        replace(last, per_class=per_class),
        [label for part in parts for label in part.classes],
        [count for part in parts for count in part.images],
        parts[0].old,
        {
            epoch: {name: [count for part in parts for count in part.hits[epoch][name]] for name in ("fc", "ncm")}
            for epoch in epochs
        },
        {"parts": [dict(part.split) for part in parts]},
        tuple(reward for part in parts for reward in part.legs),
        {epoch: seen for part in parts for epoch, seen in part.witnessed.items()},
        tuple(len(part.classes) for part in parts),
    )
    reward = sum(weight * share for weight, share in zip(joined.weights, per_class, strict=False))
    return replace(joined, outcome=replace(joined.outcome, reward=min(1.0, reward)))


def _is_looked_at(epoch: int, last: int) -> bool:
    """Epochs 1, 2, 4, 8, … and the last, so that estimators can be compared offline."""
    return epoch == last or (epoch < last and epoch & (epoch - 1) == 0)
