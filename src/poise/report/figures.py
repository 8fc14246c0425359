"""The figures of a report: accuracy over phases, gains, and of single runs trials, classes, accuracy and confusion."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poise.actions import Action
from poise.report.draw import (
    BAD,
    GOOD,
    GREY,
    INK,
    Figure,
    Panel,
    name_ticks,
    paint_cells,
    paint_line,
    paint_points,
    plain_axes,
)
from poise.report.statistics import ENOUGH, spread
from poise.report.study import Row, StreamKind, Study, Style
from poise.report.tables import with_sign
from poise.runs.record import RunRecord, TrialRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

MOST_ROWS: Final = 6  # in a figure of single runs, over all streams
MOST_NUMBERED: Final = 10  # phases up to which an accuracy matrix says its numbers
MOST_CELLS: Final = 30  # classes up to which each cell of a confusion matrix says its figures under the mouse
_ONE_RUN: Final = f"Of several seeds the lowest is shown, and at most {MOST_ROWS} rows over all streams"
ACCURACY: Final = (
    "Accuracy on all classes seen so far, by the classifier that counts; means over seeds. "
    f"Bands are ± one standard deviation over seeds, shown where there are at least {ENOUGH}."
)
GAINS: Final = (
    "Large marks: mean difference in average accuracy to {reference}, paired by seed; lines: its 95 % interval "
    "(Student's t over seeds); small circles: single seeds. Coloured only with at least "
    f"{ENOUGH} paired seeds and an interval without zero; one in twenty such intervals misses by chance. "
    "Hollow diamonds: the part of the difference that the choice of the classifier brings, which is what the method's "
    "own networks gain when they are read with the classifiers that the policy used."
)
REWARDS: Final = (
    "The reward of every trial (accuracy on images held out of the phase's training images), in the order in which "
    "they were run. Stronger marks are longer trials, large ones of full length; crosses diverged, and diamonds only "
    "judged which classifier should count. A ring marks the action that the phase was trained with, bars are the means "
    "of a phase's longest trials. Rewards of different phases judge different classes. "
    f"{_ONE_RUN}."
)
CLASSES: Final = (
    "Accuracy of the classifier that counts on each class after the last examined phase, classes in the order in which "
    f"they came; lines part the phases. {_ONE_RUN}."
)
MATRIX: Final = (
    "Accuracy on the classes of each phase (columns) in the exam after each phase (rows), by the classifier that "
    "counted there; all matrices share one scale, from {low:.0f} % (palest) to {high:.0f} % (strongest). Down a column "
    "one sees what became of the classes of a phase: their last row minus their first one, as the mean over all phases "
    f"but the last, is the backward transfer. {_ONE_RUN}."
)
CONFUSION: Final = (
    "Of the exam images of each class (rows), the share that was taken for each class (columns) after the last "
    "examined phase, by the classifier that counts, from none (palest) to all (strongest); classes in the order in "
    "which they came. What lies left of the diagonal was taken for an older class, right of it for a newer one. "
    f"{_ONE_RUN}."
)

Rows = list[dict[str, Any]]  # flat values, all with the same keys; they are written as CSV, too


def make_figures(study: Study) -> list[Figure]:
    """Every figure that these runs have data for: each about one data set and exam, those of runs about one stream."""
    found = []
    low, high = _matrix_limits(study)
    for where, rows in study.by_exam.items():
        name = rows[0].first.exam_name
        found += _place(_accuracy_figure(rows), name, where)
        every = sorted({stream for row in rows for stream in row.by_stream})
        streams = {stream: shown for stream in every if (shown := _lowest_seeds(rows, stream))}
        for stream, shown in streams.items():
            some = dict(list(shown.items())[: max(1, MOST_ROWS // len(streams))])
            figures = [
                *_each_run("rewards", "Rewards of all trials", REWARDS, some, rewards, _paint_rewards, (6.2, 2.8)),
                *_classes_figure(some),
                *_each_run(
                    *("matrix", "Accuracy by exam and phase", MATRIX.format(low=low, high=high), some, matrix),
                    *(partial(_paint_matrix, limits=(low, high)), (3.3, 3.3)),
                ),
                *_each_run(
                    *("confusion", "Confusion after the last phase", CONFUSION, some, confusion),
                    *(_paint_confusion, (3.3, 3.3)),
                ),
            ]
            found += _place(figures, f"{name} {stream}", f"{where}, {stream}")
    return found


def _place(figures: Sequence[Figure], name: str, where: str) -> list[Figure]:
    """The figures with their data set, exam and stream in name and title."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", f"{figure.name} {name}".lower()).strip("-") for figure in figures]
    return [
        replace(figure, name=slug, title=f"{figure.title} ({where})")
        for figure, slug in zip(figures, slugs, strict=True)
    ]


