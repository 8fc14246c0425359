"""The scripts in `examples/` run as they stand."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from poise.learner import defaults

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*words: str) -> str:
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_own_images_are_learned_month_by_month(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(defaults, "suitable_epochs", lambda *args, **more: 12)
    monkeypatch.setattr(sys, "argv", ["learn_own_images.py"])
    runpy.run_path(str(EXAMPLES / "learn_own_images.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "after 2026-02" in out
    assert float(out.split()[-2]) > 50


def test_an_own_method_is_a_command(tmp_path: Path) -> None:
    words = ("method=my-lwf", "groups=[3,2]", "epochs=1", "images_per_class=20")
    run(str(EXAMPLES / "own_method.py"), "run", "digits/lwf", *words, "--out", str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "my-lwf"


def test_a_pretrained_network_learns_folders(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLES / "learn_own_images.py"))["draw_pictures"](tmp_path)
    out = run(str(EXAMPLES / "pretrained.py"), str(tmp_path / "2026-01"), str(tmp_path / "2026-02"))
    assert "2026-02: 4 classes so far" in out
