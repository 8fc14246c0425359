"""The kernels for whole levels against the plain operations they stand for."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from poise.data import usable_kernels
from poise.nets import Branches, ScaledConv, build_backbone, resnet, units
from poise.nets.resnet import BatchNorm, Block, Level, _levels

pytestmark = pytest.mark.usefixtures("exact_numbers")

Relus = Sequence[bool]
WIDTHS = (16, 32, 64)
BF16 = torch.bfloat16


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def laid(x: Tensor) -> Tensor:
    return x.cuda().contiguous(memory_format=torch.channels_last)


class Example:
    """A level's values, drawn."""

    def __init__(
        self, width: int, batch: int, relus: Relus, seed: int = 0, *, scaled: bool = False, begun: bool = False
    ) -> None:
        draws, side, count = generator(seed), 512 // width, 2 * len(relus)
        self.relus, self.scaled, self.begun = relus, scaled, begun
        self.x = laid(torch.randn(batch, width, side, side, generator=draws).relu().to(BF16))
        self.shortcut = laid(torch.randn(batch, width, side, side, generator=draws).to(BF16))
        self.given = laid((torch.randn(batch, width, side, side, generator=draws) / 100).to(BF16))
        spread = (2 / (9 * width)) ** 0.5
        weights = [torch.randn(width, width, 3, 3, generator=draws) * spread for _ in range(count)]
        self.weights = [laid(weight.to(BF16).float()) for weight in weights]
        self.scales = [(1 + 0.2 * torch.randn(width, generator=draws)).cuda() for _ in range(count)]
        self.shifts = [(0.2 * torch.randn(width, generator=draws)).cuda() for _ in range(count)]
        self.means = [(0.1 * torch.randn(width, generator=draws)).cuda() for _ in range(count)]

    def trained(self, kind: torch.dtype | None) -> dict[str, Tensor]:
        """Output, gradients and running statistics, by torch in this format, or by the kernels."""
        dtype, norms = kind or BF16, list[BatchNorm]()
        for scale, shift, mean in zip(self.scales, self.shifts, self.means, strict=True):
            norms.append(BatchNorm(len(scale)).cuda())
            for parameter, value in (
                (norms[-1].weight, scale),
                (norms[-1].bias, shift),
                (norms[-1].running_mean, mean),
            ):
                assert parameter is not None
                parameter.data.copy_(value)
        x = self.x.to(dtype).requires_grad_()
        shortcut = self.shortcut.to(dtype).requires_grad_() if self.begun else None
        leaves = [weight.clone().requires_grad_() for weight in self.weights[self.begun :]]
        factors = [torch.full_like(leaf[:, :, :1, :1], 0.9, requires_grad=True) for leaf in leaves if self.scaled]
        weights = [leaf * factor for leaf, factor in zip(leaves, factors, strict=True)] if factors else leaves
        train = plain if kind is not None else train_by_kernels
        y = train(x, weights, norms, self.relus, shortcut)
        y.backward(self.given.to(dtype))  # type: ignore[no-untyped-call]
        found: dict[str, Tensor | None] = {"y": y.detach(), "x": x.grad}
        found |= {"shortcut": shortcut.grad} if shortcut is not None else {}
        found |= {f"weight {number}": leaf.grad for number, leaf in enumerate(leaves)}
        found |= {f"factor {number}": factor.grad for number, factor in enumerate(factors)}
        # A few sums of many values, some of which a ReLU lets pass or not by rounding: compared as a whole.
        found["scales"], found["shifts"] = (
            joint([norm.weight.grad for norm in norms]),
            joint([norm.bias.grad for norm in norms]),
        )
        found["means"], found["variances"] = (
            joint([norm.running_mean for norm in norms]),
            joint([norm.running_var for norm in norms]),
        )
        return {name: value for name, value in found.items() if value is not None}


