"""A teacher is frozen, its norms are folded, and it computes what the model does in eval mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from poise.nets import (
    VARIANTS,
    Backbone,
    Branches,
    Concatenated,
    Model,
    ScaledConv,
    Specialised,
    build_backbone,
    build_head,
)

from .test_branches import as_if_trained, generator

NETS = [*(f"resnet32/{variant}" for variant in VARIANTS), "resnet18/lucir", "pod-resnet18/pod"]
OWN: dict[str, Callable[[], Backbone]] = {
    **{name: partial(build_backbone, name, "", 3, 1) for name in NETS},
    "two branches": lambda: Branches(build_backbone("small", "lucir", 3, 1)),
    "by its last level": lambda: Specialised.expanding(build_backbone("small/ordinary", "", 3, 1)),
    "side by side": lambda: Concatenated.expanding(build_backbone("small/ordinary", "", 3, 1)),
}


def model_of(net: Backbone) -> Model:
    model = Model(net, build_head("cosine", net.width))
    model.head.grow(4, generator(3))
    as_if_trained(model)
    return model


@pytest.mark.parametrize("kind", OWN)
def test_it_computes_the_same_without_norms_and_leaves_the_model_alone(kind: str) -> None:
    model = model_of(OWN[kind]())
    images = torch.randn(4, 3, 32, 32, generator=generator(5)).double()  # processors round floats differently
    model.backbone.double()
    before, global_state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    teacher = model.teacher(torch.float64)
    with torch.no_grad():
        expected, found = model.eval()(images), teacher(images)
    assert not any(isinstance(module, nn.BatchNorm2d | ScaledConv) for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-6)
    for one, other in zip(found.maps, expected.maps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), global_state)


def test_its_backbone_is_in_the_format_of_the_device_and_its_head_in_full() -> None:
    model = model_of(OWN["side by side"]()).eval()
    low = model.teacher(torch.bfloat16)
    assert {value.dtype for value in low.backbone.parameters()} == {torch.bfloat16}
    assert low.head.new.dtype == torch.float32
    images = torch.randn(4, 3, 8, 8, generator=generator(5))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = low(images).features
    torch.testing.assert_close(found, model(images).features.detach(), rtol=0.05, atol=0.1)
