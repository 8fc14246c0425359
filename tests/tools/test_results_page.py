"""The tables of the results page and of the README come from the raw results, and from nothing else."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from poise import store

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "results_page.py"))
LUCIR = "cifar100-lucir-tfh-5-fixed-s0.json"
#: Results that stay as they are, whatever is added to them.
EARLY = (
    *(f"cifar100-{method}-{stream}-fixed-s0" for method in ("icarl", "lucir") for stream in ("tfh-5", "tfs-25")),
    *(f"cifar100-lucir-{stream}-{end}" for stream in ("tfh-5", "tfs-5") for end in ("fixed-s0-paired", "online-s0")),
)
Words = list[str]


def results(root: Path) -> Any:
    return TOOL["Results"].read(root / "results" / "cifar100", "cifar100/")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Both pages and some of the raw results."""
    (tmp_path / "results" / "cifar100").mkdir(parents=True)
    for name in EARLY:
        shutil.copy(ROOT / "results" / "cifar100" / f"{name}.json", tmp_path / "results" / "cifar100")
    shutil.copy(ROOT / "results" / "cifar100.md", tmp_path / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    assert TOOL["main"]([], tmp_path) == 0
    return tmp_path


def made(root: Path, source: str, name: str, by: float = 0.0, **keys: object) -> None:
    """One more raw result: another one with these keys, all of its exams better by some points."""
    result = json.loads((root / "results" / "cifar100" / source).read_text(encoding="utf-8"))
    del result["digest"], result["format"]
    for point in result["curve"]:
        point["accuracy"] += by
    result["average_accuracy"] += by
    store.write_json(root / "results" / "cifar100" / f"{name}.json", {**result, **keys}, digest=True)


def cells(table: str, label: str) -> Words:
    """The cells of the row that begins so."""
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_both_pages_are_what_the_raw_files_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL["main"](["--check"]) == 0, f"run python tools/results_page.py: {capsys.readouterr().out}"


def test_every_result_is_on_the_page() -> None:
    page = (ROOT / "results" / "cifar100.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\(cifar100/([^)]+\.json)\)", page))
    assert shown == {path.name for path in (ROOT / "results" / "cifar100").glob("*.json")}


def test_a_changed_page_is_noticed_and_refreshed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = copy / "results" / "cifar100.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("63.54", "65.54"), encoding="utf-8")
    assert TOOL["main"](["--check"], copy) == 1
    assert "cifar100.md is not what the files say" in capsys.readouterr().out
    assert TOOL["main"]([], copy) == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_cell_says_ours_the_papers_and_the_difference(copy: Path) -> None:
    table = TOOL["main_table"](results(copy))
    own = cells(table, "LUCIR")
    assert own[0] == f"[63.54](cifar100/{LUCIR}) (63.1 ± 0.7, +0.4)"
    assert own[-2] == "so far, 2 of 4 cells"
    assert cells(table, "DER")[:2] == ["– (67.6)", "– (72.3)"]
    assert cells(table, "DER")[-2] == cells(table, "AANets + `online`")[-2] == "not run"
    first = "LUCIR + the first `online` (`online-1`)"
    assert cells(table, first)[0].endswith("(63.9 ± 0.6, +0.3)")
    gains = table.splitlines()[[line.startswith(f"| {first}") for line in table.splitlines()].index(True) + 1]
    assert gains.split(" | ")[1:3] == ["+0.54 (+0.8)", "+1.41 (+1.9)"]