def joint(values: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([value for value in values if value is not None])


def train_by_kernels(
    x: Tensor, weights: Sequence[Tensor], norms: Sequence[BatchNorm], relus: Relus, shortcut: Tensor | None = None
) -> Tensor:
    from poise.nets.units import train_level

    return train_level(x, weights, norms, relus, shortcut)


def plain(
    x: Tensor, weights: Sequence[Tensor], norms: Sequence[BatchNorm], relus: Relus, shortcut: Tensor | None
) -> Tensor:
    convs: list[Callable[[Tensor], Tensor]] = [torch.clone] * (shortcut is not None)  # the first one was made by others
    convs += [partial(functional.conv2d, weight=weight.to(x.dtype), padding=1) for weight in weights]
    for block, relu in enumerate(relus):
        y, beside = x, shortcut if shortcut is not None and block == 0 else x
        for number in (2 * block, 2 * block + 1):
            y = nn.BatchNorm2d.forward(norms[number], convs[number](y))
            y = torch.relu(y) if number == 2 * block else y + beside
        x = torch.relu(y) if relu else y
    return x


def off(found: Tensor, expected: Tensor) -> float:
    """By how much of its length the one is off the other."""
    assert bool(torch.isfinite(found).all())
    found, expected = found.detach(), expected.detach()
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def check(example: Example) -> None:
    """The kernels are about as far from full precision as torch is in bf16."""
    exact, low, found = (example.trained(kind) for kind in (torch.float32, BF16, None))
    assert found.keys() == exact.keys()
    for name, expected in exact.items():
        assert found[name].shape == expected.shape
        slack = 2e-2 if name in ("scales", "shifts") else 5e-3
        assert off(found[name], expected) <= 1.5 * off(low[name], expected) + slack, name


class TestWhichLevels:
    """Which levels of a network the kernels are used for, asked with tensors that have everything but values."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "expected"),
        [
            ((128, 16, 32, 32), BF16, True),
            ((3, 32, 16, 16), BF16, True),
            ((1, 64, 8, 8), BF16, True),
            ((128, 16, 32, 32), torch.float32, False),
            ((128, 16, 64, 64), BF16, False),
            ((128, 32, 16, 8), BF16, False),
            ((128, 128, 4, 4), BF16, False),
            ((0, 16, 32, 32), BF16, False),
        ],
        ids=str,
    )
    def test_maps(
        self, shape: tuple[int, ...], dtype: torch.dtype, expected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resnet, "usable_kernels", lambda module, device: sys)
        blocks = [Block(shape[1], shape[1], 1, relu=True, project=True)]
        with FakeTensorMode():
            x = torch.empty(shape, dtype=dtype, device="cuda")
            before = torch.empty(shape[0], shape[1] // 2, 2 * shape[2], 2 * shape[3], dtype=dtype, device="cuda")
        assert (resnet._unit_kernels(x, blocks * 32) is sys) is expected
        assert resnet._unit_kernels(x, blocks * 33) is None
        assert resnet._unit_kernels(x, []) is None
        reducing = Block(shape[1] // 2, shape[1], 2, relu=True, project=True)
        assert (resnet._unit_kernels(before, [reducing, *blocks]) is sys) is expected

    def test_without_nvrtc_plain_modules_run_and_a_line_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        monkeypatch.setitem(sys.modules, resnet.KERNELS, None)
        monkeypatch.setitem(sys.modules, resnet.UNITS, None)
        usable_kernels.cache_clear()
        blocks = [Block(16, 16, 1, relu=True, project=True)]
        try:
            with caplog.at_level(logging.WARNING), FakeTensorMode():
                x = torch.empty(2, 16, 32, 32, dtype=BF16, device="cuda")
                assert [resnet._unit_kernels(x, blocks) for _ in range(3)] == [None] * 3
        finally:
            usable_kernels.cache_clear()
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
    def test_norms_whose_own_values_are_in_another_format_are_left_to_the_modules(
        self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernels = SimpleNamespace(train_level=lambda *_: "by kernels")
        monkeypatch.setattr(resnet, "usable_kernels", lambda *_: kernels)
        monkeypatch.setattr(Block, "forward", lambda *_: "by modules")
        level = Level(Block(16, 16, 1, relu=True, project=True)).to(dtype)
        with FakeTensorMode():
            found: Any = level(torch.empty(2, 16, 32, 32, dtype=BF16, device="cuda"))
        assert found == ("by kernels" if dtype is torch.float32 else "by modules")

    def test_on_a_cpu_a_level_is_its_blocks(self) -> None:
        level = _levels("lucir", (2, 2), (16, 32))[1]
        assert isinstance(level, Level)
        x, y = torch.randn(2, 16, 32, 32, generator=generator()), None
        y = copy.deepcopy(level)(x)
        for block in level:
            x = block(x)
        assert torch.equal(x, y)


class Compiler:
    """Stands for NVRTC: what it compiles is a few bytes, other ones each time; `fails` names a call that fails."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.compiled = fails, 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: int(name == self.fails)

    def nvrtcCompileProgram(self, *_: object) -> int:  # noqa: N802 - its name
        self.compiled += 1
        return 0

    def nvrtcGetCUBINSize(self, _: object, size: Any) -> int:  # noqa: N802
        size._obj.value = 4
        return 0

    def nvrtcGetCUBIN(self, _: object, binary: Any) -> int:  # noqa: N802
        binary.raw = bytes([0, 10, 255, self.compiled])
        return int(self.fails == "nvrtcGetCUBIN")

    def nvrtcGetLoweredName(self, _: object, name: bytes, symbol: Any) -> int:  # noqa: N802
        symbol._obj.value = b"_" + name
        return int(self.fails == "nvrtcGetLoweredName")


class TestKeptBinaries:
    @pytest.fixture(autouse=True)
    def compiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
        found = Compiler()
        self.use(found, monkeypatch)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
        return found

    @staticmethod
    def use(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(units, "_cuda_utils", lambda: SimpleNamespace(_get_gpu_rtc_library=lambda: compiler))

    @staticmethod
    def compiled(name: str = "one") -> tuple[bytes, list[str]]:
        return units._compiled(16, [name, "two"], (9, 0))

    def test_they_are_compiled_once(self, compiler: Compiler, tmp_path: Path) -> None:
        assert [self.compiled() for _ in range(3)] == [(bytes([0, 10, 255, 1]), ["_one", "_two"])] * 3
        assert self.compiled("other") == (bytes([0, 10, 255, 2]), ["_other", "_two"])
        assert compiler.compiled == 2
        assert len(list((tmp_path / "caches/poise").iterdir())) == 2  # nothing else is left there

    @pytest.mark.parametrize("damage", [0, 1, 20, -1, None], ids=str)
    def test_damaged_ones_are_compiled_again(self, damage: int | None, compiler: Compiler, tmp_path: Path) -> None:
        self.compiled()
        (kept,) = (tmp_path / "caches/poise").iterdir()
        kept.write_bytes(kept.read_bytes()[:damage] if damage is not None else kept.read_bytes() + b"more")
        assert self.compiled() == self.compiled()
        assert compiler.compiled == 2

    def test_where_nothing_can_be_kept_they_are_compiled_each_time(self, compiler: Compiler, tmp_path: Path) -> None:
        (tmp_path / "caches").write_bytes(b"no folder")
        assert [self.compiled()[1] for _ in range(2)] == [["_one", "_two"]] * 2
        assert compiler.compiled == 2

    @pytest.mark.parametrize("call", ["nvrtcGetCUBIN", "nvrtcGetLoweredName"])
    def test_what_was_compiled_in_part_is_not_kept(
        self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.use(Compiler(call), monkeypatch)
        with pytest.raises(RuntimeError, match="no binary"):
            self.compiled()
        assert not (tmp_path / "caches").exists()


class Driver:
    """Stands for a GPU's driver, whose blocks of threads have at most so many bytes of shared memory."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0

    def cuFuncSetAttribute(self, _function: object, _which: int, shared: Any) -> int:  # noqa: N802 - its name
        return int(shared.value > self.most)


class TestSharedMemory:
    """Kilobytes of a block, as GPUs since 2020 have them: 99, 163 or 227."""

    @pytest.fixture
    def load(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], units.Kernels]:
        def load(width: int, kilobytes: int) -> units.Kernels:
            libraries = {"_get_gpu_runtime_library": lambda: Driver(kilobytes * 1024)}
            monkeypatch.setattr(units, "_cuda_utils", lambda: SimpleNamespace(**libraries))
            return units.Kernels(width, torch.device("cuda", 0))

        monkeypatch.setattr(units, "_compiled", lambda _width, names, _capability: (b"", names))
        for name in ("get_device_capability", "device"):
            monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        return load

    @pytest.mark.parametrize("kilobytes", [99, 163, 227])
    @pytest.mark.parametrize("width", WIDTHS)
    def test_all_kernels_fit_but_one(
        self, width: int, kilobytes: int, load: Callable[[int, int], units.Kernels], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernels = load(width, kilobytes)
        assert kernels.infers is (width > 16 or kilobytes > 99)
        monkeypatch.setattr(units, "_kernels", lambda *_: kernels)
        if not kernels.infers:
            assert units.infer_level(torch.empty(1, width, 1, 1), (), ()) is None

    @pytest.mark.parametrize("width", WIDTHS)
    def test_with_less_none_is_used(self, width: int, load: Callable[[int, int], units.Kernels]) -> None:
        with pytest.raises(RuntimeError, match="CUDA error 1"):
            load(width, 48)


@pytest.mark.gpu
class TestTraining:
    @pytest.mark.parametrize("relus", [(True,), (True, True, False), (False, False)], ids=str)
    @pytest.mark.parametrize("batch", [1, 7, 128])
    @pytest.mark.parametrize("width", WIDTHS)
    def test_values_gradients_and_statistics(self, width: int, batch: int, relus: Relus) -> None:
        check(Example(width, batch, relus, seed=batch))

    @pytest.mark.parametrize("width", WIDTHS)
    def test_scaled_weights(self, width: int) -> None:
        check(Example(width, 33, (True, True), scaled=True))

    @pytest.mark.parametrize("relus", [(True,), (True, False)], ids=str)
    @pytest.mark.parametrize("width", WIDTHS)
    def test_a_first_block_with_a_shortcut_of_its_own(self, width: int, relus: Relus) -> None:
        check(Example(width, 33, relus, begun=True))

    @pytest.mark.parametrize("width", WIDTHS)
    def test_the_same_bytes_alone_and_beside_others(self, width: int) -> None:
        examples = [Example(width, 37, (True, False), seed) for seed in range(4)]
        alone = [example.trained(None) for example in examples]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in examples]  # type: ignore[no-untyped-call]
        beside = list[dict[str, Tensor]]()
        for _ in range(3):
            beside.clear()
            for example, stream in zip(examples, streams, strict=True):
                with torch.cuda.stream(stream):
                    beside.append(example.trained(None))
            torch.cuda.synchronize()
        for one, other in zip(alone, beside, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_captured(self, width: int) -> None:
        example = Example(width, 21, (True, True))
        expected, stream, graph = example.trained(None), torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        weights = [weight.requires_grad_() for weight in example.weights]
        norms = [BatchNorm(width).cuda() for _ in weights]
        for norm, scale, shift in zip(norms, example.scales, example.shifts, strict=True):
            norm.weight.data.copy_(scale)
            norm.bias.data.copy_(shift)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            y = train_by_kernels(example.x.requires_grad_(), weights, norms, example.relus)
            gradients = torch.autograd.grad(y, (example.x, *weights), example.given)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert off(y, expected["y"]) < 1e-2  # their running means differ, and so the last bits
        assert off(gradients[0], expected["x"]) < 0.1


@pytest.mark.gpu
class TestInference:
    @pytest.mark.parametrize("relus", [(True, True, False), (False,)], ids=str)
    @pytest.mark.parametrize("batch", [1, 7, 128])
    @pytest.mark.parametrize("width", WIDTHS)
    def test_a_frozen_level(self, width: int, batch: int, relus: Relus) -> None:
        from poise.nets.units import infer_level

        example, convs = Example(width, batch, relus), list[nn.Conv2d]()
        for weight, shift in zip(example.weights, example.shifts, strict=True):
            conv = nn.Conv2d(width, width, 3, padding=1).cuda()
            conv.weight.data.copy_(weight / 2)
            assert conv.bias is not None
            conv.bias.data.copy_(shift)
            convs.append(conv.to(BF16, memory_format=torch.channels_last))  # type: ignore[call-overload]
        with torch.no_grad():
            found, y = infer_level(example.x, convs, relus), example.x.float()
            assert found is not None
            for block, relu in enumerate(relus):
                one, two = (copy.deepcopy(conv).float() for conv in convs[2 * block : 2 * block + 2])
                y = two(torch.relu(one(y)).to(BF16).float()) + y
                y = (torch.relu(y) if relu else y).to(BF16).float()
        assert off(found, y) < 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["lucir", "pod", "foster"])
class TestANetwork:
    """With kernels for levels, a network in bf16 is about as far from full precision as without."""

    @pytest.mark.parametrize("branches", [False, True], ids=["one", "branches"])
    def test_a_training_pass(self, variant: str, branches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        x = laid(torch.randn(64, 3, 32, 32, generator=generator()))
        found = list[dict[str, Tensor]]()
        for widths, low in (((), False), ((), True), (WIDTHS, True)):
            monkeypatch.setattr(resnet, "UNIT_WIDTHS", widths)
            net: nn.Module = build_backbone("resnet32", variant, 3, 0)
            if branches:
                net = Branches(net)  # type: ignore[arg-type]
                assert any(isinstance(module, ScaledConv) for module in net.modules())
            net = net.cuda().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
            with torch.autocast("cuda", BF16, enabled=low, cache_enabled=False):
                vector, maps = net(x)
                total = vector.float().square().sum() + sum(part.float().square().mean() for part in maps)
            total.backward()
            of_weights = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
            found.append({"vector": vector.detach().float(), **of_weights, **dict(net.named_buffers())})
        exact, before, after = found
        assert after.keys() == exact.keys()
        for name, expected in exact.items():
            assert off(after[name], expected) <= 1.5 * off(before[name], expected) + 2e-2, name

    def test_a_teacher(self, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
        net = build_backbone("resnet32", variant, 3, 0).cuda().eval()
        x, found = laid(torch.randn(33, 3, 32, 32, generator=generator())), list[Tensor]()
        with torch.no_grad():
            expected = net(x).vector
            net.fold()
            net.bfloat16().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for widths in ((), WIDTHS):
                monkeypatch.setattr(resnet, "UNIT_WIDTHS", widths)
                with torch.autocast("cuda", BF16, cache_enabled=False):
                    found.append(net(x).vector.float())
        assert off(found[1], expected) <= 1.3 * off(found[0], expected) + 1e-3
