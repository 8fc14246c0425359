from __future__ import annotations

import pytest
import torch
from torch import nn

from poise.nets import VARIANTS, Model, build_backbone, build_head


@pytest.mark.parametrize(
    "net", [*(f"resnet32/{variant}" for variant in VARIANTS), "resnet18/lucir", "pod-resnet18/pod"]
)
def test_a_folded_teacher_computes_the_same(net: str) -> None:
    generator = torch.Generator().manual_seed(1)
    backbone = build_backbone(net, "lucir", 3, seed=1)
    model = Model(backbone, build_head("cosine", backbone.width))
    model.head.grow(4, generator)
    images = torch.randn(8, 3, 32, 32, generator=generator).double()  # processors round floats differently
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # statistics and factors as after training, not 0 and 1
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.1, generator=generator)
                module.running_mean = torch.randn(module.num_features, generator=generator) * 0.1
                module.running_var = torch.rand(module.num_features, generator=generator) + 0.5
        model.backbone.double()
        expected = model.eval()(images)
        found = model.teacher(torch.float64)(images)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.teacher().modules())
    torch.testing.assert_close(found.features, expected.features, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-6, atol=1e-6)


def test_a_teacher_is_frozen_and_leaves_the_model_alone() -> None:
    model = Model(build_backbone("small", "lucir", 1, seed=0), build_head("linear", 64))
    model.head.grow(3, torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    teacher = model.teacher(torch.bfloat16)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert next(teacher.backbone.parameters()).dtype == torch.bfloat16
    assert teacher.head.new.dtype == torch.float32
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
