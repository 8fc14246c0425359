"""Draw accuracy after each phase for a page by the means of `poise report`, on light and dark backgrounds.

    python tools/picture.py OUT.svg 'fine-tuning=RUN' 'poise=RUN,RUN,RUN' 'every photo kept=RUN'

A RUN is a run folder or a saved `result.json`; several of one curve are seeds, shown as their mean, three and more with
a band of ± one standard deviation. The last curve, what the others are compared with, is dashed; of three and more the
first is red.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.report.draw import BAD, GREY, Figure, Panel, paint_line, paint_points, plain_axes
from poise.report.statistics import ENOUGH
from poise.report.study import Style
from poise.runs.record import read_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Curves = Mapping[str, tuple[list[int], list[list[float]]]]  # by name: the classes after each phase, accuracies by run
COLOURS = (BAD, "#3a7fc1", "#2f9e77", "#d2672f")
APART = 7.0  # points between names at the ends of curves


def read(words: list[str]) -> Curves:
    """The curves that are named."""
    found = {}
    for word in words:
        name, _, folders = word.rpartition("=")
        runs, unread = read_runs([Path(folder) for folder in folders.split(",")])
        if unread or not runs:
            raise SystemExit(f"{word}: {unread}")
        found[name] = [phase.classes for phase in runs[0].phases], [[p.accuracy for p in run.phases] for run in runs]
    return found


def paint(drawing: "Drawing", curves: Curves) -> None:
    """Every curve, with its name and last accuracy beside its end."""
    axes = plain_axes(drawing, "classes learned so far", "recognised, %")
    ends = {}
    first = int(len(curves) < 3)
    colours = [*COLOURS[first : first + len(curves) - 1], GREY]
    for (name, (classes, values)), colour in zip(curves.items(), colours, strict=True):
        style = Style(colour, dash=(3.5, 2.0) if colour == GREY else ())
        means, deviations = np.mean(values, axis=0), np.std(values, axis=0, ddof=1) if len(values) > 1 else 0
        places = list(zip(map(float, classes), map(float, means), strict=True))
        paint_line(axes, places, style, 2.4)
        if colour != GREY:
            paint_points(axes, places, style, [f"{name}, {x:.0f} classes: {y:.1f} %" for x, y in places], 6.0)
        if len(values) >= ENOUGH:
            axes.fill_between(classes, means - deviations, means + deviations, color=colour, alpha=0.16, linewidth=0)
        ends[name] = means[-1], colour
    height = float("inf")
    for name, (end, colour) in sorted(ends.items(), key=lambda each: -each[1][0]):
        height = min(end, height - APART)
        look: dict[str, Any] = {"color": colour, "fontsize": 11, "fontweight": "bold", "va": "center"}
        axes.text(classes[-1] * 1.02, height, f"{name} {end:.0f} %", **look)
    axes.set(ylim=(0, 104), xticks=classes)
    axes.set_xlim(right=classes[-1] * 1.42)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("curves", nargs="+", metavar="NAME=RUN,RUN")
    words = parser.parse_args()
    panel = Panel(partial(paint, curves=read(words.curves)), (6.6, 2.7))
    Figure(words.out.stem, "", "", [panel], []).save(words.out)


if __name__ == "__main__":
    main()
