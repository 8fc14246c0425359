"""What `make setup` says while it installs: pip's own output, cut down, and pip's errors whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "install.py"
#: A project that builds itself without any other package, so that no network is needed.
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "small"
version = "1.0"
"""
BACKEND = """\
import zipfile
from pathlib import Path

FILES = {
    "small.py": "",
    "small-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\nREQUIRES",
    "small-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "small-1.0.dist-info/RECORD": "",
}


def build_editable(folder, settings=None, metadata=None):
    with zipfile.ZipFile(Path(folder) / "small-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return "small-1.0-py3-none-any.whl"
"""


def install(folder: Path, requires: str) -> subprocess.CompletedProcess[str]:
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND.replace("REQUIRES", requires))
    (folder / "constraints.txt").write_text("")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return subprocess.run(
        [sys.executable, str(TOOL), "."], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_it_says_what_it_does_and_shows_the_errors_of_pip(tmp_path: Path) -> None:
    done = install(tmp_path, "")
    assert done.returncode == 0, done.stderr
    first, second, *_, installed, last = done.stdout.splitlines()
    assert first == f"Python {sys.version.split()[0]} ({sys.executable}) makes .venv"
    assert second.startswith("Installing poise into .venv.")
    assert installed == "  packages installed: 1"
    assert last.startswith("Ready in ")
    failed = install(tmp_path, "Requires-Dist: there-is-no-such-package\\n")
    assert failed.returncode != 0
    assert "makes .venv" not in failed.stdout, "the environment is there already"
    assert "there-is-no-such-package" in failed.stderr
    assert "pip failed; its message is above" in failed.stdout