def _lowest_seeds(rows: Sequence[Row], stream: StreamKind) -> dict[Row, RunRecord]:
    """By row, the examined run of a stream with the lowest seed."""
    found: dict[Row, RunRecord] = {}
    for row in rows:
        if examined := [run for run in row.by_stream.get(stream, ()) if run.phases]:
            found[row] = min(examined, key=lambda run: run.seed)
    return found


# Rows over phases -----------------------------------------------------------------------------------------------------


def accuracy(row: Row, stream: StreamKind, runs: Sequence[RunRecord]) -> Rows:
    """Accuracy after each phase: mean, lowest and highest over the seeds that got this far."""
    found: Rows = []
    for place in range(max((len(run.phases) for run in runs), default=0)):
        there = [run.phases[place] for run in runs if len(run.phases) > place]
        each = spread([phase.accuracy for phase in there])
        found.append(
            {
                **row.identity,
                "setting": str(stream),
                "phase": there[0].phase,
                "classes": there[0].classes,
                "mean": each.mean,
                "low": min(each.values),
                "high": max(each.values),
                "deviation": each.deviation,
                "seeds": each.count,
            }
        )
    return found


def _accuracy_figure(rows: Sequence[Row]) -> list[Figure]:
    """A panel for each stream, a curve for each row."""
    curves = {(stream, row): accuracy(row, stream, runs) for row in rows for stream, runs in row.by_stream.items()}
    data = [point for points in curves.values() for point in points]
    ends = [point["mean"] + sign * _half_band(point) for point in data for sign in (-1, 1)]
    if not data:
        return []
    room = max(1.0, 0.05 * (max(ends) - min(ends)))
    panels = []
    for stream in sorted({stream for stream, _ in curves}):
        shown = {row: points for (each, row), points in curves.items() if each == stream and points}
        if shown:
            paint = partial(_paint_curves, curves=shown, limits=(min(ends) - room, max(ends) + room))
            panels.append(Panel(paint, legend={row.label: row.style for row in shown}, title=str(stream)))
    return [Figure("accuracy", "Accuracy after each phase", ACCURACY, panels, data)]


