"""How long a phase will take is said before it, and nothing that is learned knows of it."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poise import Augmentation, Budget, Learner
from poise.learner.timing import Speed, expect_time, later_phase, measure_speed
from poise.meter import Meter
from poise.training import JudgingStep, TimeExpected, Workload

from .samples import digits, learner, memory_for, state_bytes


class Slow(nn.Module):
    """A network that takes as long as it is told for every image, whatever the machine."""

    def __init__(self, clock: list[float], seconds: float = 1.0) -> None:
        super().__init__()
        self.map = nn.Linear(64, 6)
        self.seconds, self.clock = seconds, clock

    def __deepcopy__(self, memo: dict[int, Any]) -> Slow:
        copied = Slow(self.clock, self.seconds)
        copied.map.load_state_dict(self.map.state_dict())
        copied.requires_grad_(self.map.weight.requires_grad)
        return copied

    def forward(self, images: Tensor) -> Tensor:
        self.clock[0] += self.seconds * len(images)
        found: Tensor = self.map(images.flatten(1))
        return found


def speed_of(learned: Learner, clock: list[float], *classes: int, count: int) -> Speed:
    phase = learned.phase_of(*digits(*classes, count=count))
    return measure_speed(learned.settings, learned.knowledge, phase.arrival, learned._around, clock=lambda: clock[0])


def expected(learned: Learner, *classes: int) -> TimeExpected:
    (found,) = (event for event in learned.fitting(*digits(*classes), forecast=True) if event.kind == "time")
    assert isinstance(found, TimeExpected)
    return found


def test_the_seconds_of_an_image_are_those_of_its_steps() -> None:
    clock = [0.0]
    made = learner(net=Slow(clock), batch=8)
    assert speed_of(made, clock, 0, 1, count=40) == Speed(1.0)
    made.partial_fit(*digits(0, 1, count=12))
    assert speed_of(made, clock, 2, 3, count=40) == Speed(2.0), "student and teacher"


def test_features_that_are_computed_once_are_counted_apart() -> None:
    clock = [0.0]
    made = learner(method="simplecil", net=Slow(clock).requires_grad_(False), augmentation=Augmentation(0, False))
    assert speed_of(made, clock, 0, 1, count=12) == Speed(training=0.0, features=1.0)
    phase = made.phase_of(*digits(0, 1, count=12))
    said = expect_time(made.settings, made.knowledge, phase.arrival, made._around, Workload(0))
    assert said.rate == 0.0, "nothing is trained"
    assert "phase 0 takes about 1 s" in said.line, "by the real clock"


@pytest.mark.parametrize("method", ["lucir", "aanets", "joint", "ranpac", "slca"])
def test_the_same_bytes_with_and_without_a_forecast(method: str, tmp_path: Path) -> None:
    given = {"method": method, "memory": 3, **memory_for(method)}
    plain, timed = learner(**given), learner(**given)
    for classes in ((0, 1), (2, 3)):
        for _ in plain.fitting(*digits(*classes)):
            pass
        assert f"phase {plain.phases_ - 1} takes about" in expected(timed, *classes).line
    assert state_bytes(timed, tmp_path) == state_bytes(plain, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"memory": Budget(6, reserve=2)}, {"memory": Budget(6, rule="rmm")}, {"memory": 0}, {"epochs": 1, "batch": 512}],
)
def test_every_kind_of_memory_and_a_single_step_can_be_timed(settings: dict[str, Any]) -> None:
    made = learner(**settings)
    for classes in ((0, 1), (2, 3)):
        assert expected(made, *classes).seconds > 0


def test_known_classes_one_image_and_a_rate_that_diverges_can_be_timed() -> None:
    made = learner().partial_fit(*digits(0, 1))
    found = list(made.fitting(*digits(0, count=1, first=20), known="update", forecast=True))
    assert isinstance(found[0], TimeExpected)
    wild = learner(method="icarl", first_lr=1e30, epochs=3)
    phase = iter(wild.fitting(*digits(0, 1, count=40), forecast=True))
    assert next(phase).kind == "time"


def test_the_whole_time_is_said_first_of_all_with_what_tuning_will_cost() -> None:
    made = Learner(epochs=4, batch=8, device="cpu")
    events = list(made.fitting(*digits(0, 1, count=30), forecast=True))
    first = events[0]
    assert isinstance(first, TimeExpected)
    assert not first.kept
    pattern = r"phase 0 takes about \d+ s, \d+ s of it to judge the augmentation; a later phase of as many images "
    assert re.fullmatch(pattern + r"about \d+ s, \d+ s of it for trials", first.line)
    assert isinstance(events[1], JudgingStep)
    assert sum(event.kind == "time" for event in events) == 1
    assert re.fullmatch(r"phase 1 takes about \d+ s, \d+ s of it for trials", expected(made, 2, 3).line)


def test_a_later_phase_like_the_first_has_its_memory_and_its_trials() -> None:
    made = learner(policy="grid", space={"lr": [0.1, 0.02]}, action={"lr": 0.1, "classifier": "fc"})
    later = later_phase(made.settings, made.phase_of(*digits(0, 1, count=12)).arrival)
    assert later.training == 24 + 2 * 4
    assert later.trials == 2


def test_what_cannot_be_tuned_is_not_expected_to_be() -> None:
    """With one exemplar of each class there is nothing to validate on, and with one new class no look-ahead."""
    keys: dict[str, Any] = {"policy": "grid", "space": {"lr": [0.1, 0.02]}, "memory": 1}
    made = learner(**keys, action={"lr": 0.1, "classifier": "auto"}, trials={"environment": "both"})
    begun = made.phase_of(*digits(0, 1, count=12)).arrival
    assert later_phase(made.settings, begun).choosing > 0, "two new classes"
    begun = made.phase_of(*digits(0, count=12)).arrival
    assert later_phase(made.settings, begun).choosing == 0
    made.partial_fit(*digits(0, 1))
    assert "for trials" in expected(made, 2, 3).line
    (said,) = [event for event in made.fitting(*digits(4), forecast=True) if isinstance(event, TimeExpected)]
    assert "for trials" not in said.line


def test_the_time_left_is_known_from_the_start() -> None:
    made = learner(epochs=2)
    meter, left = Meter(made), list[float | None]()
    for event in made.fitting(*digits(0, 1), forecast=True):
        left.append(meter.note(event).left)
    assert left[0] is not None
    assert left[0] > 0
    assert left[-1] == pytest.approx(0.0)


def test_it_is_said_where_somebody_looks_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen = list[str]()
    learner(callbacks=[lambda event: seen.append(event.kind)]).partial_fit(*digits(0, 1))
    assert "time" not in seen
    learner(verbose=True).partial_fit(*digits(0, 1))
    assert "phase 0 takes about" in capsys.readouterr().err
    with caplog.at_level(logging.INFO, logger="poise"):
        learner().partial_fit(*digits(0, 1))
    assert [line for line in caplog.messages if line.startswith("phase 0 takes about")]


def test_a_phase_that_is_continued_is_not_timed_again() -> None:
    made = learner(epochs=2)
    phase = iter(made.fitting(*digits(0, 1), forecast=True))
    while next(phase).kind != "step":
        pass
    again = Learner.from_state(made.state(), device="cpu")
    assert all(event.kind != "time" for event in again.fitting(*digits(0, 1), forecast=True))


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    next(iter(learner().fitting(*digits(0, 1), forecast=True)))
    assert torch.equal(torch.get_rng_state(), before)
