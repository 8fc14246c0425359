"""The numbers behind the figures, as flat rows, which are also written as CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from poise.actions import Action, AxisValue
from poise.report.figures.description import Rows
from poise.report.reading import Configuration, PhaseRecord, RunRecord, StreamKind, TrialRecord, configurations
from poise.report.statistics import Spread, smooth, spread

#: The paper's letters for what its policy chooses.
LETTERS: Mapping[str, str] = {"logit_kd": "β", "feature_kd": "γ", "lr": "λ", "classifier": "δ"}


def rank(axis: str) -> int:
    """The paper's axes first, in its order."""
    return list(LETTERS).index(axis) if axis in LETTERS else len(LETTERS)


def in_letters(arm: str) -> str:
    """An action in the paper's letters and order.

    >>> in_letters("feature_kd=0.1 logit_kd=0 lr=0.1 pod=1")
    'β 0  γ 0.1  λ 0.1  pod 1'
    """
    words = sorted((word.partition("=") for word in arm.split()), key=lambda word: rank(word[0]))
    if not all(equals for _, equals, _ in words):  # the default, described in plain words
        return arm
    return "  ".join(f"{LETTERS.get(axis) or axis} {value}" for axis, _, value in words)


def accuracy(runs: Sequence[RunRecord]) -> Rows:
    """Accuracy after each phase: mean, lowest and highest over the seeds that got this far."""
    return [
        {
            **row.identity,
            "setting": str(stream),
            "phase": phase,
            "classes": classes,
            "mean": found.mean,
            "low": min(found.values),
            "high": max(found.values),
            "deviation": found.known_deviation,
            "seeds": found.count,
        }
        for row, stream, group in _by_row_and_stream(runs)
        for phase, classes, found in _by_phase(group, lambda phase: phase.accuracy)
    ]


def plane(runs: Sequence[RunRecord]) -> Rows:
    """Figure 1: average accuracy of TFH against TFS of every seed that has both, and of all of them together."""
    rows: Rows = []
    for row in configurations(runs):
        for phases in sorted({stream.phases for stream in row.by_stream}):
            tfh, tfs = (row.averages(StreamKind(phases, setting)) for setting in ("tfh", "tfs"))
            rows += [
                {
                    **row.identity,
                    "phases": phases,
                    "seed": seed,
                    "tfh": tfh[seed],
                    "tfs": tfs[seed],
                }
                for seed in tfh
                if seed in tfs
            ]
    return rows


def values(runs: Sequence[RunRecord]) -> Rows:
    """Figure 5: the tuned axes over the phases, means over seeds, raw and smoothed; δ is the share of NCM."""
    rows: Rows = []
    for row, stream, group in _by_row_and_stream(runs, lambda run: run.tuned):
        for axis in _tuned_axes(group):
            found = [
                (phase, each.mean)
                for phase, _, each in _by_phase(group, partial(_axis_value, axis))
                if phase > 0  # nothing is tuned in the first phase
            ]
            curve = smooth([mean for _, mean in found])
            rows += [
                {
                    **row.identity,
                    "setting": str(stream),
                    "axis": axis,
                    "letter": LETTERS.get(axis, ""),
                    "phase": phase,
                    "value": value,
                    "smoothed": smooth_value,
                }
                for (phase, value), smooth_value in zip(found, curve, strict=True)
            ]
    return rows


def _axis_value(axis: str, phase: PhaseRecord) -> float | None:
    """A value of an axis as a number. Words: `fc`, `trained` and `none` are 0; `ncm`, `frozen` and `align` are 1."""
    words = {"fc": 0.0, "ncm": 1.0, "trained": 0.0, "frozen": 1.0, "none": 0.0, "align": 1.0, "finetune": 2.0}
    value = phase.action.get(axis)
    return words.get(value) if isinstance(value, str) else value


def chances(run: RunRecord) -> Rows:
    """The policy over its space by phase: its distribution, if it has one, and the mean reward of every action tried.

    `decided` is 1 where the phase was trained with the action.
    """
    rows: Rows = []
    for phase in run.phases[1:] if run.arms else ():
        rewards = _mean_rewards(run, phase.phase)
        decided = arm_of(run, phase.action)
        rows += [
            {
                "run": run.name,
                "phase": phase.phase,
                "action": arm,
                "place": place,
                "probability": phase.distribution[place] if phase.distribution else None,
                "reward": rewards.get(place),
                "decided": int(place == decided),
            }
            for place, arm in enumerate(run.arms)
        ]
    return rows


def arm_of(run: RunRecord, action: Mapping[str, AxisValue]) -> int | None:
    """The index of an action in `run.arms`."""
    words = str(Action(**{axis: action[axis] for axis in run.axes if axis in action}))
    if words in run.arms:
        return run.arms.index(words)
    return len(run.arms) - 1 if run.arms and run.arms[-1].startswith("default") else None


