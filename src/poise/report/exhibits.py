"""The page's interactive figures: `series` drawn with `charts`, each with the caption a person needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from poise.report import series
from poise.report.charts import (
    COLOURS,
    Interval,
    Mark,
    Point,
    Series,
    bar_chart,
    forest_chart,
    heat_map,
    line_chart,
    plane_chart,
)
from poise.report.comparison import comparisons
from poise.report.rows import Stream, baselines, rows_of
from poise.report.runs import Run
from poise.report.series import Rows, Value
from poise.report.sheet import signed
from poise.report.statistics import ENOUGH, spread

MOST: Final = 12  # of the figures that need one panel per run


@dataclass(frozen=True)
class Panel:
    """A chart with the words above it."""

    heading: str
    svg: str


@dataclass(frozen=True)
class Exhibit:
    """A figure of the page: panels, `small` where there are many of them, and the rows behind them."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    rows: Rows
    small: bool = False


def exhibits(runs: Sequence[Run]) -> list[Exhibit]:
    """Every figure that these runs can fill."""
    makers = (_accuracy, _plane, _values, _chances, _rewards, _forgetting)
    return [made for maker in makers if (made := maker(runs)).panels]


def forest(runs: Sequence[Run]) -> str:
    """Every policy against the same method without it; empty where there is nothing to compare."""
    found = comparisons(runs)
    rows = []
    for each in found:
        low, high = each.difference.interval() if each.difference.count > 1 else (None, None)
        verdict = each.difference.verdict()
        words = f"{each.row.label}, {each.stream}: {signed(each.difference.mean)}"
        words += f" [{signed(low)}, {signed(high)}]" if low is not None and high is not None else ""
        rows.append(
            Interval(
                f"{each.row.label}, {each.stream}",
                each.difference.mean,
                low,
                high,
                each.difference.values,
                verdict if verdict in ("gain", "loss") else "",
                f"{words}, {each.difference.count} paired seeds",
            )
        )
    return forest_chart(rows, "points of average accuracy over the method's own hyperparameters") if rows else ""


def _accuracy(runs: Sequence[Run]) -> Exhibit:
    rows = series.accuracy(runs)
    panels = _line_panels(rows, _accuracy_point, "phase", "accuracy (%)")
    return Exhibit(
        "accuracy",
        "Accuracy after each phase",
        "On all classes seen so far, by the classifier that counts. Lines are means over seeds, bands ± one deviation "
        "where there are at least three.",
        tuple(panels),
        rows,
    )


def _accuracy_point(label: str, row: Mapping[str, Value]) -> Point:
    mean, several = _n(row["mean"]), _n(row["seeds"]) >= ENOUGH
    words = f"{label}, phase {row['phase']} ({row['classes']} classes): {mean:.2f} %"
    if _n(row["seeds"]) > 1:
        words += f" ({_n(row['low']):.2f} to {_n(row['high']):.2f}, {row['seeds']} seeds)"
    reach = _n(row["deviation"]) if several else None
    low, high = (mean - reach, mean + reach) if reach is not None else (None, None)
    return Point(_n(row["phase"]), mean, words, low, high)


def _line_panels(
    rows: Rows, point: Callable[[str, Mapping[str, Value]], Point], x_label: str, y_label: str
) -> list[Panel]:
    """A panel of lines for every data set, exam and setting, a line for every row of the tables."""
    colours = _colours(rows)
    panels = []
    for home, inside in _split(rows, "data", "exam", "setting"):
        lines = [
            Series(label, tuple(point(label, row) for row in points), colours[label])
            for (label,), points in _split(inside, "row")
        ]
        panels.append(Panel(_home(home), line_chart(lines, x_label, y_label)))
    return panels


