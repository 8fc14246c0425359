"""The device, its number format and the flags of the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from poise.errors import UserError
from poise.training.device import make_backend
from poise.training.trainer import Trainer


def flags() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    return (
        torch.are_deterministic_algorithms_enabled(),
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
        cudnn.allow_tf32,
        matmul.fp32_precision,
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def test_inside_an_autocast_of_the_callers_every_step_casts_its_weights_anew(
    make_trainer: Callable[..., Trainer],
) -> None:
    def trained(around: AbstractContextManager[object]) -> list[torch.Tensor]:
        with around, (backend := make_backend("cpu", "bf16", deterministic=False)).active():
            trainer = make_trainer(backend=backend)
            list(trainer.run())
            return list(trainer.model.state_dict().values())

    assert all(map(torch.equal, trained(torch.autocast("cpu", torch.bfloat16)), trained(nullcontext())))


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_flags_of_a_gpu_are_set_inside_only(precision: str, deterministic: bool) -> None:
    before = flags()
    with make_backend("cuda", precision, deterministic).active():
        inside = flags()
    assert flags() == before
    number = "tf32" if precision == "tf32" else "ieee"
    assert inside[:7] == (deterministic, not deterministic, deterministic, number, number, number == "tf32", number)


def test_auto_is_what_the_machine_has() -> None:
    backend = make_backend("auto", "auto", deterministic=False)
    has_bf16 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    assert backend.device.type == "cuda" if torch.cuda.is_available() else "cpu"
    assert backend.precision == ("bf16" if has_bf16 else "fp32")


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_auto_is_bf16_on_gpus_that_have_it(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
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
        ("cpu", "tf32", "precision=tf32 needs a GPU; use precision=fp32 on a CPU"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(device: str, precision: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"^[^\n]*({words})[^\n]*$"):
        make_backend(device, precision, deterministic=False)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_networks_compute_in_its_format_inside_autocast_only(precision: str) -> None:
    backend, layer = make_backend("cpu", precision, deterministic=False), torch.nn.Linear(4, 4)
    with backend.autocast:
        assert layer(torch.ones(1, 4)).dtype == backend.dtype
    assert layer(torch.ones(1, 4)).dtype == torch.float32
