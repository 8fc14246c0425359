"""The log-count adjustment: what it adds, that it is undone when predicting, and that 0 changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poise import Learner
from poise.actions import Action
from poise.data import ImageSet
from poise.methods import METHODS, Growth, ICaRL, Stage, make_method
from poise.training.step import Objective
from poise.training.trainer import Trainer

from .weights import assert_same, weights

MakeTrainer = Callable[..., Trainer]
MakeImages = Callable[..., ImageSet]

ADJUSTED = sorted(name for name in METHODS if "adjustment" in make_method(name).default_action)


def weights_after(trainer: Trainer) -> dict[str, torch.Tensor]:
    list(trainer.run())
    return weights(trainer)


def test_a_class_is_raised_by_the_logarithm_of_its_share() -> None:
    labels, objective = torch.tensor([0] * 8 + [1] * 2 + [3] * 4), Objective(ICaRL(), Stage(), Growth(2, 2), {})
    objective.set_class_priors(Action(), labels, 4)
    assert objective.prior is None
    objective.set_class_priors(Action(adjustment=1.0), labels, 4)
    held = objective.prior
    for strength, wanted in ((1, [1.0, 0.25, 0.125, 0.5]), (0.5, [1.0, 0.5, 0.125**0.5, 0.5**0.5]), (0, [1.0] * 4)):
        objective.set_class_priors(Action(adjustment=strength), labels, 4)
        assert held is not None
        assert held.exp().tolist() == pytest.approx(wanted)  # in place: a captured step reads it there


@pytest.mark.parametrize("method", ADJUSTED)
def test_none_is_the_training_without_it_to_the_last_bit(
    method: str, make_trainer: MakeTrainer, make_images: MakeImages
) -> None:
    """Nor does it change one on as many images of each class; on others it does, whatever the method."""
    plain, without, even = make_trainer(method), make_trainer(method), make_trainer(method, adjustment=1.0)
    without.action = Action(**{axis: value for axis, value in without.action.items() if axis != "adjustment"})
    first = weights_after(plain)
    for other in (without, even):
        assert_same(first, weights_after(other))
    images = make_images([0, 1, 2, 3, 3, 3])
    with pytest.raises(AssertionError, match=r"head\.|backbone\."):
        assert_same(*(weights_after(make_trainer(method, images=images, adjustment=each)) for each in (0.0, 1.0)))


@pytest.mark.parametrize("method", ["lucir", "podnet"])
def test_rare_old_classes_are_guessed_more_often_with_it(
    method: str, make_trainer: MakeTrainer, make_images: MakeImages
) -> None:
    images = make_images([0, 1, *[2, 3] * 10], seed=3)
    guessed = []
    for adjustment in (0.0, 2.0):
        trainer = make_trainer(method, images=images, epochs=6, adjustment=adjustment, balance="none", lr=0.02)
        weights_after(trainer)
        logits = trainer.context.evaluator.extract(trainer.model, images.pixels).logits
        guessed.append(logits.softmax(dim=1)[:, :2].sum().item())
    assert guessed[1] > guessed[0]


def test_the_first_phase_is_adjusted_as_the_user_says(make_images: MakeImages) -> None:
    given: dict[str, Any] = {"net": "small", "epochs": 1, "batch": 8, "device": "cpu", "policy": "fixed"}
    learner = Learner("lucir", action={"adjustment": 0.7}, **given)
    assert learner.settings.first_action().adjustment == 0.7
    assert Learner("lucir", **given).settings.first_action().adjustment == 0.0
