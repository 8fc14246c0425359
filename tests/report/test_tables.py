"""Tables of runs with known numbers: means, paired gains, colours, times, images."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from poise.report import gather
from poise.report.statistics import spread
from poise.report.tables import Column, Table, csv_of, gain_note, make_tables

from .conftest import Write

FORMULAS = ["=1+1", '=HYPERLINK("http://example.org","x")', "+1+cmd|' /C calc'!A0", "@SUM(1,1)", "\t=1", "\r=1"]


def average(count: int) -> float:
    """Of the exams in which `count` of the 50 images of the first class are right."""
    return round(mean([100.0, 100 * (count + 45) / 100, 100 * (count + 90) / 150]), 4)


def tables(*paths: Path) -> dict[str, Table]:
    return {table.name.split("-")[0]: table for table in make_tables(gather(paths))}


def test_means_deviations_and_paired_gains(pairs: Path) -> None:
    table = tables(pairs)["accuracy"]
    fixed, online = table.rows[1], table.rows[2]
    tfh, tfs, both = (table.columns.index(Column(title, "N = 3")) for title in ("TFH", "TFS", "Avg."))
    base, more = [average(count) for count in (30, 31, 32)], [average(count) for count in (40, 42, 41)]
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
    assert online[tfh].notes[0].tone == "", "an interval that includes zero has no colour"
    other = [average(count) for count in (29, 33, 31)]
    assert online[both].value == pytest.approx(mean([(a + b) / 2 for a, b in zip(more, other, strict=True)]))
    assert [cell.text for cell in table.rows[0][tfh:]].count("") == 2, "only what was run"


def test_with_fewer_than_three_seeds_nothing_is_coloured() -> None:
    tones = [gain_note(spread(values)).tone for values in ([5.0, 5.1, 5.2], [-5.0, -5.1, -5.2], [5.0, 5.01], [5.0])]
    assert tones == ["gain", "loss", "", ""]


def test_the_last_exam_and_forgetting_are_means_over_seeds(pairs: Path) -> None:
    table = tables(pairs)["summary"]
    found = {(row["policy"], row["setting"]): row for row in table.records}
    lasts = [100 * (count + 90) / 150 for count in (40, 42, 41)]
    online = found["online", "TFS 3"]
    assert online["last"] == pytest.approx(mean(lasts))
    assert online["last_deviation"] == pytest.approx(stdev(lasts))
    assert (online["seeds"], online["forgetting"], online["forgetting_deviation"]) == (3, 1.25, 0)
    assert len(table.rows) == 5


def test_latex_is_a_table_of_plain_texts(write: Write) -> None:
    written = tables(write("run", data=r"50% & \x_{y}^~ #$"))["runs"].latex()
    comment, begin, *lines, end, rest = written.split("\n")
    assert comment.startswith("% All runs: Average and last accuracy")
    assert (begin, end, rest) == (r"\begin{tabular}{lllllllrrrrrr}", r"\end{tabular}", "")
    cells = lines[3].removesuffix(r" \\").split(" & ")
    assert len(cells) == 13
    assert cells[2] == r"50\% \& \textbackslash{}x\_\{y\}\textasciicircum{}\textasciitilde{} \#\$"


def test_the_csv_and_markdown_hold_the_same_figures(pairs: Path) -> None:
    table = tables(pairs)["accuracy"]
    rows = list(csv.DictReader(io.StringIO(csv_of(table.records))))
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in table.records]
    lines = [line for line in table.markdown().splitlines() if line.startswith("| ")]
    assert len(lines) == len(table.rows) + 2
    assert {line.count(" | ") for line in lines} == {len(table.columns) - 1}


def test_the_csv_tells_streams_of_other_groups_apart(write: Write) -> None:
    paths = [write(f"{last}", setting="groups", groups=[4, 2, last]) for last in (1, 2)]
    rows = list(csv.DictReader(io.StringIO(csv_of(tables(*paths, write("plain"))["accuracy"].records))))
    assert [(row["setting"], row["groups"]) for row in rows] == [
        ("tfs", ""),
        ("groups", "[4,2,1]"),
        ("groups", "[4,2,2]"),
    ]


def test_time_is_a_ratio_to_the_baseline_of_the_same_machine(write: Write) -> None:
    paths = [write("fixed", seconds=10.0), write("online", policy="online", seconds=35.0)]
    far = write("far", policy="race", seconds=50.0, machine={"hardware": {"gpu": "another"}})
    records = {row["row"]: row for row in tables(*paths, far)["time"].records}
    assert records["lucir, online"]["ratio"] == pytest.approx(3.5)
    assert records["lucir, race"]["ratio"] is None
    assert records["lucir, fixed"]["seconds_total"] == 10.0


def test_times_of_several_machines_are_named_and_not_compared(write: Write) -> None:
    there = {"hardware": {"processor": "an abacus", "gpu": "A"}}
    moved = {**there, "resumes": [{"gpu": "A"}, {"gpu": "B"}, {"gpu": "A"}]}
    paths = [write("fixed", machine=there), write("online", policy="online", machine=moved)]
    records = tables(*paths)["time"].records
    assert [row["machine"] for row in records] == ["A", "A, then B"]
    assert records[1]["ratio"] is None


def test_times_after_phase_0_are_compared_where_only_some_runs_trained_it(write: Write) -> None:
    def timed(name: str, total: float, phase_0: float | None, **keys: Any) -> Path:
        spent = {"train": 1.0, "policy": 0.0, "evaluate": 1.0, "total": total}
        known = {} if phase_0 is None else {"phase_0": phase_0}
        return write(name, setting="tfh", more={"seconds": {**spent, **known}}, **keys)

    whole, tuned = timed("whole", 20.0, 12.0), timed("tuned", 25.0, 1.0, start="/runs/x", policy="online")
    table = tables(whole, tuned)["time"]
    assert table.records[1]["ratio"] == pytest.approx(24 / 8)
    assert [note.text for note in table.rows[1][-1].notes] == ["after phase 0"]
    assert table.rows[1][0].notes[0].text == "without phase 0"
    older = timed("older", 20.0, None, seed=1)
    assert tables(whole, older, tuned)["time"].records[1]["ratio"] is None, "of one run it is not known"


def test_stored_images_and_the_list_of_runs(write: Write) -> None:
    found = tables(write("a"), write("b", finished=False, method="icarl"))
    stored = found["stored"]
    assert [row["stored"] for row in stored.records if row["row"] == "lucir, fixed"] == [20, 40, 60]
    assert [row["held"] for row in stored.records if row["row"] == "lucir, fixed"] == [100, 120, 140]
    assert stored.rows[1][3].notes[0].text == "held 120 of 130"
    assert not any(cell.notes for cell in stored.rows[0]), "a run that goes on does not say what it held"
    done, going = found["runs"].records
    assert (done["average"] is None, done["state"]) == (False, "finished")
    assert (going["average"], going["state"]) == (None, "3 of 3 phases")


def test_numbers_stay_numbers_and_formulas_become_texts() -> None:
    rows = [{"value": value} for value in (-0.5, 3, None, "-0.5", "+1e-3", "lucir", "−0.5", *FORMULAS)]
    found = [row["value"] for row in csv.DictReader(io.StringIO(csv_of(rows), newline=""))]
    assert found[:7] == ["-0.5", "3", "", "-0.5", "+1e-3", "lucir", "−0.5"]
    assert all(cell.startswith(("'", "\\x")) for cell in found[7:])
    assert csv_of([{"=1+1": 2}]) == "'=1+1\n2\n"
