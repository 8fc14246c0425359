"""Signals as a user sends them: one line, the right exit code, and a checkpoint where there is something to lose."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poise import Learner

from .samples import pictures

# Sends a signal to itself at the moment in which a module is about to be imported.
IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from poise.cli import main
main()
"""
SMALL = ("--epochs", "40000", "--batch", "4", "--image-size", "8", "--policy", "fixed", "--net", "small")


@pytest.mark.parametrize("module", ["poise.cli.app", "torch.nn"])
def test_ctrl_c_during_imports_is_one_line(module: str) -> None:
    command = [sys.executable, "-c", IMPORTING.format(module=module), "run", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "poise: interrupted without a checkpoint; what was saved before is still there\n"
    assert not Path("run").exists()


def learning(place: Path, *more: str) -> subprocess.Popen[str]:
    """`poise learn` in the middle of its training."""
    pictures(place / "pets", "cat dog")
    command = [sys.executable, "-m", "poise", "learn", str(place / "model"), str(place / "pets"), *SMALL, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("action:" in line for line in process.stderr), "it never began to train"
    return process


def test_ctrl_c_again_and_again_says_something_and_is_no_traceback(tmp_path: Path) -> None:
    process = learning(tmp_path)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.001)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "poise: stopping; Ctrl-C again stops at once, without a checkpoint" in said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("poise: interrupted")


def test_a_terminal_that_is_closed_loses_nothing(tmp_path: Path) -> None:
    words = ["run", "digits/lucir", "epochs=400", "policy=fixed", "--out", str(tmp_path / "run")]
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-m", "poise", *words])
    drawn, deadline = b"", time.monotonic() + 120
    while b"epoch " not in drawn and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            drawn += os.read(terminal, 65536)
    os.close(terminal)  # what a terminal's window does when it is closed
    status = os.waitpid(process, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here: a full output was not tested")
def test_predictions_that_could_not_be_written_are_a_failure(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 8), dtype=np.uint8)
    learner = Learner("lwf", net="small", epochs=1, batch=4, policy="fixed").partial_fit(pixels, [0, 1] * 4)
    learner.save(tmp_path / "model")
    Image.fromarray(pixels[0]).save(tmp_path / "0.png")
    command = [sys.executable, "-m", "poise", "predict", str(tmp_path / "model"), str(tmp_path / "0.png")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("poise: no space left for standard output; ")
    assert done.stderr.count("\n") == 1


def test_lines_that_nobody_reads_stop_no_job(tmp_path: Path) -> None:
    pictures(tmp_path / "pets", "cat dog")
    ours, theirs = os.pipe()
    os.close(ours)
    words = ["learn", str(tmp_path / "model"), str(tmp_path / "pets"), *SMALL[2:], "--epochs", "1"]
    done = subprocess.run([sys.executable, "-m", "poise", *words], stderr=theirs, check=False)
    os.close(theirs)
    assert done.returncode == 0
    assert len(Learner.load(tmp_path / "model").knowledge.classes) == 2
