"""What a probe's table says: rewards, exams, correlations, and what is replayed on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poise import store
from poise.actions import Action
from poise.errors import UserError
from poise.policies import make_policy
from poise.policies.simulate import replay_on_table
from poise.spaces import make_space
from poise.studies import ProbeTable, load_probe, probe_summary, simulation_summary, simulation_table

BASE = Action(feature_kd=1, lr=0.1, classifier="auto")
IMAGES = [4, 2]  # of the two classes in B
EXAM = [50, 150]


def probe(rates: tuple[float, ...] = (0.1, 0.05, 0.01), **changes: Any) -> ProbeTable:
    """Three learning rates; a larger arm has more hits on B, and fewer on the exam after full length."""
    space = make_space({"lr": rates}, BASE)
    trials = [
        trial(length, number, arm, full=length == "full")
        for number in (0, 1)
        for length in (1, 3, "full")
        for arm in range(len(space))
        if length != "full" or number == 0
    ]
    table = {
        "kind": "probe",
        "name": "made/up",
        "recipe": {"epochs": 30},
        "fingerprint": "f",
        "seed": 0,
        "phase": 1,
        "state": "s",
        "space": space.as_json(),
        "actions": [dict(action) for action in space.actions],
        "default": space.default,
        "counts": ["fc"] * len(space),
        "lengths": [1, 3],
        "full": 30,
        "rounds": 2,
        "classes": [7, 3],
        "old": 1,
        "new": 1,
        "exam": {"name": "dev", "images": EXAM},
        "trials": trials,
    }
    return ProbeTable({**table, **changes})


def trial(length: int | str, number: int, arm: int, *, full: bool) -> dict[str, Any]:
    epochs = [1, 2, 4, 8, 16, 30] if full else [1, 2, 3][: int(length)]
    hits = {str(epoch): {"fc": [min(4, arm + number), int(epoch > 1)], "ncm": [0, int(arm > 0)]} for epoch in epochs}
    right = 40 - 10 * arm if full else 10 + 10 * arm
    exam = {str(epoch): {"fc": [right, 60], "ncm": [0, 30 * arm]} for epoch in epochs}
    return {
        "length": length,
        "round": number,
        "arm": arm,
        "diverged": False,
        "classes": [0, 1],
        "images": IMAGES,
        "hits": hits,
        "exam": exam,
    }


def test_rewards_are_means_over_rounds_of_every_class_alike() -> None:
    found = probe()
    assert found.checkpoints(3) == (1, 2, 3)
    rewards = found.rewards(3, "fc")
    assert rewards.shape == (3, 3, 2)
    np.testing.assert_allclose(rewards[0], [[0.125, 0], [0.375, 0], [0.625, 0]])
    np.testing.assert_allclose(rewards[2], [[0.125, 0.5], [0.375, 0.5], [0.625, 0.5]])
    np.testing.assert_allclose(found.reward(3, "fc"), [0.3125, 0.4375, 0.5625])
    np.testing.assert_allclose(found.reward(3, "ncm"), [0, 0.25, 0.25])


def test_exams_count_every_image_alike_and_some_classes_if_asked() -> None:
    found = probe()
    np.testing.assert_allclose(found.exam(3, "fc"), [70 / 200, 80 / 200, 90 / 200])
    np.testing.assert_allclose(found.exam("full", "fc"), [100 / 200, 90 / 200, 80 / 200])
    np.testing.assert_allclose(found.exam(3, "ncm", slice(1, None)), [0, 30 / 150, 60 / 150])


def test_a_diverged_trial_is_worth_nothing() -> None:
    trials = [
        {**each, "diverged": each["arm"] == 1, "hits": {}, "exam": {}} if each["arm"] == 1 else each
        for each in probe().table["trials"]
    ]
    found = probe(trials=trials)
    assert found.reward(3, "fc")[1] == found.exam(3, "fc")[1] == 0
    assert found.diverged() == 1
    assert "diverged: 1" in probe_summary(found)


def test_where_actions_have_a_classifier_each_is_judged_by_its_own() -> None:
    found = probe(counts=["fc", "ncm", "fc"])
    assert found.classifier == "own"
    rewards = {name: found.reward(3, name) for name in ("fc", "ncm")}
    np.testing.assert_allclose(found.reward(3, "own"), [rewards["fc"][0], rewards["ncm"][1], rewards["fc"][2]])
    np.testing.assert_allclose(found.exam(3, "own"), [0.35, 0.15, 0.45])
    assert {line.split()[2] for line in probe_summary(found).splitlines() if line[:1].isdigit()} == {"own"}
    with pytest.raises(UserError, match="leave --classifier out"):
        simulation_table([found], classifier="fc")


def test_an_action_with_epochs_of_its_own_is_looked_at_after_the_same_share() -> None:
    trials = [dict(each) for each in probe().table["trials"]]
    for each in trials:
        if each["length"] == 3 and each["arm"] == 2:  # twice as long
            each["hits"] = {"1": {"fc": [0, 0]}, "2": {"fc": [1, 0]}, "4": {"fc": [2, 0]}, "6": {"fc": [4, 2]}}
    rewards = probe(trials=trials).rewards(3, "fc")
    np.testing.assert_allclose(rewards[:, 2, 0], [0.25, 0.5, 1])


def test_the_summary_tells_short_from_long() -> None:
    lines = probe_summary(probe()).splitlines()
    rows = {tuple(line.split()[:3]): line.split()[3:] for line in lines if line[:1].isdigit()}
    assert rows["3", "3", "fc"][:4] == ["1.00", "1.00", "1.00", "1.00"]
    assert rows["3", "30", "fc"][:4] == ["-1.00", "-1.00", "-1.00", "-1.00"]
    assert rows["3", "30", "fc"][4:] == ["50.00", "40.00", "50.00", "45.00"]
    assert ("30", "30", "ncm") in rows
    assert "it enters no reward" in lines[-1]


def test_without_exams_the_summary_says_so() -> None:
    trials = [{**each, "exam": {}} for each in probe().table["trials"]]
    assert "were not examined" in probe_summary(probe(trials=trials))


# Simulation ---------------------------------------------------------------------------------------------------------


def test_one_table_is_every_phase_and_several_are_one_each() -> None:
    table, words = simulation_table([probe()], truth="exam", phases=3)
    assert table.phases == 3
    assert table.epochs == (1, 2, 3)
    assert table.images == ((4, 2),) * 3
    assert "M₁ = 3, fc; truth: exam 'dev' of temporary models after 3 epochs" in words
    np.testing.assert_allclose(table.truth, np.tile([0.35, 0.4, 0.45], (3, 1)))
    several, _ = simulation_table([probe(), probe(phase=2)], length=1, classifier="ncm")
    assert (several.phases, several.epochs) == (2, (1,))
    assert several.full is not None
    np.testing.assert_allclose(several.truth[0], [0, 0.15, 0.3])


def test_the_truth_is_that_after_full_length_where_it_is_known() -> None:
    table, words = simulation_table([probe()])
    np.testing.assert_allclose(table.truth[0], [0.5, 0.45, 0.4])
    assert "after 30 epochs" in words
    short, _ = simulation_table([probe(full=None)])
    np.testing.assert_allclose(short.truth[0], [0.35, 0.4, 0.45])
    assert short.full is None


def test_the_truth_may_come_from_another_probe_of_the_same_phase() -> None:
    blind = probe(trials=[{**each, "exam": {}} for each in probe().table["trials"]])
    table, _ = simulation_table([blind], judges=[probe()], truth="exam")
    np.testing.assert_allclose(table.truth[0], [0.35, 0.4, 0.45])
    with pytest.raises(UserError, match="same phase of the same run"):
        simulation_table([blind], judges=[probe(state="t")])
    with pytest.raises(UserError, match="take the truth from another one"):
        simulation_table([blind])
    with pytest.raises(UserError, match="as many of --truth-from"):
        simulation_table([blind], judges=[probe(), probe()])


@pytest.mark.parametrize(
    ("changes", "asked", "line"),
    [
        ({"full": None}, {"truth": "full"}, "--full"),
        ({}, {"truth": "fulll"}, "must be exam or full"),
        ({}, {"length": 2}, "no trials of length 2; it has 1, 3, full"),
        ({}, {"classifier": "fcc"}, "must be fc or ncm"),
    ],
)
def test_what_a_table_does_not_have_is_one_line(changes: dict[str, Any], asked: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        simulation_table([probe(**changes)], **asked)


def test_tables_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UserError, match="several tables are one phase each"):
        simulation_table([probe(), probe(phase=2)], phases=3)
    with pytest.raises(UserError, match="different spaces"):
        simulation_table([probe(), probe((0.1, 0.05, 0.02))])


def test_a_short_reward_misleads_and_finalists_do_not() -> None:
    """The longer the training, the worse the larger arms: grid ends with the worst, a race with finalists does not."""
    hits = {"fc": [4, 2]}
    trials = [dict(each) for each in probe().table["trials"]]
    for each in trials:
        if each["length"] == "full":
            each["hits"] = {"30": hits if each["arm"] == 0 else {"fc": [0, 0]}}
        elif each["arm"] == 0:
            each["hits"] = {epoch: {"fc": [0, 0]} for epoch in each["hits"]}
    table, _ = simulation_table([probe(trials=trials)])
    short = replay_on_table(lambda setup: make_policy("grid", setup), table, 20, full=30)
    long = replay_on_table(lambda setup: make_policy("race", setup, {"finalists": 1}), table, 20, full=30)
    assert short.regret()[0] > 0.03
    assert long.regret()[0] == 0
    text = simulation_summary(long, "race")
    assert text.startswith("race\n")
    assert "ends more than 0.3 points below the default in 0.0% of 20 runs" in text
    assert "decided last: 100% " in text


def test_what_is_not_a_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        load_probe(tmp_path / "nowhere.json")
    store.write_json(tmp_path / "other.json", {"kind": "result"})
    with pytest.raises(UserError, match="not a table of 'poise probe'"):
        load_probe(tmp_path / "other.json")
    store.write_json(tmp_path / "probe.json", dict(probe().table))
    assert load_probe(tmp_path / "probe.json").table == probe().table
