from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise.errors import UserError
from poise.nets import build_backbone, feature_width
from poise.nets.resnet import Block, ResNet

BLOCKS = {"small": 3, "resnet32": 15, "resnet18": 8}


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def some_images(count: int, side: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3, side, side)).astype(np.float32))


def second_norms(net: ResNet) -> list[nn.BatchNorm2d]:
    """The batch norm before the addition of each block, in order."""
    norms = [module.bn2 for module in net.modules() if isinstance(module, Block)]
    return [norm for norm in norms if isinstance(norm, nn.BatchNorm2d)]


def block_outputs(net: ResNet, images: Tensor) -> list[Tensor]:
    """What each residual block returns, in order."""
    outputs: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for block in net.modules()
        if isinstance(block, Block)
    ]
    with torch.no_grad():
        net(images)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize(
    ("name", "variant", "count"),
    [
        ("resnet32", "lucir", 466_256),
        ("resnet32", "ordinary", 466_256),
        ("resnet32", "pod", 463_504),
        ("resnet32", "foster", 463_504),
        ("resnet18", "lucir", 11_176_512),
        ("resnet18", "ordinary", 11_176_512),
        ("resnet18", "foster", 11_176_512),
        ("resnet18", "pod", 11_176_512),
        ("pod-resnet18", "pod", 11_168_832),  # 9,408 − 1,728 fewer in the stem
        ("pod-resnet18", "ordinary", 11_168_832),
        ("cifar-resnet18", "ordinary", 11_168_832),  # DER's 11.17 M
        ("cifar-resnet18", "lucir", 11_168_832),
        ("cifar-resnet18", "pod", 11_168_832),
    ],
)
def test_parameter_counts_are_those_of_the_papers_networks(name: str, variant: str, count: int) -> None:
    assert parameters(build_backbone(name, variant, 3, seed=0)) == count


#: By the outputs of its blocks, which of them can be negative: no ReLU follows their addition.
WITHOUT_RELU = {
    **{(name, "lucir"): [False] * (count - 1) + [True] for name, count in BLOCKS.items()},
    **{(name, "ordinary"): [False] * count for name, count in BLOCKS.items()},
    ("resnet32", "foster"): [False] * 15,
    ("resnet32", "pod"): [True] * 15,
    **{(name, "pod"): [False, True] * 4 for name in ("resnet18", "pod-resnet18", "cifar-resnet18")},
}


@pytest.mark.parametrize(("name", "variant"), WITHOUT_RELU, ids="/".join)
def test_where_relu_follows_an_addition(name: str, variant: str) -> None:
    net = build_backbone(name, variant, 3, 0)
    for norm in second_norms(net) if variant == "pod" else ():
        nn.init.ones_(norm.weight)  # which start at zero
    outputs = block_outputs(net, some_images(2, 32))
    assert [bool(output.min() < 0) for output in outputs] == WITHOUT_RELU[name, variant]


@pytest.mark.parametrize(
    ("name", "side", "maps"),
    [
        ("resnet32/lucir", 32, [(16, 32), (32, 16), (64, 8)]),
        ("resnet32/pod", 32, [(16, 32), (32, 16), (64, 8), (64, 8)]),
        ("resnet18/lucir", 96, [(64, 24), (128, 12), (256, 6), (512, 3)]),
        ("pod-resnet18/pod", 96, [(64, 48), (128, 24), (256, 12), (512, 6)]),  # of twice the resolution
        ("cifar-resnet18/pod", 64, [(64, 64), (128, 32), (256, 16), (512, 8)]),  # no pooling
        ("cifar-resnet18/ordinary", 32, [(64, 32), (128, 16), (256, 8), (512, 4)]),
    ],
)
def test_maps_of_every_level(name: str, side: int, maps: list[tuple[int, int]]) -> None:
    net = build_backbone(name, "", 3, 0)
    with torch.no_grad():
        found = net(some_images(1, side))
    assert [tuple(each.shape[1:]) for each in found.maps] == [(width, size, size) for width, size in maps]
    assert torch.allclose(found.vector, found.maps[-1].mean(dim=(2, 3)))
    if name == "resnet32/pod":
        assert [len(level) for level in net.levels if isinstance(level, nn.Sequential)] == [5, 5, 4, 1]


class TestInitialValues:
    def test_convolutions_are_kaiming_normal_by_fan_out(self) -> None:
        net = build_backbone("resnet32", "lucir", 3, seed=0)
        for module in net.modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
                expected = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
                assert module.weight.std().item() == pytest.approx(expected, rel=0.05)

    def test_blocks_of_pod_start_as_their_shortcut(self) -> None:
        net = build_backbone("resnet32", "pod", 3, seed=0)
        images = some_images(2, 32)
        with torch.no_grad():
            stem = net.stem(images)
            outputs = block_outputs(net, images)
        assert torch.equal(outputs[4], stem)
        assert torch.equal(outputs[5][:, :16], stem[:, :, ::2, ::2])
        assert not outputs[5][:, 16:].any()

    def test_blocks_of_ders_and_podnets_resnet18_do_so_too(self) -> None:
        for name in ("cifar-resnet18/ordinary", "pod-resnet18/pod", "resnet18/pod"):
            assert not any(bool(norm.weight.any()) for norm in second_norms(build_backbone(name, "", 3, seed=0)))


class TestNames:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("resnet23", "unknown net 'resnet23'; did you mean 'resnet32'"),
            ("resnet32/ordinry", "did you mean 'ordinary'"),
            ("podresnet18", "did you mean 'pod-resnet18'"),
        ],
    )
    def test_unknown_ones_are_refused(self, name: str, words: str) -> None:
        with pytest.raises(UserError, match=words):
            build_backbone(name, "lucir", 3, 0)


class TestOnesOwnNet:
    @pytest.mark.parametrize(
        ("net", "words"),
        [
            (nn.Linear(5, 2), r"does not map images of shape \(3, 8, 8\)"),
            (nn.Conv2d(3, 4, 3), r"to features \[batch, width\]: it returns \[1, 4, 6, 6\]"),
        ],
    )
    def test_a_net_that_does_not_fit_is_refused_in_one_line(self, net: nn.Module, words: str) -> None:
        with pytest.raises(UserError, match=rf"^[^\n]*({words})[^\n]*$"):
            feature_width(net, (3, 8, 8))
