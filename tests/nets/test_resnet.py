from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise.errors import UserError
from poise.nets import build_backbone, feature_width
from poise.nets.resnet import Block, ResNet


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


class TestWhereReluIs:
    @pytest.mark.parametrize("name", ["small", "resnet32", "resnet18"])
    def test_lucir_leaves_out_only_the_last_one(self, name: str) -> None:
        outputs = block_outputs(build_backbone(name, "lucir", 3, 0), some_images(2, 32))
        assert all(output.min() >= 0 for output in outputs[:-1])
        assert outputs[-1].min() < 0

    @pytest.mark.parametrize("name", ["small", "resnet32", "resnet18"])
    def test_ordinary_has_all_of_them(self, name: str) -> None:
        outputs = block_outputs(build_backbone(name, "ordinary", 3, 0), some_images(2, 32))
        assert all(output.min() >= 0 for output in outputs)

    def test_foster_has_all_of_them_and_shortcuts_without_parameters(self) -> None:
        net = build_backbone("resnet32", "foster", 3, 0)
        outputs = block_outputs(net, some_images(2, 32))
        assert len(outputs) == 15
        assert all(output.min() >= 0 for output in outputs)
        assert not any(module.kernel_size == (1, 1) for module in net.modules() if isinstance(module, nn.Conv2d))

    def test_pod_has_none_after_an_addition(self) -> None:
        net = build_backbone("resnet32", "pod", 3, 0)
        for norm in second_norms(net):
            nn.init.ones_(norm.weight)
        outputs = block_outputs(net, some_images(2, 32))
        assert len(outputs) == 15
        assert all(output.min() < 0 for output in outputs)

    @pytest.mark.parametrize("name", ["resnet18", "pod-resnet18", "cifar-resnet18"])
    def test_pod_has_one_after_the_first_addition_of_each_level_of_a_resnet18(self, name: str) -> None:
        net = build_backbone(name, "pod", 3, 0)
        assert not any(bool(norm.weight.any()) for norm in second_norms(net))
        for norm in second_norms(net):
            nn.init.ones_(norm.weight)
        outputs = block_outputs(net, some_images(2, 32))
        assert [bool(output.min() < 0) for output in outputs] == [False, True] * 4

    @pytest.mark.parametrize(("variant", "negative"), [("lucir", True), ("ordinary", False)])
    def test_features_can_be_negative_in_lucir_only(self, variant: str, negative: bool) -> None:
        net = build_backbone("resnet32", variant, 3, 0)
        nn.init.constant_(second_norms(net)[-1].bias, -10.0)
        with torch.no_grad():
            assert bool((net(some_images(4, 32)).vector < 0).any()) is negative


class TestShapes:
    def test_maps_of_resnet32(self) -> None:
        with torch.no_grad():
            found = build_backbone("resnet32", "lucir", 3, 0)(some_images(2, 32))
        assert [tuple(m.shape[1:]) for m in found.maps] == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
        assert torch.allclose(found.vector, found.maps[-1].mean(dim=(2, 3)))

    def test_pod_has_four_maps_the_last_from_one_block(self) -> None:
        net = build_backbone("resnet32", "pod", 3, 0)
        with torch.no_grad():
            found = net(some_images(2, 32))
        assert [tuple(m.shape[1:]) for m in found.maps] == [(16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 8, 8)]
        assert [len(level) for level in net.levels if isinstance(level, nn.Sequential)] == [5, 5, 4, 1]

    def test_resnet18_reads_large_images(self) -> None:
        with torch.no_grad():
            found = build_backbone("resnet18", "lucir", 3, 0)(some_images(1, 96))
        assert [tuple(m.shape[1:]) for m in found.maps] == [(64, 24, 24), (128, 12, 12), (256, 6, 6), (512, 3, 3)]
        assert found.vector.shape == (1, 512)

    def test_podnets_resnet18_has_maps_of_twice_the_resolution(self) -> None:
        with torch.no_grad():
            found = build_backbone("pod-resnet18", "pod", 3, 0)(some_images(1, 96))
        assert [tuple(m.shape[1:]) for m in found.maps] == [(64, 48, 48), (128, 24, 24), (256, 12, 12), (512, 6, 6)]

    def test_tiny_images_keep_their_resolution_in_the_stem_without_pooling(self) -> None:
        with torch.no_grad():
            found = build_backbone("cifar-resnet18", "pod", 3, 0)(some_images(1, 64))
        assert [tuple(m.shape[1:]) for m in found.maps] == [(64, 64, 64), (128, 32, 32), (256, 16, 16), (512, 8, 8)]

    def test_grey_images(self) -> None:
        net = build_backbone("small", "ordinary", 1, 0)
        with torch.no_grad():
            assert net(torch.zeros(2, 1, 8, 8)).vector.shape == (2, 64)


class TestInitialValues:
    def test_they_depend_on_the_seed_and_on_nothing_else(self) -> None:
        torch.manual_seed(1)
        one = build_backbone("small", "lucir", 3, seed=7).state_dict()
        torch.manual_seed(2)
        other = build_backbone("small", "lucir", 3, seed=7).state_dict()
        another = build_backbone("small", "lucir", 3, seed=8).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert not torch.equal(one["stem.0.weight"], another["stem.0.weight"])

    def test_the_global_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        build_backbone("small", "pod", 3, seed=7)
        assert torch.equal(torch.get_rng_state(), before)

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

    def test_blocks_of_ders_resnet18_do_so_too(self) -> None:
        net = build_backbone("cifar-resnet18", "ordinary", 3, seed=0)
        assert not any(bool(norm.weight.any()) for norm in second_norms(net))
        with torch.no_grad():
            maps = net(some_images(1, 32)).maps
        assert [tuple(m.shape[1:]) for m in maps] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]

    def test_blocks_of_lucir_do_not(self) -> None:
        net = build_backbone("resnet32", "lucir", 3, seed=0)
        assert all(bool(norm.weight.eq(1).all()) for norm in second_norms(net))


class TestNames:
    def test_a_name_may_carry_its_variant(self) -> None:
        assert parameters(build_backbone("resnet32/pod", "lucir", 3, 0)) == 463_504

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
    def test_its_width_is_asked_of_it(self) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 11))
        assert feature_width(net, (3, 8, 8)) == 11
        assert net.training

    @pytest.mark.parametrize(
        ("net", "words"),
        [
            (nn.Linear(5, 2), "does not take images of shape"),
            (nn.Conv2d(3, 4, 3), r"must return features of shape \[batch, width\]"),
        ],
    )
    def test_a_net_that_does_not_fit_is_refused_in_one_line(self, net: nn.Module, words: str) -> None:
        with pytest.raises(UserError, match=words) as caught:
            feature_width(net, (3, 8, 8))
        assert "\n" not in str(caught.value)
