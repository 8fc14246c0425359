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
from poise.training.capture import CapturedRunner
from poise.training.device import make_backend
from poise.training.events import EpochDone
from poise.training.trainer import Trainer

pytestmark = pytest.mark.gpu

GROWTH = Growth(old=4, new=2)
IMAGES = 75  # with batches of 32: two full ones and a smaller last one
FEWER = 70  # of which the last few join the one before
JITTERED = Augmentation(brightness=0.2)
Outcome = tuple[dict[str, Tensor], list[float]]


CASES: dict[str, tuple[str, dict[str, float | str]]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "aanets-learned": ("aanets", {"alpha": "learned"}),
    "aanets-lucir": ("aanets", {"base": "lucir"}),
}
BOTH = pytest.mark.parametrize("make_trainer", ["lucir", "podnet"], indirect=True)


@pytest.fixture(params=CASES)
def make_trainer(
    request: pytest.FixtureRequest, make_trainer: Callable[..., Trainer], make_images: Callable[..., ImageSet]
) -> Callable[..., Trainer]:
    def make(
        *, capture: bool, precision: str = "fp32", augmentation: Augmentation = JITTERED, **others: Any
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
        assert trainer.captures is capture
        return trainer

    return make


def trained(trainer: Trainer) -> Outcome:
    with trainer.context.backend.active():
        losses = [event.loss for event in trainer.run() if isinstance(event, EpochDone)]
    trainer.context.backend.synchronise()
    return {name: value.cpu() for name, value in trainer.model.state_dict().items()}, losses


def assert_same(found: Outcome, wanted: Outcome) -> None:
    assert found[1] == wanted[1]
    for name, value in wanted[0].items():
        assert torch.equal(found[0][name], value), name


def test_captured_equals_eager_exactly_in_deterministic_mode(make_trainer: Callable[..., Trainer]) -> None:
    assert_same(trained(make_trainer(capture=True)), trained(make_trainer(capture=False)))  # 17 epochs of 3 steps


@BOTH
def test_captured_equals_eager_exactly_with_a_larger_last_batch(
    make_trainer: Callable[..., Trainer], make_images: Callable[..., ImageSet]
) -> None:
    images = make_images([number % sum(GROWTH) for number in range(FEWER)], shape=(3, 32, 32))
    captured, eager = (trained(make_trainer(capture=capture, images=images)) for capture in (True, False))
    assert_same(captured, eager)  # 17 epochs of 2 steps


@BOTH
@pytest.mark.parametrize("name", STRONGER)
def test_captured_equals_eager_exactly_with_a_stronger_augmentation(
    name: str, make_trainer: Callable[..., Trainer]
) -> None:
    stronger = JITTERED.stronger(name)
    captured, eager = (trained(make_trainer(capture=capture, augmentation=stronger)) for capture in (True, False))
    assert_same(captured, eager)
    assert trained(make_trainer(capture=True))[1] != captured[1]  # captured in the same process, beside the other


@BOTH
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
    eager, captured, streamed = (
        trained(make_trainer(capture=capture, augmentation=resized, images=images, resident=resident))
        for capture, resident in ((False, True), (True, True), (True, False))
    )
    assert_same(captured, eager)
    assert_same(streamed, eager)


def test_captured_is_near_eager_in_bf16(make_trainer: Callable[..., Trainer]) -> None:
    _, eager = trained(make_trainer(capture=False, precision="bf16"))
    _, captured = trained(make_trainer(capture=True, precision="bf16"))
    assert captured[0] == pytest.approx(eager[0], rel=0.05)
    assert captured[-1] == pytest.approx(eager[-1], rel=0.5, abs=0.2)


def test_capturing_leaves_no_trace(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(capture=True)
    with trainer.context.backend.active():
        runner = trainer._begin_stage(trainer.stages[0])
        tensors = [*trainer.model.state_dict().values(), *runner.step.optimiser.tensors()]
        before = [value.clone() for value in tensors]
        assert isinstance(runner, CapturedRunner)
        runner._capture()
    trainer.context.backend.synchronise()
    assert all(torch.equal(value, kept) for value, kept in zip(tensors, before, strict=True))


@BOTH
def test_memory_that_runs_out_while_a_step_is_captured_harms_nothing_later(
    make_trainer: Callable[..., Trainer],
) -> None:
    def fail(*_: object) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise torch.cuda.OutOfMemoryError

    trainer = make_trainer(capture=True)
    with trainer.context.backend.active():
        runner = trainer._begin_stage(trainer.stages[0])
        assert isinstance(runner, CapturedRunner)
        with trainer.model.register_forward_pre_hook(fail), pytest.raises(torch.cuda.OutOfMemoryError):
            runner._capture()
        torch.cuda.empty_cache()
    assert_same(trained(make_trainer(capture=True)), trained(make_trainer(capture=False)))
