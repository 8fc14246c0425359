"""Levels of residual blocks in few kernels of our own, written in CUDA C++ (`units.cu`).

One kernel takes what lies between two convolutions (batch norm, shortcut, ReLU) and the second of them; another one its
gradients. A frozen level, its norms folded, is one kernel altogether. For levels of 16, 32 or 64 channels, on maps of
512 / channels pixels a side, in bf16. Compiled when they are first used, by the NVRTC that PyTorch's CUDA builds bring.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: By width, as measured on an H200: images that a block of threads takes at a time.
IMAGES: Final = {16: 1, 32: 1, 64: 2}
#: How often a block takes images for the gradients of the weights: more leave fewer partial sums, in fewer blocks.
#: Where these sums are small, the kernel for the gradient of the maps makes them.
TURNS: Final = {32: 8, 64: 8}
MOST = 64  # convolutions of a level: units.cu has a table of so many pointers

Value = Tensor | Sequence[Tensor | None] | float | None  # what a kernel takes

_SOURCE = Path(__file__).with_name("units.cu")
_PLAIN, _NORM, _JOIN, _END, _START = range(5)  # what a unit makes of its input: see units.cu
_HIDDEN, _JOINED, _FIRST, _BEGIN, _LAST = range(5)  # what that was, on the way back
_LARGEST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Kernels:
    """The kernels for levels of one width on one device."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width, self.side, self.images = width, 512 // width, IMAGES[width]
        self.rounds = max(1, (width // 16) ** 2 // 8)  # in which 8 warps make the gradients of the weights
        bordered = self.images * (self.side + 2) ** 2 * (width + 8) * 2
        maps = bordered + self.images * self.side**2 * width * 2
        scratch = 4 * (8 * 320 + 512 + 9 * width)
        self._shared = {
            "pack_weights": 0,
            "unit_forward": bordered + scratch,
            "unit_backward": maps + scratch,
            "unit_weights": max(maps + 8 * width, 4 * 8 * 72 * 32),
            "add_weights": 1024,
            "frozen_level": 2 * bordered,
        }
        names = ["pack_weights<float>", "pack_weights<u16>", "add_weights", "frozen_level"]
        names += ["unit_weights"] * (width in TURNS)
        names += [f"unit_{way}<{mode}>" for way in ("forward", "backward") for mode in range(5)]
        self._functions = self._load(names, device)

    def _load(self, names: Sequence[str], device: torch.device) -> dict[str, Any]:
        """The functions of these names, ready to be launched."""
        binary, symbols = _compiled(self.width, names, torch.cuda.get_device_capability(device))
        self._driver = _cuda_utils()._get_gpu_runtime_library()
        self._context, module, found = ctypes.c_void_p(), ctypes.c_void_p(), dict[str, Any]()
        with torch.cuda.device(device):
            number = torch.cuda.current_device()
            self._ensure(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), number), "the context")
            self._driver.cuCtxSetCurrent(self._context)
            self._ensure(self._driver.cuModuleLoadData(ctypes.byref(module), binary), "loading")
            for name, symbol in zip(names, symbols, strict=True):
                found[name] = ctypes.c_void_p()
                self._ensure(self._driver.cuModuleGetFunction(ctypes.byref(found[name]), module, symbol.encode()), name)
                shared = ctypes.c_int(self._shared[name.partition("<")[0]])
                denied = self._driver.cuFuncSetAttribute(found[name], _LARGEST_SHARED, shared)
                if denied and name == "frozen_level":  # of 16 channels: some GPUs have 99 KB a block, and it takes 109
                    del found[name]
                else:
                    self._ensure(denied, name)
        return found

    @property
    def infers(self) -> bool:
        """Whether a block has the shared memory for a frozen level."""
        return "frozen_level" in self._functions

    def __call__(self, name: str, grid: tuple[int, int, int], *values: Value) -> None:
        """Queue a kernel on the current stream."""
        held = [_argument(value) for value in values]
        places = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
        self._launch(name, grid, self._shared[name.partition("<")[0]], places)

    def _launch(self, name: str, grid: tuple[int, int, int], shared: int, places: Any) -> None:  # noqa: ANN401 - an array
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function = self._functions[name]
        self._driver.cuCtxSetCurrent(self._context)  # a thread that goes backward may have none yet
        self._ensure(self._driver.cuLaunchKernel(function, *grid, 256, 1, 1, shared, stream, places, None), name)

    @staticmethod
    def _ensure(result: int, what: str) -> None:
        if result:
            raise RuntimeError(f"{what} of {_SOURCE.name}: CUDA error {result}")


def _argument(value: Value) -> Any:  # noqa: ANN401 - ctypes has no such type
    """A value as kernels take it: tensors as pointers, several of them as a table."""
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, int):
        return ctypes.c_int(value)
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return (ctypes.c_void_p * MOST)(*(None if each is None else each.data_ptr() for each in value))


def _cuda_utils() -> Any:  # noqa: ANN401 - a module
    import torch.cuda._utils as utils  # finds the libraries that torch itself has loaded

    return utils


