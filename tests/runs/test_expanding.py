"""Runs with networks that grow: left and resumed in any stage, and FOSTER's compressed network examined beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.runs import Plan, Run, RunFolder
from poise.runs.journal import read_journal

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
RECIPES = {"digits/der": {"main", "balance"}, "digits/foster": {"main", "compression"}}
WORDS = ("groups=[2,1,1]", "epochs=2", "batch=16", "images_per_class=30")


def test_the_compressed_network_is_examined_beside_the_one_that_predicts(plan: Plans, tmp_path: Path) -> None:
    result = Run(plan(*WORDS, "epochs=6", name="digits/foster"), RunFolder(tmp_path / "run")).start()
    first, *later = result["curve"]
    assert "accuracy_compressed" not in first
    assert all(0 < point["accuracy_compressed"] <= 100 for point in later)
    exams = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "exam"]
    assert "hits_of_start" not in exams[0]
    for point, exam in zip(later, exams[1:], strict=True):
        right, images = sum(exam["hits_of_start"]["compressed"]), sum(exam["images"])
        assert point["accuracy_compressed"] == pytest.approx(100 * right / images, abs=1e-3)
