"""What the tests of experiments share: commands that run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from poise import cli


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; gives its exit code and what it printed."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["poise", *words])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        printed = capsys.readouterr()
        return int(leaving.value.code or 0), printed.out, printed.err

    return run