def _compiled(width: int, names: Sequence[str], capability: tuple[int, int]) -> tuple[bytes, list[str]]:
    """The kernels for this width as a binary, and the symbols of these functions; kept on disk, as Triton's are."""
    rtc, version = _cuda_utils()._get_gpu_rtc_library(), (ctypes.c_int * 2)()
    rtc.nvrtcVersion(ctypes.byref(version, 0), ctypes.byref(version, ctypes.sizeof(ctypes.c_int)))
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    options += [f"-DWIDTH={width}", f"-DIMAGES={IMAGES[width]}"]
    key = hashlib.blake2b(_SOURCE.read_bytes(), digest_size=16)
    key.update(repr((options, names, *version)).encode())
    caches = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', tempfile.gettempdir())}/.cache"
    kept = Path(caches, "poise", f"units-{key.hexdigest()}")
    with suppress(OSError):
        digest, _, content = kept.read_bytes().partition(b"\n")
        if digest == _digest(content):  # the driver, which is told no length, would read past the end of a damaged one
            symbols, _, binary = content.partition(b"\n")
            return binary, symbols.decode().split()
    binary, found = _compile(rtc, options, names)
    content = " ".join(found).encode() + b"\n" + binary
    with suppress(OSError):  # it is only compiled again
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder, kept.name)
            made.write_bytes(_digest(content) + b"\n" + content)
            made.replace(kept)
    return binary, found


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()


def _compile(rtc: Any, options: Sequence[str], names: Sequence[str]) -> tuple[bytes, list[str]]:  # noqa: ANN401
    program, size, symbol = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_char_p()
    source, found = _SOURCE.read_bytes(), list[str]()
    rtc.nvrtcCreateProgram(ctypes.byref(program), source, _SOURCE.name.encode(), 0, None, None)
    for name in names:
        rtc.nvrtcAddNameExpression(program, name.encode())
    if rtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options))):
        rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetProgramLog(program, text)
        raise RuntimeError(f"{_SOURCE.name} does not compile: {text.value.decode()}")
    failed = rtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    failed = failed or rtc.nvrtcGetCUBIN(program, binary)
    for name in names:
        failed = failed or rtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(symbol))
        found.append((symbol.value or b"").decode())
    if failed:
        raise RuntimeError(f"{_SOURCE.name} leaves no binary: NVRTC error {failed}")
    rtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw, found


@cache
def _kernels(width: int, device: torch.device) -> Kernels:
    return Kernels(width, device)


