"""The figures that compare configurations: curves over phases, the paper's Figures 1 and 5, and gains of policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from poise.report.comparisons import comparisons, rankings
from poise.report.figures import numbers
from poise.report.figures.description import (
    BAD,
    GOOD,
    GREY,
    Band,
    Ellipse,
    Figure,
    Line,
    Mark,
    Panel,
    Place,
    Row,
    Rows,
    Rule,
    Scale,
    Style,
)
from poise.report.figures.numbers import LETTERS, split_by
from poise.report.figures.styles import Styles
from poise.report.reading import RunRecord, baselines, configurations
from poise.report.statistics import ENOUGH, Spread, spread
from poise.report.tables.table import with_sign
from poise.words import counted

#: The minimum range, in points of accuracy, of the TFH–TFS plane: a tenth of a point must look small.
PLANE_SPAN: Final = 4.0
SEEDS: Final = f"over seeds, shown where there are at least {ENOUGH}"
ACCURACY: Final = (
    "Accuracy on all classes seen so far, by the classifier that counts; means over seeds. "
    f"Bands are ± one standard deviation {SEEDS}."
)
FORGETTING: Final = (
    "By the phase in which classes arrived: their best accuracy in an exam before the last one, minus that in the "
    f"last; means over seeds of finished runs. Bands are ± one standard deviation {SEEDS}. Below 0 nothing was "
    "forgotten."
)
PLANE: Final = (
    "Average accuracy in TFS and in TFH, as in the paper's Figure 1: on the dotted line both are equal. A large mark "
    "is the mean over the seeds that have both, small ones are the seeds; arrows lead from a method's own "
    "hyperparameters to a policy's. Half-axes of ellipses are the 95 % intervals of the two means by Student's t "
    f"{SEEDS}."
)
VALUES: Final = (
    "What policies chose in each phase, as in the paper's Figure 5, means over seeds: thin as it was, thick smoothed "
    "at 0.8 (nothing is chosen in phase 0). β weighs logit and γ feature distillation, λ is the learning rate; δ is "
    "the classifier that counted, as the share of seeds in which it was NCM."
)
GAINS: Final = (
    "Large marks: mean difference in average accuracy to the same method with its own hyperparameters, paired by seed; "
    "lines: its 95 % interval (Student's t over seeds); small circles: single seeds. Coloured only with at least "
    f"{ENOUGH} paired seeds and an interval without zero; one in twenty such intervals misses by chance. "
    "Hollow diamonds: the part of the difference that the choice of the classifier brings, which is what the method's "
    "own networks gain when they are read with the classifiers that the policy used."
)
RANKING: Final = (
    "Large marks: average accuracy over the exams after every phase, mean over seeds; lines: its 95 % interval "
    f"(Student's t over seeds), shown where there are at least {ENOUGH}; small circles: single seeds."
)

Tip = Callable[[str, Row], str]


def compared_figures(runs: Sequence[RunRecord], styles: Styles) -> list[Figure]:
    """The figures that these runs, all of one data set and exam, have data for."""
    return [
        figure
        for figure in (
            _make_accuracy(numbers.accuracy(runs), styles),
            _make_plane(numbers.plane(runs), styles, runs),
            _make_values(numbers.values(runs), styles),
            _make_forgetting(numbers.forgetting(runs), styles),
        )
        if figure.data
    ]


# Curves over phases ---------------------------------------------------------------------------------------------------


def _make_accuracy(rows: Rows, styles: Styles) -> Figure:
    panels = _curves(rows, styles, ("classes", "classes seen"), ("mean", "accuracy in %"), _accuracy_tip)
    legend = _legend(rows, styles)
    return Figure("accuracy", "Accuracy after each phase", ACCURACY, panels, rows, len(panels), legend)


def _make_forgetting(rows: Rows, styles: Styles) -> Figure:
    across = ("phase", "phase in which classes arrived")
    panels = _curves(rows, styles, across, ("forgetting", "forgetting in points"), _forgetting_tip)
    return Figure("forgetting", "Forgetting", FORGETTING, panels, rows, len(panels), _legend(rows, styles))


def _accuracy_tip(label: str, row: Row) -> str:
    words = f"{label}, phase {row['phase']} ({row['classes']} classes): {row['mean']:.2f} %"
    if row["seeds"] > 1:
        words += f" ({row['low']:.2f} to {row['high']:.2f}, {row['seeds']} seeds)"
    return words


def _forgetting_tip(label: str, row: Row) -> str:
    parts = f"best {row['best']:.2f} %, at the end {row['final']:.2f} %, lost {row['forgetting']:.2f}"
    return f"{label}, classes of phase {row['phase']}: {parts}"


def _curves(rows: Rows, styles: Styles, across: tuple[str, str], up: tuple[str, str], tip: Tip) -> list[Panel]:
    """A panel for each stream, a curve for each row; `across` and `up` name the columns to plot, with labels."""
    y = Scale.spanning(up[1], (end for row in rows for end in _reach(row, across[0], up[0])[1:]))
    panels = []
    for setting, inside in split_by(rows, "setting").items():
        bands, lines, marks = [], [], []
        for label, points in split_by(inside, "row").items():
            style = styles[label]
            places = [(row[across[0]], row[up[0]]) for row in points]
            lines.append(Line(places, style))
            marks += [Mark(*place, style, tip(label, row)) for place, row in zip(places, points, strict=True)]
            wide = [_reach(row, across[0], up[0]) for row in points if row["seeds"] >= ENOUGH]
            bands += [Band(wide, style.colour)] if wide else []
        x = Scale.spanning(across[1], (row[across[0]] for row in inside), whole=True)
        panels.append(Panel(setting, x, y, bands=bands, lines=lines, marks=marks))
    return panels


def _reach(row: Row, across: str, up: str) -> tuple[float, float, float]:
    """A point and the ends of its band."""
    off = row["deviation"] if row["seeds"] >= ENOUGH else 0.0
    return row[across], row[up] - off, row[up] + off


# Figure 1 -------------------------------------------------------------------------------------------------------------


def _make_plane(rows: Rows, styles: Styles, runs: Sequence[RunRecord]) -> Figure:
    against = {label: row.label for label, row in baselines(configurations(runs)).items()}
    panels = [
        _plane_panel(f"{phases} phases", inside, styles, against) for phases, inside in split_by(rows, "phases").items()
    ]
    return Figure("plane", "TFH against TFS", PLANE, panels, rows, len(panels), _legend(rows, styles))


def _plane_panel(title: str, rows: Rows, styles: Styles, against: Mapping[str, str]) -> Panel:
    means: dict[str, Place] = {}
    ellipses, marks, large = [], [], []
    for label, points in split_by(rows, "row").items():
        tfs, tfh = (spread([row[setting] for row in points]) for setting in ("tfs", "tfh"))
        means[label], style = (tfs.mean, tfh.mean), styles[label]
        if tfs.count > 1:
            marks += [Mark(*seed, style, size=3, strength=0.45) for seed in zip(tfs.values, tfh.values, strict=True)]
        if tfs.count >= ENOUGH:
            ellipses.append(Ellipse(means[label], (_half_interval(tfs), _half_interval(tfh)), style.colour))
        tip = f"{label}: TFH {tfh.mean:.2f} %, TFS {tfs.mean:.2f} %, {tfs.count} seeds"
        large.append(Mark(*means[label], style, tip, size=9))
    corners = [(mark.x, mark.y) for mark in (*marks, *large)]
    for each in ellipses:
        corners += [(each.centre[0] + sign * each.reach[0], each.centre[1] + sign * each.reach[1]) for sign in (-1, 1)]
    return Panel(
        title,
        Scale.spanning("average accuracy in TFS, %", (x for x, _ in corners), least=PLANE_SPAN),
        Scale.spanning("average accuracy in TFH, %", (y for _, y in corners), least=PLANE_SPAN),
        size=(4.2, 3.6),
        diagonal=True,
        ellipses=ellipses,
        lines=[
            Line([means[base], means[label]], Style(styles[label].colour), 1.2, 0.6, arrow=True)
            for label, base in against.items()
            if {label, base} <= means.keys()
        ],
        marks=[*marks, *large],
    )


def _half_interval(found: Spread) -> float:
    return found.interval()[1] - found.mean


# Figure 5 -------------------------------------------------------------------------------------------------------------


def _make_values(rows: Rows, styles: Styles) -> Figure:
    settings = split_by(rows, "setting")
    panels = []
    for axis, inside in sorted(split_by(rows, "axis").items(), key=lambda item: numbers.rank(item[0])):
        found = [row[name] for row in inside for name in ("value", "smoothed")]
        y = Scale.spanning(
            "", found, least=max(map(abs, found)) / 2, count=4
        )  # a constant is not drawn in a wide range
        if axis == "classifier":
            y = Scale("", (-0.1, 1.1), {0.0: "FC", 1.0: "NCM"})
        there = split_by(inside, "setting")
        panels += [_values_panel(axis, setting, there.get(setting, []), y, styles) for setting in settings]
    legend = _legend(rows, styles)
    return Figure("values", "Chosen values along the phases", VALUES, panels, rows, len(settings), legend)


def _values_panel(axis: str, setting: str, rows: Rows, y: Scale, styles: Styles) -> Panel:
    lines, marks = [], []
    for label, points in split_by(rows, "row").items():
        style = styles[label]
        raw, smooth = ([(row["phase"], row[name]) for row in points] for name in ("value", "smoothed"))
        lines += [Line(raw, Style(style.colour), 0.9, 0.45), Line(smooth, style, 2.2, 0.85)]
        for place, row in zip(raw, points, strict=True):
            tip = f"{label}, phase {row['phase']}: {row['value']:g}, smoothed {row['smoothed']:.3g}"
            marks.append(Mark(*place, Style(style.colour), tip, 2.5, 0.6))
    x = Scale.spanning("phase", (row["phase"] for row in rows), whole=True)
    name = LETTERS.get(axis) or axis.replace("_", " ")
    return Panel(f"{name} · {setting}", x, y, (3.9, 1.7), lines=lines, marks=marks)


# Does a policy help? --------------------------------------------------------------------------------------------------


def gains_figure(runs: Sequence[RunRecord]) -> Figure | None:
    """Every policy against the same method without it; None if there is nothing to compare."""
    found = comparisons(runs)
    if not found:
        return None
    names = [f"{each.row.label}, {each.stream}" for each in found]
    lines, marks = [], []
    rows: Rows = []
    for place, (name, each) in enumerate(zip(names, found, strict=True)):
        gain = each.difference
        low, high = gain.interval() if gain.count > 1 else (gain.mean, gain.mean)
        style = Style({"gain": GOOD, "loss": BAD}.get(gain.verdict(), GREY))
        reach = f" [{with_sign(low)}, {with_sign(high)}]" if gain.count > 1 else ""
        tip = f"{name}: {with_sign(gain.mean)}{reach}, {gain.count} paired seeds"
        lines.append(Line([(low, place), (high, place)], style, 2.0))
        marks += _seed_marks(gain, place, style, tip)
        part = each.by_classifier.mean if each.by_classifier else None
        if part is not None:
            tip = f"{name}: {with_sign(part)} by the choice of the classifier"
            marks.append(Mark(part, place, Style(GREY, mark="D", hollow=True), tip, size=6.5))
        rows.append({"row": name, "gain": gain.mean, "low": low, "high": high, "seeds": gain.count, "classifier": part})
    label = "points of average accuracy over the method's own hyperparameters"
    panel = replace(_listed_panel(label, names, lines, marks, [0.0]), rules=[Rule(0.0)])
    return Figure("gains", "Does a policy help?", GAINS, [panel], rows)


def ranking_figure(runs: Sequence[RunRecord]) -> Figure | None:
    """Configurations that learned the same stream, the best on top; None if there are no two to compare."""
    found = rankings(runs)
    if not found:
        return None
    several = len({ranking.where for ranking in found}) > 1
    listed = [(ranking, row) for ranking in found for row in ranking.rows]
    lines, marks, names = [], [], []
    rows: Rows = []
    for place, (ranking, row) in enumerate(listed):
        names.append(f"{ranking.names[row.label]}, {ranking.stream}" + (f" · {ranking.where}" if several else ""))
        average = spread([*row.averages(ranking.stream).values()])
        low, high = average.interval() if average.count >= ENOUGH else (average.mean, average.mean)
        tip = f"{names[-1]}: {average.mean:.2f} %, {counted(average.count, 'seed')}"
        lines.append(Line([(low, place), (high, place)], Style(GREY), 2.0))
        marks += _seed_marks(average, place, Style(GREY), tip)
        rows.append({"row": names[-1], "average": average.mean, "low": low, "high": high, "seeds": average.count})
    methods = len({row.first.method for _, row in listed}) > 1
    title = f"Which {'method' if methods else 'configuration'} is ahead?"
    return Figure("ranking", title, RANKING, [_listed_panel("average accuracy in %", names, lines, marks)], rows)


def _seed_marks(found: Spread, place: int, style: Style, tip: str) -> list[Mark]:
    """A large mark at the mean, which says the tip, and a small circle for each seed."""
    seeds = [Mark(value, place, Style(GREY, hollow=True), size=3.5, strength=0.8) for value in found.values]
    return [*seeds, Mark(found.mean, place, style, tip, size=7.5)]


def _listed_panel(
    label: str, names: Sequence[str], lines: Sequence[Line], marks: Sequence[Mark], also: Sequence[float] = ()
) -> Panel:
    """A panel with a named row for each configuration; `also` are values that its range must reach."""
    ends = [end[0] for line in lines for end in line.places]
    x = Scale.spanning(label, [*also, *ends, *(mark.x for mark in marks)])
    y = Scale.naming("", names, most=len(names), letters=10**6, down=True)
    return Panel("", x, y, (7.0, 0.6 + 0.21 * len(names)), lines=lines, marks=marks)


def _legend(rows: Rows, styles: Styles) -> dict[str, Style]:
    return {label: styles[label] for label in split_by(rows, "row")}
