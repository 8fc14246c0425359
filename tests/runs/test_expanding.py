"""Runs with networks that grow: left and resumed in any stage, and FOSTER's compressed network examined beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise.runs import Plan, Run, RunFolder, reopen
from poise.runs.journal import read_journal

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
RECIPES = {"digits/der": {"main", "balance"}, "digits/foster": {"main", "compression"}}
WORDS = ("groups=[2,1,1]", "epochs=2", "batch=16", "images_per_class=30")


@pytest.mark.parametrize("name", RECIPES)
def test_left_in_any_stage_it_goes_on_to_the_same_bytes(
    name: str, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    whole = Run(plan(*WORDS, name=name), RunFolder(tmp_path / "whole")).start()
    events = list(read_journal(tmp_path / "whole" / "journal.jsonl"))
    epochs = [
        (number, event["phase"], event["stage"]) for number, event in enumerate(events) if event["event"] == "epoch"
    ]
    places = {(phase, stage): number for number, phase, stage in reversed(epochs) if phase}
    assert {stage for _, stage in places} == RECIPES[name]
    for left in sorted(places.values())[::2]:
        folder = RunFolder(tmp_path / str(left))
        going = Run(plan(*WORDS, name=name), folder, checkpoint_seconds=0).starting()
        while len(list(read_journal(folder.journal.path))) <= left:
            next(going)
        going.close()
        opened, reopened = reopen(folder.path)
        assert Run(reopened, opened).resume()["curve"] == whole["curve"]
        assert outcome(folder.path) == outcome(tmp_path / "whole")


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
