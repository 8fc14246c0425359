"""What the results page says is what the files beside it say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "results"
CELLS = re.findall(r"\[([\d.]+)\]\((cifar100/[^)]+\.json)\)", (RESULTS / "cifar100.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("shown", "file"), CELLS)
def test_a_cell_is_the_average_of_its_run(shown: str, file: str) -> None:
    result = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    assert f"{result['average_accuracy']:.2f}" == shown
    curve = [point["accuracy"] for point in result["curve"]]
    assert result["average_accuracy"] == pytest.approx(sum(curve) / len(curve), abs=1e-3)
    assert (result["exam"], result["order"], result["epochs"]) == ("test", 1993, 160)


def test_every_result_is_shown() -> None:
    shown = {file for _, file in CELLS}
    assert {f"cifar100/{path.name}" for path in (RESULTS / "cifar100").glob("*.json")} == shown


def test_the_fc_figures_of_lwf_come_from_the_icarl_runs() -> None:
    page = (RESULTS / "cifar100.md").read_text(encoding="utf-8")
    for setting, figure in (("tfh", "50.24"), ("tfs", "56.10")):
        result = json.loads(
            (RESULTS / f"cifar100/cifar100-icarl-{setting}-5-fixed-s0.json").read_text(encoding="utf-8")
        )
        curve = [point["accuracy_fc"] for point in result["curve"]]
        assert f"{sum(curve) / len(curve):.2f}" == figure
        assert figure in page


def test_the_digits_table_is_what_its_runs_gave() -> None:
    page = (RESULTS / "digits-online.md").read_text(encoding="utf-8")
    for setting in json.loads((RESULTS / "digits-online.json").read_text(encoding="utf-8")).values():
        assert len(setting["seeds"]) >= 5
        assert len(setting["seeds"]) == len(setting["fixed"]) == len(setting["online"])
        gains = [online - fixed for fixed, online in zip(setting["fixed"], setting["online"], strict=True)]
        means = [sum(values) / len(values) for values in (setting["fixed"], setting["online"], gains)]
        assert f"| {means[0]:.2f} | {means[1]:.2f} | {means[2]:+.2f} |" in page
        assert means[2] >= 0


def test_the_table_of_memory_allocations_is_what_its_runs_gave() -> None:
    page = (RESULTS / "digits-rmm.md").read_text(encoding="utf-8")
    runs = json.loads((RESULTS / "digits-rmm.json").read_text(encoding="utf-8"))
    rows: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda each: str(each["stream"])):  # 2+2+… before 4+2+…
        kept = all(
            held <= budget
            for most, allowed in zip(run["held_images"], run["budget_images"], strict=True)
            for held, budget in zip(most, allowed, strict=True)
        )
        assert kept is not run["memory"].startswith("released")
        average, last = (sum(run[name]) / len(run["orders"]) for name in ("average_accuracy", "last_accuracy"))
        rows.setdefault(run["memory"], []).append(f"{average:.2f} | {last:.2f}")
    for memory, cells in rows.items():
        (line,) = [line for line in page.splitlines() if re.match(rf"\| {re.escape(memory)}( \(knows.*?)? \|", line)]
        assert len(cells) == 2
        assert all(cell in line for cell in cells)
