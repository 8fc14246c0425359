"""Runs taken elsewhere: packed in parts, made again there, and resumed to the same bytes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "paper" / "carry_runs.py"))
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


def carry(*words: object) -> None:
    TOOL["main"]([str(word) for word in words])


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit):
        carry(*words)
    return capsys.readouterr().err


def test_a_run_that_was_carried_goes_on_to_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    carry(runs, "--out", tmp_path / "parts", "--part", 0.05)
    parts = sorted((tmp_path / "parts").glob("runs.tar.*"))
    assert len(parts) > 1
    assert all(part.stat().st_size <= 0.05 * 2**20 for part in parts)
    there = tmp_path / "there"
    carry("--unpack", tmp_path / "parts", "--out", there)
    assert (there / "finished" / "result.json").read_bytes() == (runs / "finished" / "result.json").read_bytes()
    Run(make(), RunFolder(there / "left")).resume()
    alone = RunFolder(tmp_path / "alone")
    Run(make(), alone).start()
    assert (there / "left" / "model.safetensors").read_bytes() == alone.model.read_bytes()
    assert (there / "left" / "phase-0.safetensors").exists()


def test_what_does_not_fit_is_named_and_the_rest_is_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = min((runs / "left" / "checkpoints").iterdir()).stat().st_size
    carry(runs, "--out", tmp_path / "parts", "--most", whole / 2**20)
    assert "left out: left/" in capsys.readouterr().out
    assert sum(part.stat().st_size for part in (tmp_path / "parts").glob("runs.tar.*")) <= whole
    carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there")
    assert (tmp_path / "there" / "finished" / "result.json").exists()
    assert not (tmp_path / "there" / "left").exists()


def test_a_run_that_is_there_is_not_written_over(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry(runs, "--out", tmp_path / "parts")
    (runs / "left" / "journal.jsonl").write_text("further")
    carry("--unpack", tmp_path / "parts", "--out", runs)
    assert "nothing" in capsys.readouterr().out
    assert (runs / "left" / "journal.jsonl").read_text() == "further"


def test_parts_that_are_missing_or_damaged_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, there = tmp_path / "parts", tmp_path / "there"
    assert "holds no run folder" in refusal(capsys, tmp_path / "none", "--out", parts)
    carry(runs, "--out", parts, "--part", 0.05)
    first = parts / "runs.tar.000"
    first.write_bytes(b"x" + first.read_bytes()[1:])
    assert "is damaged: pack it again" in refusal(capsys, "--unpack", parts, "--out", there)
    first.unlink()
    assert "runs.tar.000 cannot be read; copy all parts" in refusal(capsys, "--unpack", parts, "--out", there)
    assert not there.exists()
