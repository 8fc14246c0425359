"""Networks of one's own that draw random numbers: their draws have addresses too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poise import Augmentation, Learner


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
    assert len(masks) >= 2
    assert not torch.equal(masks[0], masks[1])
