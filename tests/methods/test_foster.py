"""What FOSTER does in its phases; what every method must do is in the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Learner, losses, store
from poise.actions import Action
from poise.data import ImageSet
from poise.errors import UserError
from poise.methods import FOSTER, Growth
from poise.nets import BoostedHead, Concatenated, Model, Output, ResNet
from poise.training import EpochDone, Progress, StageDone, Trainer

from .conftest import SETTINGS, learned

MakeImages = Callable[..., ImageSet]
STILL = {"action": {"lr": 1e-12}, "first_lr": 0.1}


def models(learner: Learner) -> tuple[Model, Model]:
    """The one that predicts, and the one that the next phase starts from."""
    predictor, start = learner.knowledge.predictor, learner.knowledge.start
    assert predictor is not None
    assert start is not None
    return predictor, start


def next_trainer(learner: Learner, images: ImageSet) -> Trainer:
    return learner.phase_of(images.pixels, images.labels).make_trainer(learner.settings.default_action)


def boosted(model: Model) -> Concatenated:
    assert isinstance(model.backbone, Concatenated)
    return model.backbone


class TestClassWeights:
    @pytest.mark.parametrize(("beta", "old", "new"), [(0.97, 1.100, 0.502), (0.94, 1.051, 0.746)])
    def test_of_50_old_and_10_new_classes_as_published(self, beta: float, old: float, new: float) -> None:
        found = losses.class_weights(torch.tensor([20] * 50 + [500] * 10), beta)
        assert found[0].item() == pytest.approx(old, abs=5e-4)
        assert found[-1].item() == pytest.approx(new, abs=5e-4)
        assert found.sum().item() == pytest.approx(60, rel=1e-5)

    def test_before_they_are_scaled(self) -> None:
        old, new = (0.03 / (1 - 0.97**count) for count in (20, 500))
        assert (round(old, 4), round(new, 4)) == (0.0658, 0.03)
        found = losses.class_weights(torch.tensor([20, 500]), 0.97)
        assert (found[0] / found[1]).item() == pytest.approx(old / new, rel=1e-5)

    def test_at_the_ends_they_are_equal_or_in_proportion_to_the_inverse_count(self) -> None:
        counts = torch.tensor([1, 10, 1000])
        assert losses.class_weights(counts, 0.0).tolist() == [1, 1, 1]
        inverse = losses.class_weights(counts, 1.0)
        assert (inverse * counts / inverse[0]).tolist() == pytest.approx([1, 1, 1])
        assert losses.class_weights(counts, 0.9999999).tolist() == pytest.approx(inverse.tolist(), rel=1e-3)


class TestTerms:
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([1, 2])
    weights = torch.tensor([1.2, 1.2, 0.6], dtype=torch.float64)
    growth = Growth(old=2, new=1)

    def output(self, logits: Tensor, **changes: Any) -> Output:
        return Output(torch.zeros(2, 4), (), logits, logits, **changes)

    def test_boosting_divides_the_logits_of_the_classification_alone(self) -> None:
        extras = {"auxiliary": self.logits.flip(1), "old": self.logits[:, :2] + 1}
        student = self.output(self.logits, extras=extras, class_values=self.weights)
        found = FOSTER().terms(student, None, self.labels, self.growth)
        assert set(found) == {"ce", "auxiliary", "logit_kd"}
        divided = self.logits.numpy() / self.weights.numpy()
        slow = -np.mean([np.log(np.exp(z)[y] / np.exp(z).sum()) for z, y in zip(divided, (1, 2), strict=True)])
        assert found["ce"].item() == pytest.approx(slow)
        torch.testing.assert_close(found["auxiliary"], nn.functional.cross_entropy(self.logits.flip(1), self.labels))
        assert found["logit_kd"].item() == pytest.approx(0, abs=1e-12), "the softmax of both is the same"

    def test_compression_weighs_the_targets_and_makes_them_sum_to_1(self) -> None:
        student, teacher = self.output(self.logits, class_values=self.weights), self.output(self.logits.flip(0))
        found = FOSTER().terms(student, teacher, self.labels, self.growth)
        assert set(found) == {"compression"}
        slow = 0.0
        for z, t in zip(self.logits.numpy(), self.logits.flip(0).numpy(), strict=True):
            q = np.exp(t / 2) / np.exp(t / 2).sum() * self.weights.numpy()
            slow -= (q / q.sum() * np.log(np.exp(z / 2) / np.exp(z / 2).sum())).sum() / 2
        assert found["compression"].item() == pytest.approx(slow)

    def test_beta1_is_an_axis_and_may_fall_from_phase_to_phase(self) -> None:
        counts, action = torch.tensor([20] * 20 + [500] * 20), FOSTER.default_action.replace(beta1=0.97)

        def found(old: int, new: int, action: Action = action, **options: float | str) -> Tensor | None:
            method = FOSTER(**options)
            return method.class_values(method.stages(Growth(old, new))[0], action, counts, Growth(old, new))

        for old, beta in ((20, 0.97), (40, 0.96), (60, 0.95), (80, 0.94)):  # as released for five equal phases
            values = found(old, 20, beta1_falls=0.01)
            assert values is not None
            torch.testing.assert_close(values, losses.class_weights(counts, beta))
        assert found(0, 20) is None
        torch.testing.assert_close(found(20, 20, action.replace(beta1=0.5)), losses.class_weights(counts, 0.5))
        compression = FOSTER().stages(Growth(20, 20))[1]
        values = FOSTER().class_values(compression, action, counts, Growth(20, 20))
        torch.testing.assert_close(values, losses.class_weights(counts, 0.97))

    @pytest.mark.parametrize("beta", [-0.1, 1.5, "high"])
    def test_a_beta1_that_is_no_share_is_refused(self, beta: Any) -> None:
        with pytest.raises(UserError, match="beta1"):
            _ = Learner("foster", action={"beta1": beta}, device="cpu").settings

    @pytest.mark.parametrize("options", [{"beta2": 1}, {"beta1_falls": -1}, {"new_on_old": "zreo"}, {"oofc": "az"}])
    def test_wrong_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(UserError):
            FOSTER(**options)


def test_the_schedules_are_those_of_the_released_code() -> None:
    (first,), (boosting, compression) = (FOSTER().stages(growth) for growth in (Growth(0, 50), Growth(50, 10)))
    assert [stage.epochs(170) for stage in (first, boosting, compression)] == [200, 170, 130]
    for stage in (first, boosting, compression):
        assert [round(stage.rate(epoch, 100, 0.1), 6) for epoch in (0, 50)] == [0.1, 0.05]
    assert (boosting.weight_decay, compression.weight_decay) == (None, 0)


class TestPhases:
    def test_boosting_goes_on_from_the_old_classifier(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("foster", **SETTINGS), arriving[0])
        before, trainer = models(learner)[1].eval(), next_trainer(learner, arriving[1])
        model, inputs = trainer.model, arriving[0].pixels.float() / 255
        head = model.head
        assert isinstance(head, BoostedHead)
        assert torch.equal(head.old[:, :64], before.head.rows())
        assert torch.equal(head.old_bias, torch.cat([before.head.old_bias, before.head.new_bias]))  # type: ignore[list-item]
        assert head.old[:, 64:].all()
        assert head.new.all()
        for name, value in before.backbone.state_dict().items():
            assert torch.equal(boosted(model).newest.state_dict()[name], value)
        with torch.no_grad():
            model.eval().training = True
            found, wanted = model(inputs), before(inputs)
        torch.testing.assert_close(found.extras["old"], wanted.logits, rtol=1e-4, atol=1e-5)
        random = found.features[:, 64:] @ head.old[:, 64:].T
        torch.testing.assert_close(found.logits[:, :2], wanted.logits + random, rtol=1e-4, atol=1e-4)
        assert random.abs().max() > 0.1
        assert {name: tuple(value.shape) for name, value in found.extras.items()} == {
            "old": (12, 2),
            "auxiliary": (12, 4),
        }

    def test_the_old_network_and_its_classifier_stay_as_they_are(self, arriving: list[ImageSet]) -> None:
        learner = learned(Learner("foster", **SETTINGS), arriving[0])
        trainer = next_trainer(learner, arriving[1])
        kept = (boosted(trainer.model).frozen, trainer.model.extras["old"])
        before = [{name: value.clone() for name, value in part.state_dict().items()} for part in kept]
        list(trainer.run())
        for part, values in zip(kept, before, strict=True):
            assert values
            assert all(torch.equal(part.state_dict()[name], value) for name, value in values.items())

    def test_the_single_network_starts_as_the_old_one_and_is_trained_without_weight_decay(
        self, arriving: list[ImageSet]
    ) -> None:
        learner = learned(Learner("foster", **{**SETTINGS, **STILL}), arriving[0])
        old = models(learner)[1]
        predictor, start = models(learned(learner, arriving[1]))
        assert isinstance(start.backbone, ResNet)
        torch.testing.assert_close(start.head.rows()[:2], old.head.rows(), rtol=0, atol=1e-6)
        for name, value in dict(start.backbone.named_parameters()).items():
            torch.testing.assert_close(value, old.backbone.get_parameter(name), rtol=0, atol=1e-6)
        assert len(boosted(predictor).frozen) == 1

    def test_two_networks_predict_and_one_starts_the_next_phase(self, arriving: list[ImageSet], tmp_path: Path) -> None:
        learner = learned(Learner("foster", **SETTINGS), arriving[0])
        assert learner.knowledge.predictor is learner.knowledge.start
        assert learner.start_predictions(arriving[0].pixels) == {}
        for number, images in enumerate(arriving[1:], start=2):
            predictor, start = models(learned(learner, images))
            assert len(boosted(predictor).frozen) == 1
            assert not start.growth_history
            assert predictor.head.classes == start.head.classes == 2 * number
            assert not predictor.extras
        found = learner.start_predictions(arriving[0].pixels)
        logits = learner.evaluator.extract(start, arriving[0].pixels).logits
        assert {name: labels.tolist() for name, labels in found.items()} == {"compressed": logits.argmax(1).tolist()}
        learner.save(tmp_path / "learner")
        assert {name.split(".")[0] for name in store.read_tensors(tmp_path / "learner", kind="learner")[0]} == {
            *("predictor", "start", "means", "memory")
        }
        loaded = Learner.load(tmp_path / "learner", device="cpu")
        pixels = arriving[0].pixels
        assert loaded.predict_proba(pixels).tolist() == learner.predict_proba(pixels).tolist()
        assert loaded.start_predictions(pixels)["compressed"].tolist() == found["compressed"].tolist()

    def test_known_classes_alone_train_the_single_network_further(
        self, arriving: list[ImageSet], make_images: MakeImages
    ) -> None:
        learner = learned(Learner("foster", **SETTINGS), *arriving[:2])
        more = make_images([0, 3] * 4, seed=7)
        seen = {
            event.stage: set(event.terms)
            for event in learner.fitting(more.pixels, more.labels, known="update")
            if isinstance(event, EpochDone)
        }
        assert seen == {"main": {"ce", "logit_kd"}}
        predictor, start = models(learner)
        assert predictor is start
        assert isinstance(start.backbone, ResNet)

    def test_new_classes_may_be_blind_to_the_old_network(self, arriving: list[ImageSet], tmp_path: Path) -> None:
        learner = Learner("foster", options={"new_on_old": "zero"}, **SETTINGS)
        predictor, _ = models(learned(learner, *arriving[:2]))
        assert not predictor.head.new[:, :64].any()
        assert predictor.head.new[:, 64:].all()
        learner.save(tmp_path / "learner")
        loaded = Learner.load(tmp_path / "learner", device="cpu")
        assert loaded.predict_proba(arriving[0].pixels).tolist() == learner.predict_proba(arriving[0].pixels).tolist()
        seen, _ = models(learned(Learner("foster", **SETTINGS), *arriving[:2]))
        assert seen.head.new[:, :64].any()


TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"beta1": [0.5, 0.97], "lr": [0.1]},
    "trials": {"length": 0.5, "validation": 2, "environment": "both"},
}


@pytest.mark.parametrize(("changes", "every"), [({}, 1), (TRYING, 6)], ids=["fixed", "trying"])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    changes: dict[str, Any],
    every: int,
    arriving: list[ImageSet],
    stop_learners_anywhere: Callable[[Learner, ImageSet, int], None],
) -> None:
    learner = learned(Learner("foster", **{**SETTINGS, **changes}), *arriving[:2])
    stop_learners_anywhere(learner, arriving[2], every)


def test_another_beta1_is_another_training_of_the_same_step(arriving: list[ImageSet]) -> None:
    low, high = (FOSTER.default_action.replace(beta1=beta) for beta in (0.5, 0.97))
    assert low.step_key == high.step_key
    ends = [
        models(learned(Learner("foster", **{**SETTINGS, "action": {"beta1": beta}}), *arriving[:2]))[0].head.rows()
        for beta in (0.5, 0.97)
    ]
    assert not torch.equal(*ends)


def test_policies_tune_what_it_has() -> None:
    space = Learner("foster", policy="online", device="cpu").space
    assert {"auxiliary", "beta1", "logit_kd", "lr"} <= set(space.axes)
    assert len(space.actions) == 11
    switched = Learner("foster", policy="online", tune=["kd"], device="cpu").space
    assert {(action.weight("auxiliary"), action.beta1) for action in switched.actions} == {(1.0, 0.96)}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", ["main", "compression"])
def test_on_a_gpu_resumed_in_the_middle_of_a_stage_it_gives_the_same_weights(
    stage: str, precision: str, arriving: list[ImageSet]
) -> None:
    changes = {**SETTINGS, "device": "cuda", "precision": precision, "deterministic": True, "epochs": 6}
    whole, stopped = (learned(Learner("foster", **changes), *arriving[:2]) for _ in range(2))
    running = stopped.fitting(arriving[2].pixels, arriving[2].labels)
    steps = 0
    while steps < 5:
        event = next(running)
        steps += isinstance(event, Progress) and event.detail.startswith(stage)
        assert event != StageDone(2, "compression")
    resumed = Learner.from_state(stopped.state(), device="cuda")
    for each in (whole, resumed):
        each.partial_fit(arriving[2].pixels, arriving[2].labels)
    for one, other in zip(models(whole), models(resumed), strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