def test_several_seeds_are_mean_and_deviation_and_pairs_share_a_phase_0(copy: Path) -> None:
    even = {"environment": "both", "even": False}
    resolved = {"name": "online", "paired": False, "trials": even}
    online = {"policy": "online", "resolved_policy": resolved, "space": {"name": "online"}}
    space = {"axes": {"logit_kd": [0, 1], "adjustment": [0, 1], "lr": [0.1]}, "actions": 4, "default": {}}
    online["space"] = {"name": "online", **space}
    for seed, by in ((0, 1.0), (1, 2.0), (2, 4.5)):
        source = LUCIR if seed == 0 else f"cifar100-lucir-tfh-5-fixed-s{seed}.json"
        if seed:
            made(copy, LUCIR, f"cifar100-lucir-tfh-5-fixed-s{seed}", by=seed, seed=seed)
        made(copy, source, f"cifar100-lucir-tfh-5-online-now-s{seed}", by=by, **online)
    table = TOOL["main_table"](results(copy))
    own = cells(table, "LUCIR")
    assert own[0].startswith("64.54 ± 1.00, n 3: [s0](")
    assert own[0].endswith("(63.1 ± 0.7, +1.4)")
    assert own[6] == "0, 1, 2"
    tuned = cells(table, "LUCIR + `online`")
    assert tuned[0].startswith("67.04 ± ")
    assert tuned[-2] == "not the paper's policy"
    gains = [line for line in table.splitlines() if line.startswith("| – gain")]
    assert gains[0].split(" | ")[1] == "+2.50 ± 1.80, n 3 (+0.8)"
    compared = {**online, "resolved_policy": {**resolved, "paired": True}}
    made(copy, LUCIR, "cifar100-lucir-tfh-5-online-s0-joined", by=9.0, **compared)
    table = TOOL["main_table"](results(copy))
    assert cells(table, "LUCIR + `online`")[0] == tuned[0]
    label = "LUCIR + `online`, small last batches joined"
    assert cells(table, label)[0].startswith("– (")
    assert cells(table, f"{label}, `paired` and `stay`")[0].startswith("[72.54](")


def test_a_run_with_joined_batches_is_paired_with_one_of_its_kind(copy: Path) -> None:
    even = {"environment": "both", "even": False}
    space = {"name": "online", "axes": {"logit_kd": [0, 1], "lr": [0.1]}, "actions": 4, "default": {}}
    resolved = {"name": "online", "trials": even}
    online = {"policy": "online", "resolved_policy": resolved, "space": space}
    made(copy, LUCIR, "cifar100-lucir-tfh-5-online-s0-joined", by=3.0, **online)
    table = TOOL["main_table"](results(copy))
    gains = [line for line in table.splitlines() if line.startswith("| – gain")]
    assert gains[1].split(" | ")[1] == "– (+0.8)"
    made(copy, LUCIR, "cifar100-lucir-tfh-5-fixed-s0-joined", by=1.0)
    table = TOOL["main_table"](results(copy))
    assert cells(table, "LUCIR, run again with small last batches joined")[0].startswith("[64.54](")
    gains = [line for line in table.splitlines() if line.startswith("| – gain")]
    assert gains[1].split(" | ")[1] == "+2.00 (+0.8)"


def test_a_run_that_no_row_has_is_listed(copy: Path) -> None:
    memory = {"total": 2000, "reserve": 0}
    made(copy, "cifar100-icarl-tfh-5-fixed-s0.json", "cifar100-icarl-tfh-5-fixed-s0-total", memory=memory)
    made(copy, LUCIR, "another-order", by=4.0, order="podnet-1")
    table = TOOL["main_table"](results(copy))
    other = cells(table, "LUCIR, order `podnet-1`")
    assert other[0].startswith("[67.54](cifar100/another-order.json)")
    assert other[-2] == "not comparable", "the paper has one class order"
    words = "- icarl, fixed, TFH 5, order 1993, seed 0, exam test, 2,000 images kept in total"
    assert f"{words}: [57.53](cifar100/cifar100-icarl" in table


