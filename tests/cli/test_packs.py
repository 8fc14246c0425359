"""`poise data pack` as a user meets it: stopped by signals, and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .samples import Command, pictures

# Packs with processes from the first image on.
AT_ONCE = """
from poise.cli import main
from poise.data import packing

if __name__ == "__main__":
    packing.FEW = 0
    main()
"""


def test_ctrl_c_to_all_processes_is_one_line_and_the_same_command_goes_on(tmp_path: Path, poise: Command) -> None:
    pictures(tmp_path / "pets", "bird cat dog", 40)
    (tmp_path / "pack.py").write_text(AT_ONCE)
    words = ["data", "pack", str(tmp_path / "pets"), "--out", str(tmp_path / "pets.pack"), "--size", "256"]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "pack.py"), *words, "--jobs", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(list((tmp_path / "pets.pack.partial").glob("*.bin"))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]  # which waits for every process that could say something
    assert process.returncode == 130
    assert said.splitlines()[-1] == "poise: interrupted; the same command goes on with the class that it was at"
    assert "Traceback" not in said
    assert {path.name for path in tmp_path.glob("pets.pack*")} == {"pets.pack.partial"}
    again = poise(*words)
    assert again.code == 0, again.err
    assert "images were packed before; going on" in again.err
