"""What belongs to the machine and not to the result: hardware, versions, dates, resumes."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from poise import store
from poise.runfolder import OWN_NETWORK, say_changed_code
from poise.runs.contents import check_machine
from poise.runs.provenance import SAID_BY_SOURCE, libraries
from poise.schema import contents_of
from poise.training import Backend, changed_switches, read_switches

log = logging.getLogger(__name__)

#: With what the names of code of one's own begin, among the versions.
OWN: Final = ("method ", "policy ", OWN_NETWORK)


def describe_machine(folder: Path, backend: Backend, code: Mapping[str, str | None]) -> dict[str, Any]:
    """A description of this machine and this start; `code` has the versions of what the numbers come from."""
    return {
        "command": ["poise", *sys.argv[1:]],
        "folder": str(folder.resolve()),
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "device": str(backend.device),
            "gpu": _gpu(backend),
        },
        **({"ranks": backend.world.size} if backend.world.joined else {}),
        "versions": dict(code),
        "libraries": libraries(),
        "switches": read_switches(backend),
        "threads": torch.get_num_threads(),
        "precision": backend.precision,
        "exact_resume": backend.device.type == "cpu" or backend.deterministic,
        "started": now(),
        "finished": None,
        "resumes": [],
    }


def record_resume(path: Path, backend: Backend, code: Mapping[str, str | None]) -> None:
    """Add this resume to `machine.json`, and whether it continues bit for bit; what prevents that is said.

    A file of an older poise that lacks a package or a switch says nothing about it.
    """
    machine = read_machine(path)
    hardware, then = machine["hardware"], machine["versions"]
    switched = changed_switches(_switches_then(machine), backend)
    other = [switched] if switched is not None else []
    if hardware.get("gpu") is not None and _gpu(backend) not in (hardware["gpu"], None):
        other.append(f"{hardware['gpu']} then, {_gpu(backend)} now")
    other += [
        _say_changed(name, then, code)
        for name, version in code.items()
        if then.get(name, version) != version and name not in SAID_BY_SOURCE
    ]
    if hardware["processor"] != _processor():
        other.append("another processor")
    if machine["threads"] != torch.get_num_threads():
        other.append(f"{machine['threads']} threads then, {torch.get_num_threads()} now")
    ranks = backend.world.size
    if machine.get("ranks", 1) != ranks:
        other.append(f"{machine.get('ranks', 1)} ranks then, {ranks} now")
    if other:
        more = f"; {len(other) - 1} more in {path}" if other[1:] else ""
        log.warning(
            "resumed under other conditions (%s%s): the numbers may differ from those without the stop", other[0], more
        )
    exact = bool(machine["exact_resume"]) and not other
    where = {"device": str(backend.device), "gpu": _gpu(backend), "processor": _processor()}
    resume: dict[str, Any] = {"date": now(), "exact": exact, **where, "precision": backend.precision}
    machine["resumes"].append({**resume, **({"differs": other} if other else {})})
    store.write_json(path, machine)


def _switches_then(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the start; a file of an older poise names device and precision elsewhere. Threads are compared apart."""
    named = {
        "device": str(machine["hardware"].get("device", "")).partition(":")[0],
        "precision": machine.get("precision"),
    }
    known = {name: value for name, value in named.items() if value}
    return {**known, **machine.get("switches", {}), "threads": torch.get_num_threads()}


def _say_changed(name: str, then: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """What another version of something is called; of code without versions, that it was changed."""
    if name.startswith(OWN):
        return say_changed_code(name)
    if name != "poise_source":
        return f"{name} {then[name]} then, {name} {present[name]} now"
    old, new = (f"poise {each.get('poise_commit') or each.get('poise')}" for each in (then, present))
    if old == new:  # files that no commit has, or an installation without one
        old, new = (f"poise with source {str(each[name])[:12]}" for each in (then, present))
    return f"{old} then, {new} now"


def read_machine(path: Path) -> dict[str, Any]:
    """What `describe_machine` wrote; refuses other contents."""
    machine = store.read_json(path)
    with contents_of(path):
        check_machine(machine)
    return machine


def record_end(path: Path, when: float | None = None) -> None:
    """Write into `machine.json` that the run is finished, where it does not say so: now, or at that time."""
    machine = store.read_json(path)
    if machine.get("finished") is None:
        store.write_json(path, {**machine, "finished": now(when)})


def threads_to_resume_with(path: Path) -> int:
    """As many threads as the run was started with, where that gives the same bytes.

    Where nothing could (on another processor, or on a GPU that is not deterministic), at most those of this process:
    more threads than cores are many times slower.
    """
    machine = read_machine(path)
    started = int(machine["threads"])
    if machine["exact_resume"] and machine["hardware"]["processor"] == _processor():
        return started
    return min(started, torch.get_num_threads())


def now(when: float | None = None) -> str:
    """The time, to the second, in UTC; or that of a file's date."""
    found = datetime.now(UTC) if when is None else datetime.fromtimestamp(when, UTC)
    return found.isoformat(timespec="seconds")


def _gpu(backend: Backend) -> str | None:
    return torch.cuda.get_device_name(backend.device) if backend.device.type == "cuda" else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
