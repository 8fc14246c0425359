"""The captured step against the eager reference. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from poise.data import STRONGER, Augmentation, FlatStore, ImageSet, Preprocessing
from poise.methods import METHODS, Growth, make_method
from poise.training import EpochDone, Trainer, make_backend
from poise.training.capture import CapturedRunner

pytestmark = pytest.mark.gpu

GROWTH = Growth(old=4, new=2)
IMAGES = 75  # with batches of 32: two full ones and a smaller last one
FEWER = 70  # of which the last few join the one before


CASES: dict[str, tuple[str, dict[str, float | str]]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "aanets-learned": ("aanets", {"alpha": "learned"}),
    "aanets-lucir": ("aanets", {"base": "lucir"}),
}


@pytest.fixture(params=CASES)
def make_trainer(
    request: pytest.FixtureRequest, make_trainer: Callable[..., Trainer], make_images: Callable[..., ImageSet]
) -> Callable[..., Trainer]:
    jittered = Augmentation(brightness=0.2)

    def make(
        *, capture: bool, precision: str = "fp32", augmentation: Augmentation = jittered, **others: Any
    ) -> Trainer:
        backend = replace(make_backend("cuda", precision, True), capture=capture)
        with backend.active():
            labels = [number % sum(GROWTH) for number in range(IMAGES)]
            trainer = make_trainer(
                make_method(*CASES[request.param]),
                growth=GROWTH,
                **{"images": make_images(labels, shape=(3, 32, 32)), **others},
                net="resnet32",
                preprocessing=Preprocessing((0.5,) * 3, (0.25,) * 3, augmentation),
                backend=backend,
                epochs=17,
                batch=32,
            )
        backend.synchronise()  # it is looked at from other streams, too
        return trainer

    return make


def trained(trainer: Trainer) -> tuple[dict[str, Tensor], list[float]]:
    losses = [event.loss for event in trainer.context.backend.guard(trainer.run()) if isinstance(event, EpochDone)]
    trainer.context.backend.synchronise()
    return {name: value.cpu() for name, value in trainer.model.state_dict().items()}, losses


def test_captured_equals_eager_exactly_in_deterministic_mode(make_trainer: Callable[..., Trainer]) -> None:
    eager, eager_losses = trained(make_trainer(capture=False))
    captured, captured_losses = trained(make_trainer(capture=True))  # 17 epochs of 3 steps
    assert captured_losses == eager_losses
    for name, value in eager.items():
        assert torch.equal(captured[name], value), name


@pytest.mark.parametrize("make_trainer", ["lucir", "podnet"], indirect=True)
def test_captured_equals_eager_exactly_with_a_larger_last_batch(
    make_trainer: Callable[..., Trainer], make_images: Callable[..., ImageSet]
) -> None:
    images = make_images([number % sum(GROWTH) for number in range(FEWER)], shape=(3, 32, 32))
    eager, eager_losses = trained(make_trainer(capture=False, images=images))
    captured, captured_losses = trained(make_trainer(capture=True, images=images))  # 17 epochs of 2 steps
    assert captured_losses == eager_losses
    for name, value in eager.items():
        assert torch.equal(captured[name], value), name


@pytest.mark.parametrize("make_trainer", ["lucir", "podnet"], indirect=True)
@pytest.mark.parametrize("name", STRONGER)
def test_captured_equals_eager_exactly_with_a_stronger_augmentation(
    name: str, make_trainer: Callable[..., Trainer]
) -> None:
    augmentation = Augmentation(brightness=0.2).stronger(name)
    eager, eager_losses = trained(make_trainer(capture=False, augmentation=augmentation))
    captured, captured_losses = trained(make_trainer(capture=True, augmentation=augmentation))
    assert captured_losses == eager_losses
    for key, value in eager.items():
        assert torch.equal(captured[key], value), key
    plain = trained(make_trainer(capture=True))[1]  # captured in the same process, beside the other
    assert plain != captured_losses


@pytest.mark.parametrize("make_trainer", ["lucir", "podnet"], indirect=True)
def test_crops_of_images_of_different_sizes_are_the_same_eager_captured_and_streamed(
    make_trainer: Callable[..., Trainer],
) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(36, 60, (IMAGES, 2), generator=generator)
    lengths = 3 * sizes.prod(dim=1)
    flat = torch.randint(0, 256, (int(lengths.sum()),), dtype=torch.uint8, generator=generator)
    store = FlatStore(flat, lengths.cumsum(0) - lengths, sizes, (3, 32, 32))
    images = ImageSet(store, torch.arange(IMAGES) % sum(GROWTH), torch.arange(IMAGES))
    resized = Augmentation(pad=0, brightness=0.2, resized=0.08)

    def outcome(*, capture: bool, resident: bool) -> tuple[dict[str, Tensor], list[float]]:
        trainer = make_trainer(capture=capture, augmentation=resized, images=images, resident=resident)
        assert isinstance(trainer._engine.runner, CapturedRunner) is capture
        return trained(trainer)

    eager, eager_losses = outcome(capture=False, resident=True)
    for found, losses in (outcome(capture=True, resident=True), outcome(capture=True, resident=False)):
        assert losses == eager_losses
        for name, value in eager.items():
            assert torch.equal(found[name], value), name


def test_captured_is_near_eager_in_bf16(make_trainer: Callable[..., Trainer]) -> None:
    _, eager = trained(make_trainer(capture=False, precision="bf16"))
    _, captured = trained(make_trainer(capture=True, precision="bf16"))
    assert captured[0] == pytest.approx(eager[0], rel=0.05)
    assert captured[-1] == pytest.approx(eager[-1], rel=0.5, abs=0.2)


def test_capturing_leaves_no_trace(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(capture=True)
    before, _ = trainer.state()
    before = {name: value.clone() for name, value in before.items()}
    runner = trainer._engine.runner
    assert isinstance(runner, CapturedRunner)
    with trainer.context.backend.active():
        runner._capture()
    trainer.context.backend.synchronise()
    after, _ = trainer.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
