"""The API page lists what there is now, and every public name says what it is."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "api_page.py"))


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == TOOL["make_page"](), "a public name was changed: run 'make api'"
    for package in TOOL["PACKAGES"]:
        for name in importlib.import_module(package).__all__:
            assert f"| `{name}` |" in page or f"| `{name}(" in page


def test_the_learner_is_described_with_what_it_knows() -> None:
    rows = dict(TOOL["members"](importlib.import_module("poise").Learner))
    assert rows["classes_"] == "The labels seen so far, in the order in which they arrived."
    assert "predict(images, *, classifier)" in rows
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
