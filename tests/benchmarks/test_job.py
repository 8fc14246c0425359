"""The times of a job: which phases are measured."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_policy_that_learns_before_phase_0_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["digits/lucir", "groups=[4,2]", "epochs=1", "net=small", "device=cpu"]
    monkeypatch.setattr(sys, "argv", ["job.py", *words, "--policy", "offline-rl"])
    runpy.run_path(str(ROOT / "benchmarks" / "job.py"), run_name="__main__")
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert len(found["fixed"]["phases"]) == len(found["offline-rl"]["phases"]) == 2, "it learns before phase 0"
    assert found["offline-rl"]["seconds"]["policy"] > 0
