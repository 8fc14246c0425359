"""Results as plain text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poise import store
from poise.actions import Action
from poise.errors import UserError


def load_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run."""
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist")
    path = folder / "result.json"
    if not path.exists():
        started = (folder / "recipe.json").exists()
        todo = f"is not finished; go on with 'poise resume {folder}'" if started else "is not a run folder"
        raise UserError(f"{folder} {todo}")
    return store.read_json(path)


def run_table(result: Mapping[str, Any]) -> str:
    """One run: the accuracy after each phase and the averages."""
    rows = [
        [
            str(point["phase"]),
            str(point["classes"]),
            f"{point['accuracy']:.2f}",
            f"{point['accuracy_fc']:.2f}",
            f"{point['accuracy_ncm']:.2f}",
            str(Action(**point["action"])),
        ]
        for point in result["curve"]
    ]
    table = _aligned(["phase", "classes", "accuracy", "fc", "ncm", "action"], rows)
    return (
        f"{table}\n\naverage accuracy {result['average_accuracy']:.2f}, last {result['last_accuracy']:.2f}, "
        f"forgetting {result['average_forgetting']:.2f} (percent, exam {result['exam']}), "
        f"{result['seconds']['total']:.1f} s"
    )


def comparison_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Several runs, a row each."""
    rows = [
        [
            result["method"],
            result["data"],
            f"{result['setting']} {result['phases']}",
            result["policy"],
            str(result["seed"]),
            result["exam"],
            f"{result['average_accuracy']:.2f}",
            f"{result['last_accuracy']:.2f}",
            f"{result['average_forgetting']:.2f}",
            result["curve"][-1]["action"]["classifier"],
            f"{result['seconds']['total']:.1f}",
        ]
        for result in results
    ]
    header = "method data setting policy seed exam average last forgetting counts seconds"
    return _aligned(header.split(), rows)


def _aligned(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in [lines[0], "  ".join("─" * width for width in widths), *lines[1:]])
