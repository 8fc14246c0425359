"""Every random draw has an address.

A generator is made from a stable hash of (seed, purpose, phase, epoch, …) and thrown away after use.
Nothing random is carried along, so a run that was killed and resumed draws the same numbers, and a
new draw somewhere does not move the draws elsewhere. All draws happen on the host: a CPU and a GPU
see the same ones. Global generators are never touched.
"""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *address: int | str) -> int:
    """A 128-bit number that depends on every part of the address and on nothing else."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, purpose, *address))
    return int.from_bytes(hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=16).digest(), "big")


def generator(seed: int, purpose: str, *address: int | str) -> np.random.Generator:
    """A fresh generator for the draw at this address."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *address)))
