"""The figures of single runs, a panel or a curve each: the policy over its actions, trials, classes, confusion."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from poise.report.figures import numbers
from poise.report.figures.description import GREY, Figure, Heat, Line, Mark, Panel, Row, Rows, Rule, Scale, Style
from poise.report.figures.numbers import split_by
from poise.report.figures.styles import Styles
from poise.report.reading import RunRecord, StreamKind, configurations

TIPPED: Final = 30  # up to so many classes, each cell of a confusion matrix says its figures under the mouse
MOST_ROWS: Final = 6  # in a figure of single runs, over all streams
ONE_RUN: Final = f"Of several seeds the lowest is shown, and at most {MOST_ROWS} rows over all streams"
CHANCES: Final = (
    "Every action of the space in every tuned phase. Where the policy keeps a distribution, a stronger colour is a "
    "higher probability when it decided; where it keeps none, a higher mean reward of the action's longest trials, "
    "and what was not tried is blank. A ring marks the action that the phase was trained with. β weighs logit and γ "
    f"feature distillation, λ is the learning rate. {ONE_RUN}."
)
REWARDS: Final = (
    "The reward of every trial (accuracy on images held out of the phase's training images), in the order in which "
    "they were run. Stronger marks are longer trials, large ones of full length; crosses diverged, and diamonds only "
    "judged which classifier should count. Bars are the means of a phase's longest trials of actions. "
    f"Rewards of different phases judge different classes. {ONE_RUN}."
)
CLASSES: Final = (
    "Accuracy of the classifier that counts on each class after the last examined phase, classes in the order in which "
    f"they came; lines part the phases. {ONE_RUN}."
)
MATRIX: Final = (
    "Accuracy on the classes of each phase (columns) in the exam after each phase (rows), by the classifier that "
    "counted there. Down a column one sees what became of the classes of a phase: their last row minus their first "
    f"one, as the mean over all phases but the last, is the backward transfer. {ONE_RUN}."
)
CONFUSION: Final = (
    "Of the exam images of each class (rows), the share that was taken for each class (columns) after the last "
    "examined phase, by the classifier that counts, from none (palest) to all (strongest); classes in the order in "
    "which they came. What lies left of the diagonal was taken for an older class, right of it for a newer one. "
    f"{ONE_RUN}."
)

PanelMaker = Callable[[Mapping[str, Rows], Styles], list[Panel]]


def single_figures(runs: Sequence[RunRecord], styles: Styles) -> Iterator[tuple[StreamKind, Figure]]:
    """The figures, one per stream, that these runs, all of one data set and exam, have data for."""
    streams = _lowest_seeds(runs)
    for stream, chosen in streams.items():
        for name, title, rows_of_run, caption, make_panels, columns in _KINDS:
            filled = ((label, rows) for label, run in chosen.items() if (rows := rows_of_run(run)))
            shown = dict(itertools.islice(filled, max(1, MOST_ROWS // len(streams))))
            data = [{"row": label, **row} for label, rows in shown.items() for row in rows]
            legend = {label: styles[label] for label in shown} if name == "classes" else {}
            if shown:
                yield stream, Figure(name, title, caption, make_panels(shown, styles), data, columns, legend)


def run_panels(run: RunRecord, colour: str) -> list[Panel]:
    """What a run's own section shows: its trials, and the classes of its last exam."""
    style = {run.name: Style(colour)}
    wanted: tuple[tuple[str, Rows, PanelMaker], ...] = (
        ("Reward of every trial", numbers.rewards(run), _reward_panels),
        ("Accuracy on each class in the last exam", numbers.classes(run), _class_panels),
        ("Accuracy by exam and phase", numbers.matrix(run), _matrix_panels),
        ("Confusion in the last exam", numbers.confusion(run), _confusion_panels),
    )
    return [replace(make({run.name: rows}, style)[0], title=title) for title, rows, make in wanted if rows]


