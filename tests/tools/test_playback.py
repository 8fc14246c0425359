"""Recorded trials played back: the policy decides today as it did when they were recorded."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "playback.py"))
FOLDER = ROOT / "results" / "cifar100"
PAIRED = "cifar100-lucir-tfh-25-online-s0-joined.journal.jsonl.xz"
PLAIN = [
    *("cifar100-lucir-tfh-5-online-s0-now", "cifar100-lucir-tfh-5-online-s1", "cifar100-lucir-tfs-5-online-s2"),
    *("cifar100-lucir-tfs-25-online-s0-now", "cifar100-lucir-tfh-25-online-s0-now"),
]


@pytest.mark.parametrize("name", PLAIN)
def test_online_decides_as_it_did_when_the_test_cells_were_run(name: str) -> None:
    assert TOOL["play_back"](FOLDER / f"{name}.journal.jsonl.xz", {}, "median") == ({}, 0)


def test_the_run_with_a_comparison_in_pairs_is_played_back_with_its_options() -> None:
    assert TOOL["play_back"](FOLDER / PAIRED, {"paired": True, "stay": 0.01}, "median") == ({}, 0)


def test_other_options_decide_otherwise_and_what_was_not_run_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL["main"]([str(FOLDER / PAIRED), "--set", "paired=true"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{PAIRED}: 11 other decisions, 2 trials were not run\n  phase 6: ")
