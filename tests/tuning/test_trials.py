from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from poise.actions import Action
from poise.data import ImageSet, Memory
from poise.methods import Growth, Lucir, make_method
from poise.nets import Model, Output
from poise.policies import Trial
from poise.settings import TrialSettings
from poise.training.context import LocalPhase, PhaseContext
from poise.training.device import Backend
from poise.training.lanes import Lanes
from poise.training.trainer import Trainer
from poise.tuning.environments import TrialInputs, draw_environments
from poise.tuning.results import TrialResult
from poise.tuning.search import tuner_kind
from poise.tuning.trials import Attempt, Trials, _TrialProgress

from .learners import run_one

Make = Callable[..., Any]  # of trials

OWN = make_method("lucir").default_action
QUOTA = 4  # of each class in a memory after a look-ahead's first half
SIZES = {2: 12, 3: 40, 4: 16}  # of the new classes of a look-ahead


@pytest.fixture
def make_ahead(context: PhaseContext, bright: Callable[..., ImageSet]) -> Make:
    """Look-ahead trials of three new classes of different sizes; one may look like another class."""
    generator = torch.Generator().manual_seed(4)
    kept = ImageSet.joined([bright(generator, label, 6, 10 * label) for label in (0, 1)])
    arrived = {label: bright(generator, label, size, 100 * label) for label, size in SIZES.items()}
    none = kept.select(torch.empty(0, dtype=torch.long))

    def made(
        kind: type[Trials] = Trials,
        *,
        context: PhaseContext = context,
        confused: int | None = None,
        reserved: int = 0,
        witness: Any = None,
        inputs: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> Trials:
        new, generator = dict(arrived), torch.Generator().manual_seed(5)
        if confused is not None:  # it looks like the first old class
            like = bright(generator, 0, SIZES[confused], 0)
            new[confused] = ImageSet(like.pixels, new[confused].labels, new[confused].origins)
        memory = Memory(kept, ImageSet.joined([none, *(bright(generator, at, reserved, 900 + at) for at in (0, 1))]))
        images = memory, ImageSet.joined(list(new.values())), none
        chosen = TrialSettings(**{"environment": "lookahead", "length": 0.025, **settings})
        context = replace(context, growth=Growth(2, len(SIZES)))
        sizes = {"arrived": len(images[1]), "planned": context.schedule.epochs, **inputs}
        return kind(TrialInputs(context, *images, QUOTA, chosen, **sizes), witness=witness)

    return made


def tried(trials: Trials, epochs: int, action: Action = OWN, classifier: str = "fc", **trial: Any) -> TrialResult:
    """What comes of one trial."""
    return run_one(trials, Attempt(Trial(0, arm=0, epochs=epochs, **trial), action, classifier))


def test_a_trial_learns_and_records_hits_of_both_classifiers_at_its_end(make_trials: Make) -> None:
    result = tried(make_trials(), 4, classifier="ncm")
    assert (result.epochs, sorted(result.hits)) == (4, ["fc", "ncm"])
    assert result.classes == [0, 1, 2]
    assert result.images == [3, 3, 3]
    assert result.outcome.per_class == tuple(hits / 3 for hits in result.hits["ncm"])
    assert result.outcome.reward == pytest.approx(sum(result.outcome.per_class) / 3)
    assert result.outcome.reward > 0.6


def test_a_finalist_trains_with_the_full_schedule(make_trials: Make) -> None:
    trials = make_trials(witness=fingerprint)
    for epochs, equal in ((2, True), (4, False)):  # of 4 epochs the third has a tenth of the rate, of 40 it has not
        short, full = (tried(trials, epochs, full=full).witnessed for full in (False, True))
        assert (short == full) is equal


def fingerprint(model: Model, means: Tensor, classes: Sequence[Any]) -> float:
    return float(model.head.rows().detach().sum())


@pytest.mark.parametrize(
    ("environment", "share", "epochs"), [("local", None, 1), ("local", 0.5, 2), ("lookahead", 1.0, 3)]
)
def test_the_balanced_fine_tuning_of_a_trial_may_be_as_long_as_the_phases(
    context: PhaseContext, make_ahead: Make, environment: str, share: float | None, epochs: int
) -> None:
    method = Lucir()
    method.balancing = replace(method.balancing, share=1 / 8)
    context = replace(context, method=method, schedule=context.schedule.with_epochs(24))
    trials: Trials = make_ahead(context=context, environment=environment, length=0.08, balance_length=share)

    def images(trial: Trial, **changes: Any) -> int:
        before = trials.trained
        run_one(trials, Attempt(trial, OWN.replace(**changes), "fc"))
        return trials.trained - before

    epoch = images(Trial(0, arm=0, epochs=2)) // 2  # of all trainings of a trial; this action has no fine-tuning
    assert images(Trial(1, arm=1, epochs=2), balance="finetune") == (2 + epochs) * epoch
    full = images(Trial(2, arm=1, epochs=24, full=True), balance="finetune")
    assert full == (24 + 3) * epoch, "a trial at full length is as long as the phase in any case"


class Listening(Lucir):
    """Remembers what it was trained on: for each growth the classes of the head and the labels, epoch after epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[Growth, tuple[int, list[int]]] = {}

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        before = self.heard.get(growth, (0, []))[1]
        self.heard[growth] = student.logits.shape[1], before + labels.tolist()
        return super().terms(student, teacher, labels, growth)


def test_a_look_ahead_learns_one_half_then_the_other_and_ends_with_all_classes(
    context: PhaseContext, make_ahead: Make
) -> None:
    method = Listening()
    trials = make_ahead(context=replace(context, method=method))
    result = tried(trials, 1)
    (first, (heads, seen)), (second, (all_heads, all_seen)) = method.heard.items()
    whole = Growth(2, 3)
    assert (first, heads) == (Growth(2, 1, trial_of=whole), 3)
    assert (second, all_heads) == (Growth(3, 2, trial_of=whole), 5)
    assert first.real_phase == second.real_phase == whole, "weights adapt to the phase that the trial stands for"
    assert result.classes == [2, 3, 4]
    counts = torch.tensor(seen).bincount().tolist()
    later = torch.tensor(all_seen).bincount(minlength=5).tolist()
    assert counts[:2] == [6, 6]  # all exemplars
    assert later[:2] == [QUOTA, QUOTA]  # a total is shared by more classes now
    judged = dict(zip(result.classes, result.images, strict=True))
    trained = {label: size - judged[label] for label, size in SIZES.items()}
    (arrived,) = [label for label, size in trained.items() if size == counts[2]]
    assert later[2] == QUOTA < counts[2]
    assert sorted(later[3:]) == sorted(size for label, size in trained.items() if label != arrived)


class Watched(Trials):
    """Keeps the local phase that ended, its model and the local phase that followed."""

    followed: tuple[LocalPhase, Model, LocalPhase] | None = None

    def _next(self, attempt: Attempt, at: Any, trainer: Trainer) -> Any:
        following = super()._next(attempt, at, trainer)
        self.followed = at.begun, following.begun.context.model, following.begun
        return following


@pytest.mark.parametrize("round_", [0, 1])
def test_the_second_half_of_a_look_ahead_is_held_as_the_allocation_says(make_ahead: Make, round_: int) -> None:
    phases = {}
    for rho in (0.0, 0.5, 0.9):
        trials = make_ahead(Watched)
        tried(trials, 1, Action(**OWN, allocation=rho), round=round_)
        phases[rho] = trials.followed
    (first, _, plain), known = phases[0.0], 3
    arrived, held = len(plain.new), known * QUOTA + len(plain.new)
    assert sum(first.context.growth) == known
    for rho, (first, _, second) in phases.items():
        most = min((known * QUOTA + math.floor(rho * images)) // known for images in (len(first.new), arrived))
        sizes = [min(most, 6), min(most, 6), min(most, len(first.new))]  # six exemplars of each old class are there
        assert torch.bincount(second.kept.labels).tolist() == sizes
        assert len(second.new) == min(arrived, held - sum(sizes))
        assert len(second.feed) == len(second.kept) + len(second.new) <= held
    chosen = [set(second.new.origins.tolist()) for _, _, second in phases.values()]
    assert chosen[0] > chosen[1] >= chosen[2]  # the same draw for all of them


def test_the_local_environment_keeps_what_the_phase_itself_would(make_ahead: Make) -> None:
    """All images that arrived count, those that were discarded and those that it validates on too."""
    trials = make_ahead(environment="local", inputs={"arrived": 100, "stored_share": 0.68, "rho": 0.1})
    (environment,) = draw_environments(trials.inputs, 0)
    first = _TrialProgress(environment, environment.begin(trials.inputs))
    for action, most in ((OWN, (5 * QUOTA + 10) // 5), (Action(**OWN, allocation=0.3), (5 * QUOTA + 30) // 5)):
        kept = trials._exemplars(first, first.begun.model, action)
        counts = torch.bincount(ImageSet.joined([environment.kept, environment.new]).labels)
        assert torch.bincount(kept.labels).tolist() == [min(most, each) for each in counts.tolist()]


@pytest.mark.parametrize("reserved", [0, 2])
def test_what_a_look_ahead_reports_belongs_to_the_real_rows(make_ahead: Make, reserved: int) -> None:
    for round_ in (0, 1):  # whatever the order of the classes inside
        for confused in SIZES:
            trials = make_ahead(reserved=reserved, confused=confused)
            result = tried(trials, 1, OWN.replace(lr=0.01), "ncm", round=round_)
            old = [0, 1] if reserved else []
            assert result.classes == [*old, 2, 3, 4]
            assert result.images == [*(reserved for _ in old), 6, 10, 8]
            shares = dict(zip(result.classes, result.outcome.per_class, strict=True))
            assert shares == {
                label: hits / images
                for label, hits, images in zip(result.classes, result.hits["ncm"], result.images, strict=True)
            }
            if reserved:
                assert min(SIZES, key=lambda label: shares[label]) == confused
            else:  # an old class that is not validated is not guessed, so being like it does no harm
                assert shares[confused] == 1


def test_a_horizon_repeats_the_training_and_averages_the_rewards(make_trials: Make) -> None:
    once, twice = (tried(make_trials(length=0.05, horizon=more), 2, OWN.replace(lr=0.02)) for more in (0, 1))
    last = [hits / images for hits, images in zip(twice.hits["fc"], twice.images, strict=True)]
    both = [(a + b) / 2 for a, b in zip(once.outcome.per_class, last, strict=True)]
    assert twice.outcome.per_class == pytest.approx(both)
    assert twice.outcome.reward == pytest.approx(sum(both) / 3)


def test_each_repetition_of_a_horizon_has_the_last_result_as_teacher(context: PhaseContext, make_trials: Make) -> None:
    method = Listening()
    trials = make_trials(context=replace(context, method=method), length=0.025, horizon=2)
    tried(trials, 1)
    assert {growth: heads for growth, (heads, _) in method.heard.items()} == {Growth(2, 1): 3, Growth(3, 0): 3}
    images = len(method.heard[Growth(2, 1)][1])
    assert len(method.heard[Growth(3, 0)][1]) == 2 * images  # nobody is forgotten on the way


@pytest.mark.parametrize(("classifier", "reserved"), [("fc", 0), ("ncm", 0), ("fc", 2)])
def test_both_environments_are_one_after_the_other_and_each_counts_by_its_classes(
    make_ahead: Make, classifier: str, reserved: int
) -> None:
    """Without a reserve the parts have 15 and 24 images of 5 and 3 classes, and rewards of their own."""
    both, local, ahead = (
        tried(
            make_ahead(environment=kind, length=0.05, reserved=reserved, confused=4),
            *(2, OWN.replace(lr=0.02), classifier),
            round=1,
        )
        for kind in ("both", "local", "lookahead")
    )
    parts = (local, ahead)
    assert [sum(part.images) for part in parts] == ([28, 28] if reserved else [15, 24])
    rewards, classes = [part.outcome.reward for part in parts], [len(part.classes) for part in parts]
    assert both.outcome.reward == pytest.approx(np.average(rewards, weights=classes))
    if not reserved:
        others = np.average(rewards, weights=[sum(part.images) for part in parts]), np.mean(rewards)
        assert all(both.outcome.reward != pytest.approx(other, abs=1e-4) for other in others)
    assert both.classes == [*local.classes, *ahead.classes]
    assert both.images == [*local.images, *ahead.images]
    assert both.outcome.per_class == (*local.outcome.per_class, *ahead.outcome.per_class)
    assert both.hits == {name: [*local.hits[name], *ahead.hits[name]] for name in ("fc", "ncm")}
    assert both.split["parts"] == [local.split, ahead.split]


@pytest.mark.parametrize("kind", ["local", "lookahead", "both", "horizon"])
class TestSeveralTrainings:
    @pytest.fixture
    def make(self, kind: str, request: pytest.FixtureRequest) -> Callable[[], Trials]:
        if kind != "horizon":
            ahead: Make = request.getfixturevalue("make_ahead")
            return lambda: ahead(environment=kind, length=0.1)
        made: Make = request.getfixturevalue("make_trials")
        return lambda: made(horizon=1)

    def test_going_on_from_rung_to_rung_gives_what_training_from_scratch_gives(
        self, make: Callable[[], Trials]
    ) -> None:
        """And trials do not disturb each other, nor the model that they start from."""
        going, other = make(), OWN.replace(lr=0.02)
        before = {name: value.clone() for name, value in going.inputs.context.model.state_dict().items()}
        for number, epochs in enumerate((1, 2, 4)):
            trial = Attempt(Trial(2 * number, arm=0, epochs=epochs), OWN, "fc")
            continued = run_one(going, trial)
            run_one(going, Attempt(Trial(2 * number + 1, arm=1, epochs=epochs), other, "fc"))
            assert continued == run_one(make(), trial)
        assert all(torch.equal(before[name], value) for name, value in going.inputs.context.model.state_dict().items())

    def test_a_divergence_has_reward_0_and_stops_nothing(self, make: Callable[[], Trials]) -> None:
        """Its record lists the classes and images of every part."""
        trials = make()
        diverged = tried(trials, 2, OWN.replace(lr=1e30))
        assert diverged.outcome.diverged
        assert (diverged.outcome.reward, diverged.outcome.per_class, diverged.totals()) == (0, (), {"fc": 0, "ncm": 0})
        json.dumps(diverged.as_json())
        after = tried(trials, 2)
        assert after == tried(make(), 2)
        assert (diverged.classes, diverged.images, diverged.split) == (after.classes, after.images, after.split)


@pytest.mark.parametrize(("full", "online", "others"), [(160, 16, 16), (53, 16, 6), (30, 9, 3), (10, 3, 1), (1, 1, 1)])
def test_a_trial_is_a_share_of_a_phase_rounded_up_and_one_of_online_16_epochs_at_most(
    full: int, online: int, others: int
) -> None:
    assert tuner_kind("online").trial_settings(TrialSettings()).short(full) == online
    assert tuner_kind("online").trial_settings(TrialSettings(longest=40)).short(full) == min(40, -(-full * 3 // 10))
    assert tuner_kind("race").trial_settings(TrialSettings()).short(full) == others


def test_an_axis_of_epochs_shortens_and_lengthens_trials(make_trials: Make) -> None:
    for epochs, until, trained in ((20, 4, 2), (80, 2, 4), (15, 4, 2), (2, 1, 1), (3, 40, 3)):
        action = Action(**OWN, epochs=epochs)
        assert tried(make_trials(), until, action, full=until == 40).epochs == trained


def test_a_witness_never_changes_a_reward(make_trials: Make) -> None:
    def meddling(model: Model, means: Tensor, classes: Sequence[Any]) -> float:
        model.eval()
        torch.rand(3)
        return float(means.sum())

    alone, watched = (tried(make_trials(witness=witness), 4) for witness in (None, meddling))
    assert alone == replace(watched, witnessed=None)


@pytest.mark.parametrize("lanes", [1, 4])
def test_trials_of_two_rounds_can_be_asked_for_together(make_trials: Make, cpu: Backend, lanes: int) -> None:
    wanted = [Attempt(Trial(number, arm=number, epochs=2, round=number % 2), OWN, "fc") for number in range(4)]
    together = list(make_trials(executor=Lanes(cpu, lanes), length=0.05).run_all(wanted))
    assert together == [run_one(make_trials(length=0.05), each) for each in wanted]
    digests = [result.split["digest"] for result in together]
    assert digests[0] == digests[2] != digests[1] == digests[3]
    assert [result.outcome.trial.id for result in together] == [0, 1, 2, 3]