def _panel_each(make: Callable[[str, Rows, str], Panel], runs: Mapping[str, Rows], styles: Styles) -> list[Panel]:
    return [make(label, rows, styles[label].colour) for label, rows in runs.items()]


def _lowest_seeds(runs: Sequence[RunRecord]) -> dict[StreamKind, dict[str, RunRecord]]:
    """By stream and row, the examined run with the lowest seed."""
    found: dict[StreamKind, dict[str, RunRecord]] = {}
    for row in configurations(runs):
        for stream, group in row.by_stream.items():
            examined = [run for run in group if run.phases]
            if examined:
                found.setdefault(stream, {})[row.label] = min(examined, key=lambda run: run.seed)
    return dict(sorted(found.items()))


# A policy and its trials ----------------------------------------------------------------------------------------------


def _chance_panel(label: str, rows: Rows, colour: str) -> Panel:
    phases, arms = list(split_by(rows, "phase")), [numbers.in_letters(arm) for arm in split_by(rows, "action")]
    what = "probability" if any(row["probability"] is not None for row in rows) else "reward"
    table, tips, rings = np.full((len(arms), len(phases)), np.nan), {}, []
    for row in rows:
        place, column = row["place"], phases.index(str(row["phase"]))
        table[place, column] = row[what]
        if row[what] is not None:
            tips[place, column] = f"phase {row['phase']}, {arms[place]}: {what} {row[what]:.3f}"
        if row["decided"]:
            rings.append(Mark(column, place, Style(GREY, hollow=True), size=5.8))
    low, high = 0.0, 1.0
    scale = "what was decided; the trials are in the journal"
    if tips:
        low, high = 0.0 if what == "probability" else float(np.nanmin(table)), float(np.nanmax(table))
        scale = f"{'mean ' * (what == 'reward')}{what}, palest {low:.2f}, strongest {high:.2f}"
    x = Scale.naming("phase", phases, most=40)
    y = Scale.naming("", arms, most=len(arms), letters=10**6, down=True)
    size = 6.4, 0.9 + 0.15 * len(arms)
    return Panel(f"{label}\n{scale}", x, y, size, heat=Heat(table, colour, low, high, tips), marks=rings)


def _reward_panel(label: str, rows: Rows, colour: str) -> Panel:
    furthest = max(row["epochs"] for row in rows)
    means: list[Line] = []
    rules: list[Rule] = []
    for phase, tried in split_by(rows, "phase").items():
        first, last = tried[0]["trial"], tried[-1]["trial"]
        rules.append(Rule(first - 0.5, f"phase {phase}" if not rules else phase))
        actions = [row for row in tried if row["purpose"] == "action"]
        if actions:
            longest = max(map(_length, actions))
            mean = float(np.mean([row["reward"] for row in actions if _length(row) == longest]))
            means.append(Line([(first - 0.4, mean), (last + 0.4, mean)], Style(GREY), 1.2))
    return Panel(
        label,
        Scale.spanning("trial", (row["trial"] for row in rows), whole=True, count=8),
        Scale.spanning("reward", (row["reward"] for row in rows), count=4),
        (7.6, 2.3),
        rules=rules,
        lines=means,
        marks=[_trial_mark(row, colour, furthest) for row in rows],
    )


def _trial_mark(row: Row, colour: str, furthest: float) -> Mark:
    """A mark that is stronger for longer trials, and large at full length."""
    judging = row["purpose"] == "classifier"
    style = Style(colour, mark="x" if row["diverged"] else "D" if judging else "o", hollow=judging)
    tip = f"trial {row['trial']}, phase {row['phase']}, {row['epochs']} epochs, {row['action']}: reward "
    tip += f"{row['reward']:.3f}{' (judges the classifier)' if judging else ''}"
    place = row["trial"], row["reward"]
    strength = 0.3 + 0.6 * row["epochs"] / max(1.0, furthest)
    return Mark(*place, style, tip, 5.8 if row["full"] else 3.6, strength)


def _length(row: Row) -> tuple[float, float]:
    return row["full"], row["epochs"]


