"""The captured step against the eager reference. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from poise.data import Augmentation, Feed, ImageSet, Preprocessing
from poise.methods import METHODS, Growth, make_method
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.training import EpochDone, Schedule, Trainer, make_backend
from poise.training.capture import CapturedRunner

pytestmark = pytest.mark.gpu

GROWTH = Growth(old=4, new=2)
IMAGES = 70  # with batches of 32: two full ones and a smaller last one


CASES: dict[str, tuple[str, dict[str, float | str]]] = {
    **{name: (name, {}) for name in sorted(METHODS)},
    "aanets-learned": ("aanets", {"alpha": "learned"}),
    "aanets-lucir": ("aanets", {"base": "lucir"}),
}


@pytest.fixture(params=CASES)
def make_trainer(request: pytest.FixtureRequest) -> Callable[..., Trainer]:
    def make(*, capture: bool, precision: str = "fp32") -> Trainer:
        backend = replace(make_backend("cuda", precision, True), capture=capture)
        method = make_method(*CASES[request.param])
        generator = torch_generator(0, "test")
        with backend.active():
            model = Model(build_backbone("resnet32", method.variant, 3, 0), build_head(method.head, 64))
            model.head.grow(GROWTH.old, generator)
            teacher = model.placed(backend.device).teacher(backend.dtype)
            model.backbone = method.expanded(model.backbone)
            model.head.grow(GROWTH.new, generator)
            pixels = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator)
            labels = torch.arange(IMAGES) % sum(GROWTH)
            return Trainer(
                model=model.placed(backend.device),
                teacher=teacher,
                method=method,
                action=method.default_action,
                growth=GROWTH,
                feed=Feed(ImageSet(pixels, labels, labels), backend.device),
                preprocessing=Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(brightness=0.2)),
                schedule=Schedule(epochs=17, batch=32),
                backend=backend,
                seed=0,
                phase=1,
            )

    return make


def trained(trainer: Trainer) -> tuple[dict[str, Tensor], list[float]]:
    losses = [event.loss for event in trainer.backend.guarded(trainer.run()) if isinstance(event, EpochDone)]
    trainer.backend.synchronise()
    return {name: value.cpu() for name, value in trainer.model.state_dict().items()}, losses


def test_captured_equals_eager_exactly_in_deterministic_mode(make_trainer: Callable[..., Trainer]) -> None:
    eager, eager_losses = trained(make_trainer(capture=False))
    captured, captured_losses = trained(make_trainer(capture=True))  # 17 epochs of 3 steps
    assert captured_losses == eager_losses
    for name, value in eager.items():
        assert torch.equal(captured[name], value), name


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
    with trainer.backend.active():
        runner._capture()
    trainer.backend.synchronise()
    after, _ = trainer.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
