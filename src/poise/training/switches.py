"""What changes bytes besides the code: device and precision, and switches of the whole process.

The switches belong to the calling program: they are recorded here, never set. What belongs to this thread alone is set
instead (`poise.training.backend.undisturbed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poise.training.backend import Backend

Switches = Mapping[str, bool | int | str]


def read_switches(backend: Backend) -> dict[str, bool | int | str]:
    """How this backend computes at this moment: plain values by name."""
    mkldnn: Any = torch.backends.mkldnn
    attention: Any = torch.backends.cuda  # its switches are those of the CPU, too
    return {
        "device": backend.device.type,
        "precision": backend.precision,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": _precision(mkldnn.matmul),
        "convolution_precision": _precision(mkldnn.conv),
        "mkldnn": bool(mkldnn.enabled),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "flush_denormal": not bool(torch.tensor(1e-40, dtype=torch.float32, device="cpu").mul(1) > 0),
        "flash_attention": attention.flash_sdp_enabled(),
        "plain_attention": attention.math_sdp_enabled(),
    }


def _precision(part: Any) -> str:  # noqa: ANN401 - torch has no type for it
    """Of float32 in an operation: `ieee`, `tf32` or `bf16`; torch says `none` where nobody chose."""
    return "ieee" if part.fp32_precision == "none" else str(part.fp32_precision)


def changed_switches(before: Switches, backend: Backend) -> str | None:
    """What is switched otherwise than it was, as words for a line; None if nothing is, or nothing was recorded."""
    present = read_switches(backend)
    other = [name for name, value in before.items() if name in present and present[name] != value]
    if not other:
        return None
    was, has = (", ".join(f"{name}={values[name]}" for name in other) for values in (before, present))
    return f"{was} then, {has} now"
