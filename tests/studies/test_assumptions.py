"""The paper's two assumptions, measured from journals and probes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poise.actions import Action
from poise.report.reading import PhaseRecord, RunRecord, TrialRecord
from poise.studies import ProbeTable
from poise.studies.assumptions import (
    assumptions,
    beginnings,
    changes,
    differences,
    fast_mixing,
    shares,
    slow_change,
    tuned_phases,
)

AXES: dict[str, list[float | str]] = {"feature_kd": [0.0, 1.0, 10.0], "lr": [0.1, 0.05]}
RECIPE: dict[str, Any] = {"policy": "race", "seed": 0, "method": "lucir", "data": "toy", "setting": "tfh", "phases": 5}
Happened = list[TrialRecord | PhaseRecord]


def action(feature_kd: float = 1.0, lr: float = 0.1) -> dict[str, Any]:
    return {"feature_kd": feature_kd, "lr": lr, "classifier": "auto"}


def trial(phase: int, tried: dict[str, Any], hits: list[int], epochs: int = 4, **more: Any) -> TrialRecord:
    known: dict[str, Any] = {"full": False, "diverged": False, "purpose": "action", **more}
    return TrialRecord(phase, tried, float(np.mean(hits)) / 10, epochs, accuracies=tuple(n / 10 for n in hits), **known)


def decision(phase: int, decided: dict[str, Any]) -> PhaseRecord:
    return PhaseRecord(phase, 0, 0.0, 0.0, 0.0, {**decided, "classifier": "ncm"})


def run(happened: Happened, name: str = "run", **keys: Any) -> RunRecord:
    """A finished run with these trials and decisions."""
    phases = tuple(each for each in happened if isinstance(each, PhaseRecord))
    trials = tuple(each for each in happened if isinstance(each, TrialRecord))
    recipe = {**RECIPE, **keys}
    return RunRecord(Path(name), name, recipe, recipe, {}, phases, trials, space={"axes": AXES} if trials else None)


FIRST = [action(0), action(1), action(10), action(10, 0.05)]
JOURNAL: Happened = [
    decision(0, action()),
    *(trial(1, tried, [2 * place, 2 * place]) for place, tried in enumerate(FIRST)),
    decision(1, FIRST[3]),
    *(trial(2, tried, [8 - 2 * place, 9 - 2 * place]) for place, tried in enumerate(FIRST[:3])),
    trial(2, FIRST[3], [1, 3]),
    trial(2, FIRST[0], [10, 10], epochs=40, full=True, purpose="classifier"),
    decision(2, FIRST[0]),
]


def test_the_change_from_one_tuned_phase_to_the_next() -> None:
    (change,) = changes(tuned_phases(run(JOURNAL)), AXES)
    assert (change.phase, change.arms) == (2, 4)
    assert change.correlation == pytest.approx(-1)
    assert change.axes == ("feature_kd", "lr")
    assert change.steps == 2 + 1
    assert change.loss == pytest.approx((0.7 + 0.6) / 2)
    assert change.error == pytest.approx(0.05)


def test_the_same_decision_changes_nothing_and_loses_little() -> None:
    journal: Happened = [decision(0, action())]
    for phase in (1, 2):
        journal += [trial(phase, tried, [place, place]) for place, tried in enumerate(FIRST)]
        journal.append(decision(phase, FIRST[3]))
    (change,) = changes(tuned_phases(run(journal)), AXES)
    assert (change.axes, change.steps, change.loss) == ((), 0, 0)
    assert change.correlation == pytest.approx(1)
    text = slow_change(run(journal, seed=3))
    assert "decided anew in 0 of 1 phases" in text
    assert "lucir, race, toy, TFH 5, seed 3" in text


def test_only_trials_that_went_equally_far_are_compared() -> None:
    journal: Happened = [decision(0, action())]
    journal += [trial(1, tried, [place, place], epochs=2) for place, tried in enumerate(FIRST)]
    journal += [trial(1, FIRST[0], [9, 9]), decision(1, FIRST[0])]
    journal += [trial(2, tried, [place, place], epochs=2) for place, tried in enumerate(FIRST)]
    journal += [trial(2, FIRST[3], [9, 9]), decision(2, FIRST[3])]
    (change,) = changes(tuned_phases(run(journal)), AXES)
    assert change.correlation == pytest.approx(1), "at epoch 2, where all four were"
    assert change.loss == pytest.approx(0.3), "the first action went to epoch 2 only"


def test_what_was_not_tried_or_is_off_the_grid_is_unknown() -> None:
    off = action(3.0)
    journal: Happened = [trial(1, off, [1]), decision(1, off), trial(2, FIRST[0], [1]), decision(2, FIRST[0])]
    (change,) = changes(tuned_phases(run(journal)), AXES)
    assert math.isnan(change.correlation)
    assert math.isnan(change.loss)
    assert change.steps is None
    assert change.axes == ("feature_kd",)
    assert "–" in slow_change(run(journal))


def test_a_run_that_tuned_nothing_says_nothing() -> None:
    plain = run([decision(0, action()), decision(1, action())], policy="fixed")
    assert slow_change(plain) == ""
    assert assumptions([plain]) == ""


# Fast mixing --------------------------------------------------------------------------------------------------------


def course(feature_kds: list[float], new_hits: list[int], seed: int = 0, name: str = "one") -> RunRecord:
    """A run with one class in phase 0 and one more in each later phase, of 10 images each."""
    phases: Happened = [exam(0, action(), [5])]
    for phase, (weight, hits) in enumerate(zip(feature_kds, new_hits, strict=True), start=1):
        phases.append(exam(phase, action(weight), [5] * phase + [hits]))
    return run(phases, name, seed=seed)


def exam(phase: int, decided: dict[str, Any], hits: list[int]) -> PhaseRecord:
    return replace(
        decision(phase, decided),
        action={**decided, "classifier": "fc"},
        labels=tuple(range(phase + 1)),
        arrived=(phase,),
        images=(10,) * (phase + 1),
        hits_by_classifier={"fc": tuple(hits), "ncm": (0,) * (phase + 1)},
    )


def test_a_run_that_started_after_phase_0_is_compared_phase_by_phase() -> None:
    """What phase 0 was trained with does not matter, nor is it known."""
    whole, later = course([1.0, 0.5], [4, 6]), course([0.1, 0.5], [5, 9], name="later")
    later = replace(later, phases=(replace(later.phases[0], action={"classifier": "fc"}), *later.phases[1:]))
    assert differences([whole, later]) == ([30.0], [10.0])


def test_pairs_are_told_apart_by_when_their_actions_differ() -> None:
    one, other = course([0, 1], [8, 7]), course([1, 1], [4, 6], name="other")
    early, late = differences([one, other])
    assert early == pytest.approx([10]), "phase 2: the same now, others before"
    assert late == pytest.approx([40]), "phase 1: others now, the same before"
    text = fast_mixing([one, other])
    assert "same action now, others before: 10.00 (1 pairs)" in text
    assert "other action now, same before:  40.00 (1 pairs)" in text


def test_runs_that_differ_in_more_than_their_actions_are_not_compared() -> None:
    assert differences([course([0, 1], [8, 7]), course([1, 1], [4, 6], seed=1, name="other")]) == ([], [])
    one, other = course([0, 1], [8, 7]), course([1, 1], [4, 6], name="other")
    assert differences([one, other]) != ([], [])
    for key, value in {"net": "resnet18", "batch": 64, "options": {"lambda_base": 1}, "first_lr": 0.01}.items():
        assert differences([one, replace(other, recipe={**other.recipe, key: value})]) == ([], []), key
    assert differences([replace(one, phase_0="a"), replace(other, phase_0="b")]) == ([], [])
    assert fast_mixing([course([0, 1], [8, 7])]) == ""
    assert fast_mixing([course([0, 0], [8, 7]), course([1, 1], [8, 7], name="other")]) == "", (
        "constant actions never meet again"
    )


def test_variance_divides_into_action_beginning_and_rest() -> None:
    generator = np.random.default_rng(0)
    arms, starts = generator.normal(0, 0.1, 30), np.array([0.0, 0.01, 0.02])
    found = shares(starts[:, None] + arms)
    assert found.action > 0.9
    assert found.rest == pytest.approx(0, abs=1e-9)
    assert found.correlation == pytest.approx(1)
    noise = shares(generator.normal(0, 0.1, (3, 400)))
    assert noise.rest == pytest.approx(2 / 3, abs=0.1)
    assert noise.beginning < 0.05


def test_probes_after_different_beginnings_are_compared() -> None:
    tables = [probe(state, shift) for state, shift in (("one", 0), ("two", 3), ("two", 3))]
    text = beginnings(tables[:2])
    assert "Phase 2 after 2 different beginnings" in text
    assert "rank the actions alike with 1.00" in text
    assert beginnings(tables[1:]) == "", "the same beginning twice"
    other = ProbeTable({**tables[1].table, "phase": 3})
    assert beginnings([tables[0], other]) == ""


def probe(state: str, shift: int) -> ProbeTable:
    actions = [dict(Action(lr=lr)) for lr in (0.1, 0.05, 0.01)]
    entries = [
        {
            "length": 2,
            "round": 0,
            "arm": arm,
            "diverged": False,
            "images": [2, 2],
            "hits": {"2": {"fc": [1, 1]}},
            "exam": {"2": {"fc": [0, 10 * arm + shift]}},
        }
        for arm in range(3)
    ]
    return ProbeTable(
        {
            "fingerprint": "f",
            "phase": 2,
            "classes": [0, 1],
            "old": 1,
            "seed": 0,
            "state": state,
            "actions": actions,
            "default": 0,
            "counts": ["fc"] * 3,
            "space": {"name": "grid", "axes": {"lr": [0.1, 0.05, 0.01]}},
            "lengths": [2],
            "full": None,
            "exam": {"name": "dev", "images": [50, 50]},
            "trials": entries,
        }
    )


def test_the_text_of_several_runs() -> None:
    text = assumptions([run(JOURNAL), run(JOURNAL, "other", seed=1), run([decision(0, action())], "fixed")])
    assert text.startswith("Do the hyperparameters change slowly? lucir, race, toy, TFH 5, seed 0: from")
    assert "keeping the last decision loses 65.00 points" in text
    many = [run(JOURNAL, f"run {seed}", seed=seed) for seed in range(13)]
    assert assumptions(many).startswith("1 of 13 runs, seed 0")


def test_a_copy_of_a_run_is_no_further_pair() -> None:
    """Nor is it measured again; another run of the same keys in which something else happened is."""
    one, other = course([0, 1], [8, 7]), course([1, 1], [4, 6], name="other")
    one = replace(one, trials=run(JOURNAL).trials)
    text = assumptions([one, other])
    assert "10.00 (1 pairs)" in text
    assert assumptions([one, other, replace(other, name="copy"), replace(one, name="again")]) == text
    assert "(2 pairs)" in assumptions([one, other, course([1, 1], [5, 6], name="third")])
