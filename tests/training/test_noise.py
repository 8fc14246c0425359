"""Networks of one's own that draw random numbers: their draws have addresses too."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Augmentation, Learner
from poise.nets import Model, build_head
from poise.training import noise


class Dropping(nn.Module):
    """A backbone of one's own that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 8))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def test_dropout_of_an_own_net_follows_the_address_and_not_the_global_seed() -> None:
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    labels = torch.arange(40) % 2

    def trained(global_seed: int, seed: int) -> Tensor:
        torch.manual_seed(7)
        net = Dropping()
        torch.manual_seed(global_seed)
        learner = Learner("lwf", policy="fixed", net=net, epochs=2, batch=20, memory=2, seed=seed, device="cpu")
        before = torch.get_rng_state()
        learner.partial_fit(images, labels)
        assert torch.equal(before, torch.get_rng_state())
        assert learner.model is not None
        weights: Tensor = learner.model.state_dict()["backbone.layers.2.weight"]
        return weights

    assert torch.equal(trained(1, seed=0), trained(2, seed=0))
    assert not torch.equal(trained(1, seed=0), trained(1, seed=1))


class Functional(nn.Module):
    """Dropout that no module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(images.flatten(1)), 0.5, self.training)


def test_dropout_in_a_function_follows_the_address_too() -> None:
    images = torch.arange(40 * 64, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(40, 1, 8, 8)

    def trained(global_seed: int) -> Tensor:
        torch.manual_seed(7)
        net = Functional()
        torch.manual_seed(global_seed)
        learner = Learner("lwf", policy="fixed", net=net, epochs=2, batch=20, memory=2, device="cpu")
        learner.partial_fit(images, torch.arange(40) % 2)
        assert learner.model is not None
        weights: Tensor = learner.model.state_dict()["backbone.layer.weight"]
        return weights

    assert torch.equal(trained(1), trained(2))


def test_dropout_masks_differ_from_step_to_step() -> None:
    masks: list[Tensor] = []
    net = Dropping()
    net.layers[1].register_forward_hook(
        lambda module, inputs, output: masks.append(output == 0) if module.training else None
    )
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=generator)
    learner = Learner(
        "lwf", policy="fixed", net=net, epochs=1, batch=20, memory=2, device="cpu", augmentation=Augmentation(0, False)
    )
    learner.partial_fit(images, torch.arange(40) % 2)
    steps = [mask for mask in masks if len(mask) == 20]  # not those of the look at what it draws
    assert len(steps) == 2
    assert not torch.equal(*steps)


class Own(nn.Module):
    """A backbone that draws whatever it is told to."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)
        self.draw = draw

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.flatten(1) * (1.0 + (self.draw() if self.training else 0.0)))
        return features


def numpy_draw() -> float:
    return float(np.random.rand())  # noqa: NPY002 - what users do


@pytest.mark.parametrize(
    ("draw", "word"),
    [(random.random, "Python"), (numpy_draw, "numpy"), (lambda: torch.rand(1).item(), "torch")],
    ids=["python", "numpy", "torch"],
)
def test_whatever_a_network_draws_from_has_addresses_and_is_said_once(
    draw: Callable[[], float], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    noise._said.clear()
    torch.manual_seed(7)
    net, images = Own(draw), torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)

    def trained(seed: int) -> Tensor:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global one is the point
        before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
        learner = Learner("lwf", policy="fixed", net=net, epochs=2, batch=20, memory=2, device="cpu")
        learner.partial_fit(images, torch.arange(40) % 2).partial_fit(images, torch.arange(40) % 2 + 2)
        learner.predict(images)
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
        assert learner.model is not None
        weights: Tensor = learner.model.state_dict()["backbone.layer.weight"]
        return weights

    assert torch.equal(trained(1), trained(2))
    said = [record.getMessage() for record in caplog.records if "draws random numbers" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(
        f"Own draws random numbers in its forward pass (dropout, for instance): the global generator of {word} is set"
    )


def test_only_the_generators_that_it_draws_from_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a generator was set that the network does not draw from")

    for place, name in ((np.random, "seed"), (np.random, "set_state"), (random, "seed"), (random, "setstate")):
        monkeypatch.setattr(place, name, refuse)
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    learner = Learner("lwf", policy="fixed", net=Dropping(), epochs=1, batch=20, memory=2, device="cpu")
    learner.partial_fit(images, torch.arange(20) % 2)


def test_looking_moves_no_statistics_and_no_generator() -> None:
    model = Model(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 8)), build_head("linear", 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert noise.drawn_from(model, torch.rand(2, 1, 8, 8, generator=torch.Generator()), training=True) == noise.NOTHING
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