def test_rows_of_tables_3_and_s1_find_their_runs(copy: Path) -> None:
    even = {"environment": "both", "even": False}
    axes = {"logit_kd": [0, 1], "feature_kd": [0.5, 1]}
    space = {"name": "online", "axes": axes, "actions": 4, "default": {"classifier": "fc"}}
    resolved = {"name": "online", "trials": even}
    made(copy, LUCIR, "kd", by=0.2, policy="online", space=space, resolved_policy=resolved)
    whole = {**space, "axes": {**axes, "adjustment": [0, 1]}}
    seldom = {**resolved, "every": 2}
    made(copy, LUCIR, "seldom", by=0.3, policy="online", space=whole, resolved_policy=seldom)
    made(copy, LUCIR, "best", by=0.4, policy="crossval", oracle=True, resolved_policy={"name": "crossval"})
    found = results(copy)
    assert cells(TOOL["table_3"](found), "2")[1] == "[63.74](cifar100/kd.json) (63.20, +0.5)"
    assert cells(TOOL["table_3"](found), "5")[1].startswith("[63.94](cifar100/best.json)")
    assert cells(TOOL["table_s1"](found), "2")[0] == "[63.84](cifar100/seldom.json) (63.57, +0.3)"
    assert cells(TOOL["main_table"](found), "LUCIR + `online`")[0] == "– (63.9 ± 0.6)"


def test_times_are_those_of_one_phase_multiplied(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    phases = {"fixed": [60.0, 30.0], "online": [90.0], "offline-rl": [660.0, 30.0]}
    file.write_text(json.dumps({name: {"phases": spent} for name, spent in phases.items()}), encoding="utf-8")
    table = TOOL["table_s2"](file)
    assert cells(table, "fixed")[:2] == ["3.5 min", "1.00"]
    assert cells(table, "`online`, every phase")[:2] == ["8.5 min", "2.43"]
    assert cells(table, "`online`, every 2")[:2] == ["6.5 min", "1.86"]
    assert cells(table, "offline RL")[0] == "13.5 min"
    assert cells(table, "bilevel")[:2] == ["–", "–"]


def test_a_finished_run_is_kept_under_its_name(copy: Path) -> None:
    run = copy / "runs" / "cifar100-lucir-tfh-5-fixed-s7"
    run.mkdir(parents=True)
    made(copy, LUCIR, "new", by=1.0, seed=7)
    (copy / "results" / "cifar100" / "new.json").rename(run / "result.json")
    (run / "journal.jsonl").write_text('{"event": "phase"}\n', encoding="utf-8")
    assert TOOL["main"](["--keep", str(run)], copy) == 0
    kept = copy / "results" / "cifar100" / f"{run.name}.json"
    assert kept.read_bytes() == (run / "result.json").read_bytes()
    assert kept.with_suffix(".journal.jsonl.xz").exists()
    assert "[s7](" in (copy / "results" / "cifar100.md").read_text(encoding="utf-8")
    assert "n 2" in (copy / "README.md").read_text(encoding="utf-8")
    made(copy, LUCIR, run.name, by=2.0, seed=7)
    with pytest.raises(SystemExit, match="is another result"):
        TOOL["main"](["--keep", str(run)], copy)
    assert TOOL["main"](["--keep", str(run), "--suffix", "paired"], copy) == 0
    assert kept.with_name(f"{run.name}-paired.json").exists()
    (run / "result.json").unlink()
    with pytest.raises(SystemExit, match="is not a run folder"):
        TOOL["main"](["--keep", str(run)], copy)


def test_a_result_without_a_digest_is_not_shown(copy: Path) -> None:
    path = copy / "results" / "cifar100" / LUCIR
    result = store.read_json(path)
    store.write_json(path, result)
    with pytest.raises(SystemExit, match="have no digest; 'poise digest"):
        results(copy)


def test_a_block_that_nobody_writes_is_refused() -> None:
    with pytest.raises(SystemExit, match="nothing is known of a block 'tabel 1'"):
        TOOL["fill_blocks"]("<!-- tabel 1: tools/results_page.py -->\n<!-- end -->", {"table 1": ""})
