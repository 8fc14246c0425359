"""What studies add to a report: texts, and what probes know in hindsight."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise import store
from poise.report.reading import PhaseRecord, RunRecord
from poise.report.tables.regret import regret_table
from poise.studies import gather_with_studies, judge_by_probes

from .test_probe_table import EXAM, probe

RECIPE = {"data": "toy", "method": "lucir", "policy": "fixed", "setting": "tfs", "phases": 2, "epochs": 30, "seed": 0}


def run(name: str, lr: float, **keys: object) -> RunRecord:
    """A run that trained its only later phase with this learning rate."""
    action: dict[str, float | str] = {"feature_kd": 1.0, "lr": lr, "classifier": "fc"}
    phases = tuple(PhaseRecord(phase, 1 + phase, 50.0, 50.0, 50.0, action) for phase in range(2))
    return RunRecord(Path(name), name, {**RECIPE, **keys}, None, {}, phases)


def test_a_probe_knows_the_best_constant_action_of_its_phase() -> None:
    runs = [run("own", 0.1), run("other seed", 0.1, seed=5), run("off the grid", 0.7)]
    table = probe((0.05, 0.1, 0.01), recipe=RECIPE, exam={"name": "test", "images": EXAM})
    found = {each.name: judge_by_probes(each, [table]) for each in runs}
    assert found["other seed"] is None
    assert found["off the grid"] is None
    whole = {"batch": 128, "net": "small"}
    older = probe((0.05, 0.1, 0.01), recipe={**RECIPE, **whole}, exam={"name": "test", "images": EXAM})
    assert judge_by_probes(run("whole", 0.1, **whole, optimiser="sgd", decay="steps", warmup=0.0), [older])
    assert judge_by_probes(run("another network", 0.1, **{**whole, "net": "resnet32"}), [older]) is None
    assert judge_by_probes(run("bare", 0.1), [older]), "of a bare result that is not known"
    hindsight = {name: each for name, each in found.items() if each is not None}
    (record,) = regret_table(runs[:1], hindsight).records
    assert record["judged_by"] == "probe of phase 1"
    assert (record["best_constant"], record["own"]) == pytest.approx((50.0, 45.0))
    assert record["regret"] == pytest.approx(5.0)


def test_tables_of_probes_are_told_from_runs(tmp_path: Path) -> None:
    store.write_json(tmp_path / "probe.json", probe().table)
    store.write_json(tmp_path / "other.json", {"kind": "something else"})
    report = gather_with_studies([tmp_path / "probe.json", tmp_path / "other.json"])
    assert [heading for heading, _ in report.texts] == ["Probe of phase 1"]
    assert [each.path.name for each in report.unread] == ["other.json"]
    assert "it enters no reward" in report.text()
