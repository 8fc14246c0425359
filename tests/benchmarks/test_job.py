"""The times of a job: which phases are measured, and what the results page makes of them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_policy_that_learns_before_phase_0_is_timed_and_multiplied_on_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["digits/lucir", "groups=[4,2]", "epochs=1", "net=small", "device=cpu"]
    monkeypatch.setattr(sys, "argv", ["job.py", *words, "--policy", "offline-rl"])
    runpy.run_path(str(ROOT / "benchmarks" / "job.py"), run_name="__main__")
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert len(found["fixed"]["phases"]) == len(found["offline-rl"]["phases"]) == 2, "it learns before phase 0"
    assert found["offline-rl"]["seconds"]["policy"] > 0
    file = tmp_path / "times.json"
    file.write_text(printed, encoding="utf-8")
    table = runpy.run_path(str(ROOT / "tools" / "results_page.py"))["table_s2"](file)
    minutes = (found["fixed"]["phases"][0] + 5 * found["fixed"]["phases"][1]) / 60
    assert f"| fixed | {minutes:.1f} min | 1.00 |" in table
    assert "| offline RL | – |" not in table
