"""Results as plain text tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poise import store
from poise.actions import Action
from poise.errors import UserError
from poise.report.runs import LABELS, method_name


def policy_label(result: Mapping[str, Any]) -> str:
    """The policy's name, with what sets the result apart: `crossval (oracle)`, `race (leak)`."""
    words = [word for key, (word, _) in LABELS.items() if result.get(key)]
    return f"{result['policy']} ({', '.join(words)})" if words else str(result["policy"])


def load_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run."""
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist")
    path = folder / "result.json"
    if not path.exists():
        todo = "is not a run folder"
        if (folder / "recipe.json").exists():
            todo = f"is not finished; go on with 'poise resume {folder}'"
        if (folder / "crossval.json").exists():
            todo = "is not finished; give the same 'poise crossval' command again"
        raise UserError(f"{folder} {todo}")
    return store.read_json(path)


def run_table(result: Mapping[str, Any]) -> str:
    """One run: the accuracy after each phase, the images stored after it and held in it, and the averages."""
    rows = [
        [
            str(point["phase"]),
            str(point["classes"]),
            f"{point['accuracy']:.2f}",
            f"{point['accuracy_fc']:.2f}",
            f"{point['accuracy_ncm']:.2f}",
            _count(point, "stored_images"),
            f"{_count(point, 'held_images')} of {_count(point, 'budget_images')}",
            str(Action(**point["action"])),
        ]
        for point in result["curve"]
    ]
    table = aligned(["phase", "classes", "accuracy", "fc", "ncm", "stored", "held", "action"], rows)
    warning = "".join(f"\n{line}" for key, (_, line) in LABELS.items() if result.get(key))
    return (
        f"{table}\n\naverage accuracy {result['average_accuracy']:.2f}, last {result['last_accuracy']:.2f}, "
        f"forgetting {result['average_forgetting']:.2f} (percent, exam {result['exam']}), "
        f"{result['seconds']['total']:.1f} s{warning}"
    )


def comparison_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Several runs, a row each, with the images stored at the end and the most that were held in a later phase."""
    rows = [
        [
            method_name(result),
            result["data"],
            f"{result['setting']} {result['phases']}",
            policy_label(result),
            str(result["seed"]),
            result["exam"],
            f"{result['average_accuracy']:.2f}",
            f"{result['last_accuracy']:.2f}",
            f"{result['average_forgetting']:.2f}",
            result["curve"][-1]["action"]["classifier"],
            _count(result["curve"][-1], "stored_images"),
            str(max((point.get("held_images", 0) for point in result["curve"][1:]), default=0) or "–"),
            f"{result['seconds']['total']:.1f}",
        ]
        for result in results
    ]
    header = "method data setting policy seed exam average last forgetting counts stored held seconds"
    return aligned(header.split(), rows)


def _count(point: Mapping[str, Any], name: str) -> str:
    """A number of images; older results do not have all of them."""
    return str(point.get(name, "–"))


def actions_table(result: Mapping[str, Any], count: int = 10) -> str:
    """The best actions of an oracle that ran all of them; an action without a figure diverged."""
    lines = result["actions"]
    ranked = sorted(lines, key=lambda line: math.inf if line["average_accuracy"] is None else -line["average_accuracy"])
    rows = [
        [
            str(place),
            *(f"{line[name]:.2f}" if line[name] is not None else "–" for name in ("average_accuracy", "last_accuracy")),
            str(Action(**line["action"])),
        ]
        for place, line in enumerate(ranked[:count], start=1)
    ]
    return f"{aligned(['', 'average', 'last', 'action'], rows)}\n{len(lines)} candidates in all, ranked by their exams"


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flat rows that share their keys, such as a figure's data."""
    header = list(rows[0]) if rows else []
    return aligned(header, [["–" if row[key] is None else str(row[key]) for key in header] for row in rows])


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in columns as wide as they need to be."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in [lines[0], "  ".join("─" * width for width in widths), *lines[1:]])
