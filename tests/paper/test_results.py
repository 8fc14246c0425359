"""The kept runs are whole, and their tensors are read by this version."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

from poise import store
from poise.learner import LearnerState

PAPER = Path(__file__).parents[2] / "paper"


@pytest.mark.parametrize("path", sorted((PAPER / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_result_is_as_it_was_written_and_its_average_is_that_of_its_exams(path: Path) -> None:
    result, verified = store.read_verified(path)
    assert verified
    curve = [point["accuracy"] for point in result["curve"]]
    assert result["average_accuracy"] == pytest.approx(sum(curve) / len(curve), abs=1e-3)
    journal = path.with_suffix(".journal.jsonl.xz")
    if journal.exists():  # kept since 2026-11-16
        events = [json.loads(line) for line in lzma.decompress(journal.read_bytes()).splitlines()]
        exams = [event["accuracy"] for event in events if event.get("event") == "exam"]
        assert exams == pytest.approx(curve, abs=1e-3)


@pytest.mark.parametrize("path", sorted(PAPER.rglob("*.safetensors")), ids=lambda path: path.parent.name)
def test_kept_starts_are_read_by_this_version(path: Path) -> None:
    tensors, meta = store.read_tensors(path, kind="phase 0")
    state = LearnerState.from_tensors(
        tensors, meta["learner"], lookup=lambda origins: torch.zeros(len(origins), 3, 32, 32, dtype=torch.uint8)
    )
    assert state.knowledge.predictor is not None
    assert state.knowledge.phases == 1
