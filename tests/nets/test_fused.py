"""The fused kernels against the plain operations they stand for."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from poise.data import usable_kernels
from poise.nets import build_backbone, resnet
from poise.nets.resnet import BatchNorm
from poise.training.device import make_backend

pytestmark = pytest.mark.usefixtures("exact_numbers")

EPS, MOMENTUM = 1e-5, 0.1
SHAPES = [(16, 7, 32, 32), (32, 3, 5, 9), (64, 2, 8, 8), (8, 1, 3, 3)]  # width, batch, height, length


def drawn(*shape: int, seed: int, device: str = "cuda") -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device).contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.preserve_format)


def images(width: int, batch: int, height: int, length: int, seed: int) -> Tensor:
    return drawn(batch, width, height, length, seed=seed)


def norm_results(shape: tuple[int, int, int, int], adds: bool, relu: bool, *, fused: bool) -> list[Tensor]:
    """Values, running statistics and gradients of a norm with what follows it."""
    from poise.nets.fused import normalise

    width = shape[0]
    x = (images(*shape, seed=0) * 2 + 5).requires_grad_()
    shortcut = images(*shape, seed=1).requires_grad_() if adds else None
    weight = (drawn(width, seed=2).abs() + 0.5).requires_grad_()
    bias = drawn(width, seed=3).requires_grad_()
    mean, variance = torch.full((width,), 4.0, device="cuda"), torch.full((width,), 2.0, device="cuda")
    if fused:
        y = normalise(x, shortcut, weight, bias, mean, variance, eps=EPS, momentum=MOMENTUM, relu=relu)
    else:
        y = functional.batch_norm(x, mean, variance, weight, bias, True, MOMENTUM, EPS)
        y = y if shortcut is None else y + shortcut
        y = torch.relu(y) if relu else y
    y.backward(images(*shape, seed=4))  # type: ignore[no-untyped-call]
    trained = [tensor for tensor in (x, weight, bias, shortcut) if tensor is not None]
    return [y.detach(), mean, variance, *(tensor.grad for tensor in trained if tensor.grad is not None)]


class TestOnACpu:
    @pytest.mark.parametrize("relu", [False, True])
    @pytest.mark.parametrize("adds", [False, True])
    def test_what_follows_a_norm(self, adds: bool, relu: bool) -> None:
        norm = BatchNorm(4)
        plain = torch.nn.BatchNorm2d(4)
        x, shortcut = (drawn(3, 4, 5, 5, seed=seed, device="cpu") for seed in (0, 1))
        expected = plain(x)
        expected = expected + shortcut if adds else expected
        expected = expected.clamp(min=0) if relu else expected
        assert torch.equal(norm.normalise_and_add(x, shortcut if adds else None, relu=relu), expected)
        assert norm.running_mean is not None
        assert plain.running_mean is not None
        assert torch.equal(norm.running_mean, plain.running_mean)


class TestWhichKernels:
    """Which tensors of a GPU the kernels are used for, asked with tensors that have everything but values."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "expected"),
        [
            ((128, 16, 32, 32), torch.bfloat16, True),
            ((2, 512, 1, 1), torch.float32, True),
            ((1, 16, 1, 1), torch.float32, False),  # one value has no variance; torch refuses it
            ((0, 16, 8, 8), torch.float32, False),
            ((2, 12, 8, 8), torch.float32, False),  # no power of two
            ((2, 16, 8, 8), torch.float64, False),  # sums are taken in fp32
            ((2674, 64, 112, 112), torch.bfloat16, True),
            ((2675, 64, 112, 112), torch.bfloat16, False),  # 2³¹ values and more
        ],
        ids=str,
    )
    def test_a_norm(self, shape: tuple[int, int, int, int], dtype: torch.dtype, expected: bool) -> None:
        norm = BatchNorm(shape[1])
        with FakeTensorMode():
            x = torch.empty(shape, dtype=dtype, device="cuda")
        assert norm.is_fused(x) is expected
        assert not norm.eval().is_fused(x)

    @pytest.mark.parametrize(
        ("width", "side", "expected"),
        [(16, 32, True), (16, 224, True), (32, 16, True), (64, 8, False), (128, 8, False)],
    )
    def test_a_convolution(self, width: int, side: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resnet, "usable_kernels", lambda module, device: sys)
        with FakeTensorMode():
            x = torch.empty(2, width, side, side, dtype=torch.bfloat16, device="cuda")
            weight = torch.empty(width, width, 3, 3, dtype=torch.bfloat16, device="cuda")
        assert (resnet._thin_kernels(x, weight) is sys) is expected

    def test_a_teacher_in_full_precision_sees_bf16(self) -> None:
        conv = torch.nn.Conv2d(16, 16, 3, padding=1)
        with FakeTensorMode():
            x = torch.empty(2, 16, 8, 8, dtype=torch.bfloat16, device="cuda")
        with torch.no_grad():
            assert not resnet._is_inference(conv, x)
            assert resnet._is_inference(conv.bfloat16(), x)

    def test_without_triton_torchs_own_are_used_and_a_line_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
        monkeypatch.delitem(sys.modules, "poise.nets.fused", raising=False)
        monkeypatch.delattr("poise.nets.fused", raising=False)
        usable_kernels.cache_clear()
        try:
            with caplog.at_level(logging.WARNING), FakeTensorMode():
                x = torch.empty(2, 16, 8, 8, dtype=torch.bfloat16, device="cuda")
                weight = torch.empty(16, 16, 3, 3, dtype=torch.bfloat16, device="cuda")
                assert [resnet.convolve(x, weight, 1, 1).shape for _ in range(3)] == [x.shape] * 3
        finally:
            usable_kernels.cache_clear()
        assert [record.message.splitlines() for record in caplog.records] == [[caplog.records[0].message]]
        assert "triton" in caplog.text

    def test_an_old_gpu_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        assert usable_kernels.__wrapped__(resnet.KERNELS, torch.device("cuda")) is None


