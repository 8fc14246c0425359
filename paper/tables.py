"""Write the tables of the paper's reproduction from the raw results: no figure of ours is typed by hand.

    python paper/tables.py           rewrite the marked blocks of the pages
    python paper/tables.py --check   change nothing; exit 1 if a page is not what the files say

A block begins with `<!-- NAME: paper/tables.py -->` and ends with `<!-- end -->`. The paper's figures and the names of
our runs are in `cells.toml`. To add a run: put its `result.json` into `results/` as `NAME.json` and its journal, packed
by xz, beside it as `NAME.journal.jsonl.xz`; say in `results/runs.jsonl` which command, commit and machine made it; name
it in `cells.toml`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from poise import store

PAPER = Path(__file__).parent
ROOT = PAPER.parent
RESULTS = PAPER / "results"
STREAMS = ("TFH 5", "TFS 5", "TFH 25", "TFS 25")
#: A cell further than this from the paper's deviates.
CLOSE = 1.5
MISSING = "–"
CELLS = tomllib.loads((PAPER / "cells.toml").read_text(encoding="utf-8"))
BLOCK = re.compile(r"(<!-- (?P<name>[\w -]+): paper/tables\.py -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A figure of the paper (0: it has none), and our runs of it, one for each seed, as `cells.toml` has them."""

    paper: float = 0
    runs: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    fixed: float = 0
    unlike: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table: its label, the command of its TFH 5 or what it is, its cells in the order of `STREAMS`."""

    label: str
    command: str
    cells: tuple[Cell, ...]
    accuracy: str = "accuracy"


def rows_of(table: str) -> list[Row]:
    """The rows of a table of `cells.toml`."""
    found = []
    for row in CELLS[table]:
        lists = {name: row[name] for name in ("paper", "runs", "pairs", "fixed", "unlike") if name in row}
        cells = [Cell(**dict(zip(lists, each, strict=True))) for each in zip(*lists.values(), strict=True)]
        found.append(Row(row["label"], row.get("command", ""), tuple(cells), row.get("accuracy", "accuracy")))
    return found


# Rendering ------------------------------------------------------------------------------------------------------------


@cache
def result(run: str) -> dict[str, Any]:
    """A kept result, which is refused where its digest does not fit."""
    return store.read_json(RESULTS / f"cifar100-{run}.json")


def lines_of(name: str) -> list[dict[str, Any]]:
    """The lines of a file of `results/`."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def average(run: str, classifier: str = "accuracy") -> float:
    """Average accuracy over all exams; of an exam without that accuracy, the one that counts."""
    return statistics.fmean(point.get(classifier, point["accuracy"]) for point in result(run)["curve"])


def signed(number: float, digits: int = 1) -> str:
    """A number with its sign, as in `−4.3`.

    >>> signed(-4.31), signed(0.5, 2)
    ('−4.3', '+0.50')
    """
    return f"{number:+.{digits}f}".replace("-", "−")


def spread(values: Sequence[float], form: Callable[[float], str] = "{:.2f}".format) -> str:
    """A mean, and its deviation where there are several seeds."""
    return form(statistics.fmean(values)) + (f"±{statistics.stdev(values):.2f}" if len(values) > 1 else "")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows))


def gains(cell: Cell) -> list[float]:
    """What the runs of a cell gain over their pairs."""
    return [average(run) - average(pair) for run, pair in zip(cell.runs, cell.pairs, strict=True)] if cell.pairs else []


def difference(cell: Cell, classifier: str = "accuracy") -> float | None:
    """Ours minus the paper's, where both are there and can be compared; with pairs, the difference of the gains."""
    if not cell.runs or not cell.paper or cell.unlike:
        return None
    if cell.fixed:
        return statistics.fmean(gains(cell)) - (cell.paper - cell.fixed)
    return statistics.fmean(average(run, classifier) for run in cell.runs) - cell.paper


def show(cell: Cell, classifier: str = "accuracy", *, linked: bool = True, digits: int = 1) -> str:
    """Ours; the gain over its pairs. In brackets the paper's figure; its gain, or ours minus the figure."""
    if not cell.paper and not cell.runs:
        return ""
    shown = spread([average(run, classifier) for run in cell.runs]) if cell.runs else MISSING
    shown = f"[{shown}](results/cifar100-{cell.runs[0]}.json)" if linked and cell.runs else shown
    if cell.pairs:
        shown += f"; {spread(gains(cell), lambda gain: signed(gain, 2))}"
    if not cell.paper:
        return shown
    theirs = f"{cell.paper:.{digits}f}"
    if cell.unlike:
        return f"{shown} (*{theirs}*)"
    if cell.fixed:
        return f"{shown} ({theirs}; {signed(cell.paper - cell.fixed)})"
    off = difference(cell, classifier)
    return f"{shown} ({theirs}" + (f", {signed(off)})" if off is not None else ")")


