from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from poise.errors import UserError
from poise.training import Backend, make_backend
from poise.training import backend as backends

PRECISIONS = ("fp32", "tf32", "bf16")


def generators() -> tuple[bytes, object, object]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002


def flags() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    return (
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.conv.fp32_precision,
        matmul.fp32_precision,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )


def working(fail: bool = False) -> Generator[Tensor, None, None]:
    """Work with draws of its own."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield torch.rand(2, generator=generator)
    if fail:
        raise ValueError("on purpose")


class TestGuarded:
    def test_generators_and_flags_are_as_before_between_items_and_after(self, cpu: Backend) -> None:
        before = generators(), flags()
        for _ in cpu.guard(working()):
            assert (generators(), flags()) == before
        assert (generators(), flags()) == before

    def test_also_after_a_failure(self, cpu: Backend) -> None:
        before = generators(), flags()
        with pytest.raises(ValueError, match="on purpose"):
            list(cpu.guard(working(fail=True)))
        assert (generators(), flags()) == before

    def test_what_the_caller_draws_between_items_goes_on(self, cpu: Backend) -> None:
        torch.manual_seed(0)
        alone = [torch.rand(1).item() for _ in range(3)]
        torch.manual_seed(0)
        assert [torch.rand(1).item() for _ in cpu.guard(working())] == alone

    def test_work_that_is_left_in_the_middle_is_closed_at_once(self, cpu: Backend) -> None:
        closed = []

        def work() -> Generator[int, None, None]:
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        inner = work()
        outer = cpu.guard(inner)
        next(outer)
        outer.close()
        assert closed

    @pytest.mark.gpu
    @pytest.mark.parametrize("deterministic", [True, False])
    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_on_a_gpu_they_are_set_inside_only(self, precision: str, deterministic: bool) -> None:
        backend = make_backend("cuda", precision, deterministic)
        before = generators(), flags()
        inside = []

        def work() -> Generator[None, None, None]:
            inside.append(flags())
            yield None

        for _ in backend.guard(work()):
            assert (generators(), flags()) == before
        assert (generators(), flags()) == before
        number = "tf32" if precision == "tf32" else "ieee"
        assert inside[0][:5] == (not deterministic, deterministic, number, number, deterministic)


class TestMaking:
    def test_auto_is_what_the_machine_has(self) -> None:
        backend = make_backend("auto", "auto", deterministic=False)
        found = (backend.device.type, backend.precision)
        has_bf16 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
        assert found == ("cuda" if torch.cuda.is_available() else "cpu", "bf16" if has_bf16 else "fp32")

    @pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
    def test_auto_is_bf16_on_gpus_that_have_it(
        self, capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
        assert make_backend("cuda", "auto", deterministic=False).precision == precision

    @pytest.mark.parametrize(
        ("device", "precision", "words"),
        [
            ("gpu", "auto", "unknown device 'gpu'; use auto, cpu, cuda or cuda:N"),
            ("meta", "auto", "device 'meta' is not supported; use auto, cpu, cuda or cuda:N"),
            ("cuda:99", "auto", "device 'cuda:99' does not exist: [0-9]+ CUDA devices? found; use cpu or auto"),
            ("cpu", "fp23", "unknown precision 'fp23'; did you mean 'fp32'"),
            ("cpu", "tf32", "precision=tf32 needs a GPU; use precision=fp32 on a CPU"),
        ],
    )
    def test_what_is_not_there_is_refused_in_one_line(self, device: str, precision: str, words: str) -> None:
        with pytest.raises(UserError, match=words) as caught:
            make_backend(device, precision, deterministic=False)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("listed", "warned"),
        [
            ("model name\t: Some Xeon\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
            ("model name\t: Some EPYC\nflags\t\t: fpu avx512f avx512_bf16\n", False),
            ("model name\t: Some Xeon\nflags\t\t: fpu avx2 amx_bf16 amx_tile\n", False),
            ("processor\t: 0\nFeatures\t: fp asimd sve\n", True),
            ("processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n", False),
            ("processor\t: 0\nisa\t\t: rv64imafdc\n", False),  # it does not say
            (None, False),
        ],
    )
    def test_bf16_on_a_processor_without_its_instructions_is_warned_of_once(
        self, listed: str | None, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def read(path: str) -> str:
            if listed is None:
                raise FileNotFoundError(path)
            return listed

        monkeypatch.setattr(backends, "read_text", read)
        backends._warn_of_slow_bf16.cache_clear()
        make_backend("cpu", "fp32", deterministic=False)
        assert not caplog.messages
        for _ in range(2):
            make_backend("cpu", "bf16", deterministic=False)
        backends._warn_of_slow_bf16.cache_clear()
        assert len(caplog.messages) == warned
        assert all("precision=bf16" in line and "set precision=fp32" in line for line in caplog.messages)

    def test_bf16_computes_in_bf16_inside_autocast_only(self) -> None:
        backend = make_backend("cpu", "bf16", deterministic=False)
        layer = torch.nn.Linear(4, 4)
        with backend.autocast:
            assert layer(torch.ones(1, 4)).dtype == torch.bfloat16
        with make_backend("cpu", "fp32", deterministic=False).autocast:
            assert layer(torch.ones(1, 4)).dtype == torch.float32
