"""Runs taken elsewhere: packed in parts, made again there, and resumed to the same bytes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from poise.experiment import Plan, Run, RunFolder, load_recipe, make_plan

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "carry_runs.py"))
WORDS = ["groups=[2,1]", "epochs=1", "batch=64", "images_per_class=24", "policy=fixed"]


def make(method: str = "lucir") -> Plan:
    return make_plan(f"digits/{method}", load_recipe(f"digits/{method}", WORDS))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished run, and one that was left in its second phase."""
    Run(make("lwf"), RunFolder(tmp_path / "runs" / "finished")).start()
    going = Run(make(), RunFolder(tmp_path / "runs" / "left"), checkpoint_seconds=0).starting()
    while not (tmp_path / "runs" / "left" / "phase-0.safetensors").exists():
        next(going)
    next(going)
    going.close()
    return tmp_path / "runs"


def carry(*words: object) -> int:
    code: int = TOOL["main"]([str(word) for word in words])
    return code


def test_a_run_that_was_carried_goes_on_to_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    assert carry(runs, "--out", tmp_path / "parts", "--part", 0.05) == 0
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) > 1
    assert all(part.stat().st_size <= 0.05 * 2**20 for part in parts)
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 0
    there = tmp_path / "there"
    assert (there / "finished" / "result.json").read_bytes() == (runs / "finished" / "result.json").read_bytes()
    Run(make(), RunFolder(there / "left")).resume()
    alone = RunFolder(tmp_path / "alone")
    Run(make(), alone).start()
    assert (there / "left" / "model.safetensors").read_bytes() == alone.model.read_bytes()
    assert (there / "left" / "phase-0.safetensors").exists()


def test_what_does_not_fit_is_named_and_the_rest_is_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [path.stat().st_size for path in runs.glob("*/phase-0.safetensors")]
    whole = sum(path.stat().st_size for path in runs.rglob("*.json*")) + sum(sizes) // len(sizes) * 2
    assert carry(runs, "--out", tmp_path / "parts", "--most", whole / 2**20) == 0
    assert "left out: " in capsys.readouterr().out
    assert sum(part.stat().st_size for part in (tmp_path / "parts").iterdir()) <= whole
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 0
    assert (tmp_path / "there" / "finished" / "result.json").exists()


def test_a_run_that_is_there_is_not_written_over(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry(runs, "--out", tmp_path / "parts")
    (runs / "left" / "journal.jsonl").write_text("further")
    assert carry("--unpack", tmp_path / "parts", "--out", runs) == 0
    assert "nothing" in capsys.readouterr().out
    assert (runs / "left" / "journal.jsonl").read_text() == "further"


def test_a_part_that_is_missing_is_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carry(runs, "--out", tmp_path / "parts", "--part", 0.05)
    sorted((tmp_path / "parts").iterdir())[-1].unlink()
    capsys.readouterr()
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "there").exists() or not any((tmp_path / "there").iterdir())
