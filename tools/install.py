"""Install poise into .venv and say what is done, a line for each step; `make setup` and `make demo` call it.

    python3.11 tools/install.py .          what poise itself needs
    python3.11 tools/install.py '.[dev]'   also the tools to check and test it

It runs before anything is installed, so it uses the standard library only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

VENV = Path(".venv")
#: Lines of pip that name a package, and a download that takes a while.
NAMED = re.compile(r"(?:Collecting |Processing (?:\S*/)?)([\w.\[\],+-]+)")
LARGE = re.compile(r"\s*(?:Downloading|Using cached) (?:\S*/)?(\S+) \(([\d.]+ [MG]B)\)")


def main(wanted: str) -> int:
    """Make the environment if it is not there, install into it, and say how long it took."""
    start = time.monotonic()
    python = VENV / "bin" / "python"
    if not python.exists():
        print(f"Python {sys.version.split()[0]} ({sys.executable}) makes {VENV}", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False).returncode:
            print(f"{VENV} could not be made; the reason is above (Debian: apt-get install python3-venv)")
            return 2
    what = "poise and its tools for developers" if "[" in wanted else "poise"
    print(f"Installing {what} into {VENV}. PyTorch is large: the first time this takes one to ten minutes.", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    with subprocess.Popen(
        [*pip, "-c", "constraints.txt", "-e", wanted], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in summarise(process.stdout):
            print(f"  {line}", flush=True)
    if process.returncode:
        print("pip failed; its message is above. Run the same command again when it is mended.")
        return process.returncode
    print(f"Ready in {time.monotonic() - start:.0f} s: {VENV}/bin/poise")
    return 0


def summarise(output: Iterable[str]) -> Iterator[str]:
    """Of pip's output: each package once, large downloads with their size, and what was installed in the end."""
    named: set[str] = set()
    for line in output:
        if (found := NAMED.match(line)) and found[1] not in named:
            named.add(found[1])
            yield found[1]
        elif found := LARGE.match(line):
            yield f"  {found[1]} ({found[2]})"
        elif line.startswith("Successfully installed "):
            yield f"packages installed: {len(line.split()) - 2}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
