"""The pages say what the raw results say, and every kept run says where it comes from."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[2] / "paper"
TOOL = runpy.run_path(str(PAPER / "tables.py"))


def test_the_pages_are_what_the_files_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL["main"](["--check"]) == 0, capsys.readouterr().out


def test_the_figures_are_what_the_files_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PAPER)
    monkeypatch.setattr(sys, "argv", ["draw.py", "--out", str(tmp_path)])
    runpy.run_path(str(PAPER / "draw.py"), run_name="__main__")
    drawn = sorted(tmp_path.iterdir())
    assert [path.name for path in drawn] == ["figure-1.svg", "figure-5.svg"]
    for path in drawn:
        shown, kept = (
            re.findall(r"<(?:text|title)[^>]*>([^<]*)<", file.read_text(encoding="utf-8"))
            for file in (path, PAPER / "figures" / path.name)
        )
        assert shown == kept, "python paper/draw.py"


def test_every_kept_run_says_its_command_commit_and_machine() -> None:
    lines = TOOL["lines_of"]("runs.jsonl")
    assert sorted(line["run"] for line in lines) == sorted(path.stem for path in (PAPER / "results").glob("*.json"))
    for line in lines:
        assert line["command"].startswith("poise run cifar100/")
        assert re.fullmatch(r"[0-9a-f]{8}(, [0-9a-f]{8})*", line["commit"])
        assert line["machine"]


def test_a_row_is_judged_by_its_furthest_cell() -> None:
    rows = {row.label: row for row in TOOL["rows_of"]("table-1")}
    judged = {label: TOOL["verdict"](row) for label, row in rows.items()}
    assert judged["LUCIR"] == "verified (4 of 4)"
    assert judged["PODNet"].startswith("verified (2 of 4")
    assert judged["RMM, causal rule"].startswith("**deviates**: TFS 5")
    assert judged["FOSTER, 20 per class, no AutoAugment"] == "not comparable"
    assert judged["RMM + `online`"] == "open"


@pytest.mark.parametrize("path", sorted((PAPER / "results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_lines_of_results_are_json(path: Path) -> None:
    assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("page", [PAPER / "README.md", PAPER / "queue.md", *sorted((PAPER / "notes").glob("*.md"))])
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{target}#{anchor}"
