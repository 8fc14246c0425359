"""Commands in this process, for a user who registered nothing, in an empty folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .samples import Command


@pytest.fixture(autouse=True)
def _fresh_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who registered nothing, in an empty folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("POISE_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


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
