"""The two assumptions behind the paper's decoupling of phases, measured from journals and probes.

The paper ("Online Hyperparameter Optimization for Class-Incremental Learning", Liu, Li, Schiele and Sun, AAAI 2023)
treats each phase as a problem of its own (its section 4) because it assumes that 1) *fast mixing*: the hyperparameters
of an early phase hardly matter for the accuracy on the classes observed in the current phase; 2) *slow change*: the
hyperparameters change slowly.

What can be measured, and where it ends:

* **Slow change**, from the journal of one run that tuned something. From each tuned phase to the next: the rank
  correlation of the local rewards of all arms that were tried equally far in both; which axes of the decided action
  changed, and by how many steps of the grid; and the local reward lost by keeping the last decision: the best reward
  of this phase minus that of the last phase's action, where that was tried equally far. The best of many noisy rewards
  lies above what it is worth, so a loss within two of its standard errors (over classes) is no loss.
* **Fast mixing**, from several runs of one recipe and seed that differ in their actions: one run shows nothing about
  it. Pairs of runs are compared in each phase on the classes that arrived in it: pairs with the same action now and
  others before, beside pairs with the same actions before and another one now. Two equal trainings from different
  models also differ by chance; the first figure contains that.
* The same from **probes** of one phase after different beginnings: every action was tried from each of them, so that
  the variance of the exam accuracy on the new classes divides into what the action explains, what the beginning
  explains, and a rest (their interaction, and chance).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poise.actions import Action
from poise.policies.simulate import rank_correlation
from poise.report import RunRecord, align_columns
from poise.runfolder import POLICY_KEYS
from poise.studies.probe_table import ProbeTable

Array = NDArray[np.float64]
Axes = Mapping[str, Sequence[float | str]]
Level = tuple[bool, int]  # at full length or not, and until which epoch: what can be compared

#: Of more runs than this only some are measured: a table each would be too many to read.
MOST_RUNS = 12


@dataclass(frozen=True)
class Tuned:
    """One tuned phase: accuracies per class of each action at each level (means over rounds), and the decision."""

    phase: int
    tried: Mapping[Level, Mapping[Action, Array]]
    decided: Action


@dataclass(frozen=True)
class Change:
    """From one tuned phase to the next.

    Attributes:
        phase: the later one.
        arms: how many actions were tried equally far in both.
        correlation: rank correlation of their rewards; NaN where there are fewer than three.
        axes: which axes of the decided action changed.
        steps: by how many steps of the grid, in all; None where one of them is not on the grid.
        loss: best reward of the phase minus that of the last decision; NaN where that was not tried.
        error: standard error of the loss over classes.
    """

    phase: int
    arms: int
    correlation: float
    axes: tuple[str, ...]
    steps: int | None
    loss: float
    error: float


def tuned_phases(run: RunRecord) -> list[Tuned]:
    """The phases in which something was tried, with what was decided."""
    tried: dict[int, dict[Level, dict[Action, list[Array]]]] = {}
    for trial in run.trials:
        if trial.purpose == "action":
            arms = tried.setdefault(trial.phase, {}).setdefault(trial.length, {})
            arms.setdefault(_arm(run, trial.action), []).append(np.array(trial.accuracies))
    return [
        Tuned(phase.phase, {level: _means(arms) for level, arms in tried[phase.phase].items()}, _arm(run, phase.action))
        for phase in run.phases
        if phase.phase in tried
    ]


def _arm(run: RunRecord, action: Mapping[str, float | str]) -> Action:
    """An action as it was tried: which classifier counts is an arm's own only where it is an axis of the space."""
    return Action(**(action if "classifier" in run.axes else {**action, "classifier": "auto"}))


def _means(arms: Mapping[Action, list[Array]]) -> dict[Action, Array]:
    return {action: np.asarray(np.mean(found, axis=0)) for action, found in arms.items()}


# Slow change ----------------------------------------------------------------------------------------------------------


def changes(phases: Sequence[Tuned], axes: Axes) -> list[Change]:
    """What changed from each tuned phase to the next, on a grid with these axes."""
    return [_change(before, now, axes) for before, now in itertools.pairwise(phases)]


