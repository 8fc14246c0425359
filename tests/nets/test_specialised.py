"""A network that grows by its last level: what it computes, what is trained, what is shared."""

from __future__ import annotations

import copy

import pytest
import torch

from poise.nets import Model, ResNet, Specialised, build_backbone, build_head

from .test_branches import as_if_trained, generator, images


def trained_net(name: str = "small/ordinary") -> ResNet:
    net = build_backbone(name, "", 3, 0)
    as_if_trained(net, 1)
    return net


def grown() -> Specialised:
    """Three last levels: two frozen ones, and the newest, which was trained on."""
    net = Specialised.expanding(trained_net())
    as_if_trained(net, seed=5)
    net = Specialised.expanding(net)
    as_if_trained(net.newest, seed=6)
    return net


@pytest.mark.parametrize("name", ["small/ordinary", "resnet32/ordinary", "cifar-resnet18/ordinary"])
def test_the_first_expansion_knows_the_same_twice(name: str) -> None:
    first = trained_net(name)
    before = copy.deepcopy(first.state_dict())
    net = Specialised.expanding(first).eval()
    known = first.eval()(images()).vector
    torch.testing.assert_close(net(images()).vector, torch.cat([known, known], dim=1), rtol=1e-4, atol=1e-5)
    assert (net.width, net.newest.width) == (2 * first.width, first.width)
    as_if_trained(net, seed=3)
    assert all(torch.equal(before[key], value) for key, value in first.state_dict().items()), (
        "the old one is left alone"
    )


def test_features_are_those_of_every_last_level_on_shared_maps() -> None:
    net = grown().eval()
    below = net.shared(images()).maps[-1]
    wanted = [part.levels[0](below).mean(dim=(2, 3)) for part in (*net.frozen, net.newest)]
    found = net(images())
    torch.testing.assert_close(found.vector, torch.cat(wanted, dim=1))
    assert found.maps[0].shape[1] == net.width == 192


def test_shared_levels_and_the_newest_are_trained_through_frozen_ones() -> None:
    model = Model(grown(), build_head("renewed", 192))
    model.head.grow(3, generator(3))
    model.train_only("all")
    model.train()
    before = copy.deepcopy(model.state_dict())
    model(images()).features[:, :64].square().sum().backward()  # of the oldest last level alone
    trained = {
        name.split(".")[1]
        for name, value in model.backbone.named_parameters(prefix="backbone")
        if value.grad is not None and value.grad.any()
    }
    assert trained == {"shared"}
    changed = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert not [name for name in changed if ".frozen." in name], "frozen ones stay in eval mode"
    assert [name for name in changed if ".shared." in name], "statistics of shared levels move"
    copied = model.copy()
    assert isinstance(model.backbone, Specialised)
    assert isinstance(copied.backbone, Specialised)
    assert copied.backbone.frozen[0] is model.backbone.frozen[0]
    assert copied.backbone.shared is not model.backbone.shared
