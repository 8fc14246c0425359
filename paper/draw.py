"""Draw Figures 1 and 5 of the paper from the runs of Table 1, into `figures/`: nothing in them is typed by hand.

python paper/draw.py [--out paper/figures]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.report.draw import GREY, Figure, Panel, paint_line, paint_points
from poise.report.study import Style
from tables import PAPER, STREAMS, Cell, average, result, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

BLUE = "#3a7fc1"
TUNED = "LUCIR + `online`"
SHOWN = ("iCaRL", "PODNet", "DER", "LUCIR", TUNED, "AANets", "RMM, causal rule")
#: The axes of an action whose values change, by the paper's letter or a name, and what a word of theirs counts.
AXES = {"feature_kd": "γ, distillation of features", "lr": "λ, learning rate", "margin": "margin"}
AXES |= {"old_rows": "old rows frozen", "adjustment": "adjustment"}
WORDS = {"frozen": 1.0, "trained": 0.0}


def mean(cell: Cell) -> float:
    """The mean of a cell over its seeds."""
    return sum(map(average, cell.runs)) / len(cell.runs)


def paint_plane(drawing: Drawing) -> None:
    """Every method by its accuracy in TFS and in TFH, with 5 and with 25 phases; an arrow is the policy's gain."""
    rows = {row.label: row.cells for row in rows_of("table-1") if row.label in SHOWN}
    for place in (0, 1):
        tfh, tfs = 2 * place, 2 * place + 1
        found = {
            label: (mean(cells[tfs]), mean(cells[tfh]))
            for label, cells in rows.items()
            if cells[tfs].runs and cells[tfh].runs
        }
        axes = drawing.add_subplot(1, 2, place + 1)
        axes.grid(alpha=0.25, color=GREY, linewidth=0.6)
        axes.set(title=f"{(5, 25)[place]} phases", xlabel="average accuracy in TFS, %", ylabel="in TFH, %")
        for label, (x, y) in found.items():
            style = Style(BLUE if "LUCIR" in label else GREY, hollow="online" not in label)
            paint_points(axes, [(x, y)], style, [f"{label}: TFS {x:.2f}, TFH {y:.2f} %"], 7)
            name: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": style.colour}
            axes.annotate(label.replace("`", ""), (x, y), (7, -12 if label == "LUCIR" else 5), **name)
        start, end = found["LUCIR"], found[TUNED]
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": BLUE, "shrinkA": 5, "shrinkB": 5})
        axes.margins(0.25)


def paint_values(drawing: Drawing) -> None:
    """What `online` chose in each phase of TFH 25 and of TFS 25."""
    (cells,) = (row.cells for row in rows_of("table-1") if row.label == TUNED)
    for column, place in enumerate((2, 3)):
        actions = [point["action"] for point in result(cells[place].runs[0])["curve"]][1:]
        for line, (axis, name) in enumerate(AXES.items()):
            axes = drawing.add_subplot(len(AXES), 2, 2 * line + column + 1)
            axes.grid(axis="y", alpha=0.25, color=GREY, linewidth=0.6)
            values = [float(WORDS.get(action[axis], action[axis])) for action in actions]
            chosen = list(zip(map(float, range(1, len(values) + 1)), values, strict=True))
            paint_line(axes, chosen, Style(BLUE), 1.0)
            paint_points(axes, chosen, Style(BLUE), [f"phase {x:.0f}: {y:g}" for x, y in chosen], 3.5)
            axes.set_title(f"{name}, {STREAMS[place]}", fontsize=9)
            axes.set_ylim(-0.08 * (top := 0.1 if axis == "lr" else 1.0), 1.08 * top)
        axes.set_xlabel("phase")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAPER / "figures")
    out = parser.parse_args().out
    for name, paint, size in (("figure-1", paint_plane, (8.4, 3.4)), ("figure-5", paint_values, (8.4, 7.0))):
        Figure(name, "", "", [Panel(paint, size)], []).save(out / f"{name}.svg")


if __name__ == "__main__":
    main()
