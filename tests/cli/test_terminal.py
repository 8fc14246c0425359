"""Progress as a person sees it, on a pseudo-terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from poise.modelfile import Lesson, ModelFile

from .samples import pictures

COLUMNS = 80
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def seen_on_a_terminal(*words: str) -> list[str]:
    """Every line that the command drew, without colours; a bar that was drawn again is there again."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "poise", *words]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    drawn = bytearray()
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side was closed
            break
        if not part:
            break
        drawn += part
    os.close(ours)
    assert process.wait() == 0, drawn.decode()
    return [ESCAPE.sub("", line).rstrip() for line in re.split(r"[\r\n]+", drawn.decode())]


def test_the_bar_of_a_phase_in_which_actions_are_tried(tmp_path: Path) -> None:
    first = pictures(tmp_path / "first", "cat dog")
    second = pictures(tmp_path / "second", "eel fox", first=50)
    small: dict[str, int | str] = {"epochs": 4, "batch": 4, "memory": 3, "image_size": 8, "policy": "online"}
    ModelFile(tmp_path / "model").teach(Lesson(first, small))
    drawn = seen_on_a_terminal("learn", str(tmp_path / "model"), str(second))
    bars = [line for line in drawn if re.search(r" \d+ %", line) and "━" in line]
    assert len(bars) > 3
    for bar in bars:
        assert len(bar) <= COLUMNS, bar
        assert bar.startswith("phase 1"), bar
    assert any(re.search(r"[\d,]+ images/s \d\d:\d\d$", bar) for bar in bars)

    (line,) = (line for line in drawn if "training steps" in line)
    assert line.startswith("poise: epochs=4 makes only 16 training steps"), "a warning stands above the bar"

    trials = [line for line in drawn if "trial" in line and "━" in line]
    found = [re.search(r"trial (\d+) of (\d+)", line) for line in trials]
    numbers = [(int(each[1]), int(each[2])) for each in found if each]
    assert numbers
    assert all(1 <= number <= most for number, most in numbers)
    shares = [int(each[1]) for line in trials if (each := re.search(r"(\d+) %", line))]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 100, "tuning is part of the work, and not all of it"
