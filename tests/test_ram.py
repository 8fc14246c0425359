"""How much memory is free: on a machine, in a container, and in a job of a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from poise import ram


def reading(there: dict[str, str]) -> Callable[[str], str]:
    """Reads these files, and finds no others."""

    def read(path: str) -> str:
        if path not in there:
            raise FileNotFoundError(path)
        return there[path]

    return read


@pytest.mark.parametrize(
    ("limit", "free"),
    [
        ("5000000", 5_000_000 - 4_000_000 + 900_000 + 800_000 + 700_000),  # caches of files give way
        ("50000000", 4096 << 10),  # no more than the machine has
        ("max", 4096 << 10),
        (None, 4096 << 10),
    ],
)
def test_free_memory_is_that_of_the_container_without_caches(
    limit: str | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"/proc/meminfo": "MemTotal: 8192 kB\nMemFree: 1024 kB\nMemAvailable: 4096 kB\n"}
    if limit is not None:
        caches = "anon 1600000\nactive_file 900000\ninactive_file 800000\nslab_reclaimable 700000\n"
        there |= {"/sys/fs/cgroup/memory.max": f"{limit}\n", "/sys/fs/cgroup/memory.current": "4000000\n"}
        there |= {"/sys/fs/cgroup/memory.stat": caches}

    monkeypatch.setattr(ram, "read_text", reading(there))
    assert ram.free_memory() == free


@pytest.mark.parametrize(
    ("group", "limits", "free"),
    [
        ("0::/slurm/job_7/step", {"slurm/job_7": ("memory.max", 3_000_000)}, 2_000_000),  # that of a group above
        ("0::/slurm/job_7", {"slurm/job_7": ("memory.max", "max"), "slurm": ("memory.max", 2_500_000)}, 1_500_000),
        ("4:memory:/pbs/job", {"memory/pbs/job": ("memory.limit_in_bytes", 1_600_000)}, 600_000),
        ("4:cpu,memory:/docker/f00", {"memory": ("memory.limit_in_bytes", 1_700_000)}, 700_000),  # as seen outside
        ("4:memory:/pbs/job", {"memory/pbs/job": ("memory.limit_in_bytes", 2**63 - 4096)}, 4096 << 10),
        ("3:cpu:/pbs/job", {"memory/pbs/job": ("memory.limit_in_bytes", 1_600_000)}, 4096 << 10),  # of another group
        ("0::/slurm", {"slurm": ("memory.max", 900_000)}, 0),  # it has more than it may
    ],
)
def test_free_memory_is_that_of_a_job_in_a_queue(
    group: str, limits: dict[str, tuple[str, object]], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"/proc/meminfo": "MemAvailable: 4096 kB\n", "/proc/self/cgroup": f"1:name=systemd:/\n{group}\n"}
    for place, (name, limit) in limits.items():
        used = "memory.current" if name == "memory.max" else "memory.usage_in_bytes"
        cached = "active_file 100000\ntotal_active_file 100000\n"
        there |= {f"/sys/fs/cgroup/{place}/{name}": f"{limit}\n", f"/sys/fs/cgroup/{place}/{used}": "1100000\n"}
        there |= {f"/sys/fs/cgroup/{place}/memory.stat": cached}

    monkeypatch.setattr(ram, "read_text", reading(there))
    assert ram.free_memory() == free
