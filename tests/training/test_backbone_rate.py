"""The ratio of the backbone's learning rate to the head's, an axis of an action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import poise.learner.phase as phases
from poise import Learner
from poise.data import Augmentation, ImageSet
from poise.training.events import ActionDecided, Event
from poise.training.trainer import Trainer

MakeImages = Callable[..., ImageSet]
SETTINGS: dict[str, Any] = {"net": "small", "policy": "fixed", "epochs": 2, "batch": 8, "memory": 4, "device": "cpu"}


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    return [make_images(classes * 8, seed=number) for number, classes in enumerate(([0, 1], [2, 3]))]


def learn(learner: Learner, arrived: list[ImageSet]) -> list[Event]:
    return [event for images in arrived for event in learner.fitting(images.pixels, images.labels)]


def backbone(learner: Learner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.model.backbone.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_ratio_of_one_changes_nothing(optimiser: Literal["sgd", "adamw"], arriving: list[ImageSet]) -> None:
    tensors = []
    for action in ({}, {"backbone_rate": 1}):
        learner = Learner("lucir", action=action, optimiser=optimiser, **SETTINGS)
        learn(learner, arriving)
        tensors.append(learner.state().tensors(images=True)[0])
    assert same(*tensors)


def test_one_step_moves_the_backbone_by_the_ratio(make_trainer: Callable[..., Trainer]) -> None:
    """With SGD; the head moves as far as ever."""
    moved = {}
    for ratio in (1.0, 0.25):
        trainer = make_trainer("slca", backbone_rate=ratio, epochs=1, batch=12)
        before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
        next(trainer.run())
        moved[ratio] = {name: value.detach() - before[name] for name, value in trainer.model.named_parameters()}
    for name, step in moved[1.0].items():
        expected = 0.25 * step if name.startswith("backbone.") else step
        assert torch.allclose(moved[0.25][name], expected, atol=1e-7), name
    assert float(moved[1.0]["backbone.stem.0.weight"].abs().max()) > 1e-5


class TestZero:
    def test_neither_weights_nor_statistics_move_until_a_later_phase_trains_it_again(
        self, arriving: list[ImageSet], make_images: MakeImages
    ) -> None:
        learner = Learner("icarl", action={"backbone_rate": 0}, **SETTINGS)
        learn(learner, arriving[:1])
        before, more = backbone(learner), make_images([4, 5] * 8, seed=7)
        learn(learner, arriving[1:])
        assert same(before, backbone(learner))
        list(learner.fitting(more.pixels, more.labels, action={"backbone_rate": 0.5}))
        assert not same(before, backbone(learner))

    def test_it_is_the_same_whether_features_are_computed_once_or_in_every_step(
        self, arriving: list[ImageSet], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = []
        for once in (True, False):
            if not once:
                monkeypatch.setattr(phases, "features_suffice", lambda context, shape, still: False)
            learner = Learner("icarl", action={"backbone_rate": 0}, augmentation=Augmentation(pad=0), **SETTINGS)
            learn(learner, arriving)
            found.append(learner.state().tensors(images=True)[0])
        assert found[0].keys() == found[1].keys()
        for name, value in found[0].items():
            assert torch.allclose(value, found[1][name], atol=1e-4), name


def test_a_network_from_random_weights_first_learns_at_the_full_rate(arriving: list[ImageSet]) -> None:
    learner = Learner("slca", **SETTINGS)
    decided = [event for event in learn(learner, arriving) if isinstance(event, ActionDecided)]
    assert [event.action["backbone_rate"] for event in decided] == [1.0, 0.01]
