"""The figures of a report, drawn from the journals of runs: only what was run, and no spread of fewer than three seeds.

Each figure is about one data set and exam, and what is of single runs about one stream too. The numbers are those of
`poise.report.series`; here they are only laid out. One colour stands for one method everywhere; dashed lines and hollow
marks are a method's own hyperparameters, solid ones a policy's.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from poise.report import series
from poise.report.drawing import GREY, Figure, method_colours, panels, ramp
from poise.report.rows import Stream, rows_of
from poise.report.runs import Run
from poise.report.series import LETTERS, PLANE_SPAN, Rows, Value
from poise.report.statistics import ENOUGH, Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.patches import Ellipse

MARKS: Final = "osD^vPX*"
LINES: Final = ("-", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
SEEDS: Final = f"over seeds, shown where there are at least {ENOUGH}"
MOST: Final = 6  # rows of a figure of single runs, over all streams
ONE_RUN: Final = f"Of several seeds the lowest is shown, and at most {MOST} rows over all streams"

Row = Mapping[str, Value]
Home = tuple[str, str]  # data set and exam


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Every figure that these runs can fill."""
    homes: dict[Home, list[Run]] = {}
    for run in runs:
        homes.setdefault((run.data, run.exam), []).append(run)
    return [figure for home in sorted(homes) for figure in _of_home(home, homes[home])]