def _paint_curves(drawing: Drawing, curves: Mapping[Row, Rows], limits: tuple[float, float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = plain_axes(drawing, "classes seen", "accuracy in %")
    for row, points in curves.items():
        places = [(point["classes"], point["mean"]) for point in points]
        paint_line(axes, places, row.style)
        tips = []
        for point in points:
            several = f" ({point['low']:.2f} to {point['high']:.2f}, {point['seeds']} seeds)" * (point["seeds"] > 1)
            place = f"{row.label}, phase {point['phase']} ({point['classes']} classes)"
            tips.append(f"{place}: {point['mean']:.2f} %{several}")
        paint_points(axes, places, row.style, tips)
        wide = [(point["classes"], point["mean"], _half_band(point)) for point in points if _half_band(point)]
        if wide:
            x, y, half = map(np.array, zip(*wide, strict=True))
            axes.fill_between(x, y - half, y + half, color=row.style.colour, alpha=0.16, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylim(*limits)


def _half_band(point: Mapping[str, Any]) -> float:
    """Half of the height of a band; 0 where there are too few seeds for one."""
    return float(point["deviation"]) if point["seeds"] >= ENOUGH else 0.0


def gains_figure(study: Study) -> Figure | None:
    """Every row that is compared with another one; None if there is nothing to compare."""
    found = [each for each in study.comparisons.values() if not each.row.first.informed]
    if not found:
        return None
    data: Rows = []
    for each in found:
        gain, part = each.difference, each.by_classifier
        low, high = gain.interval() if gain.count > 1 else (gain.mean, gain.mean)
        data.append(
            {
                **{"row": f"{each.row.full_label}, {each.stream}", "gain": gain.mean, "low": low, "high": high},
                **{"seeds": gain.count, "classifier": part.mean if part else None, "verdict": gain.verdict()},
            }
        )
    paint = partial(_paint_gains, data=data, seeds=[each.difference.values for each in found])
    title = "Does a policy help?" if study.against is None else f"Against {study.against}"
    caption = GAINS.replace("{reference}", study.reference)
    return Figure("gains", title, caption, [Panel(paint, (4.6, 0.7 + 0.42 * len(data)))], data)


def _paint_gains(drawing: Drawing, data: Rows, seeds: Sequence[Sequence[float]]) -> None:
    """A line for each comparison with its name above it, so that long names need no margin."""
    axes = plain_axes(drawing, "difference in average accuracy, in points")
    axes.grid(visible=False)
    for place, (row, values) in enumerate(zip(data, seeds, strict=True)):
        style = Style({"gain": GOOD, "loss": BAD}.get(row["verdict"], GREY))
        words = f"{row['row']}: {with_sign(row['gain'])}"
        reach = f" [{with_sign(row['low'])}, {with_sign(row['high'])}]" if row["seeds"] > 1 else ""
        axes.vlines(0, place - 0.15, place + 0.25, color=GREY, alpha=0.6, linewidth=0.8)  # not through the name above
        paint_line(axes, [(row["low"], place), (row["high"], place)], style, 2.0)
        paint_points(axes, [(value, place) for value in values], Style(GREY, hollow=True), size=3.5)
        paint_points(axes, [(row["gain"], place)], style, [f"{words}{reach}, {row['seeds']} paired seeds"], 7.5)
        if row["classifier"] is not None:
            tip = f"{row['row']}: {with_sign(row['classifier'])} by the choice of the classifier"
            paint_points(axes, [(row["classifier"], place)], Style(GREY, mark="D", hollow=True), [tip], 6.5)
        name = row["row"] if len(row["row"]) < 60 else f"{row['row'][:58]}…"
        axes.text(0.0, place - 0.28, name, transform=axes.get_yaxis_transform(), fontsize=9)
    axes.set(yticks=[], ylim=(len(data) - 0.5, -0.75))
    axes.spines["left"].set_visible(False)


# Single runs ----------------------------------------------------------------------------------------------------------


def _each_run(
    name: str,
    title: str,
    caption: str,
    shown: Mapping[Row, RunRecord],
    rows_of: Callable[[RunRecord], Rows],
    paint: Callable[..., None],  # of a drawing, rows and a colour
    size: tuple[float, float],
) -> Iterator[Figure]:
    """A figure with a panel for each run that has such rows."""
    filled = {row: rows for row, run in shown.items() if (rows := rows_of(run))}
    panels = [
        Panel(partial(paint, rows=rows, colour=row.style.colour), size, title=row.label) for row, rows in filled.items()
    ]
    if panels:
        yield Figure(name, title, caption, panels, _labelled(filled))


def _labelled(rows: Mapping[Row, Rows]) -> Rows:
    return [{"row": row.full_label, **each} for row, inside in rows.items() for each in inside]


def rewards(run: RunRecord) -> Rows:
    """The reward of every trial, in the order in which they were run; `decided` is 1 for the action of the phase."""
    decided = {phase.phase: {axis: phase.action.get(axis) for axis in run.axes} for phase in run.phases}
    return [
        {
            "run": run.name,
            "trial": place,
            "phase": trial.phase,
            "reward": trial.reward,
            "epochs": trial.epochs,
            "full": int(trial.full),
            "diverged": int(trial.diverged),
            "purpose": trial.purpose,
            "action": str(Action(**_on_axes(run, trial))),
            "decided": int(trial.purpose == "action" and _on_axes(run, trial) == decided.get(trial.phase)),
        }
        for place, trial in enumerate(run.trials, start=1)
    ]


def _on_axes(run: RunRecord, trial: TrialRecord) -> dict[str, Any]:
    return {axis: trial.action[axis] for axis in run.axes if axis in trial.action}


def _paint_rewards(drawing: Drawing, rows: Rows, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = plain_axes(drawing, "trial", "reward")
    furthest = max(row["epochs"] for row in rows)
    for phase in dict.fromkeys(row["phase"] for row in rows):
        tried = [row for row in rows if row["phase"] == phase]
        axes.axvline(tried[0]["trial"] - 0.5, color=GREY, alpha=0.5, linewidth=0.8)
        word = f"phase {phase}" if tried[0] is rows[0] else str(phase)
        axes.text(tried[0]["trial"] - 0.4, 1.0, word, transform=axes.get_xaxis_transform(), fontsize=8, va="bottom")
        actions = [row for row in tried if row["purpose"] == "action"]
        longest = max(((row["full"], row["epochs"]) for row in actions), default=None)
        mean = [row["reward"] for row in actions if (row["full"], row["epochs"]) == longest]
        if mean:
            ends = tried[0]["trial"] - 0.4, tried[-1]["trial"] + 0.4
            paint_line(axes, [(x, float(np.mean(mean))) for x in ends], Style(GREY), 1.2)
    kinds: dict[tuple[bool, bool, bool], Rows] = {}
    for row in rows:
        kinds.setdefault((bool(row["full"]), bool(row["diverged"]), row["purpose"] == "classifier"), []).append(row)
    for (full, diverged, judging), alike in kinds.items():
        style = Style(colour, mark="x" if diverged else "D" if judging else "o", hollow=judging)
        strengths = [0.3 + 0.6 * row["epochs"] / max(1.0, furthest) for row in alike]
        tips = [
            f"trial {row['trial']}, phase {row['phase']}, {row['epochs']} epochs, {row['action']}: "
            f"reward {row['reward']:.3f}{' (judges the classifier)' * judging}"
            for row in alike
        ]
        places = [(row["trial"], row["reward"]) for row in alike]
        paint_points(axes, places, style, tips, 5.8 if full else 3.8, strengths)
    last = {row["phase"]: row for row in rows if row["decided"]}  # the longest trial of a decided action comes last
    paint_points(axes, [(row["trial"], row["reward"]) for row in last.values()], Style(GREY, hollow=True), size=8.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlim(0.4, rows[-1]["trial"] + 0.6)


def classes(run: RunRecord) -> Rows:
    """The last exam, class by class, in the order in which classes arrived."""
    if not run.phases or not run.phases[-1].labels:
        return []
    last = run.phases[-1]
    came = {label: phase.phase for phase in run.phases for label in phase.arrived}
    return [
        {
            "run": run.name,
            "place": place,
            "class": label,
            "name": class_name(run, label),
            "phase": came[label],
            "images": images,
            "hits": hits,
            "accuracy": 100 * hits / max(1, images),
        }
        for place, (label, images, hits) in enumerate(
            zip(last.labels, last.images, last.hits[last.classifier], strict=True)
        )
    ]


def class_name(run: RunRecord, label: int) -> str:
    """The class's name, or its number."""
    return run.class_names[label] if 0 <= label < len(run.class_names) else str(label)


def _classes_figure(shown: Mapping[Row, RunRecord]) -> Iterator[Figure]:
    """One panel with a curve for each run."""
    filled = {row: rows for row, run in shown.items() if (rows := classes(run))}
    if filled:
        width = min(9.0, 4.1 + 0.05 * max(map(len, filled.values())))
        legend = {row.label: row.style for row in filled}
        panel = Panel(partial(_paint_classes, curves=filled), (width, 2.9), legend)
        yield Figure("classes", "Accuracy by class after the last phase", CLASSES, [panel], _labelled(filled))


def _paint_classes(drawing: Drawing, curves: Mapping[Row, Rows]) -> None:
    axes = plain_axes(drawing, "classes, first to last", "accuracy in %")
    for row, rows in curves.items():
        places = [(each["place"], each["accuracy"]) for each in rows]
        tips = [
            f"{row.label}: {each['name']} (phase {each['phase']}): {each['hits']} of {each['images']}, "
            f"{each['accuracy']:.1f} %"
            for each in rows
        ]
        paint_line(axes, places, row.style)
        paint_points(axes, places, row.style, tips)
    longest = max(curves.values(), key=len)
    for before, after in itertools.pairwise(longest):
        if before["phase"] != after["phase"]:
            axes.axvline(after["place"] - 0.5, color=GREY, alpha=0.5, linewidth=0.8)
    name_ticks(axes, "x", [str(row["name"]) for row in longest])


def matrix(run: RunRecord) -> Rows:
    """The accuracy matrix: every exam on the classes of every phase so far."""
    return [
        {"run": run.name, "exam": exam, "phase": phase, "accuracy": found}
        for exam, row in enumerate(run.accuracy_matrix)
        for phase, found in enumerate(row)
    ]


def _matrix_limits(study: Study) -> tuple[float, float]:
    """The one scale of all accuracy matrices, in whole tens of a percent."""
    found = [value for run in study.runs for row in run.accuracy_matrix for value in row]
    low, high = 10 * (min(found, default=0) // 10), -10 * (-max(found, default=100) // 10)
    return float(low), float(max(high, low + 10))


def _paint_matrix(drawing: Drawing, rows: Rows, colour: str, limits: tuple[float, float]) -> None:
    count = 1 + max(row["exam"] for row in rows)
    table = np.full((count, count), np.nan)
    tips = {}
    for row in rows:
        place = row["exam"], row["phase"]
        table[place] = row["accuracy"]
        tips[place] = f"exam {row['exam']}, classes of phase {row['phase']}: {row['accuracy']:.2f} %"
    axes = drawing.add_subplot()
    paint_cells(axes, table, colour, limits, tips)
    if count <= MOST_NUMBERED:
        for exam, phase in tips:
            word = f"{table[exam, phase]:.0f}"
            axes.text(phase, exam, word, ha="center", va="center", fontsize=8, color=INK)
    names = [str(place) for place in range(count)]
    name_ticks(axes, "x", names)
    name_ticks(axes, "y", names)
    axes.set(xlabel="phase in which classes arrived", ylabel="exam after phase")


def confusion(run: RunRecord) -> Rows:
    """The last exam's confusion matrix, indexed in the order in which classes arrived; only non-zero entries."""
    places = {label: place for place, label in enumerate(run.phases[-1].labels)} if run.phases else {}
    return [
        {
            "run": run.name,
            "true": places[true],
            "predicted": places[guess],
            "images": images,
            "true_name": class_name(run, true),
            "predicted_name": class_name(run, guess),
        }
        for true, guess, images in run.confusion
        if true in places and guess in places
    ]


def _paint_confusion(drawing: Drawing, rows: Rows, colour: str) -> None:
    names = {row[key]: str(row[f"{key}_name"]) for row in rows for key in ("true", "predicted")}
    ordered = [names.get(place, "") for place in range(1 + max(names))]
    table = np.zeros((len(ordered), len(ordered)))
    for row in rows:
        table[row["true"], row["predicted"]] = row["images"]
    totals = table.sum(axis=1, keepdims=True)
    tips = {}
    if len(ordered) <= MOST_CELLS:
        for (true, guess), images in np.ndenumerate(table):
            what = "right" if true == guess else f"taken for {ordered[guess]}"
            tips[true, guess] = f"{ordered[true]}: {images:.0f} of {totals[true, 0]:.0f} {what}"
    axes = drawing.add_subplot()
    paint_cells(axes, table / np.maximum(1, totals), colour, (0.0, 1.0), tips)
    name_ticks(axes, "x", ordered, letters=30)
    name_ticks(axes, "y", ordered, letters=80)
    axes.set(xlabel="predicted class", ylabel="true class")
