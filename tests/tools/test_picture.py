"""The pictures of the pages show what the kept results say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = {
    "policy=online": ("online-s0-now", "online-s1", "online-s2"),
    "own settings": ("fixed-s0-paired", "fixed-s1", "fixed-s2"),
}


def words_in(picture: Path) -> list[str]:
    """The texts of a picture, those of its points too."""
    return re.findall(r"<(?:text|title)[^>]*>([^<]*)<", picture.read_text(encoding="utf-8"))


def test_means_of_three_seeds_have_a_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = str(ROOT / "paper" / "results" / "cifar100-lucir-tfs-5-{}.json").format
    curves = [f"{name}={','.join(map(kept, runs))}" for name, runs in SEEDS.items()]
    monkeypatch.setattr(sys, "argv", ["picture.py", str(tmp_path / "drawn.svg"), *curves])
    runpy.run_path(str(ROOT / "tools" / "picture.py"), run_name="__main__")
    shown = words_in(ROOT / "docs" / "pictures" / "online.svg")
    assert words_in(tmp_path / "drawn.svg") == shown
    assert {"policy=online 56 %", "own settings 50 %"} <= set(shown)
    drawn = (tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert drawn.count("opacity: 0.16") == len(SEEDS)
    assert drawn.count("stroke-dasharray: ") == 1, "what the other is compared with"
