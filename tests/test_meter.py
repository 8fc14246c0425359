from __future__ import annotations

import pytest

from poise.meter import Meter
from poise.training import Outlook, Trying, Workload, events

WORK = Workload(1, trials=3, exact=True, tuning=300.0, judging=100.0, stages={"main": 500.0, "balance": 100.0})
ACTION: dict[str, float | str] = {"lr": 0.1, "classifier": "fc"}


class Clock:
    """A clock that is set by hand; also the worker that is watched."""

    def __init__(self, work: Workload | None = WORK) -> None:
        self.now = 0.0
        self.seen = Outlook(work)

    def __call__(self) -> float:
        return self.now

    def outlook(self) -> Outlook:
        return self.seen


def trial(number: int) -> events.TrialDone:
    return events.TrialDone(1, {"id": number}, ACTION, "fc", 0.5, False, {})


def step(stage: str, epoch: int, epochs: int) -> events.StepDone:
    return events.StepDone(1, stage, epoch, epochs, 1, 2, 64)


def test_trials_and_training_are_counted_and_timed_apart() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    worker.seen.trying = Trying("policy", ["lr=1", "lr=2"], [1 / 3, 1 / 3])
    started = meter.note(events.PhaseStarted(1, 2, 4, 40, 8))
    assert (started.share, started.left, started.trying()) == (0.0, None, "trial 1 of 3: lr=1")
    worker.now = 10.0
    worker.seen.trying = Trying("policy", ["lr=1", "lr=2"], [1 / 3, 1 / 3], finished=1)
    done = meter.note(trial(0))
    assert done.share == pytest.approx(0.1)
    assert done.rate == pytest.approx(10.0), "100 images in 10 seconds"
    assert done.left == pytest.approx(90.0), "nothing else is known yet"
    assert done.trying() == "trial 2 of 3: lr=2"
    worker.now = 11.0  # a decision that came early counts as all of the tuning, and is no measurement
    worker.seen.trying = None
    decided = meter.note(events.ActionDecided(1, "grid", ACTION))
    assert decided.share == pytest.approx(0.4)
    assert not decided.trying()
    worker.now = 16.0
    done = meter.note(step("main", 0, 2))
    assert done.share == pytest.approx(0.525)
    assert done.rate == pytest.approx(25.0)
    assert done.left == pytest.approx(475 / 25.0)
    assert meter.note(step("balance", 1, 2)).share == pytest.approx(0.975)
    last = meter.note(events.PhaseDone(1, "fc", 8))
    assert last.share == pytest.approx(1.0)
    assert last.left == pytest.approx(0.0)


def test_inside_of_trials_it_moves_on_and_never_back() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    worker.seen.trying = Trying("policy", ["lr=1", "lr=2"], [1 / 3, 1 / 3])
    meter.note(events.PhaseStarted(1, 2, 4, 40, 8))
    worker.now = 3.0
    done = meter.note(events.TrialStep(1, 60, at_work=2))
    assert (done.share, done.rate) == pytest.approx((0.06, 20.0))
    worker.now = 8.0
    assert meter.note(events.TrialStep(1, 100, at_work=2)).share == pytest.approx(0.16), "two trials side by side"
    worker.seen.trying = Trying("policy", ["lr=1", "lr=2"], [1 / 3, 1 / 3], finished=1)
    assert meter.note(trial(0)).share == pytest.approx(0.16), "a third of 300 images is less"
    worker.seen.trying = Trying("policy", ["lr=1", "lr=2"], [1 / 3, 1 / 3], finished=2)
    done = meter.note(trial(1))
    assert (done.share, done.rate) == pytest.approx((0.2, 25.0))
    worker.seen.trying = Trying("policy", ["lr=3"], [1 / 3], before=2, spent=2 / 3)
    assert meter.note(events.TrialStep(1, 10**9)).share == pytest.approx(0.3), "what was planned and no more"
    worker.seen.trying = Trying("classifier", ["lr=1"], [1.0])
    assert meter.note(events.TrialStep(1, 40)).share == pytest.approx(0.34)


def test_a_trial_of_more_images_than_planned_is_not_taken_for_the_next_one() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    meter.note(events.PhaseStarted(1, 2, 4, 40, 8))
    for number in range(3):
        worker.seen.trying = Trying("policy", ["lr=1"] * 3, [1 / 3] * 3, finished=number)
        shares = [meter.note(events.TrialStep(1, 50)).share for _ in range(4)]
        assert shares == pytest.approx([0.1 * number + 0.05, *[0.1 * (number + 1)] * 3])
        worker.seen.trying = Trying("policy", ["lr=1"] * 3, [1 / 3] * 3, finished=number + 1)
        assert meter.note(trial(number)).share == pytest.approx(0.1 * (number + 1))


