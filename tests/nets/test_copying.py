"""A copy of a network is what `copy.deepcopy` makes of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from poise.methods import METHODS, make_method
from poise.nets import Model, build_backbone, build_head
from poise.nets.base import copy_network


class Noted(nn.Module):
    """Has what networks of one's own have: containers, empty or not, one of them twice, and a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.again = self.layer
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.notes: dict[str, Any] = {}
        self.same_notes = self.notes
        self.counts, self.words, self.names = {"a": [1]}, ["b"], set[str]()

    def forward(self, images: Tensor) -> Tensor:
        return self.again(self.layer(images))  # type: ignore[no-any-return]


def containers(net: nn.Module) -> list[tuple[str, str, type, int]]:
    return [
        (name, attribute, type(value), len(value))
        for name, module in net.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, dict | set | list)
    ]


def check_copy(net: nn.Module) -> None:
    made, wanted = copy_network(net), copy.deepcopy(net)
    assert containers(made) == containers(wanted) == containers(net)
    found, other = made.state_dict(), wanted.state_dict()
    assert found.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in found.items())
    own = {id(value) for module in net.modules() for value in vars(module).values() if isinstance(value, dict | set)}
    assert not own & {id(value) for module in made.modules() for value in vars(module).values()}
    places = [{each.data_ptr() for each in each_net.parameters() if each.numel()} for each_net in (net, made)]
    assert places[0]
    assert not places[0] & places[1]


def test_every_method_s_model_is_copied_as_by_deepcopy() -> None:
    for variant, head in sorted({(make_method(name).variant, make_method(name).head) for name in METHODS}):
        check_copy(Model(build_backbone("small", variant, 3, 0), build_head(head, 64)))


def test_so_is_a_network_of_ones_own() -> None:
    net = Noted()
    check_copy(net)
    made = copy_network(net)
    assert made.again is made.layer
    assert made.notes is made.same_notes
    made.notes["new"], made.counts["a"][0] = 1, 2
    made.names.add("new")
    assert (net.notes, net.counts, net.names) == ({}, {"a": [1]}, set())


def test_what_is_shared_stays_what_it_is() -> None:
    net = nn.Sequential(Noted(), nn.Linear(3, 2))
    made = copy_network(net, [net[0], net[1].bias])
    assert made[0] is net[0]
    assert made[1].bias is net[1].bias
    assert made[1].weight is not net[1].weight
