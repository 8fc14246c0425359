"""Training steps that have no room in memory are refused before any of it is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from poise import Learner
from poise.errors import UserError
from poise.learner.networks import build_model
from poise.learner.room import held_for_an_image
from poise.learner.settings import Settings

IMAGES, LABELS = np.zeros((4, 2048, 2048, 3), dtype=np.uint8), [0, 1, 0, 1]


def settings(net: str) -> Settings:
    return Settings.resolve(automatic=False, method="lucir", net=net)


def test_what_a_network_holds_is_counted_without_computing() -> None:
    small, large = (held_for_an_image(settings("resnet18"), (3, side, side)) for side in (64, 128))
    assert large == pytest.approx(4 * small, rel=0.05)
    saved = 0
    network = build_model(settings("small"), (3, 32, 32)).backbone.train()
    storages = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        if not isinstance(tensor, nn.Parameter) and tensor.data_ptr() not in storages:
            storages.add(tensor.data_ptr())
            saved += tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = network(torch.zeros(2, 3, 32, 32))
    assert held_for_an_image(settings("small"), (3, 32, 32)) == pytest.approx(saved / 2, rel=0.02)
    del found


@pytest.mark.parametrize("epochs", [1, None])
def test_images_that_are_too_large_are_refused_before_training(
    epochs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.learner.room.free_memory", lambda: 8 << 30)
    learner = Learner(net="resnet32", epochs=epochs, policy="fixed", device="cpu")
    words = (
        r"a training step of 4 images of 2048×2048 pixels takes [\d.]+ GB of memory at least, and 8.59 GB are free; use"
    )
    with pytest.raises(UserError, match=words) as caught:
        learner.partial_fit(IMAGES, LABELS)
    assert "\n" not in str(caught.value)
    assert learner.phases_ == 0


@pytest.mark.parametrize("words", [{"method": "simplecil"}, {"method": "slca", "action": {"backbone_rate": 0.0}}])
def test_a_phase_that_trains_nothing_of_the_network_is_not(
    words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(**words, net="small", epochs=1, batch=4, policy="fixed", device="cpu")
    images, labels = IMAGES[:, :64, :64], [2, 3, 2, 3]
    learner.partial_fit(images, LABELS)
    monkeypatch.setattr("poise.learner.room.free_memory", lambda: 1 << 10)
    assert learner.partial_fit(images, labels).phases_ == 2
    with pytest.raises(UserError, match=r"takes .* of memory at least"):
        Learner("lucir", net="small", epochs=1, batch=4, device="cpu").partial_fit(images, LABELS)


def test_the_same_step_on_smaller_images_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.learner.room.free_memory", lambda: 1 << 30)
    learner = Learner(net="small", epochs=1, batch=4, policy="fixed", device="cpu")
    assert learner.partial_fit(IMAGES[:, :64, :64], LABELS).phases_ == 1
