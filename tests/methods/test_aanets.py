"""What AANets adds to the method it is made on; what every method must do is in the conformance tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from poise import Learner, draws
from poise.data import Augmentation, ImageSet, Preprocessing, batch_bounds
from poise.methods import AANets, Growth, GrowthInputs, Method, aanets
from poise.methods.aanets import BASES
from poise.nets import Branches, Model, ScaledHead
from poise.training.events import EpochDone, Progress
from poise.training.trainer import Trainer

from .conftest import SETTINGS

MakeImages = Callable[..., ImageSet]
MakeTrainer = Callable[..., Trainer]
bases = pytest.mark.parametrize("base", sorted(BASES))


def learner_of(**options: float | str) -> Learner:
    return Learner("aanets", options=options, **SETTINGS)


def learned(arriving: list[ImageSet], **options: float | str) -> list[Model]:
    """The model after each phase."""
    learner, models = learner_of(**options), []
    for images in arriving:
        learner.partial_fit(images.pixels, images.labels)
        assert learner.model is not None
        models.append(learner.model)
    return models


def branches(model: Model) -> Branches:
    assert isinstance(model.backbone, Branches)
    return model.backbone


@bases
def test_a_fixed_share_stays_and_a_learned_one_moves_at_every_level(base: str, arriving: list[ImageSet]) -> None:
    fixed = branches(learned(arriving[:2], base=base, alpha=0.3)[-1]).alpha
    assert torch.equal(fixed, torch.full_like(fixed, 0.3))
    second, third = (branches(model).alpha for model in learned(arriving, base=base, alpha="learned")[1:])
    assert (second != 0.5).all()
    assert (third != second).all()


def test_learned_shares_stay_between_0_and_1(arriving: list[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aanets, "FUSION", replace(aanets.FUSION, lr=1e6))
    shares = branches(learned(arriving[:2], alpha="learned")[-1]).alpha
    assert set(shares.tolist()) <= {0.0, 1.0}


# The pass after each epoch --------------------------------------------------------------------------------------------

GROWTH = Growth(2, 2)
AUGMENTATION = Augmentation(pad=1)
PREPROCESSING = Preprocessing((0.5,) * 3, (0.25,) * 3, AUGMENTATION)


@bases
def test_shares_are_trained_on_a_balanced_set_with_a_fresh_gradient_in_every_step(
    base: str, make_images: MakeImages, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs against SGD written out: α moves in the passes only, by the gradient of one batch at a time."""
    images, rate = make_images([0, 0, 0, 1, 1, 1, *[2] * 7, *[3] * 9]), 0.5
    monkeypatch.setattr(aanets, "FUSION", replace(aanets.FUSION, lr=rate))
    method = AANets(base=base, alpha="learned")
    trainer = make_trainer(method, growth=GROWTH, images=images, preprocessing=PREPROCESSING, epochs=2, batch=4)
    expected, epoch, done = branches(trainer.model).alpha.detach().clone(), 0, 0
    velocity = torch.zeros_like(expected)
    for event in trainer.run():
        if isinstance(event, EpochDone) and event.stage == "main":
            torch.testing.assert_close(branches(trainer.model).alpha.detach(), expected, rtol=1e-4, atol=1e-6)
            epoch, done = epoch + 1, 0
        elif isinstance(event, Progress) and trainer.stage == 0:
            done += 1
            if done < len(batch_bounds(len(images), 4)):
                continue  # else the pass is what comes next
            assert trainer._picks is not None
            balanced = images.select(trainer._picks)
            assert balanced.labels.bincount().tolist() == [3, 3, 3, 3]
            trained = {name: value.clone() for name, value in trainer.model.state_dict().items()}
            generator = draws.generator(0, "epoch", 1, "fusion", epoch)
            order = torch.from_numpy(generator.permutation(len(balanced)))
            choices = AUGMENTATION.draw(len(balanced), generator)
            present = rate * (0.1 if epoch else 1.0)
            for first in range(0, len(order), 4):
                picks = order[first : first + 4]
                batch = PREPROCESSING.training(balanced.pixels[picks], choices.batch(first, first + 4))
                gradient = _gradient(trainer.model, method, expected, batch, balanced.labels[picks])
                velocity = 0.9 * velocity + gradient + 5e-4 * expected
                expected = expected - present * velocity
            expected = expected.clamp(0, 1)
            trainer.model.load_state_dict(trained)
    assert epoch == 2


def _gradient(model: Model, method: Method, alpha: Tensor, batch: Tensor, labels: Tensor) -> Tensor:
    model.eval()
    share = alpha.clone().requires_grad_()
    output = torch.func.functional_call(model, {"backbone.alpha": share}, (batch,))
    (term,) = method.terms(output, None, labels, GROWTH).values()
    found: Tensor = torch.autograd.grad(term, share)[0].detach()
    model.train()
    return found


@bases
def test_the_learned_scale_starts_again_where_the_branches_are_made_and_only_there(
    base: str, arriving: list[ImageSet]
) -> None:
    for eta, scales in (("kept", [14.6, 14.6]), ("restarted", [1.0, 14.6])):
        method, model, found = AANets(base=base, eta=eta), learned(arriving[:1], base=base)[0].copy(), list[float]()
        for growth in (Growth(2, 2), Growth(4, 2)):
            assert isinstance(model.head, ScaledHead)
            nn.init.constant_(model.head.scale, 14.6)
            model.expand(partial(method.expanded, growth=growth), growth, arriving[0].shape)
            features = torch.rand(24, model.head.width), torch.arange(24) % 2
            method.grow(model, GrowthInputs(growth, torch.Generator(), lambda seen=features: seen))  # type: ignore[misc]
            found.append(model.head.scale.item())
        assert found == pytest.approx(scales)
