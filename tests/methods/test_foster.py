"""What FOSTER does in its phases; what every method must do is in the conformance tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from poise import Learner, losses
from poise.actions import Action
from poise.data import ImageSet
from poise.methods import FOSTER, Growth
from poise.nets import Concatenated, Model, ResNet
from poise.training.events import EpochDone
from poise.training.optimiser import Schedule

from .conftest import SETTINGS, learned

MakeImages = Callable[..., ImageSet]


def models(learner: Learner) -> tuple[Model, Model]:
    """The one that predicts, and the one that the next phase starts from."""
    predictor, start = learner.knowledge.predictor, learner.knowledge.start
    assert predictor is not None
    assert start is not None
    return predictor, start


def boosted(model: Model) -> Concatenated:
    assert isinstance(model.backbone, Concatenated)
    return model.backbone


def test_class_weights_at_the_ends_are_equal_or_in_proportion_to_the_inverse_count() -> None:
    counts = torch.tensor([1, 10, 1000])
    assert losses.class_weights(counts, 0.0).tolist() == [1, 1, 1]
    inverse = losses.class_weights(counts, 1.0)
    assert (inverse * counts / inverse[0]).tolist() == pytest.approx([1, 1, 1])
    assert losses.class_weights(counts, 0.9999999).tolist() == pytest.approx(inverse.tolist(), rel=1e-3)


def test_beta1_is_an_axis_and_may_fall_from_phase_to_phase() -> None:
    counts, action = torch.tensor([20] * 20 + [500] * 20), FOSTER.default_action.replace(beta1=0.97)

    def found(old: int, new: int, action: Action = action, **options: float | str) -> Tensor | None:
        method = FOSTER(**options)
        return method.class_values(method.stages(Growth(old, new))[0], action, counts, Growth(old, new))

    for old, beta in ((20, 0.97), (40, 0.96), (60, 0.95), (80, 0.94)):  # as released for five equal phases
        torch.testing.assert_close(found(old, 20, beta1_falls=0.01), losses.class_weights(counts, beta))
    assert found(0, 20) is None
    torch.testing.assert_close(found(20, 20, action.replace(beta1=0.5)), losses.class_weights(counts, 0.5))


def test_the_schedules_are_those_of_the_released_code() -> None:
    (first,), (boosting, compression) = (FOSTER().stages(growth) for growth in (Growth(0, 50), Growth(50, 10)))
    assert [stage.epochs(170) for stage in (first, boosting, compression)] == [200, 170, 130]
    for stage in (first, boosting, compression):
        assert [round(Schedule().rate(stage, epoch, 100, 0.1), 6) for epoch in (0, 50)] == [0.1, 0.05]
    assert (boosting.weight_decay, compression.weight_decay) == (None, 0)


class TestPhases:
    def test_two_networks_predict_and_one_starts_the_next_phase(self, arriving: list[ImageSet]) -> None:
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