def verdict(row: Row) -> str:
    """Whether the row reproduces; of a row with another policy than the paper's, whether it gains as much."""
    offs = {stream: difference(cell, row.accuracy) for stream, cell in zip(STREAMS, row.cells, strict=True)}
    found = {stream: off for stream, off in offs.items() if off is not None}
    whole = sum(1 for cell in row.cells if cell.paper and not cell.unlike)
    tuned = any(cell.fixed for cell in row.cells)
    far = [f"{stream} {signed(off)}" for stream, off in found.items() if (off < -CLOSE if tuned else abs(off) > CLOSE)]
    if far:
        return f"**deviates**: {', '.join(far)}"
    if not found:
        return MISSING if not any(cell.paper for cell in row.cells) else "open" if whole else "not comparable"
    return f"{'gains no less' if tuned else 'verified'} ({len(found)} of {whole})"


def accuracies(name: str, head: str = "", *, digits: int = 1) -> str:
    """A table of average accuracies in the four streams."""
    heads, lines = [head, *STREAMS], []
    rows = rows_of(name)
    judged, told = any(cell.paper for row in rows for cell in row.cells), any(row.command for row in rows)
    for row in rows:
        command = f"`{row.command}`" if row.command.startswith("poise") else row.command
        more = [*([verdict(row)] if judged else []), *([command] if told else [])]
        lines.append([row.label, *(show(cell, row.accuracy, digits=digits) for cell in row.cells), *more])
    return table([*heads, *(["state"] if judged else []), *(["command"] if told else [])], lines)


def summary() -> str:
    """How many of the cells that can be compared are close, and what LUCIR gains from `online`."""
    tuned = next(row for row in rows_of("table-1") if row.label == "LUCIR + `online`")
    gained = [
        f"{stream} {signed(statistics.fmean(gains(cell)))} ({signed(cell.paper - cell.fixed)})"
        for stream, cell in zip(STREAMS, tuned.cells, strict=True)
    ]
    own = [row for row in rows_of("table-1") if not any(cell.fixed for cell in row.cells)]
    offs = [
        (abs(off), f"{row.label}, {stream}: {signed(off)}")
        for row in own
        for stream, cell in zip(STREAMS, row.cells, strict=True)
        if (off := difference(cell, row.accuracy)) is not None
    ]
    close = sum(off <= CLOSE for off, _ in offs)
    return (
        f"Of {len(offs)} cells of methods with their own settings that can be compared with the paper, {close} are "
        f"within {CLOSE} points of it; the furthest is {max(offs)[1]}.\n\n"
        "What LUCIR gains from `online`, poise's own policy, and in brackets from the paper's: "
        + ", ".join(gained)
        + "."
    )


def times() -> str:
    """Table S2, from `notes/cifar100-times.json` (`benchmarks/job.py`) where it is there."""
    file = PAPER / "notes" / "cifar100-times.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def minutes(policy: str) -> str:
        if policy not in known:
            return MISSING
        first, own = known["fixed"]["phases"][0], known[policy]["phases"][-1]
        return f"{(first + 5 * own) / 60:.1f} min"

    hours = {label: (minutes(row.get("key", "")), row["paper"]) for label, row in CELLS["hours"].items()}
    rows = ([label, ours, f"{paper:g} h", f"{paper / hours['fixed'][1]:.2f}"] for label, (ours, paper) in hours.items())
    return table(["", "ours", "paper (one V100)", "paper, to fixed"], rows)


def imagenet() -> str:
    """The cells on ImageNet, none of which was run: the paper's figures, and the hours of TFH 5."""
    rows = []
    for row in CELLS["imagenet"]:
        images, classes = (128_856, 100) if "subset" in row["command"] else (1_281_167, 1000)
        epochs = 250 if "der" in row["command"] else 300 if "foster" in row["command"] else 90
        hours = (images + 5 * 14 * classes) * epochs / row["rate"] / 3600  # of 20 images a class, 14 on average
        shown = [f"{figure:.1f}" for figure in row["paper"]]
        if tuned := row.get("online"):
            shown = [f"{one} → {figure:.1f}" for one, figure in zip(shown, tuned, strict=True)]
        took = f"{hours:.0f} → {2 * hours:.0f}" if tuned else f"{hours:.0f}"
        rows.append([f"`{row['command']}`", *shown, *[""] * (4 - len(shown)), took])
    return table(["command", *STREAMS, "hours"], rows)


