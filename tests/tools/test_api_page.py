"""The API page lists what there is now, and every public name says what it is."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "api_page.py"))


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == TOOL["make_page"](), "a public name was changed: run 'make api'"
    for package in TOOL["PACKAGES"]:
        for name in TOOL["open_package"](package).__all__:
            assert f"| `{name}` |" in page or f"| `{name}(" in page


def test_a_question_for_help_writes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["api_page.py", "--help"])
    with pytest.raises(SystemExit):
        TOOL["main"]()
    assert "docs/api.md" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_learner_is_described_with_what_it_knows() -> None:
    rows = dict(TOOL["members"](importlib.import_module("poise").Learner))
    assert rows["classes_"] == "The labels seen so far, in the order in which they arrived."
    assert any(name.startswith("predict(images, *, ") for name in rows)
    assert not any(name.startswith("_") for name in rows)


def test_a_name_without_a_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent.py").write_text(
        '__all__ = ["LIMIT", "FEW", "act"]\n#: How many.\nFEW = 3\nLIMIT = 3\ndef act(): ...\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    silent = importlib.import_module("silent")
    assert TOOL["describe"](silent, "FEW") == "How many."
    for name in ("LIMIT", "act"):
        with pytest.raises(SystemExit, match=f"silent.{name} is public"):
            TOOL["describe"](silent, name)
