"""Run folders as values: finished, unfinished and broken ones."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import store
from poise.errors import Damaged, UserError
from poise.report.figures import numbers
from poise.report.reading import baselines, configurations, read_run, read_runs
from poise.report.reading.machines import changed_precision, machines_of

from .conftest import Write, dump

TRANSFER = ("accuracy_matrix", "backward_transfer")


def test_a_real_run_is_read_as_its_result_says_and_its_journal_adds(real: Path) -> None:
    result = json.loads((real / "result.json").read_bytes())
    run = read_run(real)
    assert run.finished
    assert (run.method, run.policy, run.data, run.setting, run.stream) == ("lucir", "hedge", "digits", "groups", 3)
    assert (run.average, run.last, run.forgetting) == tuple(
        result[key] for key in ("average_accuracy", "last_accuracy", "average_forgetting")
    )
    for phase, point in zip(run.phases, result["curve"], strict=True):
        assert (phase.accuracy, phase.stored, phase.action) == (
            point["accuracy"],
            point["stored_images"],
            point["action"],
        )
        assert 100 * sum(phase.hits) / sum(phase.images) == pytest.approx(phase.accuracy, abs=1e-3)
    assert [len(phase.arrived) for phase in run.phases] == [2, 1, 1]
    assert len(run.arms) == result["space"]["actions"]
    assert all(sum(phase.distribution or ()) == pytest.approx(1) for phase in run.phases[1:])
    assert len(run.trials) >= 2 * len(run.arms)
    assert run.class_names == tuple("0123456789")
    assert sum(images for _, _, images in run.confusion) == sum(run.phases[-1].images)


def test_forgetting_by_phase_averages_to_that_of_the_result(real: Path) -> None:
    run = read_run(real)
    lost = [float(row["forgetting"] or 0) for row in numbers.forgetting([run])]
    assert len(lost) == len(run.phases) - 1
    assert sum(lost) / len(lost) == pytest.approx(run.forgetting, abs=1e-3)
    classes = numbers.classes(run)
    assert [row["phase"] for row in classes] == [0, 0, 1, 2]
    assert sum(int(row["hits"] or 0) for row in classes) == sum(run.phases[-1].hits)


def test_results_from_before_the_accuracy_matrix_have_it_from_their_journals(real: Path, tmp_path: Path) -> None:
    whole, folder = read_run(real), tmp_path / "older"
    shutil.copytree(real, folder)
    result = store.read_json(folder / "result.json")
    dump(folder / "result.json", {key: each for key, each in result.items() if key not in TRANSFER}, digest=True)
    older = read_run(folder)
    assert older.backward_transfer == pytest.approx(whole.backward_transfer, abs=1e-3)
    for mine, theirs in zip(older.accuracy_matrix, whole.accuracy_matrix, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    bare = read_run(folder / "result.json")
    assert (bare.accuracy_matrix, bare.backward_transfer, bare.verified) == ((), None, True)
    kept = read_run(real / "result.json")
    assert (kept.accuracy_matrix, kept.backward_transfer) == (whole.accuracy_matrix, result["backward_transfer"])


def test_a_kept_result_has_the_details_of_the_journal_beside_it(real: Path, tmp_path: Path) -> None:
    kept, journal = tmp_path / "run.json", tmp_path / "run.journal.jsonl.xz"
    shutil.copy(real / "result.json", kept)
    packed = lzma.compress((real / "journal.jsonl").read_bytes())
    journal.write_bytes(packed)
    whole, run = read_run(real), read_run(kept)
    assert (run.phases, run.trials, run.confusion, run.events) == (
        whole.phases,
        whole.trials,
        whole.confusion,
        whole.events,
    )
    journal.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(Damaged, match="is cut off"):
        read_run(kept)
    journal.write_bytes(b"no xz")
    with pytest.raises(Damaged, match="is not a compressed journal"):
        read_run(kept)
    other = [json.loads(line) for line in (real / "journal.jsonl").read_text().splitlines()]
    changed = [{**event, "accuracy": 1.0} if event.get("event") == "exam" else event for event in other]
    journal.write_bytes(lzma.compress("".join(f"{json.dumps(event)}\n" for event in changed).encode()))
    with pytest.raises(UserError, match="is the journal of another run"):
        read_run(kept)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("accuracy_matrix", [[80.0], [60.0]]),
        ("accuracy_matrix", [[80.0], [60.0, 90.0], [50.0, "95", 70.0]]),
        ("accuracy_matrix", [[80.0], [60.0, 90.0]]),
        ("accuracy_matrix", "none"),
        ("backward_transfer", None),
        ("backward_transfer", [1.0]),
    ],
)
def test_a_wrong_accuracy_matrix_is_one_line(write: Write, key: str, value: object) -> None:
    folder = write("run")
    changed(folder, **{key: value})
    with pytest.raises(UserError, match=key) as error:
        read_run(folder)
    assert "\n" not in str(error.value)


def test_an_unfinished_run_tells_the_same_as_far_as_it_came(real: Path, tmp_path: Path) -> None:
    whole = read_run(real)
    folder = tmp_path / "half"
    shutil.copytree(real, folder)
    (folder / "result.json").unlink()
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"exam"' in line)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:last]) + lines[last][:40])  # torn in the middle of an exam
    run = read_run(folder)
    assert not run.finished
    assert (run.average, run.last, dict(run.seconds)) == (None, None, {})
    assert (len(run.phases), run.exams) == (2, 3)
    for mine, theirs in zip(run.phases, whole.phases, strict=False):
        assert mine.accuracy == pytest.approx(theirs.accuracy, abs=1e-3)
        assert mine.accuracy_ncm == pytest.approx(theirs.accuracy_ncm, abs=1e-3)
        assert (mine.action, mine.stored, mine.labels) == (theirs.action, theirs.stored, theirs.labels)
    assert (run.space, run.configuration()) == (whole.space, whole.configuration())


def changed(folder: Path, **keys: Any) -> None:
    dump(folder / "result.json", {**store.read_json(folder / "result.json"), **keys})


def test_what_cannot_be_read_is_listed_and_stops_nothing(write: Write, tmp_path: Path) -> None:
    good = write("good")
    spoil: dict[str, Any] = {
        "half": lambda folder: (folder / "recipe.json").write_text('{"format": 1, "na'),
        "newer": lambda folder: (folder / "result.json").write_text('{"format": 99}'),
        "holes": lambda folder: store.write_json(folder / "recipe.json", {"name": "x"}),
        "list": lambda folder: (folder / "result.json").write_text("[]"),
        "words": lambda folder: (folder / "journal.jsonl").write_text("not a journal\n"),
        "odd": lambda folder: (folder / "journal.jsonl").write_text('{"event": "exam", "phase": 0}\n'),
        "misfit": lambda folder: (folder / "journal.jsonl").write_text(
            (folder / "journal.jsonl").read_text().replace('"images": [50, 50]', '"images": [50]')
        ),
        "cut": lambda folder: changed(folder, curve=[]),
        "timeless": lambda folder: changed(folder, seconds=None),
        "wordy": lambda folder: changed(folder, last_accuracy="high"),
        "nan": lambda folder: changed(folder, average_accuracy=float("nan")),
        "alien": lambda folder: store.write_json(folder / "result.json", {"curve": 3, "average_accuracy": "high"}),
    }
    for name, spoiled in spoil.items():
        folder = write(name, finished=name not in ("holes",))
        spoiled(folder)
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    paths = [*(tmp_path / name for name in (*spoil, "empty", "foreign", "nowhere")), good]
    runs, broken = read_runs(paths)
    assert [run.name for run in runs] == ["good"]
    reasons = {each.path.name: each.reason for each in broken}
    assert set(reasons) == {*spoil, "empty", "foreign", "nowhere"}
    assert all(reason and "\n" not in reason for reason in reasons.values())
    assert "install a newer poise" in reasons["newer"]
    assert reasons["words"] == "journal.jsonl, line 1 is not JSON"
    assert reasons["nan"] == "holds a result in which average_accuracy is nan, which is not a number"
    assert reasons["empty"] == "is empty"
    assert reasons["foreign"] == "is not a run folder"
    assert reasons["nowhere"] == "does not exist"


def test_a_folder_of_runs_stands_for_them_each_once_with_a_name_of_its_own(write: Write, tmp_path: Path) -> None:
    for place in ("a/run", "b/run", "b/deep/run"):
        write(f"set/{place}")
    report = tmp_path / "set" / "report"
    report.mkdir()
    (report / "index.html").write_text("an earlier report")
    runs, broken = read_runs([tmp_path / "set", tmp_path / "set" / "a" / "run"])
    assert not broken
    assert len(runs) == len({run.name for run in runs}) == 3
    assert {run.path for run in runs} == {tmp_path / "set" / place for place in ("a/run", "b/run", "b/deep/run")}


def test_a_bare_result_is_a_run_without_details(write: Write, tmp_path: Path) -> None:
    file = shutil.copy(write("run") / "result.json", tmp_path / "kept.json")
    run = read_run(Path(file))
    assert (run.name, run.finished, run.phases[-1].labels) == ("kept", True, ())
    assert run.phases[-1].accuracy == 80.0


def test_stored_images_have_two_names(write: Write) -> None:
    folder = write("run")
    result = store.read_json(folder / "result.json")
    for point in result["curve"]:
        point["stored"] = point.pop("stored_images") + 1
    store.write_json(folder / "result.json", result)
    assert [phase.stored for phase in read_run(folder).phases] == [21, 41, 61]


def test_runs_that_differ_by_chance_only_share_their_configuration(write: Write) -> None:
    first = read_run(write("a"))
    assert read_run(write("b", seed=4, device="cuda")).configuration() == first.configuration()
    older = {key: value for key, value in first.recipe.items() if value not in (None, {})}
    assert read_run(write("c", **older)).configuration() == first.configuration()
    others: list[dict[str, Any]] = [{"epochs": 20}, {"policy": "online"}, {"memory": {"per_class": 10}}]
    for number, keys in enumerate(others):
        assert read_run(write(f"other-{number}", **keys)).configuration() != first.configuration()


def test_a_memory_that_was_not_written_is_the_usual_one(write: Write) -> None:
    unsaid = {"per_class": None, "total": None, "reserve": 0}
    older, run = read_run(write("older", memory=unsaid)), read_run(write("run"))
    assert older.configuration() == run.configuration()
    assert read_run(write("none", memory={**unsaid, "per_class": 0})).configuration() != run.configuration()


def test_a_run_of_before_there_were_optimisers_has_that_of_then(write: Write) -> None:
    """It was SGD with the steps of the method; of a bare result that is not known."""
    now = {"batch": 128, "optimiser": "sgd", "decay": "steps", "warmup": 0.0}
    run, older = read_run(write("run", **now)), read_run(write("older", batch=128))
    assert older.configuration() == run.configuration()
    assert read_run(write("adamw", **{**now, "optimiser": "adamw"})).configuration() != older.configuration()
    assert "optimiser" not in read_run(write("bare") / "result.json").recipe
    tensors = {"weight": torch.zeros(2)}
    store.write_tensors(older.path / "phase-0.safetensors", tensors, {}, kind="phase 0")
    begun = {"start": str(older.path), "start_fingerprint": store.digest_of_tensors(tensors)}
    assert read_runs([write("started", **now, **begun)])[0][0].other_start == {}


def test_a_leak_audit_is_marked_before_it_is_finished(write: Write) -> None:
    assert read_run(write("leak", policy="race", finished=False, more={"leak": True})).policy_label == "race (leak)"
    assert read_run(write("done", policy="race", more={"leak": True})).policy_label == "race (leak)"


def test_the_released_memory_of_rmm_is_marked_before_it_is_finished(write: Write) -> None:
    memory = {"per_class": 20, "total": None, "reserve": 0, "rule": "rmm", "knows_increment": True}
    run = read_run(write("told", finished=False, memory=memory))
    assert (run.method, run.policy_label, run.fixed) == ("lucir+rmm", "fixed (knows increment)", True)


def test_where_the_judgement_of_the_classifier_stands_in_the_journal_changes_nothing(
    real: Path, tmp_path: Path
) -> None:
    lines = (real / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    judged = [number for number, line in enumerate(lines) if '"purpose": "classifier"' in line]
    assert judged
    for number in judged:
        after = next(place for place in range(number, len(lines)) if '"event": "action"' in lines[place])
        lines[number : after + 1] = [*lines[number + 1 : after + 1], lines[number]]
    shutil.copytree(real, tmp_path / "later")
    (tmp_path / "later" / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
    here, there = read_run(real), read_run(tmp_path / "later", "run")
    assert here.phases == there.phases
    assert sorted(map(str, here.trials)) == sorted(map(str, there.trials))
    assert numbers.chances(here) == numbers.chances(there)


def test_a_trial_has_the_accuracies_that_make_its_reward(real: Path, write: Write) -> None:
    for trial in read_run(real).trials:
        assert sum(trial.accuracies) / len(trial.accuracies) == pytest.approx(trial.reward)
    folder = write("lost", policy="online")
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"diverged": false', '"diverged": true'))
    assert {trial.accuracies for trial in read_run(folder).trials} == {(0.0,)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "icarl"),
        ("policy", "online"),
        ("epochs", 20),
        ("seed", 3),
        ("order", 1),
        ("exam", "dev"),
        ("setting", "tfh"),
        ("phases", 5),
        ("memory", {"per_class": 5}),
    ],
)
def test_a_recipe_that_contradicts_the_result_is_named_and_left_out(write: Write, key: str, value: object) -> None:
    good, folder = write("good"), write("edited")
    saved = store.read_json(folder / "recipe.json")
    dump(folder / "recipe.json", {**saved, "recipe": {**saved["recipe"], key: value}})
    runs, (unread,) = read_runs([good, folder])
    assert [run.name for run in runs] == ["good"]
    assert unread.reason.startswith(f"says two things of what was run ({key}")
    assert "\n" not in unread.reason


def test_what_an_older_recipe_meant_contradicts_nothing(write: Write) -> None:
    """A run of AANets that an older poise began, and a newer one finished, says its η in the result only."""
    folder = write("older", method="aanets", options={}, more={"options": {"eta": "kept"}})
    assert read_run(folder).finished


def test_the_same_images_at_another_path_are_the_same_data(write: Write) -> None:
    paths = [write(f"run-{at}", data=f"/disk-{at}/{name}", seed=at) for at, name in enumerate(["birds", "birds", "b2"])]
    other = write("other", data="/disk-3/birds", seed=3)
    dump(other / "recipe.json", {**store.read_json(other / "recipe.json"), "fingerprint": "another"})
    runs, _ = read_runs([*paths, other])
    assert [[run.name for run in row.runs] for row in configurations(runs)] == [["run-0", "run-1", "run-2"], ["other"]]
    assert len({run.where for run in runs[:3]}) == 1
    assert [run.recipe["data"] for run in runs] == ["/disk-0/birds", "/disk-1/birds", "/disk-2/b2", "/disk-3/birds"]


def test_another_source_of_an_own_network_is_another_row(write: Write) -> None:
    """Although its file has the same path: it was changed between the runs."""
    paths = [write(f"run-{at}", net="/home/me/net.py:make", seed=at) for at in range(3)]
    for path, digest in zip(paths, ("a" * 32, "a" * 32, "b" * 32), strict=True):
        meta = {"net_info": {"word": "/home/me/net.py:make", "digest": digest}}
        store.write_tensors(path / "phase-0.safetensors", {}, {"learner": meta}, kind="phase 0")
    rows = configurations(read_runs(paths)[0])
    assert [row.label for row in rows] == ["lucir, fixed, net_source=aaaaaaaa", "lucir, fixed, net_source=bbbbbbbb"]
    (paths[0] / "phase-0.safetensors").write_bytes(b"torn")
    assert read_run(paths[0]).net_source is None


def test_the_source_of_an_own_network_is_that_with_which_the_run_began(write: Write) -> None:
    """Its final model may have been written again after the file was changed."""
    path = write("run", net="/home/me/net.py:make")
    for file, kind, digest in (("model.safetensors", "learner", "b"), ("phase-0.safetensors", "phase 0", "a")):
        meta = {"net_info": {"word": "/home/me/net.py:make", "digest": digest * 32}}
        store.write_tensors(path / file, {}, meta if kind == "learner" else {"learner": meta}, kind=kind)
    assert read_run(path).net_source == "aaaaaaaa"
    machine = store.read_json(path / "machine.json")
    dump(path / "machine.json", {**machine, "versions": {"the network": "c" * 32}})
    assert read_run(path).net_source == "cccccccc"


def test_another_source_of_an_own_method_or_policy_is_another_row(write: Write) -> None:
    """One of each seed or not: both are shown. A policy is compared with runs of the same method, not policy."""
    versions = [("a", None), ("b", None), ("a", "c"), ("a", "d"), ("b", "d")]
    paths = []
    for at, (method, policy) in enumerate(versions):
        path = write(f"run-{at}", method="mine", policy="ours" if policy else "fixed")
        sources = {"method mine": method * 32, **({"policy ours": policy * 32} if policy else {}), "method other": "x"}
        dump(path / "machine.json", {**store.read_json(path / "machine.json"), "versions": sources})
        paths.append(path)
    rows = configurations(read_runs(paths)[0])
    assert [row.label for row in rows] == [
        "mine, fixed, method_source=aaaaaaaa",
        "mine, fixed, method_source=bbbbbbbb",
        "mine, ours, method_source=aaaaaaaa, policy_source=cccccccc",
        "mine, ours, method_source=aaaaaaaa, policy_source=dddddddd",
        "mine, ours, method_source=bbbbbbbb, policy_source=dddddddd",
    ]
    found = baselines(rows)
    assert [rows.index(found[row.label]) for row in rows[2:]] == [0, 0, 1]


def test_a_run_that_was_resumed_with_other_code_of_ones_own_is_another_row(write: Write) -> None:
    paths = [write(f"run-{seed}", method="mine", seed=seed) for seed in range(3)]
    other = {"exact": False, "differs": ["the code of method mine was changed"]}
    resumes: list[list[dict[str, Any]]] = [[], [{"exact": True}], [other]]
    for path, resumed in zip(paths, resumes, strict=True):
        about = {"versions": {"method mine": "a" * 32}, "resumes": resumed}
        dump(path / "machine.json", {**store.read_json(path / "machine.json"), **about})
    rows = configurations(read_runs(paths)[0])
    assert {row.label: len(row.runs) for row in rows} == {
        "mine, fixed, method_source=aaaaaaaa": 2,
        "mine, fixed, method_source=aaaaaaaa+changed": 1,
    }


GPU: dict[str, Any] = {"processor": "an abacus", "device": "cuda:0", "gpu": "A"}
CPU: dict[str, Any] = {"processor": "an abacus", "device": "cpu", "gpu": None}
NUMPY = "numpy 1 then, numpy 2 now"


def test_a_run_that_was_resumed_in_another_precision_is_another_row(write: Write) -> None:
    resumes: list[list[dict[str, Any]]] = [
        [],
        [{**GPU, "device": "cuda:1", "precision": "bf16", "differs": [NUMPY]}],
        [{**CPU, "precision": "fp32"}, {**GPU, "precision": "bf16"}],
    ]
    paths = [write(f"run-{seed}", seed=seed) for seed in range(3)]
    for path, resumed in zip(paths, resumes, strict=True):
        dump(path / "machine.json", {"hardware": GPU, "precision": "bf16", "resumes": resumed})
    rows = configurations(read_runs(paths)[0])
    assert {row.label: len(row.runs) for row in rows} == {
        "lucir, fixed, precision=bf16": 2,
        "lucir, fixed, precision=bf16+changed": 1,
    }


@pytest.mark.parametrize(
    ("start", "device", "differs", "machines", "changed"),
    [
        (GPU, "cuda:1", [NUMPY], ("A",), False),
        (GPU, "cuda:0", ["A then, B now", "another processor"], ("A", "B"), False),
        (GPU, "cuda:0", ["another processor"], ("A",), False),
        (GPU, "cpu", ["device=cuda, precision=bf16 then, device=cpu, precision=fp32 now"], ("A", "an abacus"), True),
        (GPU, "cpu", ["device=cuda then, device=cpu now", "another processor"], ("A", "unknown"), False),
        (GPU, "cpu", [], ("A", "an abacus"), True),
        (CPU, "cuda:0", [], ("an abacus", "unknown"), True),
        (CPU, "cpu", [NUMPY], ("an abacus",), False),
        (CPU, "cpu", ["another processor"], ("an abacus", "unknown"), False),
        (CPU, "cpu", ["matmul_precision=ieee then, matmul_precision=bf16 now"], ("an abacus",), False),
    ],
)
def test_resumes_by_an_older_poise_say_what_they_can(
    start: dict[str, Any], device: str, differs: list[str], machines: tuple[str, ...], changed: bool
) -> None:
    resume = {"exact": False, "device": device, **({"differs": differs} if differs else {})}
    machine = {"hardware": start, "precision": "bf16" if start is GPU else "fp32", "resumes": [resume]}
    assert machines_of(machine) == machines
    assert changed_precision(machine, auto=True) is changed
    if not differs:
        assert not changed_precision(machine, auto=False), "the recipe names the precision"


@pytest.mark.parametrize("resumes", [None, 7, "x", [7], [{}], [{"differs": 7}], [{"exact": True}], [{"device": 7}]])
def test_resumes_that_say_nothing_change_nothing(resumes: object) -> None:
    machine = {"hardware": GPU, "precision": "bf16", "resumes": resumes}
    assert machines_of(machine) == ("A",)
    assert not changed_precision({**machine, "hardware": [1]}, auto=True)
    assert machines_of({"hardware": [1]}) == ("unknown",)
