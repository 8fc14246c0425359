"""One case of the fuzzer: a command in this process, in a folder of its own, and what is promised of its end."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from unittest import mock

import numpy as np
from PIL import Image

from poise import cli

SECONDS = 120  # after which a case hangs; most take less than one


class Hang(BaseException):
    """A case took too long. Nothing in poise catches it."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str
    written: tuple[str, ...]  # names of all files that it left


@contextmanager
def empty_place() -> Iterator[Path]:
    """An empty working folder, for a user who registered nothing."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "work")
        folder.mkdir()
        home = {"XDG_CONFIG_HOME": f"{place}/config", "HOME": f"{place}/home", "POISE_DATA": ""}
        try:
            os.chdir(folder)
            with mock.patch.dict(os.environ, home):
                yield folder
        finally:
            os.chdir(before)


def drive(words: Sequence[str]) -> Ended:
    """Run a command where we are; an error that poise does not turn into a line comes through, and so does `Hang`."""
    there, out, err = _files(), io.StringIO(), io.StringIO()
    code = 0
    with _time_limit(), redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "argv", ["poise", *words]):
        try:
            cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Ended(code, out.getvalue(), err.getvalue(), tuple(sorted(_files() - there)))


def check(ended: Ended) -> None:
    """What is promised of every command: a known exit code, one line for a failure, nothing written by a refusal."""
    assert ended.code in (0, 1, 2), ended
    assert "Traceback" not in ended.err, ended.err
    if ended.code and ended.out.startswith("Usage: "):
        return  # no command at all: the help
    if ended.code:
        lines = [line for line in ended.err.splitlines() if line.startswith("poise: ")]
        assert lines, ended
        assert ended.err.rstrip("\n").splitlines()[-1] == lines[-1], ended
        assert len(lines[-1]) < 2500
    if ended.code == 2:
        assert not [name for name in ended.written if name.endswith(".safetensors")], ended


def draw_photos(folder: Path) -> Path:
    """Three noisy pictures of each of two classes, in class folders."""
    chance = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(chance.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


def _files() -> set[str]:
    return {str(path) for path in Path.cwd().rglob("*") if path.is_file()}


@contextmanager
def _time_limit() -> Iterator[None]:
    def hang(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
