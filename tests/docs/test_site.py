"""The pages are a site: it is built without a warning, its sidebar leads to all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_is_whole(tmp_path: Path) -> None:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name)
    words = ["--fail-on-warning", "--keep-going", "--quiet", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run([sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, check=False)
    assert not built.returncode, built.stderr
    first = (tmp_path / "index.html").read_text(encoding="utf-8")
    sidebar = first.partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    assert "{toctree}" not in first
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f'href="{page.stem}.html"' in sidebar
    assert "repository:" not in (tmp_path / "architecture.html").read_text(encoding="utf-8")