def _of_home(home: Home, runs: Sequence[Run]) -> Iterator[Figure]:
    where = home[0] if home[1] == "test" else f"{home[0]}, {home[1]} exam"
    styles = _styles(runs)
    compared = [
        ("accuracy", "Accuracy after each phase", series.accuracy(runs), ACCURACY, _accuracy),
        ("plane", "TFH against TFS", series.plane(runs), PLANE, _plane),
        ("values", "Chosen values along the phases", series.values(runs), VALUES, _values),
        ("forgetting", "Forgetting", series.forgetting(runs), FORGETTING, _forgetting),
    ]
    for name, title, data, caption, drawn in compared:
        if data:
            yield _figure(name, f"{title} ({where})", caption, data, partial(drawn, styles=styles), home)
    streams = _single_runs(runs)
    for stream, chosen in streams.items():
        for name, title, rows, caption, draw in (
            ("chances", "The policy over its actions", series.chances, CHANCES, _chances),
            ("rewards", "Rewards of all trials", series.rewards, REWARDS, _rewards),
            ("classes", "Accuracy by class after the last phase", series.classes, CLASSES, _classes),
            ("confusion", "Confusion after the last phase", series.confusion, CONFUSION, _confusion),
        ):
            filled = ((label, made) for label, run in chosen.items() if (made := rows(run)))
            shown = itertools.islice(filled, max(1, MOST // len(streams)))
            found = [{"row": label, **row} for label, made in shown for row in made]
            if found:
                heading = f"{title} ({where}, {stream})"
                yield _figure(name, heading, caption, found, partial(draw, styles=styles), home, str(stream))


def _figure(
    name: str, title: str, caption: str, data: Rows, drawn: Callable[[Rows], Drawing], home: Home, stream: str = ""
) -> Figure:
    words = [name, home[0], "" if home[1] == "test" else home[1], stream]
    slug = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
    return Figure(slug, title, caption, data, partial(drawn, data))


def _single_runs(runs: Sequence[Run]) -> dict[Stream, dict[str, Run]]:
    """By stream and row, the examined run of the lowest seed."""
    found: dict[Stream, dict[str, Run]] = {}
    for row in rows_of(runs):
        for stream, group in row.cells.items():
            examined = [run for run in group if run.phases]
            if examined:
                found.setdefault(stream, {})[row.label] = min(examined, key=lambda run: run.seed)
    return dict(sorted(found.items()))


# How a row looks everywhere -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """Colour, line and mark of a row."""

    colour: str
    line: str | tuple[int, tuple[int, ...]]
    mark: str
    hollow: bool

    def plot(self, axes: Axes, x: Sequence[float], y: Sequence[float], label: str | None = None) -> None:
        """A curve with marks."""
        face = "none" if self.hollow else self.colour
        axes.plot(x, y, color=self.colour, linestyle=self.line, marker=self.mark, ms=4.5, mfc=face, label=label)

    def point(self, axes: Axes, x: float, y: float, size: float, label: str | None = None, alpha: float = 1.0) -> None:
        """A mark alone."""
        face = "none" if self.hollow else self.colour
        axes.plot(
            [x], [y], linestyle="none", color=self.colour, marker=self.mark, ms=size, mfc=face, alpha=alpha, label=label
        )


Styles = Mapping[str, Style]


def _styles(runs: Sequence[Run]) -> dict[str, Style]:
    """Colours by method, lines and marks by policy; rows that share both take the next free mark."""
    rows = rows_of(runs)
    colours = method_colours([row.first.method for row in rows])
    policies = sorted(
        {row.first.policy_label for row in rows if not row.first.fixed}, key=lambda name: name != "online"
    )
    found: dict[str, Style] = {}
    for row in rows:
        colour, fixed = colours[row.first.method], row.first.fixed
        place = 0 if fixed else policies.index(row.first.policy_label)
        taken = {style.mark for style in found.values() if style.colour == colour and style.hollow == fixed}
        marks = [*MARKS[place:], *MARKS[:place]]
        mark = next((mark for mark in marks if mark not in taken), marks[0])
        found[row.label] = Style(colour, "--" if fixed else LINES[place % len(LINES)], mark, fixed)
    return found


# Curves over phases ---------------------------------------------------------------------------------------------------


ACCURACY: Final = (
    "Accuracy on all classes seen so far, by the classifier that counts; means over seeds. "
    f"Bands are ± one standard deviation {SEEDS}."
)
FORGETTING: Final = (
    "By the phase in which classes arrived: their best accuracy in an exam before the last one, minus that in the "
    f"last; means over seeds of finished runs. Bands are ± one standard deviation {SEEDS}. Below 0 nothing was "
    "forgotten."
)


def _accuracy(data: Rows, styles: Styles) -> Drawing:
    return _curves(data, styles, ("classes", "classes seen"), ("mean", "accuracy in %"))


def _forgetting(data: Rows, styles: Styles) -> Drawing:
    across = ("phase", "phase in which classes arrived")
    return _curves(data, styles, across, ("forgetting", "forgetting in points"))


def _curves(data: Rows, styles: Styles, across: tuple[str, str], up: tuple[str, str]) -> Drawing:
    """A panel for each stream, a curve for each row; `across` and `up` are columns of the data, with words for them."""
    settings = _in_order(data, "setting")
    drawing, (line,) = panels(1, len(settings), 3.9, 3.1)
    for axes, setting in zip(line, settings, strict=True):
        for label, points in _grouped([row for row in data if row["setting"] == setting], "row").items():
            x, y = _column(points, across[0]), _column(points, up[0])
            styles[label].plot(axes, x.tolist(), y.tolist(), label)
            off = np.where(_column(points, "seeds") >= ENOUGH, _column(points, "deviation"), np.nan)
            if np.isfinite(off).any():
                axes.fill_between(x, y - off, y + off, color=styles[label].colour, alpha=0.16, linewidth=0)
        _whole(axes)
        _dress(axes, setting, across[1])
    line[0].set_ylabel(up[1])
    _level(line)
    _legend(drawing, line)
    return drawing


# Figure 1 -------------------------------------------------------------------------------------------------------------

PLANE: Final = (
    "Average accuracy in TFS and in TFH: on the dotted line both are equal. A large mark is the mean over the seeds "
    "that have both, small ones are the seeds; arrows lead from a method's own hyperparameters to a policy's. "
    f"Half-axes of ellipses are the 95 % intervals of the two means by Student's t {SEEDS}."
)


def _plane(data: Rows, styles: Styles) -> Drawing:
    counts = sorted({int(_number(row, "phases")) for row in data})
    drawing, (line,) = panels(1, len(counts), 4.2, 3.9)
    for axes, phases in zip(line, counts, strict=True):
        means: dict[str, tuple[Spread, Spread]] = {}
        methods: dict[str, str] = {}
        for label, points in _grouped([row for row in data if row["phases"] == phases], "row").items():
            style, methods[label] = styles[label], str(points[0]["method"])
            tfs, tfh = (spread(_column(points, setting).tolist()) for setting in ("tfs", "tfh"))
            means[label] = tfs, tfh
            if len(points) > 1:
                for x, y in zip(tfs.values, tfh.values, strict=True):
                    style.point(axes, x, y, 3, alpha=0.45)
            if tfs.count >= ENOUGH:
                axes.add_patch(_ellipse(tfs, tfh, style.colour))
            style.point(axes, tfs.mean, tfh.mean, 9, label)
        _arrows(axes, means, methods, styles)
        axes.set(xlim=_stretched(*axes.get_xlim()), ylim=_stretched(*axes.get_ylim()))
        axes.axline((float(np.mean(axes.get_xlim())),) * 2, slope=1, color=GREY, linestyle=":", linewidth=1, zorder=0)
        _dress(axes, f"{phases} phases", "average accuracy in TFS, %")
        axes.grid(alpha=0.18, color=GREY, linewidth=0.6)
    line[0].set_ylabel("average accuracy in TFH, %")
    _legend(drawing, line)
    return drawing


def _ellipse(tfs: Spread, tfh: Spread, colour: str) -> Ellipse:
    from matplotlib.patches import Ellipse

    (left, right), (low, high) = tfs.interval(), tfh.interval()
    return Ellipse((tfs.mean, tfh.mean), right - left, high - low, facecolor=colour, alpha=0.13, linewidth=0)


def _arrows(axes: Axes, means: Mapping[str, tuple[Spread, Spread]], methods: Mapping[str, str], styles: Styles) -> None:
    own = {methods[label]: label for label in means if styles[label].hollow}
    for label in means:
        start = own.get(methods[label])
        if start is not None and start != label:
            begin, end = ((tfs.mean, tfh.mean) for tfs, tfh in (means[start], means[label]))
            look = {"arrowstyle": "-|>", "color": styles[label].colour, "alpha": 0.6, "shrinkA": 6, "shrinkB": 6}
            axes.annotate("", end, begin, arrowprops=look)


# Figure 5 -------------------------------------------------------------------------------------------------------------

VALUES: Final = (
    "What policies chose in each phase, means over seeds: thin as it was, thick smoothed at 0.8 as in the paper "
    "(nothing is chosen in phase 0). β weighs logit and γ feature distillation, λ is the learning rate; δ is the "
    "classifier that counted, as the share of seeds in which it was NCM."
)


def _values(data: Rows, styles: Styles) -> Drawing:
    settings, names = _in_order(data, "setting"), sorted(_in_order(data, "axis"), key=series.rank)
    drawing, grid = panels(len(names), len(settings), 3.9, 1.5)
    for line, axis in zip(grid, names, strict=True):
        for axes, setting in zip(line, settings, strict=True):
            here = [row for row in data if row["setting"] == setting and row["axis"] == axis]
            for label, points in _grouped(here, "row").items():
                x, colour, kind = _column(points, "phase"), styles[label].colour, styles[label].line
                axes.plot(x, _column(points, "value"), color=colour, alpha=0.45, linewidth=0.9, marker=".", ms=3)
                axes.plot(
                    x, _column(points, "smoothed"), color=colour, linestyle=kind, alpha=0.85, linewidth=2.2, label=label
                )
            _whole(axes)
            _dress(axes, setting if line is grid[0] else "", "phase" if line is grid[-1] else "")
            if axis == "classifier":
                axes.set_yticks([0, 1], ["FC", "NCM"])
                axes.set_ylim(-0.1, 1.1)
        line[0].set_ylabel(LETTERS.get(axis, "") or axis.replace("_", " "), rotation=0, ha="right", va="center")
        _level(line)
    _legend(drawing, [axes for line in grid for axes in line])
    return drawing


# A policy and its trials ----------------------------------------------------------------------------------------------

CHANCES: Final = (
    "Every action of the space in every tuned phase. Where the policy keeps a distribution, a stronger colour is a "
    "higher probability when it decided; where it keeps none, a higher mean reward of the action's longest trials, "
    f"and what was not tried is blank. A ring marks the action that the phase was trained with. {ONE_RUN}."
)


def _chances(data: Rows, styles: Styles) -> Drawing:
    groups = _grouped(data, "row")
    heights = [0.9 + 0.15 * len(_grouped(found, "place")) for found in groups.values()]
    drawing, grid = panels(len(groups), 1, 6.4, heights)
    for (axes,), (label, points) in zip(grid, groups.items(), strict=True):
        phases, arms = _in_order(points, "phase"), _in_order(points, "action")
        known = any(row["probability"] is not None for row in points)
        table = np.full((len(arms), len(phases)), np.nan)
        for row in points:
            place = int(_number(row, "place")), phases.index(str(row["phase"]))
            table[place] = _number(row, "probability" if known else "reward")
        decided = [(phases.index(str(row["phase"])), _number(row, "place")) for row in points if row["decided"]]
        low, high = 0.0 if known else _least(table), _least(-table) * -1
        axes.imshow(table, aspect="auto", cmap=ramp(styles[label].colour), interpolation="nearest", vmin=low, vmax=high)
        if decided:
            across, up = zip(*decided, strict=True)
            axes.scatter(across, up, s=34, facecolors="none", edgecolors=GREY, linewidths=1.6)
        axes.set_xticks(range(len(phases)), phases)
        axes.set_yticks(range(len(arms)), [series.in_letters(arm) for arm in arms], fontsize=7)
        what = "probability" if known else "mean reward"
        scale = f"{what}, palest {low:.2f}, strongest {high:.2f}"  # a bar beside every panel would cost more than it
        if np.isnan(table).all():
            scale = "what was decided; the trials are in the journal"
        _dress(axes, f"{label}\n{scale}", "phase", grid=False)
    return drawing


def _least(table: NDArray[np.float64]) -> float:
    return float(np.nanmin(table)) if np.isfinite(table).any() else 0.0


REWARDS: Final = (
    "The reward of every trial (accuracy on images held out of the phase's training images), in the order in which "
    "they were run. Darker marks are longer trials, large ones of full length; crosses diverged, and diamonds only "
    "judged which classifier should count. Bars are the means of a phase's longest trials of actions. "
    f"Rewards of different phases judge different classes. {ONE_RUN}."
)


def _rewards(data: Rows, styles: Styles) -> Drawing:
    groups = _grouped(data, "row")
    drawing, grid = panels(len(groups), 1, 7.6, 2.3)
    for (axes,), (label, points) in zip(grid, groups.items(), strict=True):
        _scattered(axes, points, styles[label].colour)
        for phase, tried in _grouped(points, "phase").items():
            places, actions = _column(tried, "trial"), [row for row in tried if row["purpose"] == "action"]
            longest = max(map(_length, actions), default=None)
            if longest is not None:
                mean = float(np.mean([_number(row, "reward") for row in actions if _length(row) == longest]))
                axes.hlines(mean, places.min() - 0.4, places.max() + 0.4, color=GREY, linewidth=1.2)
            axes.axvline(places.min() - 0.5, color=GREY, alpha=0.35, linewidth=0.8)
            axes.text(places.min(), 1.01, phase, transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
        axes.text(0, 1.01, "phase ", transform=axes.transAxes, fontsize=7, va="bottom", ha="right")
        axes.margins(x=0.01)
        _dress(axes, label, "trial")
        axes.set_title(label, y=1, pad=14)
        axes.set_ylabel("reward")
    return drawing


def _scattered(axes: Axes, points: Sequence[Row], colour: str) -> None:
    """A mark for each trial, darker the longer it was."""
    from matplotlib.colors import to_rgba

    furthest = max(length for _, length in map(_length, points))
    shades = np.array([0.3 + 0.6 * length / max(1, furthest) for _, length in map(_length, points)])
    sizes = np.where(_column(points, "full") > 0, 34.0, 13.0)
    diverged = _column(points, "diverged") > 0
    judged = np.array([row["purpose"] == "classifier" for row in points])
    x, y = _column(points, "trial"), _column(points, "reward")
    for which, mark in ((~diverged & ~judged, "o"), (~diverged & judged, "D"), (diverged, "x")):
        if which.any():
            colours = [to_rgba(colour, shade) for shade in shades[which]]
            marks = axes.scatter(x[which], y[which], s=sizes[which], marker=mark, color=colours)
            if mark == "D":
                marks.set_facecolor("none")


def _length(row: Row) -> tuple[int, int]:
    return int(_number(row, "full")), int(_number(row, "epochs"))


# Classes --------------------------------------------------------------------------------------------------------------

CLASSES: Final = (
    "Accuracy of the classifier that counts on each class after the last examined phase, classes in the order in which "
    f"they came; lines part the phases. {ONE_RUN}."
)


def _classes(data: Rows, styles: Styles) -> Drawing:
    groups = _grouped(data, "row")
    count = max(len(points) for points in groups.values())
    drawing, ((axes,),) = panels(1, 1, min(12.0, 4.5 + 0.08 * count), 3.2)
    for label, points in groups.items():
        styles[label].plot(axes, _column(points, "place").tolist(), _column(points, "accuracy").tolist(), label)
    points = max(groups.values(), key=len)
    for before, row in itertools.pairwise(points):
        if before["phase"] != row["phase"]:
            axes.axvline(_number(row, "place") - 0.5, color=GREY, alpha=0.35, linewidth=0.8)
    _name_classes(axes.set_xticks, points)
    _dress(axes, "", "classes, first to last")
    axes.set_ylabel("accuracy in %")
    _legend(drawing, [axes])
    return drawing


CONFUSION: Final = (
    "Of the exam images of each class (rows), the share that was taken for each class (columns) after the last "
    "examined phase, by the classifier that counts; classes in the order in which they came. What lies left of the "
    f"diagonal was taken for an older class, right of it for a newer one. {ONE_RUN}."
)


def _confusion(data: Rows, styles: Styles) -> Drawing:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    groups = _grouped(data, "row")
    columns = min(3, len(groups))
    drawing, grid = panels(math.ceil(len(groups) / columns), columns, 3.2, 3.2)
    cells = [axes for line in grid for axes in line]
    for axes in cells[len(groups) :]:
        axes.remove()
    for axes, (label, points) in zip(cells, groups.items(), strict=False):
        size = 1 + max(int(_number(row, key)) for row in points for key in ("true", "predicted"))
        table = np.zeros((size, size))
        for row in points:
            table[int(_number(row, "true")), int(_number(row, "predicted"))] = _number(row, "images")
        table /= np.maximum(1, table.sum(axis=1, keepdims=True))
        axes.imshow(table, cmap=ramp(styles[label].colour), vmin=0, vmax=1, interpolation="nearest")
        named = [{"place": row["true"], "name": row["true_name"]} for row in points]
        _name_classes(axes.set_xticks, named)
        _name_classes(axes.set_yticks, named)
        _dress(axes, label, "predicted", grid=False)
        axes.set_ylabel("true class")
    scale = ScalarMappable(Normalize(0, 1), ramp(GREY))
    bar = drawing.colorbar(scale, ax=cells[: len(groups)], shrink=0.6, pad=0.02, aspect=25)
    bar.set_label("share of the class")
    bar.outline.set_visible(False)
    return drawing


def _name_classes(ticks: Callable[[list[int], list[str]], object], points: Sequence[Row]) -> None:
    """Names where they fit; else matplotlib numbers the places."""
    names = {int(_number(row, "place")): str(row["name"]) for row in points}
    if len(names) <= 12 and sum(map(len, names.values())) <= 60:
        ticks(list(names), list(names.values()))


# Small parts ----------------------------------------------------------------------------------------------------------


def _dress(axes: Axes, title: str, horizontal: str, grid: bool = True) -> None:
    axes.set_title(title, y=1)  # where it is, without a look at what else is there
    axes.set_xlabel(horizontal)
    if grid:
        axes.grid(axis="y", alpha=0.25, color=GREY, linewidth=0.6)
        axes.set_axisbelow(True)


def _whole(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _stretched(low: float, high: float) -> tuple[float, float]:
    """The range, or as long a one as it takes for a tenth of a point to look small."""
    room = max(0.0, PLANE_SPAN - (high - low)) / 2
    return low - room, high + room


def _level(line: Sequence[Axes]) -> None:
    """The same vertical range in all panels of a line."""
    low = min(axes.get_ylim()[0] for axes in line)
    high = max(axes.get_ylim()[1] for axes in line)
    for axes in line:
        axes.set_ylim(low, high)


def _legend(drawing: Drawing, line: Sequence[Axes]) -> None:
    """One legend below all panels."""
    found: dict[str, Any] = {}
    for axes in line:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = max(1, min(len(found), int(drawing.get_size_inches()[0] // 1.9)))
    drawing.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def _grouped(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row[key]), []).append(row)
    return found


def _in_order(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows))


def _column(rows: Sequence[Row], key: str) -> NDArray[np.float64]:
    return np.array([_number(row, key) for row in rows])


def _number(row: Row, key: str) -> float:
    value = row[key]
    return math.nan if value is None else float(value)
