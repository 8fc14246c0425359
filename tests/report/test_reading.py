"""Run folders as values: finished, unfinished, kept and damaged ones."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise import store
from poise.errors import Damaged, UserError
from poise.report import gather
from poise.runs.record import load_result, read_run, read_runs

from .conftest import Write, dump


def test_a_real_run_is_read_as_its_result_says_and_its_journal_adds(real: Path) -> None:
    result = json.loads((real / "result.json").read_bytes())
    run = read_run(real)
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
        right = sum(phase.hits[phase.classifier])
        assert 100 * right / sum(phase.images) == pytest.approx(phase.accuracy, abs=1e-3)
    assert [len(phase.arrived) for phase in run.phases] == [2, 1, 1]
    assert len(run.trials) >= 2 * result["space"]["actions"]
    assert run.class_names == tuple("0123456789")
    assert sum(images for _, _, images in run.confusion) == sum(run.phases[-1].images)


def test_a_kept_result_has_the_details_of_the_journal_beside_it(real: Path, tmp_path: Path) -> None:
    kept, journal = tmp_path / "run.json", tmp_path / "run.journal.jsonl.xz"
    shutil.copy(real / "result.json", kept)
    assert read_run(kept).phases[-1].labels == ()
    packed = lzma.compress((real / "journal.jsonl").read_bytes())
    journal.write_bytes(packed)
    whole, run = read_run(real), read_run(kept)
    assert (run.phases, run.trials, run.confusion) == (whole.phases, whole.trials, whole.confusion)
    for content in (packed[: len(packed) // 2], b"no xz"):
        journal.write_bytes(content)
        with pytest.raises(Damaged):
            read_run(kept)
    other = [json.loads(line) for line in (real / "journal.jsonl").read_text().splitlines()]
    changed = [{**event, "accuracy": 1.0} if event.get("event") == "exam" else event for event in other]
    journal.write_bytes(lzma.compress("".join(f"{json.dumps(event)}\n" for event in changed).encode()))
    with pytest.raises(UserError, match="is the journal of another run"):
        read_run(kept)


def test_an_unfinished_run_tells_the_same_as_far_as_it_came(real: Path, tmp_path: Path) -> None:
    whole = read_run(real)
    folder = tmp_path / "half"
    shutil.copytree(real, folder)
    (folder / "result.json").unlink()
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"exam"' in line)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:last]) + lines[last][:40])  # torn in the middle of an exam
    run = read_run(folder)
    assert (run.finished, run.average, dict(run.seconds)) == (False, None, {})
    assert (len(run.phases), run.exams) == (2, 3)
    for mine, theirs in zip(run.phases, whole.phases, strict=False):
        assert mine.accuracy == pytest.approx(theirs.accuracy, abs=1e-3)
        assert (mine.action, mine.stored, mine.labels) == (theirs.action, theirs.stored, theirs.labels)
    assert (run.space, run.flat_recipe) == (whole.space, whole.flat_recipe)


def test_labels_are_known_before_a_run_is_finished(write: Write) -> None:
    for finished in (True, False):
        leak = read_run(write(f"leak-{finished}", policy="race", finished=finished, more={"leak": True}))
        assert leak.policy_label == "race (leak)"
    memory = {"per_class": 20, "total": None, "reserve": 0, "rule": "rmm", "knows_increment": True}
    run = read_run(write("told", finished=False, memory=memory))
    assert (run.method, run.policy_label, run.fixed) == ("lucir+rmm", "fixed (knows increment)", True)


def test_a_folder_of_runs_stands_for_them_each_once_with_a_name_of_its_own(write: Write, tmp_path: Path) -> None:
    for place in ("a/run", "b/run", "b/deep/run"):
        write(f"set/{place}")
    report = tmp_path / "set" / "report"
    report.mkdir()
    (report / "index.html").write_text("an earlier report")
    runs, broken = read_runs([tmp_path / "set", tmp_path / "set" / "a" / "run"])
    assert not broken
    assert len(runs) == len({run.name for run in runs}) == 3


def test_the_same_images_at_another_path_are_the_same_data(write: Write, tmp_path: Path) -> None:
    runs, _ = read_runs([write(name, data=str(tmp_path / name)) for name in ("here", "there")])
    assert len({run.data for run in runs}) == 1


# Damage ---------------------------------------------------------------------------------------------------------------


def test_a_method_of_ones_own_is_called_by_its_file_without_the_folders(write: Write) -> None:
    assert read_run(write("own", method="/home/me/mine.py:Mine")).method == "mine.py:Mine"


def change(name: str, **keys: Any) -> Callable[[Path], None]:
    """Change a document; its digest is then right, as if it had been written so."""
    return lambda folder: dump(folder / name, {**store.read_json(folder / name), **keys}, digest=name == "result.json")


def change_event(kind: str, **keys: Any) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        events = [{**event, **keys} if event.get("event") == kind else event for event in events]
        (folder / "journal.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))

    return changed


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "half a recipe": put("recipe.json", b'{"format": 1, "na'),
    "a newer result": put("result.json", b'{"format": 99}'),
    "a list": put("result.json", b"[]"),
    "words for a journal": put("journal.jsonl", b"not a journal\n"),
    "no text": put("journal.jsonl", b"\xff\xfe\n" * 3),
    "a result that was edited": lambda folder: (folder / "result.json").write_text(
        (folder / "result.json").read_text().replace('"seed": 0', '"seed": 3')
    ),
    "another recipe than its result": change("result.json", epochs=20),
    "no curve": change("result.json", curve=[]),
    "a curve of numbers": change("result.json", curve=[1]),
    "no seconds": change("result.json", seconds=None),
    "an accuracy in words": change("result.json", last_accuracy="high"),
    "an accuracy that is huge": change("result.json", average_accuracy=10**400),
    "a matrix that is no triangle": change("result.json", accuracy_matrix=[[80.0], [60.0]]),
    "a transfer of nothing": change("result.json", backward_transfer=None),
    "an exam of nothing": change_event("exam", images=[]),
    "hits in words": change_event("exam", hits_fc=["x"]),
    "a confusion of words": change_event("exam", confusion=[["a", "b", "c"]]),
    "a trial of nothing": change_event("trial", trial={}),
    "a reward in words": change_event("trial", reward="x"),
    "an action of lists": change_event("trial", action=[1]),
    "axes that are words": change("result.json", space={"axes": "x", "actions": 4}),
    "hardware that is a list": change("machine.json", hardware=[1]),
}


def test_damaged_runs_are_named_and_the_rest_is_shown(write: Write, tmp_path: Path) -> None:
    good, bad = write("good", seed=1), {name: write(name, policy="online") for name in DAMAGE}
    for name, folder in bad.items():
        DAMAGE[name](folder)
    report = gather([good, *bad.values()])
    assert [run.name for run in report.runs] == ["good"]
    assert [each.path.name for each in report.unread] == list(DAMAGE)
    assert all(each.reason and "\n" not in each.reason for each in report.unread)
    page = report.write(tmp_path / "page").read_text()
    assert 'id="run-good"' in page
    assert 'id="unread"' in page


def test_paths_without_a_run_are_named(write: Write, tmp_path: Path) -> None:
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    _, unread = read_runs([write("good"), *(tmp_path / name for name in ("empty", "foreign", "nowhere"))])
    assert [each.reason for each in unread] == ["is empty", "is not a run folder", "does not exist"]


def test_a_result_without_a_digest_is_shown_as_unverified(write: Write) -> None:
    folder = write("plain")
    text = json.loads((folder / "result.json").read_text())
    del text["digest"]
    (folder / "result.json").write_text(json.dumps(text))
    report = gather([write("signed", seed=1), folder])
    assert read_run(folder).state == "finished, unverified"
    assert "unverified: no digest by which a change could be seen (plain)" in report.text()
    assert len(report.rows) == 1, "it is compared like the others"


def test_a_result_without_figures_is_one_line(write: Write) -> None:
    folder = write("run")
    change("result.json", average_accuracy=None)(folder)
    with pytest.raises(UserError, match=r"^[^\n]*result\.json holds [^\n]*average_accuracy is None[^\n]*$"):
        load_result(folder)