def development() -> str:
    """AANets on the development exam, order 11: accuracy after each phase, and the share taken for newest classes."""
    known = {line["folder"]: line["exams"] for line in lines_of("dev-2026-11-18.jsonl")}
    rows = []
    for label, name in CELLS["aanets"].items():
        found = [known.get(f"dev2-aanets-{setting}-{name}", []) for setting in ("tfs", "tfh")]
        curves = [" ".join(f"{exam['fc']:.2f}" for exam in exams) or MISSING for exams in found]
        shares = [" ".join(f"{exam['predicted_new']:.0f}" for exam in exams[1:]) or MISSING for exams in found]
        rows.append([label, curves[0], shares[0], curves[1], shares[1]])
    heads = ["", "TFS 5, phases 0 1 2", "taken for newest, % (true: 50 33)", "TFH 5, phases 0 1", "taken for newest, %"]
    return table([*heads[:4], f"{heads[4]} (true: 17)"], rows)


def augmentation() -> str:
    """LUCIR with stronger augmentation on the development exam, order 11."""
    known = {line["folder"]: line["exams"] for line in lines_of("dev-2026-11-18.jsonl")}
    rows = [
        [label, " ".join(f"{exam['fc']:.1f}" for exam in known[f"dev-lucir-tfs-strong{end}"])]
        for label, end in (("LUCIR", ""), ("LUCIR + `online`", "-online"))
    ]
    return table(["AutoAugment and Cutout", "TFS 5, phases 0 1 2"], rows)


def begun() -> str:
    """What runs had reached that were stopped: their state was kept by code that has changed since."""
    rows = (
        [
            line["folder"],
            " ".join(f"{exam['fc']:.2f}" for exam in line["exams"]),
            line["commit"],
            f"`{line['command']}`",
        ]
        for line in lines_of("begun-2026-11-17.jsonl")
    )
    return table(["stopped run", "accuracy after each phase (FC)", "commit", "command"], rows)


def every_run() -> str:
    """Every kept run of the test exam: its file, average, seed, commit, machine and command."""
    rows = []
    for line in lines_of("runs.jsonl"):
        name = line["run"].removeprefix("cifar100-")
        file = f"[{name}](../results/{line['run']}.json)"
        own = [file, f"{average(name):.2f}", str(result(name)["seed"]), line["commit"], line["date"], line["machine"]]
        rows.append([*own, f"`{line['command']}`"])
    return table(["run", "average", "seed", "commit", "date", "machine", "command"], rows)


def front() -> str:
    """The table of the README: six rows in two streams, ours beside the paper's, with the gains of a policy."""

    def pair(cell: Cell) -> list[str]:
        ours = spread([average(run) for run in cell.runs])
        if not cell.pairs:
            return [ours, f"{cell.paper:.1f}"]
        gain = signed(statistics.fmean(gains(cell)))
        return [f"{ours} ({gain})", f"{cell.paper:.1f} ({signed(cell.paper - cell.fixed)})"]

    rows = {row.label: row for row in rows_of("table-1")}
    shown = ("iCaRL", "LUCIR", "LUCIR + `online`", "PODNet", "AANets", "RMM, causal rule")
    heads = [head for stream in STREAMS[:2] for head in (stream, "paper")]
    return table(
        ["", *heads], ([label, *(each for cell in rows[label].cells[:2] for each in pair(cell))] for label in shown)
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "summary": summary,
    "table 1": lambda: accuracies("table-1"),
    "table 2": imagenet,
    "table 3": lambda: accuracies("table-3", "LUCIR, tuned", digits=2),
    "table S1": lambda: accuracies("table-S1", "every … phases", digits=2),
    "table S2": times,
    "constants": lambda: accuracies("constants"),
    "augmentation": augmentation,
    "development": development,
    "begun": begun,
    "runs": every_run,
    "front": front,
}
PAGES = (ROOT / "README.md", PAPER / "README.md", *sorted((PAPER / "notes").glob("*.md")))


def fill(text: str) -> str:
    """A page with its blocks as the files say."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found['name']]()}\n{found[3]}", text)


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check, code = parser.parse_args(words).check, 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            print(f"{page} {'is not what the files say' if check else 'was refreshed'}")
            code = int(check)
            if not check:
                page.write_text(filled, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
