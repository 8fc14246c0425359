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

import pytest

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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `poise learn` draws in a second phase in which actions are tried."""
    place = tmp_path_factory.mktemp("terminal")
    first = pictures(place / "first", "cat dog")
    second = pictures(place / "second", "eel fox", first=50)
    small: dict[str, int | str] = {"epochs": 4, "batch": 4, "memory": 3, "image_size": 8, "policy": "online"}
    ModelFile(place / "model").teach(Lesson(first, small))
    return seen_on_a_terminal("learn", str(place / "model"), str(second))


def test_the_bar_is_whole_at_80_columns(drawn: list[str]) -> None:
    bars = [line for line in drawn if re.search(r" \d+ %", line) and "━" in line]
    assert len(bars) > 3
    for bar in bars:
        assert len(bar) <= COLUMNS, bar
        assert bar.startswith("phase 1"), bar
    assert any(re.search(r"[\d,]+ images/s \d\d:\d\d$", bar) for bar in bars)


def test_a_warning_stands_above_the_bar_and_not_in_it(drawn: list[str]) -> None:
    (line,) = (line for line in drawn if "training steps" in line)
    assert line.startswith("poise: epochs=4 makes only 16 training steps")


def test_trials_are_counted_and_so_is_their_time(drawn: list[str]) -> None:
    trials = [line for line in drawn if "trial" in line and "━" in line]
    found = [re.search(r"trial (\d+) of (\d+)", line) for line in trials]
    numbers = [(int(each[1]), int(each[2])) for each in found if each]
    assert numbers
    assert all(1 <= number <= most for number, most in numbers)
    shares = [int(each[1]) for line in trials if (each := re.search(r"(\d+) %", line))]
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 100, "tuning is part of the work, and not all of it"
