"""Where a run was computed, at its start and after each resume, as its `machine.json` says.

Of a resume, an older poise wrote the device and, in words, what differed from the start. What these leave open is
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

#: The word for a machine that is not recorded.
UNKNOWN: Final = "unknown"


def machines_of(machine: Mapping[str, Any]) -> tuple[str, ...]:
    """The GPU or processor of the start and those of the resumes, each once, in order."""
    start = _start(machine)
    found = [_name(start), *(_resumed_on(start, resume) for resume in _resumes(machine))]
    return tuple(dict.fromkeys(found))


def changed_precision(machine: Mapping[str, Any], *, auto: bool) -> bool:
    """Whether it was resumed in another precision than it began with; `auto`: the device decided on it."""
    began = machine.get("precision")
    found = (_resumed_in(_start(machine), resume, auto=auto) for resume in _resumes(machine))
    return began is not None and any(precision not in (began, None) for precision in found)


def _resumed_on(start: Mapping[str, Any], resume: Mapping[str, Any]) -> str:
    if "processor" in resume:
        return _name(resume)
    device = _device(resume) or _device(start)
    if device == "cuda":
        before = f"{start.get('gpu')} then, "
        others = [text for text in _differences(resume) if text.startswith(before)]
        return others[0].removeprefix(before).removesuffix(" now") if others else str(start.get("gpu") or UNKNOWN)
    if device == "cpu":
        return UNKNOWN if "another processor" in _differences(resume) else _name({**start, "gpu": None})
    return _name(start)


def _resumed_in(start: Mapping[str, Any], resume: Mapping[str, Any], *, auto: bool) -> object:
    """The precision of a resume; None where it is that of the start, or not known."""
    if "precision" in resume:
        return resume["precision"]
    words = " ".join(_differences(resume))
    if named := re.findall(r"(?<!\w)precision=(\w+)", words):  # not that of matrix products
        return named[-1]
    moved = _device(resume) and _device(start) and _device(resume) != _device(start)
    if not moved or not auto or "device=" in words:
        return None
    return "fp32" if _device(resume) == "cpu" else "bf16"


def _name(hardware: Mapping[str, Any]) -> str:
    return str(hardware.get("gpu") or hardware.get("processor") or UNKNOWN)


def _device(hardware: Mapping[str, Any]) -> str:
    """Its kind, `cpu` or `cuda`; empty where it is not recorded."""
    return str(hardware.get("device") or "").partition(":")[0]


def _start(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    hardware = machine.get("hardware")
    return hardware if isinstance(hardware, Mapping) else {}


def _resumes(machine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = machine.get("resumes")
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else []


def _differences(resume: Mapping[str, Any]) -> list[str]:
    found = resume.get("differs")
    return [*map(str, found)] if isinstance(found, list | tuple) else []
