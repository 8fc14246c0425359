"""How far a phase or a run has come: the work that is done, counted against the work that is planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from poise.training import Event, Outlook, Trying, Workload, events

_TrialEvent = events.TrialStep | events.TrialDone | events.TuningDone


class Worker(Protocol):
    """What is at work: a learner."""

    def outlook(self) -> Outlook:
        """What it is doing, and how much is to come."""


@dataclass(frozen=True)
class Done:
    """How far the work has come.

    Attributes:
        share: of the whole, in [0, 1]; trials count as well as training.
        left: seconds that the rest will take; None where nothing was measured yet.
        rate: images trained on in a second, in trials or in training, whichever was last.
        trying: what is being tried when it is called, such as `trial 3 of 12: …`; empty where nothing is.
    """

    share: float
    left: float | None = None
    rate: float = 0.0
    trying: Callable[[], str] = str


class Meter:
    """Counts the work that is done against the work that is planned.

    Trials and training are timed apart: several trials may run side by side, and a training may have a teacher.
    `plans` are the phases of a run; what the worker knows of a phase takes the place of what was planned.
    """

    def __init__(
        self, worker: Worker, plans: Sequence[Workload] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._worker = worker
        self._plans = {plan.phase: plan for plan in plans}
        self._clock, self._last = clock, clock()
        self._phase = -1
        self._prepared = self._chosen = self._trained = 0.0  # images of this phase: before its training, and in it
        self._tuning, self._training = _Speed(), _Speed()
        self._expected: float | None = None  # images in a second, as long as nothing was measured

    def note(self, event: Event) -> Done:
        """Count what led to this event. Of a phase that was resumed, the first one only says where it stands."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        measures = self._phase >= 0
        if event.phase != self._phase:
            self._phase, self._prepared, self._chosen, self._trained = event.phase, 0.0, 0.0, 0.0
        outlook = self._worker.outlook()
        plan = self._plans.get(event.phase, Workload(event.phase))
        if outlook.work is not None:
            plan = replace(outlook.work, preparing=max(outlook.work.preparing, plan.preparing))
            self._plans[event.phase] = plan
        if isinstance(event, events.JudgingStep):
            self._prepared = float(event.trained)
            self._training.count(event.images, elapsed)
            return self._done(self._training.rate or 0.0)
        self._prepared = plan.preparing
        chosen, trained = self._chosen, self._trained
        self._chosen, self._trained = _work_done(event, plan, outlook.trying, (chosen, trained))
        tuning = isinstance(event, _TrialEvent)
        if tuning and measures:
            self._tuning.count(self._chosen - chosen, elapsed)
        elif isinstance(event, events.StepDone | events.EpochDone | events.StageDone) and measures:
            self._training.count(self._trained - trained, elapsed)
        return self._done((self._tuning if tuning else self._training).rate or 0.0)

    def _done(self, rate: float) -> Done:
        choosing = training = whole = 0.0  # what is left, and all of it
        for plan in self._plans.values():
            whole += plan.preparing + plan.choosing + plan.training
            here = plan.phase == self._phase
            if plan.phase >= self._phase:
                choosing += max(0.0, plan.choosing - self._chosen * here)
                training += max(0.0, plan.training - self._trained * here)
                training += max(0.0, plan.preparing - self._prepared * here)
        share = 1 - (choosing + training) / whole if whole else 0.0
        return Done(share, self._left(choosing, training) if whole else None, rate, self._trying)

    def _left(self, choosing: float, training: float) -> float | None:
        """Each kind of work at the rate that was measured for it, or for the other kind as long as it was not."""
        rates = self._tuning.rate, self._training.rate
        known = next((rate for rate in rates if rate), self._expected)
        if known is None:
            return None
        return choosing / (rates[0] or known) + training / (rates[1] or known)

    def _trying(self) -> str:
        """What the worker tries at this moment; a display may ask between two events, too."""
        outlook = self._worker.outlook()
        trying, work = outlook.trying, outlook.work
        if trying is None or work is None or trying.finished >= len(trying.actions):
            return ""
        if trying.purpose != "policy":
            return "judging the classifiers"
        number = trying.before + trying.finished + 1
        most = max(work.trials, trying.before + len(trying.actions))
        bound = "" if work.exact and work.trials == most else "up to "
        return f"trial {number} of {bound}{most}: {trying.actions[trying.finished]}"


class _Speed:
    """Images and seconds of one kind of work."""

    def __init__(self) -> None:
        self._images = self._seconds = 0.0

    def count(self, images: float, seconds: float) -> None:
        """Add what was done; seconds without an image count, too, because queued steps take them later."""
        self._images += max(0.0, images)
        self._seconds += seconds

    @property
    def rate(self) -> float | None:
        return self._images / max(self._seconds, 1e-9) if self._images else None


def _work_done(event: Event, plan: Workload, trying: Trying | None, before: tuple[float, float]) -> tuple[float, float]:
    """How many images of a phase were trained on: before its own training, and in it."""
    chosen, trained = before
    match event:
        case events.TrialStep() | events.TrialDone() | events.TuningDone():
            return max(chosen, _count_tried(event, plan, trying, chosen)), trained
        case events.ActionDecided():
            return plan.choosing, trained
        case events.StepDone() | events.EpochDone() | events.StageDone():
            return plan.choosing, _count_trained(event, plan)
        case events.PhaseDone():
            return plan.choosing, plan.training
    return chosen, trained


def _count_tried(event: _TrialEvent, plan: Workload, trying: Trying | None, before: float) -> float:
    """How many of the planned images trials, or a tuner, were trained on: those that are finished, and parts of others.

    A trial may train on more images than were planned; inside of those at work it goes no further than their end.
    """
    if trying is None:
        finished, at_work = _count_steps(event, plan)
    else:
        policy, count = trying.purpose == "policy", event.at_work if isinstance(event, events.TrialStep) else 1
        whole = plan.tuning if policy else plan.judging
        finished = (0.0 if policy else plan.tuning) + whole * trying.done
        at_work = whole * sum(trying.shares[trying.finished : trying.finished + count])
    if isinstance(event, events.TrialStep):
        return min(finished + at_work, max(before, finished) + event.images)
    return finished


def _count_steps(event: _TrialEvent, plan: Workload) -> tuple[float, float]:
    """The planned images of the finished steps of a tuner that is no policy, and those of the next."""
    steps = max(plan.trials, 1)
    done = 0
    if isinstance(event, events.TuningDone):
        done = step_number(event)
    elif isinstance(event, events.TrialStep):
        done = event.step
    return plan.tuning * min(1.0, done / steps), plan.tuning / steps


def _count_trained(event: events.StepDone | events.EpochDone | events.StageDone, plan: Workload) -> float:
    """How many images of the phase's own training were trained on."""
    names = list(plan.stages)
    if event.stage not in names:  # the training has other stages than planned
        return plan.training
    before = sum(plan.stages[name] for name in names[: names.index(event.stage)])
    share = 1.0
    if isinstance(event, events.EpochDone):
        share = event.epoch / event.epochs
    elif isinstance(event, events.StepDone):
        share = (event.epoch + event.step / event.steps) / event.epochs
    return before + share * plan.stages[event.stage]


def step_number(event: events.TuningDone) -> int:
    """Which round or episode it was, counted from 1."""
    return int(event.record.get("round", event.record.get("number", 0))) + 1