def _plane(runs: Sequence[Run]) -> Exhibit:
    rows = series.plane(runs)
    colours = _colours(rows)
    against = {label: row.label for label, row in baselines(rows_of(runs)).items()}
    panels = []
    for home, inside in _split(rows, "data", "exam", "phases"):
        marks = [
            _mark(label, points, colours[label], label not in against) for (label,), points in _split(inside, "row")
        ]
        there = {mark.label for mark in marks}
        arrows = [(base, label) for label, base in against.items() if {base, label} <= there]
        panels.append(Panel(_home(home), plane_chart(marks, arrows, "TFS (%)", "TFH (%)")))
    return Exhibit(
        "plane",
        "Training from half against training from scratch",
        "Average accuracy in both settings, as in the paper's Figure 1: one mark per row (hollow: the method's own "
        "hyperparameters, with a line to the policy's). With three or more seeds half-axes of ellipses are the 95 % "
        "intervals of the means.",
        tuple(panels),
        rows,
    )


def _mark(label: str, points: Rows, colour: int, hollow: bool) -> Mark:
    tfs, tfh = (spread([_n(row[setting]) for row in points]) for setting in ("tfs", "tfh"))
    halves = [found.interval()[1] - found.mean for found in (tfs, tfh)]
    tip = f"{label}: TFH {tfh.mean:.2f} %, TFS {tfs.mean:.2f} %, {tfs.count} seeds"
    return Mark(label, tfs.mean, tfh.mean, (halves[0], halves[1]) if tfs.count >= ENOUGH else None, colour, hollow, tip)


def _values(runs: Sequence[Run]) -> Exhibit:
    rows = series.values(runs)
    panels = []
    shown = list(dict.fromkeys(str(row["row"]) for row in rows))[:MOST]
    for (label, axis), inside in _split([row for row in rows if row["row"] in shown], "row", "axis"):
        letter = inside[0]["letter"]
        name = f"{letter} ({axis})" if letter else str(axis)
        name += ", share of NCM" if axis == "classifier" else ""
        lines = []
        for colour, ((setting,), points) in enumerate(_split(inside, "setting")):
            raw = tuple(_value_point(setting, row, "value") for row in points)
            lines += [Series(setting, raw, colour, "dots")]
            smooth = tuple(_value_point(setting, row, "smoothed") for row in points)
            lines += [Series(setting, smooth, colour, "faint")]
        most = 1.0 if axis == "classifier" else max(_n(row["value"]) for row in inside) or 1.0
        chart = line_chart(lines, "phase", str(letter or axis), y_range=(-0.05 * most, 1.05 * most), small=True)
        panels.append(Panel(f"{name} · {label}", chart))
    return Exhibit(
        "values",
        "What the policy chose along the phases",
        "The tuned hyperparameters, as in the paper's Figure 5: dots are the values (means over seeds), "
        f"lines the same smoothed at 0.8. {MOST} rows at most.",
        tuple(panels),
        rows,
        small=True,
    )


def _value_point(setting: str, row: Mapping[str, Value], which: str) -> Point:
    return Point(
        _n(row["phase"]),
        _n(row[which]),
        f"{setting}, phase {row['phase']}: {_n(row['value']):g}, smoothed {_n(row['smoothed']):.3g}",
    )


def _chances(runs: Sequence[Run]) -> Exhibit:
    panels, rows = [], []
    for run in _examples(runs, lambda run: bool(run.arms) and len(run.phases) > 1):
        found = series.chances(run)
        what = "probability" if any(row["probability"] is not None for row in found) else "reward"
        phases = list(dict.fromkeys(str(row["phase"]) for row in found))
        values = {
            (int(_n(row["place"])), phases.index(str(row["phase"]))): _n(row[what])
            for row in found
            if row[what] is not None
        }
        marked = {phases.index(str(row["phase"])): int(_n(row["place"])) for row in found if row["decided"]}
        arms = [*map(series.in_letters, run.arms)]
        words = "probability of each action" if what == "probability" else "reward of each action's longest trial"
        panels.append(Panel(f"{run.name}: {words}", heat_map(arms, phases, values, marked, "phase", what)))
        rows += found
    return Exhibit(
        "chances",
        "The policy over its actions, by phase",
        "The stronger the colour, the more: the policy's distribution where it has one, else the reward an action got. "
        "Outlined: what was decided. β weighs logit and γ feature distillation, λ is the learning rate. "
        f"One run of each row and setting, {MOST} at most.",
        tuple(panels),
        rows,
    )