def test_inside_of_a_step_of_a_tuner_it_moves_on() -> None:
    worker = Clock(Workload(0, trials=2, exact=True, tuning=50.0, stages={"main": 50.0}))
    meter = Meter(worker, clock=worker)
    meter.note(events.PhaseStarted(0, 2, 4, 40, 8))
    assert meter.note(events.TrialStep(0, 20, 1, "offline-rl", 0)).share == pytest.approx(0.2)
    assert meter.note(events.TrialStep(0, 20, 1, "offline-rl", 0)).share == pytest.approx(0.25)
    assert meter.note(events.TuningDone(0, "offline-rl", {"number": 0})).share == pytest.approx(0.25)
    assert meter.note(events.TrialStep(0, 10, 1, "offline-rl", 1)).share == pytest.approx(0.35)


def test_resumed_among_trials_those_before_are_no_measurement() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    worker.seen.trying = Trying("policy", ["lr=2"], [1 / 3], before=1, spent=1 / 3)
    worker.now = 1.0
    assert meter.note(events.TrialStep(1, 10)).rate == 0.0
    worker.now = 3.0
    done = meter.note(events.TrialStep(1, 10))
    assert (done.share, done.rate) == pytest.approx((0.12, 5.0))


def test_a_run_counts_the_phases_to_come_with_their_tuning() -> None:
    worker = Clock(None)
    plans = [Workload(0, stages={"main": 200.0}), WORK, Workload(2, 3, True, 300.0, 0.0, {"main": 500.0})]
    meter = Meter(worker, plans, clock=worker)
    meter.note(events.PhaseStarted(0, 2, 2, 40, 0))
    worker.now = 2.0
    done = meter.note(events.EpochDone(0, "main", 1, 2, 0.1, 1.0, {}))
    assert done.share == pytest.approx(100 / 2000)
    assert done.left == pytest.approx(1900 / 50.0)
    assert meter.note(step("main", 0, 2)).share == pytest.approx((200 + 400 + 125) / 2000)


def test_a_phase_that_is_resumed_starts_where_it_stands() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    worker.now = 4.0
    done = meter.note(step("main", 1, 2))
    assert done.share == pytest.approx((400 + 375) / 1000)
    assert (done.rate, done.left) == (0.0, None), "what was trained before it was stopped is no measurement"
    worker.now = 6.0
    done = meter.note(step("balance", 0, 2))
    assert done.rate == pytest.approx((125 + 25) / 2)
    assert done.left == pytest.approx(75 / 75)


def test_the_wait_at_the_end_of_an_epoch_counts_where_steps_are_only_queued() -> None:
    worker = Clock()
    meter = Meter(worker, clock=worker)
    meter.note(events.ActionDecided(1, "grid", ACTION))
    worker.now = 1.0  # all steps of the first of two epochs are queued
    meter.note(events.StepDone(1, "main", 0, 2, 2, 2, 64))
    worker.now = 10.0  # and done
    done = meter.note(events.EpochDone(1, "main", 1, 2, 0.1, 1.0, {}))
    assert done.rate == pytest.approx(25.0), "250 images in 10 seconds"
    assert done.left == pytest.approx(350 / 25.0)


def test_judging_and_a_bound_are_said_in_words() -> None:
    worker = Clock(Workload(1, trials=5, exact=False, tuning=1.0))
    meter = Meter(worker, clock=worker)
    worker.seen.trying = Trying("policy", ["the default action"], [0.2], before=1)
    assert meter.note(trial(0)).trying() == "trial 2 of up to 5: the default action"
    worker.seen.trying = Trying("policy", ["lr=1"] * 4, [0.2] * 4, before=3)
    assert meter.note(trial(2)).trying() == "trial 4 of up to 7: lr=1", "a policy may ask for more than was expected"
    worker.seen.trying = Trying("classifier", ["lr=1"], [1.0])
    assert meter.note(trial(2)).trying() == "judging the classifiers"


def test_tuners_that_are_no_policies_count_their_steps() -> None:
    worker = Clock(Workload(1, trials=10, exact=False, tuning=50.0, stages={"main": 50.0}))
    meter = Meter(worker, clock=worker)
    assert meter.note(events.TuningDone(1, "bilevel", {"round": 3})).share == pytest.approx(0.2)
    assert meter.note(events.TuningDone(1, "offline-rl", {"number": 9})).share == pytest.approx(0.5)


def test_judging_the_augmentation_is_counted_before_the_phase() -> None:
    worker = Clock(Workload(0, stages={"main": 400.0}, preparing=100.0))
    meter = Meter(worker, clock=worker)
    worker.now = 1.0
    done = meter.note(events.JudgingStep(0, 1, 2, 50, 100, 10))
    assert [done.share, done.rate, done.left] == pytest.approx([0.1, 10.0, 45.0])
    worker.seen.work = Workload(0, stages={"main": 400.0})  # what the phase itself knows
    assert meter.note(events.PhaseStarted(0, 2, 2, 40, 0)).share == pytest.approx(0.2)
