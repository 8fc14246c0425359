"""What is compared with what: rows, their labels and baselines, gains, rankings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import store
from poise.errors import UserError
from poise.report import Study, gather, run_table
from poise.report.page import summary
from poise.report.study import METHOD_COLOURS
from poise.report.tables import make_tables
from poise.report.text import align_columns, comparison_table

from .conftest import IMAGES, Write

ONE_IMAGE = 100 / IMAGES  # of each class, which NCM has fewer than FC in these runs
AUTO = {"classifier": "auto"}
BETTER = ((50,), (45, 50), (35, 45, 50))
BEST = ((50,), (50, 50), (50, 50, 50))
LONG_AGO = ((50,), (44, 46), (42, 44, 46))


def words(study: Study) -> list[tuple[str, str]]:
    return [(answer["title"], answer["words"]) for answer in summary(study)["answers"]]


def labels(study: Study) -> list[str]:
    return [row.full_label for row in study.rows]


def test_the_part_of_the_classifier_is_told_from_the_rest(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/fixed-{seed}", seed=seed, classifier="ncm")
        write(f"runs/online-{seed}", BETTER, seed=seed, policy="online")
    study = gather([tmp_path / "runs"])
    (found,) = study.comparisons.values()
    assert found.by_classifier is not None
    assert found.by_classifier.mean == pytest.approx(ONE_IMAGE), "FC instead of NCM, with the baseline's networks"
    assert found.difference.mean > found.by_classifier.mean
    table = make_tables(study)[1]
    gains = {record["policy"]: record["gain_by_classifier"] for record in table.records}
    assert gains == {"fixed": None, "online": pytest.approx(ONE_IMAGE)}
    assert "+2.00 by the classifier" in [note.text for row in table.rows for cell in row for note in cell.notes]
    ((title, said),) = words(study)
    assert title == "Does a policy help?"
    assert "Of it, +2.00 come from the choice of the classifier" in said


def test_a_run_that_chooses_the_classifier_alone_is_a_row_of_its_own(write: Write) -> None:
    paths = [write("fixed", classifier="ncm"), write("judged", action=AUTO), write("online", BETTER, policy="online")]
    study = gather(paths)
    found = {each.row.label: each for each in study.comparisons.values()}
    assert set(found) == {"lucir, fixed, action.classifier=auto", "lucir, online"}
    assert found["lucir, fixed, action.classifier=auto"].difference.mean == pytest.approx(ONE_IMAGE)
    ((_, said),) = words(study)
    assert "+2.00 are reached by choosing the classifier alone" in said
    ((_, alone),) = words(gather(paths[:2]))
    assert "Nothing but the classifier was chosen there." in alone


def test_all_rows_are_compared_with_one_where_it_is_named(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/lucir-{seed}", seed=seed)
        write(f"runs/icarl-{seed}", BETTER, seed=seed, method="icarl")
        write(f"runs/online-{seed}", BEST, seed=seed, policy="online")
    study = gather([tmp_path / "runs"], "icarl, fixed")
    gains = {each.row.label: each.difference.mean for each in study.comparisons.values()}
    assert set(gains) == {"lucir, fixed", "lucir, online"}
    assert gains["lucir, fixed"] < 0 < gains["lucir, online"]
    assert all(each.by_classifier is None for each in study.comparisons.values()), "of another method, it says nothing"
    assert words(study)[0][0] == "Against icarl, fixed"
    assert words(study)[0][1].startswith("2 comparisons with the row 'icarl, fixed': ")
    assert "its difference to the row 'icarl, fixed'" in make_tables(study)[1].caption
    with pytest.raises(
        UserError, match="icarl is no row of this report; its rows are icarl, fixed; lucir, fixed; lucir, online"
    ):
        gather([tmp_path / "runs"], "icarl")


def test_methods_are_ranked_and_what_an_exam_helped_leads_nothing(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/lucir-{seed}", seed=seed)
        write(f"runs/icarl-{seed}", ((50,), (45, 50), (34 + seed, 45, 50)), seed=seed, method="icarl")
        write(f"runs/lwf-{seed}", BEST, seed=seed, method="lwf", more={"oracle": True})
    study = gather([tmp_path / "runs"])
    assert not study.comparisons
    (ranking,) = study.rankings
    assert [row.label for row in ranking.rows] == ["lwf, fixed (oracle)", "icarl, fixed", "lucir, fixed"]
    ((title, said),) = words(study)
    assert title == "Which method is ahead?"
    assert said.startswith("TFS 3: icarl, fixed (9")
    assert said.endswith("points over 3 paired seeds: its 95 % interval excludes zero.")


def test_a_ranking_says_every_training_key_in_which_its_rows_differ(write: Write) -> None:
    few = {"per_class": 5, "total": None, "reserve": 0}
    paths = [write("lucir", LONG_AGO, epochs=20), write("icarl", method="icarl", batch=64, memory=few)]
    paths.append(write("joint", method="joint", memory={"rule": "all", "reserve": 0}))  # whose label says that
    study = gather(paths)
    (line,) = study.differences
    assert line.endswith("also differ in batch (128, 64); epochs (20, 160); memory.per_class (20, 5)")
    ((_, said),) = words(study)
    assert "lucir, fixed, batch=128, epochs=20, memory.per_class=20 (" in said
    assert line in said
    assert line in make_tables(study)[1].caption
    alike = gather([write("equal/lucir", epochs=20), write("equal/icarl", method="icarl", epochs=20), paths[2]])
    assert alike.differences[0].endswith("also differ in epochs (20, 160)"), "and not in what joint keeps"
    assert "memory." not in words(alike)[0][1]


def test_what_a_bare_result_lacks_is_no_difference(write: Write, tmp_path: Path) -> None:
    shares = {"rule": "rmm", "per_class": 20, "total": None, "reserve": 0, "allocation": 0.5}
    bare = (write("lucir", LONG_AGO) / "result.json").rename(tmp_path / "lucir.json")
    joint = write("joint", method="joint", memory={"rule": "all", "reserve": 0})
    study = gather([bare, write("icarl", method="icarl", memory=shares), joint])
    assert not any("allocation" in line for line in study.differences)


def test_runs_without_a_common_seed_or_stream_are_not_ranked(write: Write) -> None:
    paths = [write("lucir", seed=1), write("icarl", seed=2, method="icarl")]
    paths.append(write("lwf", seed=1, method="lwf", setting="tfh"))
    paths.append(write("going", seed=1, method="podnet", phases=4, finished=False))
    study = gather(paths)
    assert study.rankings == []
    ((_, said),) = words(study)
    assert said.startswith("Nothing is compared here: no two finished runs share data, setting and seed")


def test_seeds_that_only_one_side_has_are_not_compared(write: Write, tmp_path: Path) -> None:
    for seed in (0, 1):
        write(f"runs/fixed-{seed}", seed=seed)
    for seed in (1, 2):
        write(f"runs/online-{seed}", BEST, seed=seed, policy="online")
    write("runs/other", seed=0, policy="online", epochs=20)  # another training: it has no counterpart
    (found,) = gather([tmp_path / "runs"]).comparisons.values()
    assert found.difference.count == 1


def test_gains_and_ranks_are_among_runs_with_the_same_augmentation(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/fixed-{seed}", seed=seed)
        write(f"runs/icarl-{seed}", ((50,), (39, 45), (30, 40, 48)), seed=seed, method="icarl")
        write(f"runs/strong-{seed}", BETTER, seed=seed, augmentation="autoaugment+cutout")
        write(f"runs/online-{seed}", BETTER, seed=seed, policy="online", augmentation="autoaugment+cutout")
    study = gather([tmp_path / "runs"])
    (found,) = study.comparisons.values()
    assert found.row.label == "lucir, online (AutoAugment and Cutout)"
    assert found.difference.mean == 0, "with the same augmentation; plain runs are no baseline of it"
    (ranking,) = study.rankings
    assert [row.label for row in ranking.rows] == ["lucir, fixed", "icarl, fixed"]
    line = "AutoAugment and Cutout: a stronger augmentation of the training images"
    assert any(line in warning for warning in summary(study)["warnings"])
    assert line in make_tables(study)[1].caption


def test_the_first_screen_explains_its_words(write: Write) -> None:
    paths = [write("one", setting="tfh"), write("two", policy="online")]
    paths.append(write("three", setting="groups", groups=[4, 2, 1]))
    assert summary(gather(paths))["meanings"] == [
        ("groups [4,2,1]", "so many new classes arrive in each phase"),
        ("TFH 3", "training from half, half of the classes arrive first and the others in 3 phases"),
        ("TFS 3", "training from scratch, the classes arrive in 3 equal phases"),
        ("fixed", "the method's own hyperparameters"),
        ("online", "hyperparameters and classifier are chosen in each phase, on held-out training images"),
        ("average accuracy", "the mean over the exams after every phase, each on all classes so far"),
    ]
    assert summary(Study(()))["meanings"] == []


# Phase 0 --------------------------------------------------------------------------------------------------------------


def phase_0_of(folder: Path, value: float) -> str:
    """Give a run its state after phase 0; what that is recognised by."""
    tensors = {"weight": torch.full((2,), value)}
    store.write_tensors(folder / "phase-0.safetensors", tensors, {}, kind="phase 0")
    return store.digest_of_tensors(tensors)


@pytest.mark.parametrize("origin", ["in the report", "at its path", "gone"])
def test_a_policy_is_compared_with_the_run_of_the_same_phase_0(write: Write, origin: str) -> None:
    long, plain = write("long", LONG_AGO, epochs=200), write("plain", LONG_AGO)
    begun = {"start": str(long), "start_fingerprint": phase_0_of(long, 1.0)}
    phase_0_of(plain, 2.0)
    started = write("started", ((50,), (45, 45), (45, 45, 45)), **begun)
    tuned = write("tuned", ((50,), (46, 46), (46, 46, 46)), policy="online", **begun)
    if origin == "gone":
        shutil.rmtree(long)
    study = gather([plain, started, tuned, *([long] if origin == "in the report" else [])])
    (found,) = study.comparisons.values()
    average = {run.name: run.average or 0 for run in study.runs}
    assert found.difference.mean == pytest.approx(average["tuned"] - average["started"])
    if origin != "gone":
        assert {"lucir, online, start.epochs=200"} <= {label.replace(", epochs=160", "") for label in labels(study)}


def test_a_start_that_was_trained_alike_is_not_another_row(write: Write) -> None:
    plain = write("plain", LONG_AGO)
    begun = {"start": str(plain), "start_fingerprint": phase_0_of(plain, 1.0)}
    study = gather([plain, write("more", LONG_AGO, seed=1), write("tuned", policy="online", **begun)])
    assert labels(study) == ["lucir, fixed", "lucir, online"]


def test_of_two_repetitions_the_one_that_others_started_from_is_their_baseline(write: Write) -> None:
    one, two = write("one", LONG_AGO), write("two")
    phase_0_of(one, 1.0)
    begun = {"start": str(two), "start_fingerprint": phase_0_of(two, 2.0)}
    (found,) = gather([one, two, write("tuned", policy="online", **begun)]).comparisons.values()
    assert found.difference.mean == 0, "as `two`"


# Rows and labels ------------------------------------------------------------------------------------------------------


def test_runs_that_differ_by_chance_only_share_their_row(write: Write) -> None:
    paths = [write("a"), write("b", seed=4, device="cuda")]
    assert labels(gather(paths)) == ["lucir, fixed"]
    others: list[dict[str, Any]] = [{"epochs": 20}, {"policy": "online"}, {"memory": {"per_class": 10}}]
    paths += [write(f"other-{number}", **keys) for number, keys in enumerate(others)]
    assert len(gather(paths).rows) == 4


def test_rows_are_called_by_what_sets_them_apart(write: Write) -> None:
    assert labels(gather([write("a"), write("b", epochs=20), write("c", data="other")])) == [
        "lucir, fixed · other",
        "lucir, fixed, epochs=160 · toy",
        "lucir, fixed, epochs=20 · toy",
    ]


def test_long_class_orders_are_shortened_and_still_told_apart(write: Write) -> None:
    orders = [[*range(100)], [*range(99), 100], 1993]
    assert labels(gather([write(str(at), order=order) for at, order in enumerate(orders)])) == [
        "lucir, fixed, order=[0,1,2,3,… 100 in all]",
        "lucir, fixed, order=[0,1,2,3,… 100 in all] (2)",
        "lucir, fixed, order=1993",
    ]


MACHINES: tuple[dict[str, Any], ...] = (
    {"precision": "fp32"},
    {"precision": "bf16"},
    {"precision": "bf16", "ranks": 2},
    {"precision": "bf16", "resumes": [{"precision": "fp32"}]},
    {"precision": "bf16", "versions": {"the network": "0123456789abcdef"}},
    {"precision": "bf16", "versions": {"the network": "ffff456789abcdef"}},
)


def test_another_precision_number_of_ranks_or_source_is_another_row(write: Write) -> None:
    paths = [write(str(at), machine=machine) for at, machine in enumerate(MACHINES)]
    assert labels(gather(paths)) == [
        "lucir, fixed, precision=fp32",
        "lucir, fixed, precision=bf16",
        "lucir, fixed, precision=bf16, ranks=2",
        "lucir, fixed, precision=bf16+changed",
        "lucir, fixed, net_source=01234567, precision=bf16",
        "lucir, fixed, net_source=ffff4567, precision=bf16",
    ]
    tuned = write("tuned", policy="online", machine=MACHINES[1])
    assert not gather([paths[0], tuned]).comparisons


def test_a_seed_is_counted_once_and_the_other_runs_are_named(write: Write) -> None:
    paths = [write("going", BEST, finished=False), write("first"), write("again", BEST), write("other", seed=1)]
    study = gather(paths)
    _, accuracy, time, *_ = make_tables(study)
    assert [record["seeds"] for record in accuracy.records] == [2]
    assert [row[0].runs for row in time.rows] == [("first", "other")]
    line = "not counted: another run has the same keys, stream and seed (going, again)"
    assert line in summary(study)["warnings"]
    assert all(line in table.caption for table in (accuracy, time))
    assert not any("not counted" in each for each in summary(gather(paths[1:2]))["warnings"])


RMM = {"per_class": 4, "total": None, "reserve": 0, "rule": "rmm", "allocation": 0.5, "after_phase_0": "rmm"}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("memory", "more"),
    [
        ({}, True),
        ({"allocation": [0.8, 0.0]}, True),
        ({"allocation": [0.0, 0.8]}, False),
        ({"after_phase_0": "plain"}, False),
        ({"knows_increment": True}, False),  # that label says more
    ],
)
def test_a_memory_that_holds_more_after_phase_0_says_so_everywhere(
    write: Write, memory: dict[str, Any], more: bool, finished: bool
) -> None:
    paths = [write("one", method="aanets", memory={**RMM, **memory}, finished=finished)]
    study = gather([*paths, write("other", method="aanets", memory={"per_class": 4})])
    assert [row.first.method for row in study.rows] == ["aanets", "aanets+rmm"]
    said = "aanets+rmm, tfs 3: 20 of each class instead of 4"
    shown = ["".join(summary(study)["warnings"])]
    if finished:
        shown += [comparison_table(study.runs), run_table(study.runs[0])]
        shown += [table.caption for table in make_tables(study) if table.name.startswith(("accuracy", "stored"))]
    assert all((said in text) is more for text in shown)
    assert said not in run_table(study.runs[1])


def test_oracles_and_leaks_are_shown_and_never_judged(write: Write, tmp_path: Path) -> None:
    for seed in range(3):
        write(f"runs/fixed-{seed}", seed=seed)
        for name, policy in (("oracle", "crossval"), ("leak", "race")):
            write(f"runs/{name}-{seed}", BEST, seed=seed, policy=policy, more={name: True})
    study = gather([tmp_path / "runs"])
    table = make_tables(study)[1]
    notes = [note for row in table.rows for cell in row for note in cell.notes]
    assert len(notes) == 2
    assert {note.tone for note in notes} == {""}
    assert {row["verdict"] for row in table.records} == {None}
    assert [title for title, _ in words(study)] == [""], "they are no answer to whether a policy helps"


def test_a_method_has_one_colour_and_strangers_have_others(write: Write) -> None:
    study = gather([write(method, method=method) for method in ("mine", "lucir", "yours")])
    colours = {row.first.method: row.style.colour for row in study.rows}
    assert colours["lucir"] == METHOD_COLOURS["lucir"]
    assert len(set(colours.values())) == 3


def test_the_printed_table_names_runs_that_look_alike(write: Write) -> None:
    runs = gather([write("one"), write("two"), write("three", seed=1), write("four", epochs=20)]).runs
    lines = comparison_table(runs).splitlines()[2:]
    assert ["one" in lines[0], "two" in lines[1], "three" in lines[2], "four" in lines[3]] == [True, True, False, False]
    assert len({*lines}) == 4


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    lines = align_columns(["class", "n"], [["日本", "1"], ["café", "2"]]).splitlines()
    assert lines == ["class  n", "─────  ─", "日本   1", "café   2"]