def _rewards(runs: Sequence[Run]) -> Exhibit:
    panels, rows = [], []
    for run in _examples(runs, lambda run: bool(run.trials)):
        panels.append(Panel(run.name, reward_chart(run)))
        rows += series.rewards(run)
    return Exhibit(
        "rewards",
        "The reward of every trial, over time",
        "Accuracy on held-out training images; each phase has its colour. "
        f"One run of each row and setting, {MOST} at most.",
        tuple(panels),
        rows,
    )


def reward_chart(run: Run) -> str:
    """Trials of one run, coloured by phase."""
    lines = [
        Series(
            f"phase {phase}",
            tuple(
                Point(
                    _n(row["trial"]),
                    _n(row["reward"]),
                    f"trial {row['trial']}, phase {phase}, {row['epochs']} epochs, {row['action']}: "
                    f"reward {_n(row['reward']):.3f}"
                    + (" (judges the classifier)" if row["purpose"] == "classifier" else ""),
                )
                for row in points
            ),
            int(phase) % 8,
            "dots",
        )
        for (phase,), points in _split(series.rewards(run), "phase")
    ]
    return line_chart(lines, "trial", "reward") if lines else ""


def _forgetting_point(label: str, row: Mapping[str, Value]) -> Point:
    lost = _n(row["forgetting"])
    words = (
        f"{label}, classes of phase {row['phase']}: best {_n(row['best']):.2f} %, at the end {_n(row['final']):.2f} %"
    )
    return Point(_n(row["phase"]), lost, f"{words}, lost {lost:.2f}")


def _forgetting(runs: Sequence[Run]) -> Exhibit:
    rows = series.forgetting(runs)
    panels = _line_panels(rows, _forgetting_point, "phase in which classes arrived", "points forgotten")
    return Exhibit(
        "forgetting",
        "Forgetting, by the phase in which classes arrived",
        "The best accuracy on a phase's classes in any exam before the last, minus that in the last; means over seeds.",
        tuple(panels),
        rows,
    )


def class_chart(run: Run) -> str:
    """Accuracy on every class in the last exam, in the order in which they came, a colour per phase."""
    bars = [
        (
            f"{row['name']} (phase {row['phase']}): {row['hits']} of {row['images']}, {_n(row['accuracy']):.1f} %",
            _n(row["accuracy"]),
            int(_n(row["phase"])),
        )
        for row in series.classes(run)
    ]
    return bar_chart(bars, "class, in the order in which they came", "accuracy (%)") if bars else ""


# ----------------------------------------------------------------------------------------------------------------------


def _examples(runs: Sequence[Run], wanted: Callable[[Run], bool]) -> list[Run]:
    """The first run of each row and setting that has what is wanted."""
    found: dict[tuple[str, Stream], Run] = {}
    for row in rows_of(runs):
        for stream, group in sorted(row.cells.items()):
            for run in group:
                if wanted(run):
                    found.setdefault((row.label, stream), run)
    return list(found.values())[:MOST]


def _split(rows: Rows, *names: str) -> Iterator[tuple[tuple[str, ...], Rows]]:
    """Rows apart by the values of some columns, in the order in which they come."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in names), []).append(row)
    yield from groups.items()


def _colours(rows: Rows) -> dict[str, int]:
    """The same colour for a row in every panel: its method's, dashed without a policy; further ones take others."""
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    found: dict[str, int] = {}
    for row in rows:
        if str(row["row"]) not in found:
            own = methods.index(str(row["method"])) % COLOURS + (COLOURS if row["policy"] == "fixed" else 0)
            others = (place % (2 * COLOURS) for place in range(len(methods), len(methods) + 2 * COLOURS))
            free = [place for place in (own, *others) if place not in found.values()]
            found[str(row["row"])] = free[0] if free else own
    return found


def _home(parts: Sequence[str]) -> str:
    data, exam, stream = parts
    words = f"N = {stream}" if stream.isdigit() else stream
    return f"{data}, {words}" + ("" if exam == "test" else f", {exam} exam")


def _n(value: Value) -> float:
    assert isinstance(value, int | float), "a figure of a series"
    return float(value)
