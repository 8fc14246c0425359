"""Poise's own kernels, in Triton: imported where a GPU can run them, and only there."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

import torch

from poise.errors import first_line

log = logging.getLogger(__name__)


def usable_kernels(module: str, device: torch.device) -> ModuleType | None:
    """The kernels in this module; None if the GPU is too old for them, or Triton is missing or cannot compile.

    They are tried out here: ask once for each device.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        kernels = importlib.import_module(module)  # Triton is not available everywhere
        kernels.try_out(device)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # from an import, a compiler, a driver
        log.warning("no fused kernels, training is slower without them: %s", first_line(error))
        return None
    return kernels
