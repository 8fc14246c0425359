"""What the pages of results say is what the files beside them say (the tables of CIFAR-100: tests/tools)."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest
import torch

from poise import store
from poise.learner import LearnerState
from poise.runs import RunFolder

RESULTS = Path(__file__).parents[1] / "results"
KEPT = sorted((RESULTS / "cifar100").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_result_is_a_test_run_whose_average_is_that_of_its_exams(path: Path) -> None:
    result, verified = store.read_verified(path)
    assert verified
    curve = [point["accuracy"] for point in result["curve"]]
    assert result["average_accuracy"] == pytest.approx(sum(curve) / len(curve), abs=1e-3)
    assert result["exam"] == "test"
    journal = path.with_suffix(".journal.jsonl.xz")
    if journal.exists():  # kept since 2026-11-16
        events = [json.loads(line) for line in lzma.decompress(journal.read_bytes()).splitlines()]
        exams = [event["accuracy"] for event in events if event.get("event") == "exam"]
        assert exams == pytest.approx(curve, abs=1e-3)


@pytest.mark.parametrize(
    "path", sorted((RESULTS / "unfinished").glob("*/recipe.json")), ids=lambda path: path.parent.name
)
def test_an_unfinished_run_knows_the_start_that_it_began_from(path: Path) -> None:
    described, folder = store.read_json(path), RunFolder(path.parent)
    if described["recipe"]["start"] is None:
        assert "start_fingerprint" not in described
        return
    start = RunFolder(RESULTS / "starts" / Path(described["recipe"]["start"]).name)
    assert described["start_fingerprint"] == start.phase_0_fingerprint()
    now, _ = store.read_tensors(folder.checkpoint_files()[-1], kind="checkpoint")
    then, _ = store.read_tensors(start.phase_0, kind="phase 0")
    origins = "memory.exemplars.origins"
    assert {*then[origins].tolist()} <= {*now[origins].tolist()}, "the images that its network chose after phase 0"


def test_the_figures_of_the_page_are_there() -> None:
    page = (RESULTS / "cifar100.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert names
    assert all((RESULTS / name).is_file() for name in names)


@pytest.mark.parametrize("setting", ["tfh", "tfs"])
def test_the_exams_and_decisions_of_online_are_those_of_its_runs(setting: str) -> None:
    page = (RESULTS / "cifar100-dev.md").read_text(encoding="utf-8").splitlines()
    averages = []
    for policy, file in (("fixed", "fixed-s0-paired"), ("`online`", "online-s0")):
        result = json.loads((RESULTS / f"cifar100/cifar100-lucir-{setting}-5-{file}.json").read_text(encoding="utf-8"))
        exams = [f"{point['accuracy']:.2f}" for point in result["curve"]]
        (place,) = [at for at, line in enumerate(page) if line.startswith(f"| {setting.upper()}, {policy} |")]
        cells = [cell.strip() for cell in page[place].strip("|").split("|")]
        averages.append(result["average_accuracy"])
        assert [cell for cell in cells[1:] if cell] == [*exams, f"{averages[-1]:.2f}"]
    decided = [
        tuple(point["action"][axis] for axis in ("logit_kd", "feature_kd", "lr")) for point in result["curve"][1:]
    ]
    shown = [cell for cell in re.split(r"\s*\|\s*", page[place + 1])[2:] if cell]
    assert [tuple(float(value) for value in cell.split(",")) for cell in shown] == decided


@pytest.mark.parametrize("file", ["digits-online.json", "digits-online-1.json"])
def test_the_digits_table_is_what_its_runs_gave(file: str) -> None:
    page = (RESULTS / "digits-online.md").read_text(encoding="utf-8")
    for setting in json.loads((RESULTS / file).read_text(encoding="utf-8")).values():
        assert len(setting["seeds"]) >= 5
        assert len(setting["seeds"]) == len(setting["fixed"]) == len(setting["online"])
        gains = [online - fixed for fixed, online in zip(setting["fixed"], setting["online"], strict=True)]
        means = [sum(values) / len(values) for values in (setting["fixed"], setting["online"], gains)]
        assert f"| {means[0]:.2f} | {means[1]:.2f} | {means[2]:+.2f} |" in page
        assert means[2] >= 0


@pytest.mark.parametrize(("file", "part"), [("digits-rmm.json", 0), ("digits-rmm-plain.json", 1)])
def test_the_tables_of_memory_allocations_are_what_their_runs_gave(file: str, part: int) -> None:
    page = (RESULTS / "digits-rmm.md").read_text(encoding="utf-8").split("## As it was at first")[part]
    runs = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    rows: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda each: str(each["stream"])):  # 2+2+… before 4+2+…
        kept = all(
            held <= budget
            for most, allowed in zip(run["held_images"], run["budget_images"], strict=True)
            for held, budget in zip(most, allowed, strict=True)
        )
        assert kept is not run["memory"].startswith("released")
        average, last = (sum(run[name]) / len(run["orders"]) for name in ("average_accuracy", "last_accuracy"))
        rows.setdefault(run["memory"], []).append(f"{average:.2f} | {last:.2f}")
    for memory, cells in rows.items():
        (line,) = [line for line in page.splitlines() if re.match(rf"\| {re.escape(memory)}( \(knows.*?)? \|", line)]
        assert len(cells) == 2
        assert all(cell in line for cell in cells)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.safetensors")), ids=lambda path: path.parent.name)
def test_kept_states_are_read_by_this_version(path: Path) -> None:
    kind = "phase 0" if path.name == "phase-0.safetensors" else "checkpoint"
    tensors, meta = store.read_tensors(path, kind=kind)
    images = {name: tensor for name, tensor in tensors.items() if name.startswith("memory.") and tensor.numel()}
    assert images
    state = LearnerState.from_tensors(
        tensors, meta["learner"], lookup=lambda origins: torch.zeros(len(origins), 3, 32, 32, dtype=torch.uint8)
    )
    assert state.knowledge.predictor is not None
    assert state.knowledge.phases == len(meta.get("exams", [0]))


@pytest.mark.parametrize(
    ("page", "entries"),
    [
        ("results/own-images.md", ("loop", "fixed", "default", "replay", "joint")),
        ("README.md", ("loop", "fixed", "default")),
    ],
)
def test_the_tables_of_own_images_are_what_the_suite_measured(page: str, entries: tuple[str, ...]) -> None:
    lines = (RESULTS / "own-images-suite.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {(row["task"], row["entry"]): row["accuracy"] for row in map(json.loads, lines)}
    text = (RESULTS.parent / page).read_text(encoding="utf-8")
    tasks = {task for task, _ in measured}
    assert len(tasks) == 10
    for task in tasks:
        found = re.search(rf"^\| {task} \| ([\d. |]+)", text, re.MULTILINE)
        assert found, task
        shown = [word.strip() for word in found[1].split("|")][: len(entries)]
        assert shown == [f"{measured[task, entry]:.1f}" for entry in entries], task
