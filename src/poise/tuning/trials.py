"""Trials: temporary trainings of single actions on environments. An attempt is a plain value; running it is work."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

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
from poise.training import (
    EpochDone,
    Event,
    Executor,
    Lane,
    Lanes,
    LocalExecutor,
    LocalPhase,
    Progress,
    Trainer,
    Work,
    keep_exemplars,
    measure_means,
    remember_means,
    worthwhile_lanes,
)
from poise.tuning.attempt import Attempt, TrialInputs
from poise.tuning.environment import Environment
from poise.tuning.rewards import (
    HitsPerClass,
    TrialResult,
    Witness,
    count_hits,
    join_results,
    mean_outcome,
    validated_classes,
)
from poise.tuning.splits import Split, draw_local, draw_splits, is_possible

E = TypeVar("E")


@dataclass(frozen=True)
class _Reached:
    """Where a trial stands: in which local phase, at which epoch of it, and what was seen. Another may continue it."""

    begun: LocalPhase
    number: int = 0
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None
    hits: Mapping[int, HitsPerClass] = field(default_factory=dict)
    witnessed: Mapping[int, Any] = field(default_factory=dict)
    rewards: tuple[Outcome, ...] = ()  # of earlier local phases
    epochs: int = 0


@dataclass(frozen=True)
class _Leg:
    """One attempt on one split: until which epoch of how many."""

    attempt: Attempt
    split: Split
    lane: Lane
    until: int
    total: int


class Trials:
    """Runs the trials of one phase. What they reached is kept as long as the phase, so that survivors can continue.

    It is the bench of its attempts: made of plain inputs, and sent elsewhere without what it reached here.
    """

    def __init__(
        self, inputs: TrialInputs, *, executor: Executor | None = None, witness: Witness | None = None
    ) -> None:
        self.inputs, self._witness = inputs, witness
        situation = inputs.situation
        size = sum(parameter.numel() for parameter in situation.model.backbone.parameters())
        self._lanes = Lanes(situation.backend, kind=(size, situation.schedule.batch, *inputs.new.shape))
        if executor is None or witness is not None:  # a witness, which only studies have, stays here
            executor = LocalExecutor(self._lanes)
        self._executor = executor
        self._splits: dict[int, list[Split]] = {}  # of the rounds under way: any round can be drawn again
        self._reached: dict[tuple[int, int, bool, int], _Reached] = {}
        self.trained = 0  # images that trials were trained on here

    def __reduce__(self) -> tuple[type[Trials], tuple[TrialInputs]]:
        return Trials, (self.inputs,)

    @cached_property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        inputs = self.inputs
        return is_possible(inputs.settings, inputs.situation.growth.old, inputs.memory, inputs.new, inputs.reserve)

    @property
    def images_an_epoch(self) -> float:
        """About how many images an epoch of a trial trains on: all that the phase trains on, in each local phase."""
        inputs = self.inputs
        images = len(inputs.memory.exemplars) + len(inputs.new)
        pace = inputs.situation.schedule.epochs / inputs.planned_epochs
        return images * pace * inputs.settings.trainings(inputs.situation.growth.new)

    def run(self, attempt: Attempt) -> TrialResult:
        """Train until the trial's epoch and validate; a loss that diverges is a reward of 0 and stops nothing."""
        return next(self.run_all([attempt]))

    def run_all(self, attempts: Sequence[Attempt]) -> Iterator[TrialResult]:
        """The results of several attempts, wherever they are run, in the order of asking."""
        return (result for results in self.running(attempts) for result in results)

    def running(self, attempts: Sequence[Attempt]) -> Iterator[list[TrialResult]]:
        """Each time those results that became known, in the order of asking: none, one or more."""
        return self.inputs.situation.backend.guard(self._run_all(attempts))

    def _run_all(self, attempts: Sequence[Attempt]) -> Generator[list[TrialResult], None, None]:
        rounds = {attempt.trial.round for attempt in attempts}
        self._splits = {number: splits for number, splits in self._splits.items() if number in rounds}
        if isinstance(self._executor, LocalExecutor):
            self._draw(rounds)
            self._lanes.limit(self._worthwhile_lanes(attempts))
        for results in self._executor.run(self, attempts):
            yield [self.inputs.situation.backend.broadcast(result) for result in results]

    def _worthwhile_lanes(self, attempts: Sequence[Attempt]) -> int:
        """How many lanes these attempts are worth: each of them captures every kind of step that it meets."""
        splits = [split for number in {each.trial.round for each in attempts} for split in self._splits[number]]
        images = sum(each.trial.epochs * split.trained for each in attempts for split in self._splits[each.trial.round])
        kinds = len({each.action.step_key for each in attempts})
        return worthwhile_lanes(images, kinds * sum(self._phases(split) for split in splits))

    def rest(self) -> None:
        """Give all memory back: nothing continues from what was reached, and any split can be drawn again."""
        self._reached.clear()
        self._splits.clear()
        if self._lanes.opened:
            self._lanes.keep()

    def work(self, attempt: Attempt, lane: Lane) -> Work[TrialResult]:
        """One attempt on all splits of its round, one after the other."""
        if attempt.trial.round not in self._splits:
            self._draw({attempt.trial.round})
            lane.backend.synchronise()  # other lanes start from there, too
        parts: list[TrialResult] = []
        for place in range(len(self._splits[attempt.trial.round])):
            parts.append((yield from self._try_split(attempt, place, lane)))
            if parts[-1].outcome.diverged:
                break
        return self._join(attempt, parts)

    def waits(self, attempt: Attempt) -> None:
        """A trial that waits for memory is nothing to tell."""

    def failed(self, attempt: Attempt, error: Exception) -> TrialResult:
        """A trial that does not fit into memory even alone fails the phase."""
        raise error

    def _join(self, attempt: Attempt, parts: list[TrialResult]) -> TrialResult:
        """The result over all splits; where one diverged, those after it have failed too."""
        splits = self._splits[attempt.trial.round]
        good = parts[: next((place + 1 for place, part in enumerate(parts) if part.outcome.diverged), len(parts))]
        return join_results([*good, *(self._failed_result(split, attempt) for split in splits[len(good) :])])

    def _failed_result(self, split: Split, attempt: Attempt, until: int | None = None) -> TrialResult:
        """What a split gives where the trial diverged."""
        failed = Outcome(attempt.trial, 0.0, (), diverged=True)
        return self._result(split, failed, _Reached(split.first), until or attempt.trial.epochs)

    # One attempt on one split -----------------------------------------------------------------------------------

    def _try_split(self, attempt: Attempt, place: int, lane: Lane) -> Work[TrialResult]:
        """Train the local phases of a split with the action, from where an earlier trial stopped if there is one."""
        trial, split = attempt.trial, self._splits[attempt.trial.round][place]
        leg = self._leg(attempt, split, lane)
        key = (trial.arm, trial.round, trial.full, place)
        at = self._reached.get(key)
        if at is None or at.epochs > leg.until:
            at = _Reached(split.first)
        try:
            while at.number < self._phases(split) - 1:
                at = yield from self._finish_phase(leg, at)
            at = yield from self._train_until(leg, at)
        except Diverged:
            self._reached.pop(key, None)
            return self._failed_result(split, attempt, leg.until)
        self._reached[key] = at
        if leg.until == leg.total:  # nothing can continue it
            del self._reached[key]
        last = self._outcome(trial, split, at.hits[leg.until][attempt.classifier])
        return self._result(split, mean_outcome([*at.rewards, last]), at, leg.until)

    def _leg(self, attempt: Attempt, split: Split, lane: Lane) -> _Leg:
        full = self.inputs.planned_epochs
        scale = (attempt.action.epochs or self.inputs.situation.schedule.epochs) / full
        short = attempt.short or self.inputs.settings.short(full)
        until = ceiling(attempt.trial.epochs * scale)
        return _Leg(attempt, split, lane, until, ceiling((full if attempt.trial.full else short) * scale))

    def _finish_phase(self, leg: _Leg, at: _Reached) -> Work[_Reached]:
        """Train a local phase that is not the last one to its end, and begin the next."""
        trainer = self._trainer(leg, at)
        for event in self._train(trainer):
            yield isinstance(event, Progress)
        rewards = at.rewards
        if leg.split.environment.later is None:  # the paper's sum of rewards over the repetitions
            hits = self._validate(leg.split, at.begun, trainer)[0]
            rewards = (*rewards, self._outcome(Trial(0, 0, 1), leg.split, hits[leg.attempt.classifier]))
        return _Reached(self._next_phase(leg, at.begun, trainer), at.number + 1, rewards=rewards)

    def _train_until(self, leg: _Leg, at: _Reached) -> Work[_Reached]:
        """Train the last local phase until the trial's epoch, looking at it on the way."""
        until = leg.until
        if until in at.hits:
            return at
        trainer = self._trainer(leg, at)
        hits, witnessed, epochs = dict(at.hits), dict(at.witnessed), at.epochs
        for event in self._train(trainer):
            yield isinstance(event, Progress)
            epochs += isinstance(event, EpochDone)
            if not isinstance(event, EpochDone) or epochs > until or (epochs == until == leg.total):
                continue  # the last epoch is looked at when all stages have ended
            if self._is_looked_at(epochs, until):
                hits[epochs], witnessed[epochs] = self._validate(leg.split, at.begun, trainer)
            if epochs == until:
                tensors, position = trainer.state()
                state = {name: value.clone() for name, value in tensors.items()}, position
                return replace(at, state=state, hits=hits, witnessed=witnessed, epochs=epochs)
        hits[until], witnessed[until] = self._validate(leg.split, at.begun, trainer)
        return replace(at, hits=hits, witnessed=witnessed, epochs=until)

    def _train(self, trainer: Trainer) -> Iterator[Event]:
        """The events of a training, whose images are counted."""
        before = trainer.done
        for event in trainer.run():
            self.trained += trainer.done - before
            before = trainer.done
            yield event

    def _trainer(self, leg: _Leg, at: _Reached) -> Trainer:
        address: tuple[int | str, ...] = ("round", leg.attempt.trial.round, *(("leg", at.number) if at.number else ()))
        trainer = leg.lane.trainer(at.begun, leg.attempt.action, leg.total, address)
        if at.state is not None:
            trainer.restore(*at.state)
        return trainer

    # The environment --------------------------------------------------------------------------------------------

    def _phases(self, split: Split) -> int:
        return 2 if split.environment.later is not None else 1 + self.inputs.settings.horizon

    def _next_phase(self, leg: _Leg, begun: LocalPhase, trainer: Trainer) -> LocalPhase:
        """The second pseudo phase of a look-ahead; or the same images again, for the model that they gave.

        Before a second pseudo phase memory and new images are cut by the rule of real phases. The draw is that of the
        round: actions differ in how many images they keep, not in which ones come first.
        """
        environment, action = leg.split.environment, leg.attempt.action
        model = trainer.finish().starts.copy()  # a lane trains its own further
        model.extras.clear()
        known = sum(begun.situation.growth)
        if environment.later is None:
            situation = replace(begun.situation, model=model, growth=Growth(known, 0))
            return begun.followed_by(situation, begun.kept, begun.new)
        growth = Growth(known, len(environment.rows or ()) - known, begun.situation.growth.real_phase)
        exemplars = self._exemplars(leg.split, begun, trainer.predictor, action)
        means = remember_means(begun.situation, trainer.predictor, exemplars, begun.new)
        situation = replace(begun.situation, model=model, growth=growth, means=means)
        memory = Memory.of(exemplars)
        generator = draws.generator(situation.seed, "arrival", situation.phase, "round", leg.attempt.trial.round)
        quota, rho = self.inputs.pseudo_quota(action), self.inputs.allocation(action)
        memory, new = on_arrival(memory, environment.later, quota, known, rho, generator)
        return begun.followed_by(situation, memory.exemplars, new, id(exemplars), quota, rho)

    def _draw(self, rounds: set[int]) -> None:
        """Draw the splits of these rounds, unless they are known already."""
        for number in sorted(rounds - set(self._splits)):
            self._splits[number] = draw_splits(self.inputs, number)

    def local(self) -> Environment | None:
        """The local environment of the first round, for tuners that are not policies."""
        return draw_local(self.inputs, 0)

    # Validation -------------------------------------------------------------------------------------------------

    def _exemplars(self, split: Split, begun: LocalPhase, model: Model, action: Action) -> ImageSet:
        """What the memory would be after this local phase: every class cut to its quota, the new ones by herding.

        The local environment stands for the phase itself, with all the images that arrived in it.
        """
        inputs, later, plain = self.inputs, split.environment.later, float(self.inputs.quota)
        arrived = inputs.arrived or len(begun.new)
        if later is not None:
            arrived, plain = len(begun.new if begun is split.first else later), inputs.pseudo_quota(action)
        quota = per_class(plain, sum(begun.situation.growth), arrived, inputs.allocation(action))
        evaluator = inputs.situation.evaluator
        return begun.once(
            model, ("exemplars", quota), lambda: keep_exemplars(evaluator, model, begun.kept, begun.new, quota)
        )

    def _validate(self, split: Split, begun: LocalPhase, trainer: Trainer) -> tuple[HitsPerClass, Any]:
        """Hits of both classifiers on B; class means come from the local training part only."""
        environment, evaluator = split.environment, self.inputs.situation.evaluator
        model = trainer.predictor
        exemplars = self._exemplars(split, begun, model, trainer.action)
        means = begun.once(
            model,
            ("means", id(exemplars)),
            lambda: measure_means(begun.situation, model, exemplars, begun.new).vectors,
        )
        labels = environment.valid.labels.to(evaluator.backend.device)
        among = None if environment.later is None else torch.unique(labels)  # see `look_ahead`
        found = evaluator.guesses(model, means, environment.valid, among)
        hits = {name: count_hits(rows, labels) for name, rows in found.items()}
        if self._witness is None or environment.later is not None:
            return hits, None
        return hits, self._witness(model, means, self.inputs.classes)

    def _outcome(self, trial: Trial, split: Split, hits: list[int]) -> Outcome:
        _, images, _ = validated_classes(split.environment)
        shares = tuple(right / count for right, count in zip(hits, images, strict=True))
        return Outcome(trial, sum(shares) / len(shares), shares)

    def _result(self, split: Split, outcome: Outcome, at: _Reached, until: int) -> TrialResult:
        environment = split.environment
        classes, images, order = validated_classes(environment)
        looked_at = [epoch for epoch in at.hits if self._is_looked_at(epoch, until)]
        return TrialResult(
            replace(outcome, per_class=tuple(outcome.per_class[place] for place in order) if outcome.per_class else ()),
            [classes[place] for place in order],
            [images[place] for place in order],
            self.inputs.situation.growth.old,
            {
                epoch: {name: [counts[place] for place in order] for name, counts in at.hits[epoch].items()}
                for epoch in looked_at
            },
            {
                "environment": "local" if environment.later is None else "lookahead",
                "digest": environment.digest,
                "trained": split.trained,
                "validated": len(environment.valid),
            },
            tuple(each.reward for each in at.rewards),
            {epoch: at.witnessed[epoch] for epoch in looked_at if at.witnessed.get(epoch) is not None},
        )

    def _is_looked_at(self, epoch: int, last: int) -> bool:
        """The last epoch; in a study, which compares estimators, epochs 1, 2, 4, 8, … too."""
        return epoch == last or (self._witness is not None and epoch < last and epoch & (epoch - 1) == 0)
