from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise.nets import VARIANTS, Branches, Model, Part, ResNet, ScaledConv, build_backbone, build_head


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(seed: int = 3, size: int = 8) -> Tensor:
    return torch.randn(4, 3, size, size, generator=generator(seed))


@torch.no_grad()
def as_if_trained(net: nn.Module, seed: int = 1) -> None:
    """Every number other than at the start, statistics included."""
    source = generator(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.5, 1.5, generator=source)
            module.bias.normal_(0, 0.1, generator=source)
            module.running_mean = torch.randn(module.num_features, generator=source) * 0.1
            module.running_var = torch.rand(module.num_features, generator=source) + 0.5
        elif isinstance(module, ScaledConv):
            module.scale.uniform_(0.5, 1.5, generator=source)
        elif isinstance(module, Branches):
            module.alpha.uniform_(0.1, 0.9, generator=source)


def test_a_scaled_convolution_scales_every_kernel_by_its_own_number() -> None:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
    scaled, x = ScaledConv(conv), torch.randn(1, 2, 5, 5, generator=generator())
    assert torch.equal(scaled(x), conv(x))
    with torch.no_grad():
        scaled.scale.copy_(torch.arange(6.0).view(3, 2, 1, 1))
    padded = np.pad(x.numpy()[0], ((0, 0), (1, 1), (1, 1)))
    expected = np.zeros((3, 3, 3))
    for out, row, column in np.ndindex(3, 3, 3):
        for into in range(2):
            seen = padded[into, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            expected[out, row, column] += (2 * out + into) * (seen * conv.weight[out, into].detach().numpy()).sum()
    np.testing.assert_allclose(scaled(x)[0].detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(scaled.plain()(x), scaled(x))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("net", [*(f"small/{variant}" for variant in VARIANTS), "resnet32/pod", "pod-resnet18/pod"])
def test_two_equal_branches_at_one_half_are_the_network_itself_to_the_bit(net: str, training: bool) -> None:
    single = build_backbone(net, "", 3, seed=0)
    as_if_trained(single)
    double = Branches(single)
    expected, found = single.train(training)(images()), double.train(training)(images())
    assert torch.equal(found.vector, expected.vector)
    assert len(found.maps) == len(expected.maps) == len(double.alpha)
    for one, other in zip(found.maps, expected.maps, strict=True):
        assert torch.equal(one, other)


def test_every_level_sees_what_was_fused_before() -> None:
    double = Branches(build_backbone("small", "lucir", 3, seed=0)).eval()
    as_if_trained(double)
    x, maps = images(), double(images()).maps
    for number, share in enumerate(double.alpha.tolist()):
        parts = []
        for net in (double.stable, double.plastic):
            assert isinstance(net, ResNet)
            parts.append(net.levels[number](net.stem(x) if number == 0 else x))
        x = share * parts[0] + (1 - share) * parts[1]
        torch.testing.assert_close(maps[number], x)
    torch.testing.assert_close(double(images()).vector, x.mean(dim=(2, 3)))


def test_parameters_of_the_papers_network() -> None:
    single = build_backbone("resnet32", "lucir", 3, seed=0)
    double = Branches(single)
    scales = [module.scale.numel() for module in double.modules() if isinstance(module, ScaledConv)]
    frozen = [module.weight.numel() for module in double.modules() if isinstance(module, ScaledConv)]
    assert (sum(scales), sum(frozen)) == (53_808, 463_792)
    norms = 466_256 - 463_792
    assert sum(parameter.numel() for parameter in double.stable.parameters()) == 53_808 + norms
    assert sum(parameter.numel() for parameter in double.plastic.parameters()) == 466_256
    assert not any(isinstance(module, nn.Conv2d) for module in double.stable.modules())


def model_of_two_branches() -> Model:
    model = Model(Branches(build_backbone("small", "lucir", 3, seed=0)), build_head("cosine", 64))
    for count in (2, 3):
        model.head.grow(count, generator(count))
    as_if_trained(model)
    return model


@pytest.mark.parametrize(
    ("part", "old_rows", "expected"),
    [
        ("all", True, {"head.old", "head.new", "head.scale", "stable", "plastic"}),
        ("all", False, {"head.new", "head.scale", "stable", "plastic"}),
        ("head", True, {"head.old", "head.new", "head.scale"}),
        ("rows", True, {"head.old", "head.new"}),
        ("fusion", True, {"alpha"}),
        ("fusion", False, {"alpha"}),
    ],
)
def test_what_is_trained(part: Part, old_rows: bool, expected: set[str]) -> None:
    model = model_of_two_branches()
    model.train_only("head")
    model.train_only(part, old_rows=old_rows)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name if name.startswith("head") else name.split(".")[1] for name in trained} == expected
    for branch in expected & {"stable", "plastic"}:
        names = {name for name, _ in model.named_parameters() if name.startswith(f"backbone.{branch}.")}
        assert names <= trained
