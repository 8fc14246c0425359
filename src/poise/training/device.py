"""The device of all work: precision, streams and flags, set while poise works and restored afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from poise.errors import UserError
from poise.nets import Backbone, Model
from poise.training.ranks import ALONE, World, current_world
from poise.words import counted

# cuBLAS needs this for repeatable sums and reads it only once, when it is first used in a process. That would be too
# late for a deterministic backend that is made after another one has worked, so it is set here.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

_AUTOCAST = ("cpu", "cuda")  # kinds of devices on which a caller may have switched it on
T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """The device and the number format of all work."""

    device: torch.device
    precision: str
    deterministic: bool
    capture: bool = True  # whether steps on a GPU are captured; eager ones are the reference
    lane: torch.cuda.Stream | None = None  # the stream of all work on a GPU, so that learners can work side by side
    world: World = ALONE  # the ranks that train together

    def __reduce__(self) -> tuple[Callable[..., Backend], tuple[str, str, bool, bool]]:
        """Pickle without stream and world, which belong to this process; the receiver makes its own."""
        return make_backend, (str(self.device), self.precision, self.deterministic, self.capture)

    @property
    def alone(self) -> Backend:
        """This backend for work that one rank does by itself."""
        return replace(self, world=ALONE)

    def broadcast(self, value: T) -> T:
        """The value; on several ranks, that of the first one."""
        return self.world.all_gather(value)[0]

    @property
    def dtype(self) -> torch.dtype:
        """The format in which networks compute."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def autocast(self) -> torch.autocast:
        """The context in which networks run; heads and losses leave it for full precision.

        No weight that was cast is kept: inside an autocast of the caller's, torch would keep it for all steps.
        """
        low = self.dtype is torch.bfloat16
        return torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Set what this backend needs, restore it afterwards: on a CPU nothing that another thread could notice."""
        with undisturbed(), _flags(self) if self.device.type == "cuda" else nullcontext(), torch.cuda.stream(self.lane):
            yield

    def synchronise(self) -> None:
        """Wait for all queued work, so that its results can be read from anywhere."""
        if self.lane is not None:
            self.lane.synchronize()


def make_backend(device: str, precision: str, deterministic: bool, capture: bool = True) -> Backend:
    """Resolve `auto` device and precision: the first GPU where there is one, in bf16 if it has that; else fp32.

    On several ranks it is the GPU of this one.
    """
    world = current_world()
    device = world.device(device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"unknown device '{device}'; use auto, cpu, cuda or cuda:N") from error
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cpu" and chosen.index):
        raise UserError(f"device '{device}' is not supported; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        found = counted(torch.cuda.device_count(), "CUDA device")
        raise UserError(f"device '{device}' does not exist: {found} found; use cpu or auto")
    if precision == "auto":
        has_bf16 = chosen.type == "cuda" and torch.cuda.get_device_capability(chosen) >= (8, 0)
        precision = "bf16" if has_bf16 else "fp32"
    if precision == "tf32" and chosen.type == "cpu":
        raise UserError("precision=tf32 needs a GPU; use precision=fp32 on a CPU")
    lane = torch.cuda.Stream(chosen) if chosen.type == "cuda" else None  # type: ignore[no-untyped-call]
    return Backend(chosen, precision, deterministic, capture, lane, world)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Work as if the calling program had set nothing for this thread; other threads notice nothing.

    Outside of inference mode, with gradients, without autocast, and on the host where no device is named.
    """
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for kind in _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def _flags(backend: Backend) -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    conv: Any = cudnn.conv  # type: ignore[attr-defined]
    rnn: Any = cudnn.rnn
    before = (cudnn.benchmark, cudnn.deterministic, conv.fp32_precision, rnn.fp32_precision, matmul.fp32_precision)
    allowed: bool | None = None
    with suppress(RuntimeError):  # the caller has set one of the two alone: torch cannot say it then
        allowed = cudnn.allow_tf32
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    numbers = "tf32" if backend.precision == "tf32" else "ieee"
    try:
        cudnn.benchmark, cudnn.deterministic = not backend.deterministic, backend.deterministic
        if allowed is not None:  # must say the same as the two, or `torch.export` fails
            cudnn.allow_tf32 = numbers == "tf32"
        conv.fp32_precision = rnn.fp32_precision = matmul.fp32_precision = numbers
        torch.use_deterministic_algorithms(backend.deterministic, warn_only=True)
        yield
    finally:
        if allowed is not None:
            cudnn.allow_tf32 = allowed
        cudnn.benchmark, cudnn.deterministic, conv.fp32_precision, rnn.fp32_precision, matmul.fp32_precision = before
        torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])


# Networks that draw ---------------------------------------------------------------------------------------------------


@contextmanager
def addressed_draws(model: Model, key: int, device: torch.device) -> Iterator[None]:
    """Let a network of the user's own that draws random numbers (dropout) draw those of this address.

    Torch's global generators are set back after it. Poise's own networks draw nothing.
    """
    if isinstance(model.backbone, Backbone):
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(key % 2**63)  # not `torch.manual_seed`, which reseeds every GPU
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key % 2**63)
        yield


@torch.no_grad()
def draws_numbers(model: Model, images: torch.Tensor) -> bool:
    """Whether a network of the user's own draws in training, on a GPU: a captured step cannot address its draws."""
    tried, device = model.copy().train().backbone, images.device  # a copy: its batch statistics move
    with addressed_draws(model, 0, device):
        before = torch.get_rng_state(), torch.cuda.get_rng_state(device)
        tried(images)
        after = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


# Switches of the process ----------------------------------------------------------------------------------------------

Switches = Mapping[str, bool | int | str]


def read_switches(backend: Backend) -> dict[str, bool | int | str]:
    """The switches that change bytes besides the code, by name: device, precision, and modes of the process.

    The switches belong to the calling program: they are recorded, never set.
    """
    mkldnn: Any = torch.backends.mkldnn
    matmul, convolution = mkldnn.matmul.fp32_precision, mkldnn.conv.fp32_precision
    return {
        "device": backend.device.type,
        "precision": backend.precision,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": matmul if matmul != "none" else "ieee",  # `none` where nobody chose
        "convolution_precision": convolution if convolution != "none" else "ieee",
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def changed_switches(before: Switches, backend: Backend) -> str | None:
    """The switches that differ from those recorded, as words for a line; None if none do, or none were recorded."""
    present = read_switches(backend)
    other = [name for name, value in before.items() if name in present and present[name] != value]
    if not other:
        return None
    was, has = (", ".join(f"{name}={values[name]}" for name in other) for values in (before, present))
    return f"{was} then, {has} now"
