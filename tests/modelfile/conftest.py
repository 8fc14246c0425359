"""Commands in this process, for a user who registered nothing, in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poise import cli

from .samples import Command, Done


@pytest.fixture(autouse=True)
def _fresh_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who registered nothing, in an empty folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("POISE_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def poise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["poise", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        printed = capsys.readouterr()
        return Done(int(leaving.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def refusal(poise: Command) -> Callable[..., str]:
    """The one line of a command that was refused, and nothing was written."""

    def run(*words: object) -> str:
        done = poise(*words)
        assert done.code == 2
        assert done.out == ""
        assert done.err.startswith("poise: ")
        assert done.err.count("\n") == 1, done.err
        assert not list(Path.cwd().iterdir())
        return done.err

    return run