@pytest.mark.gpu
class TestNorms:
    @pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
    @pytest.mark.parametrize("adds", [False, True], ids=["alone", "with shortcut"])
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_values_gradients_and_statistics(self, shape: tuple[int, int, int, int], adds: bool, relu: bool) -> None:
        for one, other in zip(*(norm_results(shape, adds, relu, fused=fused) for fused in (False, True)), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=2e-4)

    @pytest.mark.parametrize("adds", [False, True], ids=["alone", "with shortcut"])
    def test_images_of_imagenets_size(self, adds: bool) -> None:
        """More than 2²³ values: sums are merged. A few of so many lie so near to zero that a ReLU may differ."""
        shape = (64, 11, 112, 112)
        for one, other in zip(*(norm_results(shape, adds, True, fused=fused) for fused in (False, True)), strict=True):
            close = torch.isclose(other, one, rtol=1e-3, atol=1e-3 if one.numel() > 64 else 1.0)
            assert (~close).sum() <= one.numel() / 100_000

    def test_the_same_bytes_every_time(self) -> None:
        from poise.nets.fused import normalise

        def once() -> list[Tensor]:
            x = images(16, 64, 32, 32, seed=0).bfloat16().requires_grad_()
            weight, bias = torch.ones(16, device="cuda", requires_grad=True), torch.zeros(16, device="cuda")
            statistics = torch.zeros(16, device="cuda"), torch.ones(16, device="cuda")
            y = normalise(x, None, weight, bias, *statistics, eps=EPS, momentum=MOMENTUM, relu=True)
            return [y, *statistics, *torch.autograd.grad(y.float().square().sum(), (x, weight))]

        first = once()
        for _ in range(5):
            assert all(torch.equal(one, other) for one, other in zip(once(), first, strict=True))


@pytest.mark.gpu
class TestConvolutions:
    @pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
    def test_values_and_gradients(self, shape: tuple[int, int, int, int]) -> None:
        from poise.nets.fused import convolve_thin

        width = shape[0]
        x, given = (images(*shape, seed=seed).bfloat16() for seed in (0, 1))
        weight = (drawn(width, width, 3, 3, seed=2) / 10).bfloat16()
        found: list[list[Tensor]] = []
        for fused in (False, True):
            one, other = x.clone(), weight.clone()
            one, other = (one, other) if fused else (one.float(), other.float())
            one.requires_grad_()
            other.requires_grad_()
            y = convolve_thin(one, other) if fused else functional.conv2d(one, other, padding=1)
            found.append([y.detach(), *torch.autograd.grad(y, (one, other), given.to(y.dtype))])
        for reference, value in zip(*found, strict=True):
            torch.testing.assert_close(value.float(), reference, rtol=2e-2, atol=2e-2)

    @pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
    @pytest.mark.parametrize("adds", [False, True], ids=["alone", "with shortcut"])
    def test_a_teachers_convolution(self, adds: bool, relu: bool) -> None:
        from poise.nets.fused import convolve_thin_and_add

        x, shortcut = (images(16, 5, 9, 7, seed=seed).bfloat16() for seed in (0, 1))
        weight, bias = (drawn(16, 16, 3, 3, seed=2) / 10).bfloat16(), drawn(16, seed=3).bfloat16()
        expected = functional.conv2d(x.float(), weight.float(), bias.float(), padding=1)
        expected = expected + shortcut.float() if adds else expected
        expected = torch.relu(expected) if relu else expected
        found = convolve_thin_and_add(x, weight, bias, shortcut if adds else None, relu=relu)
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["lucir", "pod"])
class TestANetwork:
    def test_a_training_pass_in_fp32(self, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some ReLUs fall on the other side of zero by rounding: gradients are compared as a whole, not one by one."""
        x = drawn(32, 3, 32, 32, seed=0)
        torch.cuda.synchronize()  # a backend works on a stream of its own
        found: list[dict[str, Tensor]] = []
        for widths in ((), resnet.FUSED_WIDTHS):
            monkeypatch.setattr(resnet, "FUSED_WIDTHS", widths)
            with make_backend("cuda", "fp32", deterministic=True).active():
                net = build_backbone("resnet32", variant, 3, 0).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                out = net.train()(x).vector
                out.square().sum().backward()
            torch.cuda.synchronize()
            gradients = {name: value.grad for name, value in net.named_parameters()}
            found.append({"out": out.detach(), **gradients, **dict(net.named_buffers())})
        for name, expected in found[0].items():
            off = float((found[1][name] - expected).norm()) / (float(expected.norm()) + 1e-6)
            assert off < (2e-2 if name in gradients else 1e-3), (name, off)

    def test_a_folded_teacher_in_bf16(self, variant: str) -> None:
        net = build_backbone("resnet32", variant, 3, 0).cuda().eval()
        x = drawn(32, 3, 32, 32, seed=0)
        with torch.no_grad():
            expected = net(x).vector
            net.fold()
            net.bfloat16().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            with torch.autocast("cuda", torch.bfloat16):
                found = net(x).vector.float()
        closeness = functional.cosine_similarity(found, expected, dim=1)
        assert float(closeness.min()) > 0.99