# Classes --------------------------------------------------------------------------------------------------------------


def _class_panels(runs: Mapping[str, Rows], styles: Styles) -> list[Panel]:
    lines, marks = [], []
    for label, rows in runs.items():
        places = [(row["place"], row["accuracy"]) for row in rows]
        lines.append(Line(places, styles[label]))
        for place, row in zip(places, rows, strict=True):
            right = f"{row['hits']} of {row['images']}, {row['accuracy']:.1f} %"
            tip = f"{label}: {row['name']} (phase {row['phase']}): {right}"
            marks.append(Mark(*place, styles[label], tip))
    longest = max(runs.values(), key=len)
    starts = [rows[0]["place"] for rows in split_by(longest, "phase").values()]
    return [
        Panel(
            "",
            Scale.naming("classes, first to last", [str(row["name"]) for row in longest]),
            Scale.spanning("accuracy in %", (mark.y for mark in marks)),
            (min(12.0, 4.5 + 0.08 * len(longest)), 2.8),
            rules=[Rule(start - 0.5) for start in starts[1:]],
            lines=lines,
            marks=marks,
        )
    ]


def _matrix_panel(label: str, rows: Rows, colour: str) -> Panel:
    count = 1 + max(row["exam"] for row in rows)
    table, tips = np.full((count, count), np.nan), {}
    for row in rows:
        place = row["exam"], row["phase"]
        table[place] = row["accuracy"]
        tips[place] = f"exam {row['exam']}, classes of phase {row['phase']}: {row['accuracy']:.2f} %"
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    names = [str(place) for place in range(count)]
    x = Scale.naming("phase in which classes arrived", names)
    y = Scale.naming("exam after phase", names, down=True)
    scale = f"palest {low:.1f} %, strongest {high:.1f} %"
    return Panel(f"{label}\n{scale}", x, y, (3.2, 3.2), heat=Heat(table, colour, low, high, tips))


def _confusion_panel(label: str, rows: Rows, colour: str) -> Panel:
    names = {row[key]: str(row[f"{key}_name"]) for row in rows for key in ("true", "predicted")}
    ordered = [names.get(place, "") for place in range(1 + max(names))]
    table = np.zeros((len(ordered), len(ordered)))
    for row in rows:
        table[row["true"], row["predicted"]] = row["images"]
    totals = table.sum(axis=1, keepdims=True)
    tips = {}
    if len(ordered) <= TIPPED:
        for (true, guess), images in np.ndenumerate(table):
            what = "right" if true == guess else f"taken for {ordered[guess]}"
            tips[true, guess] = f"{ordered[true]}: {images:.0f} of {totals[true, 0]:.0f} {what}"
    table /= np.maximum(1, totals)
    x, y = (Scale.naming(word, ordered, down=word == "true class") for word in ("predicted class", "true class"))
    return Panel(label, x, y, (3.2, 3.2), heat=Heat(table, colour, 0.0, 1.0, tips))


_chance_panels, _reward_panels, _matrix_panels, _confusion_panels = (
    partial(_panel_each, make) for make in (_chance_panel, _reward_panel, _matrix_panel, _confusion_panel)
)
#: Name, title, numbers of a run, caption, panels, and how many panels stand side by side in print.
_KINDS: Final[tuple[tuple[str, str, Callable[[RunRecord], Rows], str, PanelMaker, int], ...]] = (
    ("chances", "The policy over its actions", numbers.chances, CHANCES, _chance_panels, 1),
    ("rewards", "Rewards of all trials", numbers.rewards, REWARDS, _reward_panels, 1),
    ("classes", "Accuracy by class after the last phase", numbers.classes, CLASSES, _class_panels, 1),
    ("matrix", "Accuracy by exam and phase", numbers.matrix, MATRIX, _matrix_panels, 3),
    ("confusion", "Confusion after the last phase", numbers.confusion, CONFUSION, _confusion_panels, 3),
)
