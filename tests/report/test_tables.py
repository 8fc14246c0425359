"""The paper's tables from runs with known numbers: means, paired gains, colours, and the paper's figures."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from poise.errors import UserError
from poise.methods import make_method
from poise.recipes import recipe_names
from poise.report.comparisons import comparisons
from poise.report.figures import numbers
from poise.report.page.glance import summary
from poise.report.reading import (
    RunRecord,
    StreamKind,
    baselines,
    configurations,
    load_result,
    read_run,
    read_runs,
    run_of_result,
)
from poise.report.statistics import spread
from poise.report.tables import ReportTable, make_tables
from poise.report.tables.ablation import ablation_tables
from poise.report.tables.accuracy import accuracy_tables, all_runs_table
from poise.report.tables.costs import stored_table, time_table
from poise.report.tables.paper import (
    ROWS,
    Published,
    printed_accuracy,
    published_ablation,
    published_accuracy,
    published_every,
    published_hours,
)
from poise.report.tables.regret import regret_table
from poise.report.tables.table import gain_note
from poise.report.tables.text import align_columns, comparison_table, run_table
from poise.runs import load_recipe

from .conftest import SPACE, Write


def average(count: int) -> float:
    """Of the exams in which `count` of the 50 images of the first class are right."""
    return round(mean([100.0, 100 * (count + 45) / 100, 100 * (count + 90) / 150]), 4)


def column(table: ReportTable, title: str, group: str = "") -> int:
    return next(n for n, each in enumerate(table.columns) if (each.title, each.group) == (title, group))


def test_means_deviations_and_paired_gains(pairs: Path) -> None:
    runs, _ = read_runs([pairs])
    (table,) = accuracy_tables(runs)
    fixed, online = table.rows[1], table.rows[2]
    tfs, both = column(table, "TFS", "N = 3"), column(table, "Avg.", "N = 3")
    base, more = [average(count) for count in (30, 31, 32)], [average(count) for count in (40, 42, 41)]
    assert fixed[tfs].value == pytest.approx(mean(base))
    assert fixed[tfs].text == f"{mean(base):.2f} ± {stdev(base):.2f}"
    assert fixed[tfs].runs == tuple(f"fixed-tfs-{seed}" for seed in range(3))
    gains = [one - other for one, other in zip(more, base, strict=True)]
    half = 4.302653 * stdev(gains) / math.sqrt(3)
    record = next(row for row in table.records if (row["policy"], row["setting"]) == ("online", "tfs"))
    assert record["gain"] == pytest.approx(mean(gains))
    assert (record["gain_low"], record["gain_high"]) == pytest.approx(
        (mean(gains) - half, mean(gains) + half), abs=1e-5
    )
    assert online[tfs].notes[0].tone == "gain"
    tfh = online[column(table, "TFH", "N = 3")].notes[0]
    assert tfh.tone == "", "an interval that includes zero has no colour"
    other = [average(count) for count in (29, 33, 31)]
    assert online[both].value == pytest.approx(mean([(a + b) / 2 for a, b in zip(more, other, strict=True)]))
    assert [cell.text for cell in table.rows[0][column(table, "TFH", "N = 3") :]].count("") == 2, "only what was run"


def test_with_fewer_than_three_seeds_nothing_is_coloured() -> None:
    assert gain_note(spread([5.0, 5.1, 5.2])).tone == "gain"
    assert gain_note(spread([-5.0, -5.1, -5.2])).tone == "loss"
    assert gain_note(spread([5.0, 5.01])).tone == ""
    assert gain_note(spread([5.0])).tone == ""
    assert gain_note(spread([5.0, -1.0, 0.5])).tone == ""


def test_seeds_that_only_one_side_has_are_not_compared(write: Write) -> None:
    for seed in (0, 1):
        write(f"fixed-{seed}", seed=seed)
    for seed in (1, 2):
        write(f"online-{seed}", ((50,), (50, 50), (50, 50, 50)), seed=seed, policy="online")
    write("other", seed=0, policy="online", epochs=20)  # another training: it has no counterpart
    (found,) = comparisons(read_runs([write("lone", seed=9, method="icarl", policy="online").parent])[0])
    assert found.difference.count == 1


def test_the_csv_holds_the_same_figures(pairs: Path) -> None:
    (table,) = accuracy_tables(read_runs([pairs])[0])
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in table.records]
    lines = table.markdown().splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(table.rows) + 2
    assert all(line.count(" | ") == len(table.columns) - 1 for line in lines if line.startswith("| "))


def paper_run(write: Write, name: str, **keys: object) -> RunRecord:
    return read_run(write(name, **{"data": "cifar100", "phases": 5, **keys}))


def shipped_keys(name: str) -> dict[str, Any]:
    """What a shipped recipe says, as a run folder has it: with the keys that it leaves out."""
    return load_recipe(name).resolved().model_dump(mode="json")


def test_the_papers_figures_stand_beside_comparable_runs_only(write: Write) -> None:
    fixed = paper_run(write, "fixed")
    assert published_accuracy(fixed, 5, "tfh") == Published(63.1, 0.7)
    assert published_accuracy(fixed, 25, "average") == Published(53.4, 0.5)
    assert published_accuracy(paper_run(write, "online", policy="online"), 25, "tfs") == Published(52.4, 0.5)
    assert published_accuracy(paper_run(write, "icarl", method="icarl"), 25, "tfh") == Published(48.1, None)
    strangers = [
        paper_run(write, "short", epochs=20),
        paper_run(write, "small", memory={"per_class": 5, "total": None, "reserve": 0}),
        paper_run(write, "dev", exam="dev"),
        paper_run(write, "bilevel", policy="bilevel"),
        paper_run(write, "leak", policy="race", more={"leak": True}),
        paper_run(write, "changed", action={"lr": 0.5}),
        paper_run(write, "digits", data="digits"),
        paper_run(write, "strong", augmentation="autoaugment"),
        paper_run(write, "foster", method="foster"),  # it has a schedule of its own
        paper_run(write, "large der", method="der", epochs=170, net="cifar-resnet18"),
        paper_run(write, "strong der", method="der", epochs=170, augmentation="cutout"),
    ]
    assert [published_accuracy(run, 5, "tfs") for run in strangers] == [None] * len(strangers)


def test_where_the_papers_run_was_another_it_says_so_and_does_not_compare(write: Write) -> None:
    in_total = {"per_class": None, "total": 2000, "reserve": 0}
    own = {"method": "foster", "epochs": 170, "augmentation": "autoaugment+cutout", "action": {"beta1": 0.94}}
    foster, common = paper_run(write, "its own", **own), paper_run(write, "common", **{**own, "augmentation": "data"})
    both = paper_run(write, "its own memory", **own, memory=in_total)
    der = paper_run(write, "der", method="der", epochs=170)
    assert published_accuracy(foster, 5, "tfh") == Published(70.4)
    assert published_accuracy(foster, 5, "tfs") == Published(72.5, None, "2,000 images in total there")
    assert published_accuracy(both, 5, "tfs") == Published(72.5)
    assert published_accuracy(both, 5, "tfh") is None
    assert published_accuracy(both, 25, "tfs") == Published(70.7, None, "20 phases there")
    assert published_accuracy(common, 5, "tfh") == Published(70.4, None, "AutoAugment and Cutout there")
    assert published_accuracy(der, 5, "tfh") == Published(67.6)
    assert published_accuracy(der, 5, "tfs") == Published(72.3, None, "its memory is not said")
    changed = paper_run(write, "changed foster", **{**own, "action": {"beta1": 0.94, "lr": 0.05}})
    assert published_accuracy(changed, 5, "tfh") is None
    (table,) = accuracy_tables([common])
    words = "AutoAugment and Cutout there; 2,000 images in total there"
    assert f"paper 72.5, not comparable: {words}" in table.markdown()
    (record,) = table.records
    assert (record["paper"], record["difference"]) == (72.5, None)


def test_the_papers_imagenet_figures_stand_beside_the_subset_of_each_methods_code(write: Write) -> None:
    lucirs = {"data": "imagenet-subset-lucir", "epochs": 90, "options": {"lambda_base": 10.0}}
    podnets = {"data": "imagenet-subset-podnet", "epochs": 90, "net": "pod-resnet18"}
    podnets["options"] = {"spatial": 8.0, "flat": 10.0}
    lucir, tuned = paper_run(write, "lucir", **lucirs), paper_run(write, "tuned", **lucirs, policy="online")
    doubt = "doubtful, it is iCaRL's figure too; LUCIR was published with 70.8 to 71.3"
    assert published_accuracy(lucir, 5, "tfh") == Published(65.3, 0.6, doubt)
    assert published_accuracy(lucir, 5, "tfs") == Published(66.7, 0.5)
    assert published_accuracy(lucir, 25, "average") == Published(53.8, 0.8)
    assert published_accuracy(tuned, 5, "tfh") == Published(70.6, 0.7)
    aanets = paper_run(write, "aanets", **podnets, method="aanets")
    assert published_accuracy(aanets, 5, "tfh") == Published(77.0, 0.7)
    rmm = paper_run(write, "rmm", **podnets, method="aanets", memory=RMM_NOW)
    assert published_accuracy(rmm, 25, "tfs") == Published(71.6, 0.3)
    other = paper_run(write, "other", **{**podnets, "data": "imagenet-subset-lucir"}, method="aanets")
    assert published_accuracy(other, 5, "tfh") == Published(77.0, 0.7, "another 100 classes there")
    podnet = published_accuracy(paper_run(write, "podnet", **podnets, method="podnet"), 5, "tfh")
    assert podnet is not None
    assert "75.5" in podnet.unlike
    ders = {"options": shipped_keys("imagenet-subset/der")["options"], "epochs": 220}
    der = paper_run(write, "der", **{**podnets, **ders}, method="der")
    assert published_accuracy(der, 5, "tfh") == Published(78.4)
    assert published_accuracy(der, 5, "tfs") == Published(76.9, None, "its network and memory are not said")
    fosters = {"options": {}, "epochs": 170, "action": {"beta1": 0.97}}
    foster = paper_run(write, "foster", **{**lucirs, **fosters}, method="foster")
    assert published_accuracy(foster, 5, "tfh") == Published(80.2, None, "AutoAugment with ImageNet's policy there")


def test_the_papers_imagenet_figures_need_its_epochs_and_network(write: Write) -> None:
    options = {"lambda_base": 10.0}
    whole = paper_run(write, "whole", data="imagenet", epochs=90, options=options)
    assert published_accuracy(whole, 5, "tfh") == Published(64.5, 0.3)
    misprint = "a misprint, 64.5 and 62.7 average to 63.6"
    assert published_accuracy(whole, 5, "average") == Published(62.0, 0.4, misprint)
    strangers = [
        paper_run(write, "short", data="imagenet", epochs=1),
        paper_run(write, "small", data="imagenet", epochs=90, net="small"),
        paper_run(write, "short subset", data="imagenet-subset-lucir", epochs=1),
        paper_run(write, "another rate", data="imagenet", epochs=90, action={"lr": 0.05}),
        paper_run(write, "a folder", data="imagenet-subset", epochs=90),
        paper_run(write, "own", data="/home/me/imagenet.pack", epochs=90),
        paper_run(write, "small cifar", net="small"),
    ]
    assert [published_accuracy(run, 5, "tfh") for run in strangers] == [None] * len(strangers)


def test_every_shipped_recipe_that_the_paper_has_stands_beside_its_figure(write: Write) -> None:
    for name in recipe_names():
        kind, _, own = name.partition("/")
        if kind not in ("cifar100", "imagenet", "imagenet-subset") or own in ("rmm-25", "der-2000", "foster-2000"):
            continue  # those are for other streams
        run = paper_run(write, name.replace("/", " "), **shipped_keys(name))
        printed = printed_accuracy(ROWS.get(run.method, run.method), kind, 5, "tfh")
        assert (published_accuracy(run, 5, "tfh") is None) == (printed is None), name


@pytest.mark.parametrize("policy", ["fixed", "online"])
@pytest.mark.parametrize(
    "changed",
    [
        {"images_per_class": 100},
        {"images_per_class": [500, 5]},
        {"augmentation": "resized"},
        {"augmentation": "judged"},
        {"batch": 64},
        {"momentum": 0.5},
        {"weight_decay": 1e-4},
        {"optimiser": "adamw"},
        {"decay": "cosine"},
        {"warmup": 0.1},
        {"first_lr": 0.05},
        {"milestones": [0.3, 0.6]},
        {"balance_share": 0.5},
        {"images": 5000},
        {"image_size": 64},
        {"options": {"lambda_base": 10.0}},
        {"memory": {"per_class": 20, "total": None, "reserve": 4}},
    ],
    ids=str,
)
def test_a_run_that_is_trained_otherwise_has_no_figure_of_the_papers_beside_it(
    changed: dict[str, Any], policy: str, write: Write
) -> None:
    keys = {**shipped_keys("cifar100/lucir"), "policy": policy}
    usual, other = paper_run(write, "usual", **keys), paper_run(write, "other", **{**keys, **changed})
    stream = StreamKind(5, "tfh")
    assert published_accuracy(usual, 5, "tfh") is not None
    assert published_every(usual, stream) or published_ablation(usual, stream)
    assert published_hours(usual, stream) is not None
    assert published_accuracy(other, 5, "tfh") is None
    assert published_every(other, stream) is None
    assert published_ablation(other, stream) is None
    assert published_hours(other, stream) is None


def test_a_run_whose_phase_0_was_trained_otherwise_has_none_either(write: Write) -> None:
    keys = shipped_keys("cifar100/lucir")
    usual = paper_run(write, "usual", **keys)
    assert published_accuracy(replace(usual, phase_0="f"), 5, "tfh") is not None
    assert published_accuracy(replace(usual, phase_0="f", other_start={"epochs": 20}), 5, "tfh") is None


def test_a_bare_result_of_fewer_images_has_none_either(write: Write) -> None:
    for more in ({"images_per_class": 100}, {"augmentation": "resized"}):
        folder = write(f"with {more}", data="cifar100", setting="tfh", phases=5, more=more)
        assert published_accuracy(run_of_result(load_result(folder)), 5, "tfh") is None
    folder = write("usual", data="cifar100", setting="tfh", phases=5)
    assert published_accuracy(run_of_result(load_result(folder)), 5, "tfh") is not None


def test_a_bare_result_with_another_action_or_network_has_none_either(write: Write) -> None:
    usual = dict(make_method("lucir").default_action)
    pretrained = {"pretrained_on": "ImageNet-1k"}
    for name, changed, more in [("usual", {}, {}), ("slow", {"lr": 0.03}, {}), ("pretrained", {}, pretrained)]:
        policy = {"name": "fixed", "action": {**usual, **changed}}
        said = {**more, "resolved_policy": policy}
        run = run_of_result(load_result(write(name, data="cifar100", setting="tfh", phases=5, more=said)))
        alike = name == "usual"
        assert (published_accuracy(run, 5, "tfh") is not None) == alike
        assert (published_ablation(run, StreamKind(5, "tfh")) is not None) == alike


def test_rmms_figure_stands_beside_the_shares_of_its_released_code_only(write: Write) -> None:
    tried: list[tuple[str, str, int, dict[str, Any], bool]] = [
        ("rmm", "tfh", 5, {}, True),
        ("rmm", "tfh", 5, {"knows_increment": True}, True),
        ("rmm", "tfh", 5, {"allocation": 0.9}, False),
        ("rmm", "tfh", 5, {"after_phase_0": "plain"}, False),
        ("rmm", "tfh", 25, {}, False),
        ("rmm-25", "tfh", 25, {}, True),
        ("rmm", "tfs", 5, {}, False),
        ("rmm", "tfs", 5, {"allocation": 0.5}, True),
        ("rmm", "tfs", 25, {"allocation": [0.5, 0.5]}, True),
    ]
    for name, setting, phases, changed, alike in tried:
        keys = shipped_keys(f"cifar100/{name}")
        keys |= {"setting": setting, "phases": phases, "memory": {**keys["memory"], **changed}}
        run = paper_run(write, f"{name} {setting} {phases} {changed}", **keys)
        assert (published_accuracy(run, phases, setting) is not None) == alike, (name, setting, phases, changed)


def test_a_policy_that_tunes_less_or_decides_seldom_has_a_row_elsewhere(write: Write) -> None:
    seldom = paper_run(write, "seldom", policy="online", policy_options={"every": 2})
    assert published_accuracy(seldom, 5, "tfh") is None
    assert published_every(seldom, StreamKind(5, "tfh")) is not None
    for axes, figure in ({"feature_kd": [0.5, 1.0]}, None), ({"feature_kd": [0.5, 1.0], "lr": [0.1, 0.05]}, 63.9):
        space = {"name": "grid", "axes": axes, "default": {"classifier": "auto"}, "actions": 2}
        run = paper_run(write, f"tuned {len(axes)}", policy="online", more={"space": space})
        found = published_accuracy(run, 5, "tfh")
        assert (found.figure if found else None) == figure
        for elsewhere in (published_every, published_hours):
            assert (elsewhere(run, StreamKind(5, "tfh")) is not None) == (figure is not None)


@pytest.mark.parametrize(
    ("axes", "classifier"),
    [
        (("margin",), "auto"),
        (("lr",), "auto"),
        (("feature_kd", "lr"), "fc"),
        (("feature_kd", "margin"), "auto"),
        ((), "auto"),
    ],
)
def test_a_policy_whose_space_leaves_out_what_the_papers_tunes_has_no_figure(
    axes: tuple[str, ...], classifier: str, write: Write
) -> None:
    run = paper_run(write, "tuned", policy="online", more={"space": {**SPACE, **tuned(*axes, classifier=classifier)}})
    stream = StreamKind(5, "tfh")
    assert published_accuracy(run, 5, "tfh") is None
    assert published_every(run, stream) is None
    assert published_hours(run, stream) is None


def test_what_a_policy_tunes_beside_does_not_matter(write: Write) -> None:
    space = {**SPACE, **tuned("feature_kd", "lr", "margin", classifier="auto")}
    assert published_accuracy(paper_run(write, "tuned", policy="online", more={"space": space}), 5, "tfh") is not None


def test_another_tuner_has_a_row_in_table_3_and_none_in_table_s1(write: Write) -> None:
    run = paper_run(write, "bilevel", policy="bilevel")
    assert published_ablation(run, StreamKind(5, "tfh")) == Published(63.2)
    assert published_every(run, StreamKind(5, "tfh")) is None


def test_another_class_order_is_said_and_not_compared(write: Write) -> None:
    run = paper_run(write, "other", order="podnet-1")
    assert published_accuracy(run, 5, "tfh") == Published(63.1, 0.7, "another class order there")
    assert published_ablation(run, StreamKind(5, "tfh")) is None


def test_crops_that_are_the_datas_own_keep_the_figure(write: Write) -> None:
    keys = shipped_keys("imagenet-subset/lucir")
    assert published_accuracy(paper_run(write, "own", **{**keys, "augmentation": "resized"}), 5, "tfs") is not None


@pytest.mark.parametrize("finished", [True, False])
def test_a_stronger_augmentation_is_a_row_of_its_own_and_says_so_in_every_table(write: Write, finished: bool) -> None:
    strong = write("strong", augmentation="autoaugment+cutout", finished=finished)
    plain, judged = write("plain"), write("judged", augmentation="judged")
    runs = read_runs([strong, plain, judged])[0]
    assert [run.augmentation for run in runs] == ["autoaugment+cutout", None, None]
    tables = {table.name.split("-")[0]: table.markdown() for table in make_tables(runs, {})}
    assert "fixed (AutoAugment and Cutout)" in tables["runs"]
    words = "AutoAugment and Cutout: a stronger augmentation of the training images"
    assert words in "".join(summary(runs, [])["warnings"])
    assert words not in "".join(summary(runs[1:], [])["warnings"])
    if finished:
        (accuracy,) = accuracy_tables(runs)
        assert len({(record["policy"], record["row"]) for record in accuracy.records}) == 3
        assert all(words in shown for shown in (tables["accuracy"], comparison_table(runs), run_table(runs[0])))


def test_a_bare_result_says_its_augmentation(write: Write) -> None:
    folder = write("strong", augmentation="cutout", more={"augmentation": "cutout"})
    run = run_of_result(load_result(folder))
    assert run.augmentation == "cutout"
    assert run.policy_label == "fixed (Cutout)"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("memory", "more"),
    [
        ({"after_phase_0": "rmm"}, True),
        ({"after_phase_0": "rmm", "allocation": [0.8, 0.0]}, True),
        ({"after_phase_0": "rmm", "allocation": [0.0, 0.8]}, False),
        ({"after_phase_0": "rmm", "allocation": None}, True),  # 0.5 then
        ({"after_phase_0": "plain"}, False),
        ({}, False),  # written before there was the key
        ({"after_phase_0": "rmm", "knows_increment": True}, False),  # that label says more
    ],
)
def test_a_memory_that_holds_more_after_phase_0_says_so_in_every_table(
    write: Write, memory: dict[str, Any], more: bool, finished: bool
) -> None:
    folder = write("one", method="aanets", memory={**RMM, **memory, "per_class": 4}, finished=finished)
    plain = write("other", method="aanets", memory={"per_class": 4})
    runs = read_runs([folder, plain])[0]
    tables = {table.name.split("-")[0]: table.markdown() for table in make_tables(runs, {})}
    assert ("fixed (more after phase 0)" in tables["runs"]) is more
    words = "aanets+rmm, tfs 3: 20 of each class instead of 4"
    if finished:
        assert all((words in tables[name]) is more for name in ("accuracy", "stored"))
        assert (words in comparison_table(runs)) is more
        assert (words in run_table(runs[0])) is more
    assert words not in run_table(runs[1])
    assert (words in "".join(summary(runs, [])["warnings"])) is more
    assert ("cuts them when phase 1 arrives" in "".join(summary(runs, [])["warnings"])) is more


RMM = {"per_class": 20, "total": None, "reserve": 0, "rule": "rmm", "allocation": 0.5, "knows_increment": False}
RMM_NOW = {**RMM, "after_phase_0": "rmm"}


def test_rmms_memory_is_a_row_of_its_own_beside_the_papers_rmm(write: Write) -> None:
    released = {**RMM_NOW, "knows_increment": True}
    runs = [
        paper_run(write, "plain", method="aanets"),
        paper_run(write, "plain-online", method="aanets", policy="online"),
        paper_run(write, "rmm", method="aanets", memory=RMM_NOW),
        paper_run(write, "rmm-online", method="aanets", memory=RMM_NOW, policy="online"),
        paper_run(write, "told", method="aanets", memory=released, more={"knows_increment": True}),
        paper_run(
            write, "told-online", method="aanets", memory=released, policy="online", more={"knows_increment": True}
        ),
        paper_run(write, "podnet", method="podnet"),
        paper_run(write, "lucir-rmm", method="lucir", memory=RMM_NOW),
    ]
    found = [published_accuracy(run, 5, "tfh") for run in runs]
    assert [each and each.figure for each in found] == [65.3, 67.0, 67.6, 70.8, 67.6, 70.8, 64.7, None]
    (table,) = accuracy_tables(runs)
    assert [(row[0].text, row[1].text) for row in table.rows] == [
        ("aanets", "fixed"),
        ("aanets", "online"),
        ("aanets+rmm", "fixed (more after phase 0)"),
        ("aanets+rmm", "fixed (knows increment)"),
        ("aanets+rmm", "online (more after phase 0)"),
        ("aanets+rmm", "online (knows increment)"),
        ("lucir+rmm", "fixed (more after phase 0)"),
        ("podnet", "fixed"),
    ]
    against = {
        row.label: base.label
        for row in configurations(runs)
        for base in [baselines(configurations(runs)).get(row.label)]
        if base
    }
    assert against == {
        "aanets, online": "aanets, fixed",
        "aanets+rmm, online (more after phase 0)": "aanets+rmm, fixed (more after phase 0)",
        "aanets+rmm, online (knows increment)": "aanets+rmm, fixed (knows increment)",
    }


def test_an_oracle_is_shown_and_never_judged(write: Write) -> None:
    best = ((50,), (50, 50), (50, 50, 50))
    runs = [read_run(write(f"fixed-{seed}", seed=seed)) for seed in range(3)]
    runs += [
        read_run(write(f"{name}-{seed}", best, seed=seed, policy=policy, more={name: True}))
        for name, policy in (("oracle", "crossval"), ("leak", "race"))
        for seed in range(3)
    ]
    assert comparisons(runs) == []
    (table,) = accuracy_tables(runs)
    lines = [line for row in table.rows for cell in row for line in cell.notes]
    assert len(lines) == 2
    assert {line.tone for line in lines} == {""}
    assert {row["verdict"] for row in table.records} == {None}


def tuned(*axes: str, classifier: str) -> dict[str, object]:
    return {"axes": {axis: SPACE["axes"].get(axis, [0.1]) for axis in axes}, "default": {"classifier": classifier}}  # type: ignore[attr-defined]


def test_the_rows_of_the_ablation(write: Write) -> None:
    def made(name: str, policy: str, space: dict[str, object] | None = None, **more: object) -> RunRecord:
        keys = {"policy_options": more.pop("policy_options", {}), "tune": [name]}
        return paper_run(write, name, policy=policy, more={"space": space and {**SPACE, **space}, **more}, **keys)

    runs = [
        paper_run(write, "fixed"),
        made("kd", "online", tuned("feature_kd", classifier="fc")),
        made("kd-delta", "online", tuned("feature_kd", classifier="auto")),
        made("all", "online", tuned("feature_kd", "lr", classifier="auto")),
        made("oracle", "crossval", tuned("feature_kd", "lr", classifier="auto"), oracle=True),
        made("bilevel", "bilevel", {"axes": {}, "actions": 1, "default": dict(make_method("lucir").default_action)}),
        made("seldom", "online", tuned("feature_kd", "lr", classifier="auto"), policy_options={"every": 2}),
    ]
    table_3, table_s1 = ablation_tables(runs)
    assert [row[0].text for row in table_3.rows] == ["1", "2", "3", "4", "5", "7"]
    assert [[cell.text for cell in row[1:4]] for row in table_3.rows[:4]] == [
        ["", "", ""],
        ["✓", "", ""],
        ["✓", "✓", ""],
        ["✓", "✓", "✓"],
    ]
    assert table_3.rows[4][4].text == "crossval (oracle)"
    assert [cell.text for cell in table_3.rows[5][1:4]] == ["✓", "", "✓"], "bilevel moves weights and rate"
    assert [row["paper"] for row in table_3.records] == [62.96, 63.60, 64.08, 64.92, 64.02, 63.02]
    assert [(row["every"], row["paper"]) for row in table_s1.records] == [("–", None), ("1", 64.92), ("2", 64.93)]
    assert not ablation_tables(runs[:1])
    shorter, _ = ablation_tables([*runs, paper_run(write, "short", epochs=20)])
    assert [row[4].text for row in shorter.rows[:2]] == ["fixed, epochs=160", "fixed, epochs=20"]


def test_time_is_a_ratio_to_the_baseline_of_the_same_machine(write: Write) -> None:
    runs = [
        paper_run(write, "fixed", setting="tfh", seconds=10.0),
        paper_run(write, "online", setting="tfh", policy="online", seconds=35.0),
        paper_run(write, "far", setting="tfh", policy="race", seconds=50.0),
    ]
    runs[2] = RunRecord(**{**vars(runs[2]), "machine": {"hardware": {"gpu": "another"}}})
    scratch = paper_run(write, "scratch", setting="tfs", policy="online", seconds=20.0)
    assert [row["paper_ratio"] for row in time_table([*runs, scratch]).records if row["setting"] == "TFS 5"] == [None]
    records = {row["row"]: row for row in time_table(runs).records}
    assert records["lucir, online"]["ratio"] == pytest.approx(3.5)
    assert records["lucir, online"]["paper_ratio"] == pytest.approx(5.2 / 1.6)
    assert records["lucir, race"]["ratio"] is None
    assert records["lucir, fixed"]["seconds_total"] == 10.0


def test_times_of_several_machines_are_named_and_not_compared(write: Write) -> None:
    machine = {"hardware": {"processor": "an abacus", "device": "cuda:0", "gpu": "A"}, "precision": "fp32"}
    where = {"device": "cuda:0", "gpu": "A", "processor": "another abacus", "precision": "fp32"}
    there = {**machine, "resumes": [where]}
    moved = {**machine, "resumes": [where, {**where, "gpu": "B"}, where]}
    fixed, tuned = (read_run(write(policy, policy=policy)) for policy in ("fixed", "online"))

    def found(base: dict[str, Any], other: dict[str, Any]) -> list[object]:
        runs = [replace(fixed, machine=base), replace(tuned, machine=other)]
        return [*(row["machine"] for row in time_table(runs).records), time_table(runs).records[1]["ratio"]]

    assert found(machine, there) == ["A", "A", 1.0]
    assert found(machine, moved) == ["A", "A, then B", None]
    assert found(moved, machine) == ["A, then B", "A", None]
    assert found(moved, moved) == ["A, then B", "A, then B", None], "nobody knows how much of each"
    facts = dict(summary([replace(fixed, machine=machine), replace(tuned, machine=moved)], [])["facts"])
    assert facts["machine"] == "A, B"


def test_times_without_phase_0_are_marked_and_not_compared_with_those_with_it(write: Write) -> None:
    keys: dict[str, Any] = {"setting": "tfh", "data": "cifar100", "phases": 5}
    whole = read_run(write("whole", **keys, seconds=20.0))
    part = read_run(write("part", **keys, seed=1, start="/runs/x", seconds=10.0))
    tuned = read_run(write("tuned", **keys, seed=1, start="/runs/x", policy="online", seconds=15.0))
    ratios = {}
    for name, runs in {"whole": [whole, tuned], "part": [part, tuned], "both": [whole, part, tuned]}.items():
        table = time_table(runs)
        ratios[name] = table.records[1]["ratio"], table.records[1]["paper_ratio"]
        assert table.rows[1][0].notes[0].text == "without phase 0"
    assert ratios == {"whole": (None, None), "part": (pytest.approx(1.5), None), "both": (None, None)}
    assert time_table([whole, part]).rows[0][0].notes[0].text == "without phase 0 in 1 of 2 runs"
    assert not time_table([whole]).rows[0][0].notes


def test_times_after_phase_0_are_compared_where_only_some_runs_trained_it(write: Write) -> None:
    def timed(name: str, total: float, phase_0: float, **keys: Any) -> RunRecord:
        seconds = {"train": 1.0, "policy": 0.0, "evaluate": 1.0, "total": total, "phase_0": phase_0}
        return read_run(write(name, setting="tfh", more={"seconds": seconds}, **keys))

    whole = timed("whole", 20.0, 12.0)
    tuned = timed("tuned", 25.0, 1.0, start="/runs/x", policy="online")
    table = time_table([whole, tuned])
    assert table.records[1]["ratio"] == pytest.approx(24 / 8)
    assert [note.text for note in table.rows[1][-1].notes] == ["after phase 0"]
    assert [record["ratio_after_phase_0"] for record in table.records] == [0, 1]
    (ratio,) = [row["ratio"] for row in time_table([whole, timed("alike", 40.0, 12.0, policy="online")]).records[1:]]
    assert ratio == pytest.approx(2), "of the totals, where phase 0 is in both"
    older = read_run(write("older", setting="tfh", seed=1, seconds=20.0))
    assert time_table([whole, older, tuned]).records[1]["ratio"] is None, "of one run it is not known"
    with pytest.raises(UserError, match="phase_0 is '1', which is not a number"):
        timed("torn", 20.0, "1")  # type: ignore[arg-type]


def test_stored_images_and_the_list_of_runs(write: Write) -> None:
    runs = [read_run(write("a")), read_run(write("b", finished=False, method="icarl"))]
    assert [row["stored"] for row in stored_table(runs).records if row["row"] == "lucir, fixed"] == [20, 40, 60]
    assert [row["held"] for row in stored_table(runs).records if row["row"] == "lucir, fixed"] == [100, 120, 140]
    assert stored_table(runs).rows[1][3].notes[0].text == "held 120 of 130"
    assert not any(cell.notes for cell in stored_table(runs).rows[0]), "a run that goes on does not say what it held"
    done, going = all_runs_table(runs).records
    assert (done["average"], done["state"]) == (runs[0].average, "finished")
    assert (going["average"], going["state"]) == (None, "3 of 3 phases")


def test_regret_is_what_the_best_constant_action_would_have_given(write: Write) -> None:
    best = ((50,), (50, 50), (50, 50, 50))
    runs = [
        read_run(write("fixed", seed=1)),
        read_run(write("online", ((50,), (40, 50), (40, 40, 50)), seed=1, policy="online")),
        read_run(write("oracle", best, seed=1, policy="crossval", more={"oracle": True})),
        read_run(write("unjudged", seed=2)),
    ]
    records = {row["row"]: row for row in regret_table(runs).records}
    assert set(records) == {"lucir, fixed", "lucir, online"}
    assert records["lucir, online"]["regret"] == pytest.approx(100.0 - (runs[1].average or 0))
    assert records["lucir, online"]["seeds"] == 1


def test_rows_are_called_by_what_sets_them_apart(write: Write) -> None:
    runs = [read_run(write("a")), read_run(write("b", epochs=20)), read_run(write("c", data="other"))]
    assert [row.label for row in configurations(runs)] == [
        "lucir, fixed · other",
        "lucir, fixed, epochs=160 · toy",
        "lucir, fixed, epochs=20 · toy",
    ]


def test_long_class_orders_are_shortened_and_still_told_apart(write: Write) -> None:
    orders = [[*range(100)], [*range(99), 100], 1993]
    rows = configurations([read_run(write(str(at), order=order)) for at, order in enumerate(orders)])
    assert [row.label for row in rows] == [
        "lucir, fixed, order=[0,1,2,3,… 100 in all]",
        "lucir, fixed, order=[0,1,2,3,… 100 in all] (2)",
        "lucir, fixed, order=1993",
    ]


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    lines = align_columns(["class", "n"], [["日本", "1"], ["café", "2"]]).splitlines()
    assert lines == ["class  n", "─────  ─", "日本   1", "café   2"]


def test_every_table_and_figure_counts_a_seed_once_and_names_the_other_runs(write: Write) -> None:
    best = ((50,), (50, 50), (50, 50, 50))
    paths = [write("going", best, finished=False), write("first"), write("again", best), write("other", seed=1)]
    runs = read_runs(paths)[0]
    counts = [record["seeds"] for table in accuracy_tables(runs) for record in table.records]
    assert counts == [2]
    assert {row["seeds"] for row in numbers.accuracy(runs)} == {2}
    assert {row["seeds"] for row in numbers.forgetting(runs)} == {2}
    time = time_table(runs)
    assert [cell.runs for row in time.rows for cell in row[:1]] == [("first", "other")]
    line = "not counted: another run has the same keys, stream and seed (going, again)"
    assert line in summary(runs, [])["warnings"]
    assert all(
        "(again)" in table.caption or "(going, again)" in table.caption for table in (time, *accuracy_tables(runs))
    )
    assert not any("not counted" in each for each in summary(runs[1:2], [])["warnings"])


def test_another_precision_or_number_of_ranks_is_another_row(write: Write) -> None:
    plain = read_run(write("plain"))
    runs = [replace(plain, name=str(at), machine=machine) for at, machine in enumerate(MACHINES)]
    assert [row.label for row in configurations(runs)] == [
        "lucir, fixed, precision=fp32",
        "lucir, fixed, precision=bf16",
        "lucir, fixed, precision=bf16, ranks=2",
    ]
    assert not comparisons([runs[0], replace(read_run(write("tuned", policy="online")), machine=MACHINES[1])])


MACHINES: tuple[dict[str, Any], ...] = ({"precision": "fp32"}, {"precision": "bf16"}, {"precision": "bf16", "ranks": 2})


def test_the_csv_tells_streams_of_other_groups_apart(write: Write) -> None:
    runs = [read_run(write(f"{last}", setting="groups", groups=[4, 2, last])) for last in (1, 2)]
    (table,) = accuracy_tables([*runs, read_run(write("plain"))])
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [(row["setting"], row["groups"]) for row in rows] == [
        ("tfs", ""),
        ("groups", "[4,2,1]"),
        ("groups", "[4,2,2]"),
    ]


def test_the_printed_table_names_runs_that_look_alike(write: Write) -> None:
    runs = read_runs([write("one"), write("two"), write("three", seed=1), write("four", epochs=20)])[0]
    lines = comparison_table(runs).splitlines()[2:]
    assert ["one" in lines[0], "two" in lines[1], "three" in lines[2], "four" in lines[3]] == [True, True, False, False]
    assert len({*lines}) == 4