def _pack(
    kernels: Kernels, weights: Sequence[Tensor | None], ones: Sequence[Tensor], others: Sequence[Tensor], *, back: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights as the fragments of matrix instructions, those of their gradients, and two vectors for each unit."""
    count, width, device = len(weights), kernels.width, ones[0].device
    laid = [weight if weight is None else weight.contiguous(memory_format=torch.channels_last) for weight in weights]
    fragments = torch.empty(2, count, 9, width, width, dtype=torch.bfloat16, device=device)
    vectors = torch.empty(count, 2, width, dtype=torch.float32, device=device)
    kind = "float" if ones[0].dtype is torch.float32 else "u16"
    ahead, behind = fragments
    kernels(f"pack_weights<{kind}>", (count, 9, 1), laid, ones, others, ahead, behind if back else None, vectors)
    return ahead, behind, vectors


class _Level(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,  # noqa: ANN401
        x: Tensor,
        shortcut: Tensor | None,
        norms: Sequence[nn.BatchNorm2d],
        relus: Sequence[bool],
        *trained: Tensor,
    ) -> Tensor:
        batch, width, *size = x.shape
        kernels, count, begun = _kernels(width, x.device), len(norms), shortcut is not None
        scales, shifts = trained[-2 * count : -count], trained[-count:]
        weights = [*[None] * begun, *trained[: -2 * count]]
        ahead, back, affine = _pack(kernels, weights, scales, shifts, back=any(context.needs_input_grad))
        parts, last = -(-batch // kernels.images), torch.empty_like(x)
        raw, joined = x.new_empty(count, batch, *size, width), x.new_empty(count // 2 - 1, batch, *size, width)
        sums, stats = affine.new_empty(count, 2 * parts + 1, width), torch.empty_like(affine)
        raws, ends = [x if begun else raw[0], *raw[1:]], [x if shortcut is None else shortcut, *joined, last]
        for unit in range(count + 1):  # the last one has no convolution, the first one no norm before it
            mode = _NORM if unit % 2 else _END if unit == count else _JOIN if unit else _START if begun else _PLAIN
            block, before = unit // 2, unit - 1
            norm, following = norms[max(before, 0)], norms[min(unit, count - 1)]
            joins = (ends[block - 1], ends[block]) if mode in (_JOIN, _END) else (None, None)
            made = (None,) * 3 if mode == _END else (raw[unit], ahead[unit], sums[unit])
            of_norm = sums[before], affine[before], stats[before], norm.running_mean, norm.running_var
            known = (raws[before] if unit else x, *joins, *made[:2], *of_norm, following.running_mean, made[2])
            numbers = norm.eps, float(norm.momentum or 0.0), int(relus[block - 1]), batch
            kernels(f"unit_forward<{mode}>", (parts, 1, 1), *known, *numbers)
        context.count, context.relus, context.kernels, context.begun = count, relus, kernels, begun
        context.save_for_backward(x, last, raw, joined, back, affine, stats)
        return last

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, last, raw, joined, back, affine, stats = context.saved_tensors
        kernels, count, relus, begun = context.kernels, context.count, context.relus, context.begun
        batch, width = x.shape[:2]
        parts, turns = -(-batch // kernels.images), TURNS.get(width, 0)
        weight_parts, size = -(-parts // max(turns, 1)), 9 * width * width
        full = partial(torch.empty, dtype=torch.float32, device=x.device)
        products, to_weights = full(count - begun, weight_parts, size), full(count - begun, width, 3, 3, width)
        to_affine, to_raw = full(count, 2, width), torch.empty_like(raw) if turns else None
        given, sums = torch.empty_like(x), full(2, parts, width)  # behind a unit, where a ReLU let it pass
        gradient = gradient.to(x.dtype).contiguous(memory_format=torch.channels_last)
        known: tuple[Value, ...] = (gradient, None, last, None, raw[-1], None, None, None, None, stats[-1], affine[-1])
        left: tuple[Value, ...] = (given, sums, None, None, None, int(relus[-1]), batch)
        kernels(f"unit_backward<{_BEGIN}>", (parts, 1, 1), *known, *left)
        raws, ends = [x if begun else raw[0], *raw[1:]], [x, *joined]
        beside = None  # what goes past the block to its input
        for unit in reversed(range(count)):
            hidden, below = unit % 2 == 1, unit - 1
            mode = _HIDDEN if hidden else _JOINED if unit else _LAST if begun else _FIRST
            before = raws[below] if hidden else ends[unit // 2]
            lower = (raws[below], stats[below], affine[below]) if unit else (None,) * 3
            passed, sums_below = torch.empty_like(x), full(2, parts, width)
            here, own = (given, raws[unit], before, beside), (sums, stats[unit], affine[unit])
            known = (*here, lower[0], back[unit], *own, *lower[1:])
            kept = passed if mode == _LAST else None if to_raw is None else to_raw[unit]
            relu = int(relus[unit // 2 - 1])
            left = (passed, sums_below, to_affine[unit], kept, products[unit - begun], relu, batch)
            kernels(f"unit_backward<{mode}>", (parts, 1, 1), *known, *left)
            beside, given, sums = (beside if mode == _LAST else given), passed, sums_below
        if to_raw is not None:
            taken = (to_raw, raw, x, joined, stats, affine, products, int(begun), turns, batch)
            kernels("unit_weights", (weight_parts, kernels.rounds, count - begun), *taken)
        kernels("add_weights", (size // 32, count - begun, 1), products, to_weights, weight_parts)
        found = *to_weights.permute(0, 1, 4, 2, 3), *to_affine[:, 0], *to_affine[:, 1]
        return given, beside if begun else None, None, None, *found


def train_level(
    x: Tensor,
    weights: Sequence[Tensor],
    norms: Sequence[nn.BatchNorm2d],
    relus: Sequence[bool],
    shortcut: Tensor | None = None,
) -> Tensor:
    """Blocks of two convolutions of stride 1 with batch norms in training mode; moves the running statistics.

    `weights` are those of the convolutions, `relus` says which blocks end with a ReLU. With the `shortcut` of the first
    block, x is what its first convolution made, whose weight is not among the others.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    if shortcut is not None:
        shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
    trained = [weight.float() for weight in weights]
    trained += [value for kind in ("weight", "bias") for norm in norms if (value := getattr(norm, kind)) is not None]
    with torch.cuda.device(x.device):
        found: Tensor = _Level.apply(x, shortcut, norms, relus, *trained)  # type: ignore[no-untyped-call]
    return found


def infer_level(x: Tensor, convs: Sequence[nn.Conv2d], relus: Sequence[bool]) -> Tensor | None:
    """Blocks of two convolutions whose norms are folded into their biases, all in bf16; without gradients.

    None if this device cannot compute it in one kernel.
    """
    kernels = _kernels(x.shape[1], x.device)
    if not kernels.infers:
        return None
    batch, x = x.shape[0], x.contiguous(memory_format=torch.channels_last)
    y, mask = torch.empty_like(x), sum(relu << block for block, relu in enumerate(relus))
    weights, biases = [conv.weight for conv in convs], [conv.bias for conv in convs if conv.bias is not None]
    with torch.cuda.device(x.device):
        ahead, _, vectors = _pack(kernels, weights, biases, (), back=False)
        grid = -(-batch // kernels.images), 1, 1
        kernels("frozen_level", grid, x, y, ahead, vectors, len(relus), mask, batch)
    return y


def try_out(device: torch.device) -> None:
    """Compile the kernels of all widths; raises where that cannot be done, say for lack of NVRTC."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(_kernels, device=device), IMAGES))
