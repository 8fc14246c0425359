"""What is compared with what, and what of a gain is the choice of the classifier alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from poise import store
from poise.report import describe_figures
from poise.report.comparisons import comparisons, rankings
from poise.report.page.glance import summary
from poise.report.reading import RunRecord, configurations, read_run, read_runs
from poise.report.tables.accuracy import accuracy_tables

from .conftest import IMAGES, Write

ONE_IMAGE = 100 / IMAGES  # of each class, which NCM has fewer than FC in these runs
AUTO = {"classifier": "auto"}


def words(runs: list[RunRecord]) -> list[tuple[str, str]]:
    return [(answer["title"], answer["words"]) for answer in summary(runs, ())["answers"]]


def all_runs(folder: Path) -> list[RunRecord]:
    return list(read_runs([folder])[0])


def test_the_part_of_the_classifier_is_told_from_the_rest(write: Write, tmp_path: Path) -> None:
    better = ((50,), (45, 50), (35, 45, 50))
    for seed in range(3):
        write(f"runs/fixed-{seed}", seed=seed, classifier="ncm")
        write(f"runs/online-{seed}", better, seed=seed, policy="online")
    runs = all_runs(tmp_path / "runs")
    (found,) = comparisons(runs)
    assert found.by_classifier is not None
    assert found.by_classifier.mean == pytest.approx(ONE_IMAGE), "FC instead of NCM, with the baseline's networks"
    assert found.difference.mean > found.by_classifier.mean
    (table,) = accuracy_tables(runs)
    gains = {record["policy"]: record["gain_by_classifier"] for record in table.records}
    assert gains == {"fixed": None, "online": pytest.approx(ONE_IMAGE)}
    assert [note.text for row in table.rows for cell in row for note in cell.notes][1] == "+2.00 by the classifier"
    ((title, said),) = words(runs)
    assert title == "Does a policy help?"
    assert "Of it, +2.00 come from the choice of the classifier" in said
    assert "policy=fixed action.classifier=auto runs that choice alone" in said


def test_a_run_that_chooses_the_classifier_alone_is_a_row_of_its_own(write: Write, tmp_path: Path) -> None:
    write("runs/fixed", classifier="ncm")
    write("runs/judged", action=AUTO)
    write("runs/online", ((50,), (45, 50), (35, 45, 50)), policy="online")
    runs = all_runs(tmp_path / "runs")
    found = {each.row.label: each for each in comparisons(runs)}
    assert set(found) == {"lucir, fixed, action.classifier=auto", "lucir, online"}
    judged = found["lucir, fixed, action.classifier=auto"]
    assert judged.by_classifier is not None
    assert judged.difference.mean == pytest.approx(judged.by_classifier.mean) == pytest.approx(ONE_IMAGE)
    ((_, said),) = words(runs)
    assert "lucir, online" in said
    assert "+2.00 are reached by choosing the classifier alone" in said
    ((_, alone),) = words([run for run in runs if run.name != "online"])
    assert "Nothing but the classifier was chosen there." in alone


def test_a_classifier_that_never_changed_brings_nothing(write: Write, tmp_path: Path) -> None:
    write("runs/fixed")
    write("runs/online", ((50,), (45, 50), (35, 45, 50)), policy="online")
    ((_, said),) = words(all_runs(tmp_path / "runs"))
    assert "None of it comes from the choice of the classifier" in said


def test_methods_without_a_policy_are_compared(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/lucir-{seed}", seed=seed)
        write(f"runs/icarl-{seed}", ((50,), (45, 50), (34 + seed, 45, 50)), seed=seed, method="icarl")
        write(f"runs/lwf-{seed}", ((50,), (50, 50), (50, 50, 50)), seed=seed, method="lwf", more={"oracle": True})
    runs = all_runs(tmp_path / "runs")
    assert comparisons(runs) == []
    (ranking,) = rankings(runs)
    assert [row.label for row in ranking.rows] == ["lwf, fixed (oracle)", "icarl, fixed", "lucir, fixed"]
    ((title, said),) = words(runs)
    assert title == "Which method is ahead?"
    assert said.startswith("TFS 3: icarl, fixed (9"), "the oracle is shown and leads nothing"
    assert "before lucir, fixed" in said
    assert said.endswith("points over 3 paired seeds: its 95 % interval excludes zero.")
    answer = summary(runs, ())["answers"][0]
    assert len(answer["figure"].data) == 3


def test_runs_without_a_common_seed_or_stream_are_not_ranked(write: Write) -> None:
    runs = [read_run(write("lucir", seed=1)), read_run(write("icarl", seed=2, method="icarl"))]
    runs.append(read_run(write("lwf", seed=1, method="lwf", setting="tfh")))
    runs.append(read_run(write("going", seed=1, method="podnet", phases=4, finished=False)))
    assert rankings(runs) == []
    ((title, said),) = words(runs)
    assert title == ""
    assert said.startswith("Nothing is compared here: no two finished runs share data, setting and seed")


def test_the_first_screen_explains_its_words(write: Write) -> None:
    runs = [read_run(write("one", setting="tfh")), read_run(write("two", policy="online"))]
    runs.append(read_run(write("three", setting="groups", groups=[4, 2, 1])))
    lines = summary(runs, ())["meanings"]
    assert lines == [
        ("groups [4,2,1]", "so many new classes arrive in each phase"),
        ("TFH 3", "training from half, half of the classes arrive first and the others in 3 phases"),
        ("TFS 3", "training from scratch, the classes arrive in 3 equal phases"),
        ("fixed", "the method's own hyperparameters"),
        ("online", "hyperparameters and classifier are chosen in each phase, on held-out training images"),
        ("average accuracy", "the mean over the exams after every phase, each on all classes so far"),
    ]
    assert summary([], ())["meanings"] == []


def test_a_row_has_one_name_in_every_figure(write: Write, tmp_path: Path) -> None:
    """Also where only some of the rows are drawn: those that tuned something, or those that are finished."""
    write("runs/fixed")
    write("runs/going", epochs=80, finished=False)
    write("runs/judged", action=AUTO)
    write("runs/online", policy="online")
    figures = {figure.name: figure for figure in describe_figures(all_runs(tmp_path / "runs"))}
    names = {figure: {row["row"] for row in figures[figure].data} for figure in ("accuracy-toy", "forgetting-toy")}
    assert names["forgetting-toy"] < names["accuracy-toy"]
    assert len(names["accuracy-toy"]) == 4
    assert "lucir, online" in names["accuracy-toy"]
    assert "lucir, fixed, action.classifier=auto, epochs=160" in names["accuracy-toy"]


def test_gains_and_ranks_are_among_runs_with_the_same_augmentation(write: Write, tmp_path: Path) -> None:
    better = ((50,), (45, 50), (40, 50, 50))
    for seed in range(3):
        write(f"runs/fixed-{seed}", seed=seed)
        write(f"runs/icarl-{seed}", ((50,), (39, 45), (30, 40, 48)), seed=seed, method="icarl")
        write(f"runs/strong-{seed}", better, seed=seed, augmentation="autoaugment+cutout")
        write(f"runs/online-{seed}", better, seed=seed, policy="online", augmentation="autoaugment+cutout")
    runs = all_runs(tmp_path / "runs")
    (found,) = comparisons(runs)
    assert found.row.label == "lucir, online (AutoAugment and Cutout)"
    assert found.difference.mean == 0, "with the same augmentation; plain runs are no baseline of it"
    (ranking,) = rankings(runs)
    assert [row.label for row in ranking.rows] == ["lucir, fixed", "icarl, fixed"], "and not those with another one"


LONG_AGO = ((50,), (44, 46), (42, 44, 46))


def phase_0_of(folder: Path, value: float) -> str:
    """Give a run its state after phase 0; what that is recognised by."""
    tensors = {"weight": torch.full((2,), value)}
    store.write_tensors(folder / "phase-0.safetensors", tensors, {}, kind="phase 0")
    return store.digest_of_tensors(tensors)


@pytest.mark.parametrize("origin", ["in the report", "at its path", "gone"])
def test_a_policy_is_compared_with_the_run_of_the_same_phase_0(write: Write, tmp_path: Path, origin: str) -> None:
    long, plain = write("long", LONG_AGO, epochs=200), write("plain", LONG_AGO)
    begun = {"start": str(long), "start_fingerprint": phase_0_of(long, 1.0)}
    phase_0_of(plain, 2.0)
    started = write("started", ((50,), (45, 45), (45, 45, 45)), **begun)
    tuned = write("tuned", ((50,), (46, 46), (46, 46, 46)), policy="online", **begun)
    if origin == "gone":
        shutil.rmtree(long)
    runs = read_runs([plain, started, tuned, *([long] if origin == "in the report" else [])])[0]
    (found,) = comparisons(runs)
    by_name = {run.name: run for run in runs}
    assert found.difference.mean == pytest.approx((by_name["tuned"].average or 0) - (by_name["started"].average or 0))
    (table,) = accuracy_tables(runs)
    shown = [row[1].text for row in table.rows if "200" not in row[1].text or "start" in row[1].text]
    if origin == "gone":
        assert shown == ["fixed", "fixed, another phase 0", "online"]
    else:
        assert [row.replace(", epochs=160", "") for row in shown][1:] == [
            "fixed, start.epochs=200",
            "online, start.epochs=200",
        ]


def test_a_start_that_was_trained_alike_is_not_another_row(write: Write) -> None:
    plain = write("plain", LONG_AGO)
    begun = {"start": str(plain), "start_fingerprint": phase_0_of(plain, 1.0)}
    runs = read_runs([plain, write("more", LONG_AGO, seed=1), write("tuned", policy="online", **begun)])[0]
    assert [run.other_start for run in runs] == [{}, {}, {}]
    (found,) = comparisons(runs)
    assert found.row.label == "lucir, online"


def test_a_start_splits_no_repetitions_that_have_nothing_to_do_with_it(write: Write) -> None:
    """A GPU trains two runs of one seed a little differently; they repeat each other, whatever else is reported."""
    paths = [write("one"), write("two"), write("tuned", policy="online"), write("icarl", method="icarl")]
    for place, path in enumerate(paths):
        phase_0_of(path, float(place))
    begun = {"start": str(paths[3]), "start_fingerprint": phase_0_of(paths[3], 3.0)}
    paths.append(write("started", method="icarl", policy="online", **begun))
    for given in (paths[:-1], paths):
        rows = configurations(read_runs(given)[0])
        assert [row.label for row in rows if row.first.method == "lucir"] == ["lucir, fixed", "lucir, online"]


def test_of_two_repetitions_the_one_that_others_started_from_is_their_baseline(write: Write) -> None:
    one, two = write("one", LONG_AGO), write("two")
    phase_0_of(one, 1.0)
    begun = {"start": str(two), "start_fingerprint": phase_0_of(two, 2.0)}
    (found,) = comparisons(read_runs([one, two, write("tuned", policy="online", **begun)])[0])
    assert found.difference.mean == 0, "as `two`"


def test_a_ranking_says_in_what_else_its_configurations_differ(write: Write, tmp_path: Path) -> None:
    write("runs/lucir", LONG_AGO, epochs=20)
    write("runs/grid", epochs=1, policy="grid", memory={"per_class": 5, "total": None, "reserve": 0})
    runs = all_runs(tmp_path / "runs")
    ((_, said),) = words(runs)
    assert "lucir, fixed, epochs=20, memory.per_class=20 (" in said
    assert "before lucir, grid, epochs=1, memory.per_class=5 (" in said
    (figure,) = [answer["figure"] for answer in summary(runs, ())["answers"]]
    assert {row["row"] for row in figure.data} == {
        "lucir, fixed, epochs=20, memory.per_class=20, TFS 3",
        "lucir, grid, epochs=1, memory.per_class=5, TFS 3",
    }
    write("runs/again", LONG_AGO, epochs=30)
    ((_, said),) = words(all_runs(tmp_path / "runs"))
    assert "epochs=20, epochs=20" not in said, "what a label says is not said twice"
