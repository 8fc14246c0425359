"""A learner inside another program: what that one set for itself neither breaks the learner nor changes its bytes."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from poise import Learner

from .samples import Flat, digits, learner, memory_for, state_bytes

Surrounding = Callable[[], AbstractContextManager[Any]]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for each in (
            default_dtype(torch.bfloat16),
            torch.inference_mode(),
            torch.no_grad(),
            torch.autocast("cpu", torch.bfloat16),
            torch.device("meta"),
        ):
            stack.enter_context(each)
        yield


SURROUNDINGS: dict[str, Surrounding] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float16": lambda: default_dtype(torch.float16),
    "gradients off": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "everything": everything,
}


def a_life(folder: Path, **settings: Any) -> list[bytes]:
    """Whatever a program does with a learner, and all that came of it."""
    images, labels = digits(0, 1, 2, 3)
    mine = learner(**settings).partial_fit(*digits(0, 1))
    for _ in mine.fitting(*digits(2, 3)):
        mine.state()
    found = [mine.predict_proba(images), mine.predict(images), mine.predictions(images)["ncm"]]
    found.append(np.array(mine.score(torch.from_numpy(images), torch.tensor(labels, device="cpu"))))
    saved = state_bytes(mine, folder)
    again = Learner.load(folder / "state.safetensors").partial_fit(*digits(4, 5))
    again.delete_exemplars(again.exemplars()[0].id).remove(0).calibrate_reject(0.5)
    found.append(again.predict(images, reject=True, rejected=-1))
    return [saved, state_bytes(again, folder), *(values.tobytes() for values in found)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return a_life(tmp_path_factory.mktemp("alone"), policy="online", epochs=2)


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_bytes_are_the_same(name: str, alone: list[bytes], tmp_path: Path) -> None:
    with SURROUNDINGS[name]():
        found = a_life(tmp_path, policy="online", epochs=2)
    assert found == alone


@pytest.mark.parametrize("method", ["icarl", "podnet", "aanets", "lwf", "joint", "simplecil", "ranpac", "slca"])
def test_so_they_are_with_every_method(method: str, tmp_path: Path) -> None:
    def learned(folder: Path) -> bytes:
        folder.mkdir()
        mine = learner(method=method, optimiser="adamw", **memory_for(method))
        return state_bytes(mine.partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3)), folder)

    wanted = learned(tmp_path / "alone")
    with everything():
        assert learned(tmp_path / "surrounded") == wanted


def test_what_the_program_set_is_still_set_afterwards() -> None:
    with everything():
        learner().partial_fit(*digits(0, 1)).predict(digits(0)[0])
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() is torch.bfloat16
        assert torch.get_default_device().type == "meta"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_ones_own_made_in_another_format_learns(dtype: torch.dtype) -> None:
    with default_dtype(dtype), torch.inference_mode():
        mine = learner(net=Flat(), method="lwf").partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))
        assert mine.predict_proba(digits(0)[0]).dtype == np.float32


# Global generators ----------------------------------------------------------------------------------------------------


class Forbidding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where something is drawn from torch's global generator."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        without_values = any(isinstance(each, torch.Tensor) and each.is_meta for each in args)
        own = without_values or given.get("generator") or any(isinstance(each, torch.Generator) for each in args)
        assert not seeded or own, f"{func} draws from the global generator"
        return func(*args, **given)


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No global generator may be drawn from, seeded or set, not even back to where it was."""
    importlib.import_module("torch._dynamo")  # which a dispatch mode imports, and which refuses functions set twice

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a global generator was touched")

    for place, names in (
        (torch, ("manual_seed", "seed", "set_rng_state")),
        (torch.random, ("manual_seed", "seed", "set_rng_state", "fork_rng")),
        (np.random, ("seed", "set_state", "rand", "randn", "shuffle", "permutation", "choice", "random")),
        (random, ("seed", "setstate", "random", "shuffle", "choice", "sample", "randint")),
    ):
        for name in names:
            monkeypatch.setattr(place, name, refuse)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    with Forbidding():  # type: ignore[no-untyped-call]
        yield
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]  # noqa: NPY002


@pytest.mark.usefixtures("forbidden")
@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "online", "epochs": 2},
        {"policy": "bilevel", "policy_options": {"rounds": 2, "steps": 2}},
        {"method": "podnet"},
        {"method": "aanets"},
        {"method": "ranpac"},
        {"method": "slca"},
        {"method": "simplecil"},
        {"net": Flat(), "method": "lwf"},
        {"net": None, "epochs": None, "batch": None},
    ],
    ids=lambda settings: "-".join(map(str, settings.values()))[:30],
)
def test_no_global_generator_is_touched(settings: dict[str, Any], tmp_path: Path) -> None:
    mine = learner(**settings).partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))
    mine.predict(digits(0)[0])
    mine.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", net=settings.get("net"))
    again.partial_fit(*digits(4))


def test_another_thread_draws_what_it_would_draw_alone() -> None:
    def draw(count: int) -> torch.Tensor:
        return torch.stack([torch.rand(3) for _ in range(count)])

    torch.manual_seed(5)
    wanted, drawn, stop = draw(300), list[torch.Tensor](), threading.Event()

    def other() -> None:
        while not stop.is_set():
            drawn.append(torch.rand(3))
            stop.wait(0.001)

    mine = learner(epochs=3)
    torch.manual_seed(5)
    thread = threading.Thread(target=other)
    thread.start()
    mine.partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))
    stop.set()
    thread.join(30)
    count = min(len(drawn), len(wanted))
    assert count > 5
    assert torch.equal(torch.stack(drawn[:count]), wanted[:count])


LIFE = """
import random
import numpy as np
from poise import Learner

images, labels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 2
learner = Learner("podnet", epochs=1, policy="fixed", device="cpu")
before = random.getstate()
learner.partial_fit(images, labels).partial_fit(images, labels + 2).predict(images)
assert random.getstate() == before
"""


def test_what_a_phase_imports_moves_no_generator() -> None:
    """In a process of its own: here everything is imported already."""
    done = subprocess.run([sys.executable, "-c", LIFE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
