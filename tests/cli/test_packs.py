"""`poise data pack` as a user meets it: signals, and how far it has come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poise.cli import packs
from poise.cli.packs import AGAIN
from poise.data.packing import Packed

from .samples import Command, pictures

# Packs with processes from the first image on, and says when they have been started.
AT_ONCE = """
import sys
from poise.cli import main
from poise.data import processes

def started(pipes):
    print("started", file=sys.stderr, flush=True)
    return True

if __name__ == "__main__":
    processes.LOOK_SECONDS = processes.WORTH_SECONDS = 0.0
    processes._are_ready = started
    main()
"""


def packing(place: Path, until: str) -> subprocess.Popen[str]:
    """`poise data pack` with two processes, from the line on that begins with this."""
    pictures(place / "pets", "bird cat dog", 60)
    (place / "pack.py").write_text(AT_ONCE)
    words = ["data", "pack", str(place / "pets"), "--out", str(place / "pets.pack"), "--size", "256", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, str(place / "pack.py"), *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(until):
            return process
    raise AssertionError("it never began")


@pytest.mark.parametrize("until", ["started", "packed"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["INT", "TERM", "HUP"])
def test_a_signal_to_all_processes_is_one_line_and_nothing_is_left_of_them(
    signum: int, until: str, tmp_path: Path, poise: Command
) -> None:
    process = packing(tmp_path, until)
    os.killpg(process.pid, signum)
    said = process.communicate(timeout=60)[1]  # which waits for every process that could say something
    assert process.returncode == 128 + signum
    assert said.strip() == f"poise: {AGAIN}"
    assert {path.name for path in tmp_path.glob("pets.pack*")} == {"pets.pack.partial", "pets.pack.journal"}
    again = poise("data", "pack", str(tmp_path / "pets"), "--out", str(tmp_path / "pets.pack"), "--size", "256")
    assert again.code == 0, again.err


def test_ctrl_c_again_and_again_is_one_line(tmp_path: Path) -> None:
    process = packing(tmp_path, "packed")
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    assert process.returncode == 130
    said = process.communicate()[1]
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("poise: interrupted")


def test_a_command_that_nohup_started_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with packs._ended_by_signals() as heard:
            signal.raise_signal(signal.SIGHUP)
        assert not heard
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_rate_is_that_of_the_last_seconds_and_not_said_before_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = [100.0], list[str]()
    monkeypatch.setattr("poise.cli.packs.time.monotonic", lambda: clock[0])

    def steps() -> object:
        for seconds, images in ((9, 16), (1, 32), (9, 1032), (60, 1132), (10, 2132), (10, 4000)):
            clock[0] += seconds
            yield Packed(images, 4000, "cat", 0)

    packs._tell(steps(), 5.0, lines.append)  # type: ignore[arg-type]
    assert lines == [
        "packed 16 of 4,000 images, cat",  # after nine seconds in which processes were started
        "packed 1,032 of 4,000 images, 102 images/s, 29 s left, cat",
        "packed 1,132 of 4,000 images, cat",  # after a minute in which nothing moved
        "packed 2,132 of 4,000 images, 100 images/s, 19 s left, cat",
        "packed 4,000 of 4,000 images, 40 images/s, in 2 min, cat",
    ]