def _mean_rewards(run: RunRecord, phase: int) -> dict[int, float]:
    """The mean reward of each arm's longest trials in this phase."""
    found: dict[int, list[TrialRecord]] = {}
    for trial in run.trials:
        place = arm_of(run, trial.action) if trial.phase == phase and trial.purpose == "action" else None
        if place is not None:
            found.setdefault(place, []).append(trial)
    longest = {place: max(trial.length for trial in trials) for place, trials in found.items()}
    return {
        place: float(np.mean([trial.reward for trial in trials if trial.length == longest[place]]))
        for place, trials in found.items()
    }


def rewards(run: RunRecord) -> Rows:
    """The reward of every trial, in the order in which they were run."""
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
            "action": str(Action(**{axis: trial.action[axis] for axis in run.axes if axis in trial.action})),
        }
        for place, trial in enumerate(run.trials, start=1)
    ]


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
        for place, (label, images, hits) in enumerate(zip(last.labels, last.images, last.hits, strict=True))
    ]


def matrix(run: RunRecord) -> Rows:
    """The accuracy matrix: every exam on the classes of every phase so far."""
    return [
        {"run": run.name, "exam": exam, "phase": phase, "accuracy": accuracy}
        for exam, row in enumerate(run.accuracy_matrix)
        for phase, accuracy in enumerate(row)
    ]


def confusion(run: RunRecord) -> Rows:
    """The last exam's confusion matrix, indexed in the order in which classes arrived; only non-zero entries."""
    if not run.phases:
        return []
    places = {label: place for place, label in enumerate(run.phases[-1].labels)}
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


def class_name(run: RunRecord, label: int) -> str:
    """The class's name, or its number."""
    return run.class_names[label] if 0 <= label < len(run.class_names) else str(label)


def forgetting(runs: Sequence[RunRecord]) -> Rows:
    """By the phase in which classes arrived: best accuracy in earlier exams, final accuracy, and what was lost."""
    rows: Rows = []
    for row, stream, group in _by_row_and_stream(runs, lambda run: run.finished and bool(run.phases[-1].labels)):
        found = [best_and_last(run) for run in group]
        for phase in range(min(map(len, found))):
            best, last = (spread([each[phase][side] for each in found]) for side in (0, 1))
            lost = spread([each[phase][0] - each[phase][1] for each in found])
            rows.append(
                {
                    **row.identity,
                    "setting": str(stream),
                    "phase": phase,
                    "best": best.mean,
                    "final": last.mean,
                    "forgetting": lost.mean,
                    "deviation": lost.known_deviation,
                    "seeds": lost.count,
                }
            )
    return rows


def best_and_last(run: RunRecord) -> list[tuple[float, float]]:
    """For each phase but the last: the best accuracy on its classes in exams before the last one, and in the last."""
    return [
        (
            max(exam.accuracy_of(phase.arrived) for exam in run.phases[place:-1]),
            run.phases[-1].accuracy_of(phase.arrived),
        )
        for place, phase in enumerate(run.phases[:-1])
    ]


# ----------------------------------------------------------------------------------------------------------------------


def _by_row_and_stream(
    runs: Sequence[RunRecord], wanted: Callable[[RunRecord], bool] = lambda run: True
) -> Iterator[tuple[Configuration, StreamKind, list[RunRecord]]]:
    """Wanted runs by row and stream. Rows are made of all runs, whose differences are in their labels."""
    for row in configurations(runs):
        for stream, group in sorted(row.by_stream.items()):
            if chosen := [run for run in group if wanted(run)]:
                yield row, stream, chosen


def _by_phase(
    runs: Sequence[RunRecord], value: Callable[[PhaseRecord], float | None]
) -> Iterator[tuple[int, int, Spread]]:
    """Each phase, its classes, and the figures of the seeds that reached it."""
    for place in range(max((len(run.phases) for run in runs), default=0)):
        there = [run.phases[place] for run in runs if len(run.phases) > place]
        found = [number for phase in there if (number := value(phase)) is not None]
        if found:
            yield there[0].phase, there[0].classes, spread(found)


def _tuned_axes(runs: Sequence[RunRecord]) -> list[str]:
    """The axes of the space, the paper's first; and the classifier, which is tuned separately."""
    axes = [*dict.fromkeys(axis for run in runs for axis in run.axes)]
    judged = any("classifier" in phase.action for run in runs for phase in run.phases)
    ordered = [axis for axis in LETTERS if axis in axes or (axis == "classifier" and judged)]
    return ordered + [axis for axis in axes if axis not in ordered]


# Reading rows ---------------------------------------------------------------------------------------------------------


def split_by(rows: Rows, column: str) -> dict[str, Rows]:
    """Rows grouped by their value in a column, in the order of first appearance."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(str(row[column]), []).append(row)
    return groups
