"""What DER does in its phases; what every method must do is in the conformance tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poise import Learner, draws
from poise.data import ImageSet
from poise.errors import UserError
from poise.methods import DER, Growth
from poise.nets import Concatenated, Model, Output
from poise.training import EpochDone, LocalPhase, Progress, StageDone, Trainer
from poise.training.balanced import drawn_picks

from .conftest import SETTINGS, learned

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]


def model_of(learner: Learner) -> Model:
    assert learner.model is not None
    return learner.model


def backbone(model: Model) -> Concatenated:
    assert isinstance(model.backbone, Concatenated)
    return model.backbone


class TestSchedule:
    def test_the_rate_rises_for_ten_epochs_and_falls_at_110_and_130_of_170(self) -> None:
        (main,) = DER().stages(Growth(10, 10))
        epochs = main.epochs(170)
        rates = {epoch: main.rate(epoch, epochs, 0.1) for epoch in (0, 4, 9, 10, 109, 110, 129, 130, 169)}
        expected = [0.01, 0.05, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        assert list(rates.values()) == pytest.approx(expected)
        assert epochs == 170
        assert [epoch for epoch in range(170) if main.renews_before(epoch, 170)] == [10]
        assert DER().stages(Growth(0, 10)) == (main,)

    def test_a_plain_first_phase_has_200_epochs_and_three_milestones(self) -> None:
        (first,) = DER(first="plain").stages(Growth(0, 50))
        assert first.epochs(170) == 200
        changes = [e for e in range(1, 200) if first.rate(e, 200, 0.1) != first.rate(e - 1, 200, 0.1)]
        assert changes == [60, 120, 160]
        assert not any(first.renews_before(epoch, 200) for epoch in range(200))
        assert DER(first="plain").stages(Growth(50, 10)) == DER().stages(Growth(50, 10))

    def test_the_classifier_has_30_epochs_and_a_temperature(self) -> None:
        last = DER().balancing
        assert last.epochs(170) == 30
        assert [last.rate(epoch, 30, 0.1) for epoch in (0, 14, 15, 29)] == pytest.approx([0.1, 0.1, 0.01, 0.01])
        assert (last.temperature, DER(temperature=1).balancing.temperature) == (5, 1)
        assert (last.trains, last.moves_statistics, last.balanced, last.at_random) == ("head", False, True, True)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"first": "wram"}, "did you mean 'warm'"),
            ({"temperature": 0}, "temperature"),
            ({"prune": 1}, "no option"),
            ({"first_share": 0}, "first_share"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match=words):
            DER(**options)


class TestTerms:
    logits = torch.tensor([[1.0, 2.0, 0.5, 0.0], [0.0, 0.0, 3.0, 1.0]])
    extra = torch.tensor([[0.5, 0.0, 1.0], [1.0, 2.0, 0.0]])

    def output(self, **changes: Any) -> Output:
        return Output(torch.zeros(2, 4), (), self.logits, self.logits, **changes)

    def test_the_auxiliary_classifier_takes_all_old_classes_for_one(self) -> None:
        found = DER().terms(
            self.output(extras={"auxiliary": self.extra}), None, torch.tensor([1, 3]), Growth(old=2, new=2)
        )
        assert set(found) == {"ce", "auxiliary"}
        # class 1 is old: 0; class 3 is the second new one: 2
        expected = -(torch.log_softmax(self.extra, 1)[0, 0] + torch.log_softmax(self.extra, 1)[1, 2]) / 2
        torch.testing.assert_close(found["auxiliary"], expected)

    def test_a_temperature_divides_the_logits(self) -> None:
        found = DER().terms(self.output(temperature=5.0), None, torch.tensor([1, 2]), Growth(2, 2))
        expected = nn.functional.cross_entropy(self.logits / 5, torch.tensor([1, 2]))
        assert set(found) == {"ce"}
        torch.testing.assert_close(found["ce"], expected)


class TestPhases:
    def test_every_phase_freezes_the_newest_network_and_adds_a_copy_of_it(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("der", **SETTINGS), arriving[0])
        inputs = arriving[0].pixels.float() / 255
        for number, images in enumerate(arriving[1:], start=1):
            before = model_of(learner)
            kept = before.eval()(inputs).features.detach()
            start = learner.phase_of(images.pixels, images.labels).make_trainer(learner.settings.default_action).model
            newest = before.backbone.newest if isinstance(before.backbone, Concatenated) else before.backbone
            for name, value in newest.state_dict().items():
                assert torch.equal(backbone(start).newest.state_dict()[name], value)
            model = model_of(learned(learner, images))
            assert len(backbone(model).frozen) == number
            assert model.head.width == 64 * (number + 1)
            torch.testing.assert_close(
                model.eval()(inputs).features[:, : 64 * number], kept, rtol=1e-4, atol=1e-5
            )  # but for the rounding of folded norms
            assert not model.extras

    def test_frozen_networks_stay_as_they_are_to_the_bit(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("der", **SETTINGS), *arriving[:2])
        before = {name: value.clone() for name, value in backbone(model_of(learner)).frozen.state_dict().items()}
        after = backbone(model_of(learned(learner, arriving[2]))).frozen.state_dict()
        assert before
        assert all(torch.equal(after[name], value) for name, value in before.items())

    def test_what_is_frozen_is_there_once_for_all_trials_of_a_phase(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("der", **SETTINGS), *arriving[:2])
        phase = learner.phase_of(arriving[2].pixels, arriving[2].labels)
        first, second = (phase.situation.grow_model(phase.material.arrived) for _ in range(2))
        for one, other in zip(backbone(first).frozen, backbone(second).frozen, strict=True):
            assert one is other
        assert backbone(first).frozen[0] is backbone(model_of(learner)).frozen[0]

    def test_known_classes_alone_add_no_network(self, arriving: list[ImageSet], make_images: MakeImages) -> None:
        learner = learned(Learner("der", **SETTINGS), *arriving[:2])
        more = make_images([0, 3] * 4, seed=7)
        learner.partial_fit(more.pixels, more.labels, known="update")
        assert model_of(learner).growth_history == ((2, 2),)
        assert len(backbone(model_of(learner)).frozen) == 1


STILL = 1e-12  # a learning rate at which nothing moves


class TestHeads:
    """With a learning rate of almost 0, heads are as they were drawn."""

    def heads(self, learner: Learner, images: ImageSet) -> dict[str, list[Tensor]]:
        """Rows of the classifier and the auxiliary one at the end of each epoch, by stage."""
        seen: dict[str, list[Tensor]] = {}
        for event in learner.fitting(images.pixels, images.labels):
            if isinstance(event, EpochDone):
                tensors = learner.state().tensors(images=False)[0]
                names = ("head.old", "head.new", "extras.auxiliary.head.new")
                rows = [tensors[f"pending.student.model.{name}"] for name in names]
                seen.setdefault(event.stage, []).append(torch.cat([each.flatten() for each in rows]).clone())
        return seen

    def test_they_are_drawn_anew_after_the_warm_up_and_for_the_last_stage(self, arriving: list[ImageSet]) -> None:
        changes = {"epochs": 17, "weight_decay": 0.0, "action": {"lr": STILL}, "first_lr": STILL}
        learner = learned(Learner("der", **{**SETTINGS, **changes}), arriving[0])
        seen = self.heads(learner, arriving[1])
        main, last = seen["main"], seen["balance"]
        assert (len(main), len(last)) == (17, 3)
        auxiliary, classifier = 3 * 64, 4 * 128
        changed = [not torch.allclose(one, other, atol=1e-6) for one, other in pairwise(main)]
        assert changed == [True, *[False] * 15], "after one epoch of 17, as after 10 of 170"
        for part in (main[1][:classifier], last[0][:classifier]):
            assert part.abs().max() <= 1 / math.sqrt(128) + 1e-6
        assert main[1][classifier:].abs().max() <= 1 / 8 + 1e-6
        assert main[0][:classifier].abs().max() > 1 / math.sqrt(128), "N(0, 1/d) when they are made"
        assert not torch.allclose(last[0][:classifier], main[-1][:classifier], atol=1e-3)
        assert torch.equal(last[0][classifier:], main[-1][classifier:])
        assert len(main[0]) == auxiliary + classifier

    def test_the_last_stage_trains_the_classifier_alone_on_a_balanced_set(
        self, make_trainer: MakeTrainer, make_images: MakeImages
    ) -> None:
        images = make_images([0, 1] * 2 + [2, 3] * 9)
        trainer = make_trainer(DER(), images=images)
        model = trainer.situation.grow_model(images)
        trainer = Trainer(trainer.situation, model, None, trainer.action, trainer.feed)
        terms: dict[str, set[str]] = {}
        for event in trainer.run():
            if event == StageDone(1, "main"):
                before = {name: value.clone() for name, value in model.state_dict().items()}
                picked = trainer.feed.labels[trainer._picks] if trainer._picks is not None else torch.empty(0)
            if isinstance(event, EpochDone):
                terms[event.stage] = set(event.terms)
        assert picked.bincount().tolist() == [2, 2, 2, 2]
        assert terms == {"main": {"ce", "auxiliary"}, "balance": {"ce"}}
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert changed == {"head.old", "head.new"}

    def test_images_of_the_balanced_set_are_drawn_from_a_generator(self, make_trainer: MakeTrainer) -> None:
        feed = make_trainer(DER()).feed
        first, again, other = (drawn_picks(feed, draws.generator(seed, "balanced")).tolist() for seed in (0, 0, 1))
        assert first == again
        assert sorted(first) == sorted(other) == list(range(12)), "all, where every class has three images"
        assert first != other


TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"auxiliary": [0.5, 1], "lr": [0.1]},
    "trials": {"length": 0.5, "validation": 2, "environment": "both"},
}


@pytest.mark.parametrize(("changes", "every"), [({"epochs": 3}, 1), (TRYING, 6)], ids=["fixed", "trying"])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    changes: dict[str, Any],
    every: int,
    arriving: list[ImageSet],
    stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
) -> None:
    learner = learned(Learner("der", **{**SETTINGS, **changes}), *arriving[:2])
    stop_learners_anywhere(learner, arriving[2], every)


def test_a_second_training_is_as_the_first_one(
    make_trainer: MakeTrainer, make_images: MakeImages, beginning: Callable[[Trainer], LocalPhase]
) -> None:
    images = make_images([0, 1] * 2 + [2, 3] * 4)
    plain = make_trainer(DER(), images=images, epochs=4)
    trainer = Trainer(plain.situation, plain.situation.grow_model(images), None, plain.action, plain.feed)
    begun = beginning(trainer)
    events = list(trainer.run())
    first = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.restart(begun, trainer.action, None, trainer.address)
    assert list(trainer.run()) == events
    assert all(torch.equal(value, first[name]) for name, value in trainer.model.state_dict().items())


def test_policies_tune_what_it_has() -> None:
    axes = Learner("der", policy="online", device="cpu").space.axes
    assert {"auxiliary", "lr", "balance"} <= set(axes)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_resumed_in_the_middle_of_a_stage_it_gives_the_same_weights(
    precision: str, arriving: list[ImageSet]
) -> None:
    changes = {**SETTINGS, "device": "cuda", "precision": precision, "deterministic": True, "epochs": 6}
    whole, stopped = (learned(Learner("der", **changes), *arriving[:2]) for _ in range(2))
    running = stopped.fitting(arriving[2].pixels, arriving[2].labels)
    steps = 0
    while steps < 5:
        steps += isinstance(next(running), Progress)
    resumed = Learner.from_state(stopped.state(), device="cuda")
    for each in (whole, resumed):
        each.partial_fit(arriving[2].pixels, arriving[2].labels)
    for name, value in model_of(whole).state_dict().items():
        assert torch.equal(value, model_of(resumed).state_dict()[name]), name
    assert whole.predict_proba(arriving[0].pixels).tolist() == resumed.predict_proba(arriving[0].pixels).tolist()
