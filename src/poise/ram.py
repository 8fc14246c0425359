"""The memory of this machine: how much there is, and how much of it this process could take now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from poise.files import read_text

_UNLIMITED: Final = 1 << 62  # more bytes than there are


class _ControlGroup(NamedTuple):
    """What limits the memory of some processes on Linux: its folder, and what the files and values in it are called."""

    folder: str
    limit: str
    used: str
    cached: tuple[str, ...]


_NEWER: Final = ("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"))
_OLDER: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def main_memory() -> int:
    """How many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory() -> int:
    """How many bytes of memory a process could take now, as far as the system says it; else all there are.

    In a container, or in a job of a queue, that may be less than the machine has.
    """
    try:
        lines = read_text("/proc/meminfo").splitlines()
        found = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        found = main_memory()
    return max(0, min((found, *map(_left_in, _control_groups()))))


def _control_groups() -> Iterator[_ControlGroup]:
    """The control groups that this process is in, as far as they may limit its memory, and all above them."""
    try:
        lines = read_text("/proc/self/cgroup").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in ("0::/", *lines):  # number:controllers:path; in a container the path may be one that is seen outside
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root, words = ("/sys/fs/cgroup/memory", _OLDER) if controllers else ("/sys/fs/cgroup", _NEWER)
            parts = path.strip("/").split("/") if path.strip("/") else []
            for count in range(len(parts) + 1):
                yield _ControlGroup("/".join((root, *parts[:count])), *words)


def _left_in(group: _ControlGroup) -> int:
    """What it may take yet; pages of files, and what is known of them, give way."""
    try:
        limit, used = (int(read_text(f"{group.folder}/{name}")) for name in (group.limit, group.used))
        lines = read_text(f"{group.folder}/memory.stat").splitlines()
        counts = dict(line.split(maxsplit=1) for line in lines)
        return limit - used + sum(int(counts.get(word, 0)) for word in group.cached)
    except (OSError, ValueError):  # there is none here, or it has no limit
        return _UNLIMITED
