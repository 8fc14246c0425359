"""What belongs to the machine and not to the result: hardware, versions, dates, resumes."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch

from poise import store
from poise._version import __version__
from poise.errors import Damaged
from poise.experiment.contents import check_machine
from poise.schema import contents_of
from poise.training import Backend


def describe_machine(folder: Path, backend: Backend) -> dict[str, Any]:
    """A description of this machine and this start."""
    return {
        "command": ["poise", *sys.argv[1:]],
        "folder": str(folder.resolve()),
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "device": str(backend.device),
            "gpu": torch.cuda.get_device_name(backend.device) if backend.device.type == "cuda" else None,
        },
        "versions": {
            "poise": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "threads": torch.get_num_threads(),
        "precision": backend.precision,
        "exact_resume": backend.device.type == "cpu" or backend.deterministic,
        "started": now(),
        "finished": None,
        "resumes": [],
    }


def record_resume(path: Path, backend: Backend) -> None:
    """Add this resume to `machine.json`, and whether it continues bit for bit."""
    machine = read_machine(path)
    same = machine["versions"]["torch"] == torch.__version__ and machine["hardware"]["processor"] == _processor()
    exact = bool(machine["exact_resume"]) and same and machine["threads"] == torch.get_num_threads()
    machine["resumes"].append({"date": now(), "exact": exact, "device": str(backend.device)})
    store.write_json(path, machine)


def read_machine(path: Path) -> dict[str, Any]:
    """What `describe_machine` wrote; a file that lacks keys is damaged."""
    machine = store.read_json(path)
    missing = {"versions", "hardware", "threads", "exact_resume", "resumes"} - machine.keys()
    if missing:
        raise Damaged(f"{path} lacks {', '.join(sorted(missing))}; it is not as it was written")
    with contents_of(path):
        check_machine(machine)
    return machine


def record_end(path: Path, when: float | None = None) -> None:
    """Write into `machine.json` that the run is finished, where it does not say so: now, or at that time."""
    machine = store.read_json(path)
    if machine.get("finished") is None:
        store.write_json(path, {**machine, "finished": now(when)})


def started_threads(path: Path) -> int:
    """How many threads the run was started with."""
    return int(read_machine(path)["threads"])


def now(when: float | None = None) -> str:
    """The time, to the second, in UTC; or that of a file's date."""
    found = datetime.now(UTC) if when is None else datetime.fromtimestamp(when, UTC)
    return found.isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