def _change(before: Tuned, now: Tuned, axes: Axes) -> Change:
    moved = tuple(axis for axis in axes if before.decided[axis] != now.decided[axis])
    steps = [_steps(values, before.decided[axis], now.decided[axis]) for axis, values in axes.items()]
    known = [number for number in steps if number is not None]
    return Change(
        now.phase,
        *_likeness(before, now),
        moved,
        sum(known) if len(known) == len(steps) else None,
        *_loss(before.decided, now),
    )


def _likeness(before: Tuned, now: Tuned) -> tuple[int, float]:
    """How many actions, and the correlation of their rewards, at the furthest level that three share."""
    levels = before.tried.keys() & now.tried.keys()
    shared = {level: [arm for arm in now.tried[level] if arm in before.tried[level]] for level in levels}
    level = max((level for level, arms in shared.items() if len(arms) > 2), default=None)
    if level is None:
        return max(map(len, shared.values()), default=0), math.nan
    one, other = (np.array([each.tried[level][arm].mean() for arm in shared[level]]) for each in (before, now))
    return len(shared[level]), rank_correlation(one, other)


def _steps(values: Sequence[float | str], one: float | str, other: float | str) -> int | None:
    """Steps on an axis; any two words are one step apart."""
    if one not in values or other not in values:
        return None
    if isinstance(one, str) or isinstance(other, str):
        return int(one != other)
    ordered = sorted(float(value) for value in values)
    return abs(ordered.index(one) - ordered.index(other))


def _loss(kept: Action, now: Tuned) -> tuple[float, float]:
    """What keeping that action would lose of the local reward, and its standard error."""
    level = max((level for level, arms in now.tried.items() if kept in arms), default=None)
    if level is None:
        return math.nan, math.nan
    arms = now.tried[level]
    best = max(arms, key=lambda arm: float(arms[arm].mean()))
    behind = arms[best] - arms[kept]
    error = float(behind.std(ddof=1) / math.sqrt(len(behind))) if len(behind) > 1 else math.nan
    return float(behind.mean()), error


def slow_change(run: RunRecord) -> str:
    """The text about one run; empty where fewer than two phases were tuned."""
    found = changes(tuned_phases(run), run.axes)
    if not found:
        return ""
    rows = [
        [
            str(each.phase),
            str(each.arms),
            _figure(each.correlation),
            ", ".join(each.axes) or "none",
            "–" if each.steps is None else str(each.steps),
            _figure(100 * each.loss),
            _figure(100 * each.error),
        ]
        for each in found
    ]
    header = ["phase", "arms", "rank correlation", "changed axes", "steps", "lost by keeping", "±"]
    moved = sum(bool(each.axes) for each in found)
    return "\n".join(
        [
            f"Do the hyperparameters change slowly? {_describe(run)}: from each tuned phase to the next",
            align_columns(header, rows),
            f"decided anew in {moved} of {len(found)} phases; rewards of two phases correlate with "
            f"{_figure(_mean([each.correlation for each in found]))}; keeping the last decision loses "
            f"{_figure(100 * _mean([each.loss for each in found]))} points of local reward (the best of many looks "
            f"better than it is)",
        ]
    )


def _describe(run: RunRecord) -> str:
    return f"{run.method}, {run.policy_label}, {run.data}, {run.setting.upper()} {run.stream}, seed {run.seed}"


# Fast mixing ----------------------------------------------------------------------------------------------------------


def differences(runs: Sequence[RunRecord]) -> tuple[list[float], list[float]]:
    """Absolute differences on a phase's own classes between pairs of runs that are alike but for their actions.

    First those with the same action now and others before, then those with another action now and the same before.
    Phase 0, in which nothing is tuned, is left out, and so is the classifier: nothing is trained with it.
    """
    early: list[float] = []
    late: list[float] = []
    known = [run for run in runs if run.phases and run.phases[-1].labels]
    actions = {
        run.name: [Action(**{**phase.action, "classifier": "auto"}) for phase in run.phases[1:]] for run in known
    }
    alike = {run.name: (run.seed, run.configuration((*POLICY_KEYS, "action"))) for run in known}
    for one, other in itertools.combinations(known, 2):
        if alike[one.name] != alike[other.name] or not one.may_share_phase_0(other):
            continue
        mine, theirs = actions[one.name], actions[other.name]
        for phase in range(1, min(len(one.phases), len(other.phases))):
            before, now = mine[: phase - 1] == theirs[: phase - 1], mine[phase - 1] == theirs[phase - 1]
            if before != now:
                (early if now else late).append(_difference(one, other, phase))
    return early, late


