from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from poise.actions import Action
from poise.data import Augmentation, ImageSet, Memory, Preprocessing
from poise.methods import Growth, Lucir, Stage, make_method
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.policies import Trial
from poise.training import Backend, PhaseStart, Schedule, Trials, TrialSettings

GROWTH = Growth(old=2, new=1)
OWN = make_method("lucir").default_action


@pytest.fixture
def start(cpu: Backend) -> PhaseStart:
    method = make_method("lucir")
    model = Model(build_backbone("small", method.variant, 1, 0), build_head(method.head, 64))
    model.head.grow(GROWTH.old, torch_generator(0, "test"))
    preprocessing = Preprocessing((0.5,), (0.25,), Augmentation(1, False))
    schedule = Schedule(epochs=40, batch=16)
    return PhaseStart(model.placed(cpu.device).eval(), method, GROWTH, preprocessing, schedule, cpu, seed=0, phase=1)


@pytest.fixture
def make_trials(start: PhaseStart) -> Callable[..., Trials]:
    generator = torch.Generator().manual_seed(3)

    def bright(label: int, count: int, first: int) -> ImageSet:
        noise = torch.randint(0, 60, (count, 1, 8, 8), generator=generator)
        noise[:, :, :, 2 * label : 2 * label + 3] += 180
        return ImageSet(noise.to(torch.uint8), torch.full((count,), label), torch.arange(first, first + count))

    kept = ImageSet.joined([bright(0, 6, 0), bright(1, 6, 10)])
    none = kept.select(torch.empty(0, dtype=torch.long))
    new = bright(2, 40, 20)

    def made(start: PhaseStart = start, **settings: Any) -> Trials:
        witness = settings.pop("witness", None)
        memory, few = Memory(kept, none), TrialSettings(**settings)
        return Trials(start, memory, new, none, 6, few, witness=witness)

    return made


def test_a_trial_learns_and_records_hits_of_both_classifiers_on_the_way(make_trials: Callable[..., Trials]) -> None:
    result = make_trials().run(Trial(0, arm=0, epochs=4), OWN, "ncm", short=4)
    assert sorted(result.hits) == [1, 2, 4]
    assert result.classes == [0, 1, 2]
    assert result.images == [3, 3, 3]
    assert result.outcome.per_class == tuple(hits / 3 for hits in result.hits[4]["ncm"])
    assert result.outcome.reward == pytest.approx(sum(result.outcome.per_class) / 3)
    assert result.outcome.reward > 0.6


def test_continuing_gives_what_training_from_scratch_gives(make_trials: Callable[..., Trials]) -> None:
    going = make_trials()
    going.run(Trial(0, arm=0, epochs=2), OWN, "fc", short=4)
    continued = going.run(Trial(1, arm=0, epochs=4, continues=0), OWN, "fc", short=4)
    scratch = make_trials().run(Trial(1, arm=0, epochs=4, continues=0), OWN, "fc", short=4)
    assert continued == scratch


def test_trials_do_not_disturb_each_other(make_trials: Callable[..., Trials]) -> None:
    together, other = make_trials(), OWN.replace(lr=0.01, feature_kd=4.0)
    together.run(Trial(0, arm=1, epochs=3), other, "fc", short=4)
    after = together.run(Trial(1, arm=0, epochs=3), OWN, "fc", short=4)
    alone = make_trials().run(Trial(1, arm=0, epochs=3), OWN, "fc", short=4)
    assert after == alone


def test_a_diverged_trial_has_reward_0_and_stops_nothing(make_trials: Callable[..., Trials]) -> None:
    trials = make_trials()
    result = trials.run(Trial(0, arm=0, epochs=4), Action(**{**OWN, "lr": 1e30}), "fc", short=4)
    assert result.outcome.diverged
    assert result.outcome.reward == 0
    assert trials.run(Trial(1, arm=1, epochs=2), OWN, "fc", short=4).outcome.diverged is False


def test_a_finalist_trains_with_the_full_schedule(make_trials: Callable[..., Trials]) -> None:
    trials = make_trials(witness=fingerprint)
    short = trials.run(Trial(0, arm=0, epochs=4), OWN, "fc", short=4).witnessed
    full = trials.run(Trial(1, arm=0, epochs=4, full=True), OWN, "fc", short=4).witnessed
    assert short[1] == full[1]  # the same draws, and both at the first learning rate
    assert short[2] == full[2]
    assert short[4] != full[4]  # of 4 epochs the third has a tenth of the rate, of 40 it has not


def test_the_last_model_is_not_touched(start: PhaseStart, make_trials: Callable[..., Trials]) -> None:
    before = {name: value.clone() for name, value in start.model.state_dict().items()}
    make_trials().run(Trial(0, arm=0, epochs=2), OWN, "fc", short=2)
    assert all(torch.equal(before[name], value) for name, value in start.model.state_dict().items())


def fingerprint(model: Model, means: Tensor) -> float:
    return float(model.head.rows().detach().sum())


@dataclass(frozen=True)
class Heavy(Stage):
    """A stage that tells when it asks for a learning rate: once in each of its epochs."""

    heard: list[str] = field(default_factory=list)

    def rate(self, epoch: int, epochs: int, start: float) -> float:
        self.heard.append(self.name)
        return super().rate(epoch, epochs, start)


class TwoStages(Lucir):
    """A first stretch of a quarter of the epochs, then one of three quarters."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return Stage("first", 0.25), Stage("second", 0.75)


def test_a_trial_runs_every_stage_of_a_method(start: PhaseStart, make_trials: Callable[..., Trials]) -> None:
    names: list[str] = []

    class Heard(TwoStages):
        def stages(self, growth: Growth) -> tuple[Stage, ...]:
            first, second = super().stages(growth)
            return first, Heavy(second.name, second.share, heard=names)

    result = make_trials(start=replace(start, method=Heard())).run(Trial(0, arm=0, epochs=4), OWN, "fc", short=4)
    assert sorted(result.hits) == [1, 2, 4]
    assert len(names) == 3


def test_what_cannot_be_continued_is_not_kept(make_trials: Callable[..., Trials]) -> None:
    trials = make_trials()
    trials.run(Trial(0, arm=0, epochs=2), OWN, "fc", short=4)
    trials.run(Trial(1, arm=1, epochs=4), OWN, "fc", short=4)
    assert list(trials._paused) == [(0, 0, False)]
    trials.run(Trial(2, arm=0, epochs=4, round=1), OWN, "fc", short=4)
    assert list(trials._splits) == [1]
