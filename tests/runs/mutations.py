"""Saved files with a right checksum and wrong contents: one mutation each, by its number the same in every process."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from poise import store

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 7, 2**31, 2**63, 10**30, -(2**70)),
    *(0.5, -0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf")),
    *("", "x", "fc", "auto", "lucir", "../..", "a\nb", "\x00", "é" * 300),
    *([], {}, [[]], [None], {"a": 1}, [0, 0], [1, 2, 3], [10**12, 10**12, 10**12], ["x"]),
)
Contents = tuple[dict[str, Tensor], Any]


def write_mutated(path: Path, kind: str, tensors: Mapping[str, Tensor], meta: object, **document: object) -> None:
    """As `store.write_tensors` does, for any contents."""
    plain = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    words = json.dumps({"kind": kind, "format": store.FORMAT, "meta": meta, **document})
    header = {"sum": store._checksum(plain, words), "document": words}
    path.write_bytes(save(plain, {"poise": json.dumps(header)}))


def mutated(tensors: Mapping[str, Tensor], meta: object, number: int) -> tuple[Contents, str]:
    """The contents with one thing changed, and what that is."""
    generator = np.random.default_rng(number)
    found, changed = dict(tensors), copy.deepcopy(meta)
    if tensors and generator.integers(3) == 0:
        return (found, changed), _mutate_tensors(found, generator)
    places = list(places_in(changed))
    parent, key = places[generator.integers(len(places))]
    return (found, changed), mutate_value(parent, key, generator)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a plain value: what holds it, and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places_in(value[key])


def mutate_value(parent: Any, key: Any, generator: np.random.Generator) -> str:
    """Change what stands at one place; what was changed."""
    odd, before = copy.deepcopy(ODD[generator.integers(len(ODD))]), parent[key]
    match generator.integers(8):
        case 0:
            del parent[key]
            return f"{key!r} deleted"
        case 1 if isinstance(before, list):
            parent[key] = before * 2
        case 2 if isinstance(before, list):
            parent[key] = [*before, odd]
        case 3 if isinstance(before, dict):
            parent[key] = {**before, "odd": odd}
        case 4 if isinstance(before, int | float) and not isinstance(before, bool):
            parent[key] = before + (1, -1, 1000)[generator.integers(3)]
        case 5:
            parent[key] = [before]
        case _:
            parent[key] = odd
    return f"{key!r}: {str(before)[:60]} → {str(parent[key])[:60]}"


def _mutate_tensors(tensors: dict[str, Tensor], generator: np.random.Generator) -> str:
    names = sorted(tensors)
    name = names[generator.integers(len(names))]
    before = tensors[name]
    changes = {
        "deleted": None,
        "renamed": None,
        "float64": before.double(),
        "int64": before.long(),
        "uint8": before.to(torch.uint8),
        "shorter": before[:-1] if before.ndim else before.reshape(1),
        "longer": torch.cat([before, before]) if before.ndim else before.repeat(2),
        "deeper": before[None],
        "flat": before.reshape(-1),
        "empty": before.new_zeros(0),
        "wide and empty": before.new_zeros(0, 2**40),
        "other width": before[..., :-1] if before.ndim else before,
        "filled with -1": torch.full_like(before, 255 if before.dtype == torch.uint8 else -1),
        "huge": torch.full_like(before.float(), 3e38).to(before.dtype),
        "nan": torch.full_like(before, float("nan")) if before.is_floating_point() else before + 100,
        "inf": torch.full_like(before, float("inf")) if before.is_floating_point() else before * 0 + 2**31 - 1,
    }
    word = [*changes][generator.integers(len(changes))]
    found = changes[word]
    if found is None:
        kept = tensors.pop(name)
        if word == "renamed":
            tensors[f"{name}x"] = kept
    else:
        tensors[name] = found
    return f"tensor {name} {word}"