def _difference(one: RunRecord, other: RunRecord, phase: int) -> float:
    """On the classes that arrived in this phase, in its exam, by the classifier that counts in the first run."""
    counts = one.phases[phase].classifier
    mine, theirs = (run.phases[phase].accuracy_of(run.phases[phase].arrived, counts) for run in (one, other))
    return abs(mine - theirs)


def fast_mixing(runs: Sequence[RunRecord]) -> str:
    """The text about several runs; empty where no two of them can be compared."""
    early, late = differences(runs)
    if not early:
        return ""
    now = f"{_mean(late):.2f} ({len(late)} pairs)" if late else "– (no such pair)"
    return (
        "Do early hyperparameters matter later? Accuracy on a phase's own classes, mean difference of two runs\n"
        f"same action now, others before: {_mean(early):.2f} ({len(early)} pairs)\n"
        f"other action now, same before:  {now}"
    )


@dataclass(frozen=True)
class Shares:
    """How the variance of the exam accuracy on new classes divides, and how alike two beginnings rank the arms."""

    action: float
    beginning: float
    rest: float
    correlation: float


def shares(accuracies: Array) -> Shares:
    """Beginnings × arms: a two-way analysis of variance without repetition.

    >>> both = shares(np.array([[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]]))
    >>> round(both.action, 3), round(both.beginning, 3), round(abs(both.rest), 3), round(both.correlation, 3)
    (0.727, 0.273, 0.0, 1.0)
    """
    mean, arms, starts = accuracies.mean(), accuracies.mean(axis=0), accuracies.mean(axis=1)
    total = float(((accuracies - mean) ** 2).sum()) or math.nan
    action = float(((arms - mean) ** 2).sum()) * len(starts) / total
    beginning = float(((starts - mean) ** 2).sum()) * len(arms) / total
    pairs = [rank_correlation(one, other) for one, other in itertools.combinations(accuracies, 2)]
    return Shares(action, beginning, 1 - action - beginning, _mean(pairs))


def beginnings(probes: Sequence[ProbeTable]) -> str:
    """The text about probes of one phase after different beginnings; empty where there are none."""
    groups: dict[str, list[ProbeTable]] = {}
    for probe in probes:
        alike = [probe.table[key] for key in ("fingerprint", "phase", "classes", "seed", "actions", "lengths", "full")]
        groups.setdefault(json.dumps([*alike, probe.table["exam"]]), []).append(probe)
    return "\n\n".join(
        _beginnings(group)
        for group in groups.values()
        if len({probe.table["state"] for probe in group}) > 1 and all(probe.has_exam for probe in group)
    )


def _beginnings(group: Sequence[ProbeTable]) -> str:
    first, length = group[0], group[0].lengths[-1]
    new = slice(first.table["old"], None)
    found = shares(np.stack([probe.exam(length, first.classifier, new) for probe in group]))
    return (
        f"Do early hyperparameters matter later? Phase {first.table['phase']} after {len(group)} different beginnings, "
        f"exam accuracy on its new classes after {first.epochs(length)} epochs\n"
        f"explained by the action now {found.action:.0%}, by what came before {found.beginning:.0%}, "
        f"rest {found.rest:.0%}; two beginnings rank the actions alike with {_figure(found.correlation)}"
    )


# The report -----------------------------------------------------------------------------------------------------------


def assumptions(runs: Sequence[RunRecord]) -> str:
    """What finished runs say about both assumptions; empty where none of them tuned anything."""
    done = _leave_out_copies([run for run in runs if run.finished])
    if not any(run.trials for run in done):
        return ""
    seed = min(run.seed for run in done)
    shown = done if len(done) <= MOST_RUNS else [run for run in done if run.seed == seed][:MOST_RUNS]
    note = f"{len(shown)} of {len(done)} runs, seed {seed}\n\n" if len(shown) < len(done) else ""
    text = "\n\n".join(text for text in (*map(slow_change, shown), fast_mixing(shown)) if text)
    return text and f"{note}{text}"


def _leave_out_copies(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Those in which something else happened than in an earlier one of the same keys and seed."""
    known: dict[tuple[str, int], list[RunRecord]] = {}
    for run in runs:
        same = known.setdefault((run.configuration(), run.seed), [])
        if all(run.phases != other.phases for other in same):
            same.append(run)
    kept = {id(run) for same in known.values() for run in same}
    return [run for run in runs if id(run) in kept]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
