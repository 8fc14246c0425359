"""Run folders that were changed between a stop and its resume: refused in one line that says what was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from poise import store
from poise.errors import Damaged, PoiseError, UserError
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that was left in its second phase, as a kill would leave it."""
    folder = RunFolder(tmp_path_factory.mktemp("stopped") / "run")
    going = Run(
        make_plan("digits/lucir", load_recipe("digits/lucir", ["groups=[2,1,1]", "epochs=1", "batch=64"])),
        folder,
        checkpoint_seconds=0,
    ).starting()
    for _ in range(9):
        next(going)
    going.close()
    return folder.path


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(stopped, tmp_path / "run"))


def resume(folder: Path) -> dict[str, Any]:
    opened, plan = reopen(folder)
    return Run(plan, opened).resume()


def change(folder: RunFolder, **keys: Any) -> None:
    """Write recipe.json with other values; `recipe__` begins the keys of the recipe itself."""
    saved = json.loads(folder.recipe.read_text())
    for key, value in keys.items():
        inner = saved["recipe"] if key.startswith("recipe__") else saved
        inner[key.removeprefix("recipe__")] = value
    folder.recipe.write_text(json.dumps(saved))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"recipe__groups": [2, 1, 2]}, "groups"),
        ({"recipe__groups": [2, 1]}, "groups"),
        ({"recipe__order": 7}, "order"),
        ({"recipe__exam": "dev"}, "exam"),
        ({"recipe__images_per_class": 40}, "images_per_class"),
        ({"recipe__seed": 3}, "seed"),
        ({"recipe__epochs": 4}, "epochs"),
        ({"recipe__memory": {"per_class": 3}}, "memory"),
        ({"name": "digits/lwf"}, "name"),
        ({"class_names": ["zero"] * 10}, "class_names"),
        ({"space": {"name": "other"}}, "space"),
    ],
)
def test_a_change_is_named_and_nothing_is_touched(keys: dict[str, Any], named: str, copied: RunFolder) -> None:
    before = {path: path.read_bytes() for path in copied.path.rglob("*") if path.is_file() and path != copied.recipe}
    change(copied, **keys)
    with pytest.raises(UserError, match=r"^[^\n]*$") as refused:
        resume(copied.path)
    if named == "exam":  # which the exam images tell first
        assert "the exam images are not those" in str(refused.value)
    else:
        assert f"was changed since ({named}" in str(refused.value)
        assert str(refused.value).endswith("; restore it")
    assert {path: path.read_bytes() for path in before} == before


def test_a_leak_audit_cannot_become_an_honest_run(copied: RunFolder, plan: Plans, tmp_path: Path) -> None:
    from poise.runs.checks import Audit

    tuned = plan("policy=race", "space={lr=[0.1,0.02]}", "groups=[2,2,1]")
    folder = RunFolder(tmp_path / "audit")
    going = Audit(tuned, folder, checkpoint_seconds=0).starting()
    for _ in range(8):
        next(going)
    going.close()
    saved = json.loads(folder.recipe.read_text())
    del saved["runner"]
    folder.recipe.write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"was changed since \(runner\)"):
        resume(folder.path)


def test_where_it_is_computed_may_change(copied: RunFolder, reference: Path, outcome: Outcome) -> None:
    change(copied, recipe__device="cpu")
    resume(copied.path)
    assert outcome(copied.path) == outcome(reference)


def test_where_the_data_lie_may_change(tmp_path: Path) -> None:
    before, after = tmp_path / "photos", tmp_path / "elsewhere" / "pictures"
    write_photos(before)
    recipe = load_recipe("folder", [f"data={before}", "image_size=8", "epochs=2", "exam=dev", "augmentation=data"])
    plan, folder = make_plan("folder", recipe), RunFolder(tmp_path / "run")
    whole = Run(plan, RunFolder(tmp_path / "whole")).start()
    going = Run(plan, folder, checkpoint_seconds=0).starting()
    for _ in range(9):
        next(going)
    going.close()
    after.parent.mkdir()
    before.rename(after)
    with pytest.raises(UserError, match=r"photos' of .* not there any more; put them back, or change the key data in "):
        resume(folder.path)
    change(folder, recipe__data=str(after))
    _pin_name_of_data(folder, "photos")  # as an older poise did
    assert resume(folder.path)["curve"] == whole["curve"]
    assert folder.journal.path.read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()
    change(folder, recipe__data="pictures")
    with pytest.raises(UserError, match=r"register them .'poise data add pictures --from FOLDER'., or change the key"):
        reopen(folder.path)


def _pin_name_of_data(folder: RunFolder, name: str) -> None:
    for path in _checkpoints(folder):
        tensors, meta = store.read_tensors(path, kind="checkpoint")
        meta["pinned"]["data"] = store.digest_of(name)
        store.write_tensors(path, tensors, meta, kind="checkpoint")


def write_photos(folder: Path) -> None:
    """Four classes of noise."""
    random = np.random.default_rng(0)
    for number in range(4):
        place = folder / f"class {number}"
        place.mkdir(parents=True)
        for index in range(8):
            Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(place / f"{index}.png")


def test_a_checkpoint_of_before_has_no_digests_and_is_resumed(
    copied: RunFolder, reference: Path, outcome: Outcome
) -> None:
    for path in sorted(copied.checkpoints.iterdir()):
        tensors, meta = store.read_tensors(path, kind="checkpoint")
        del meta["pinned"], meta["journal_digest"]
        store.write_tensors(path, tensors, meta, kind="checkpoint")
    resume(copied.path)
    assert outcome(copied.path) == outcome(reference)


# The journal ----------------------------------------------------------------------------------------------------------


def test_no_damaged_journal_is_taken(copied: RunFolder) -> None:
    """Every few bytes one is changed, removed or added, and whole lines are removed, doubled and exchanged."""
    whole, oldest = copied.journal.path.read_bytes(), sorted(copied.checkpoints.iterdir())[0]
    position = store.read_tensors(oldest, kind="checkpoint")[1]["journal"]
    lines = whole[:position].splitlines(keepends=True)
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, position, 23)]
    damaged += [whole[:at] + whole[at + 1 :] for at in range(3, position, 53)]
    damaged += [whole[:at] + b"7" + whole[at:] for at in range(5, position, 61)]
    damaged += [b"".join([*lines[:at], *lines[at + 1 :]]) for at in range(len(lines))]
    damaged += [b"".join([*lines[:at], lines[at], *lines[at:]]) for at in range(len(lines) - 1)]
    damaged += [b"".join([lines[0], *reversed(lines[1:])]), b""]
    assert len(damaged) >= 58
    for content in damaged:
        copied.journal.path.write_bytes(content)
        with pytest.raises(Damaged, match=r"journal\.jsonl [^\n]*; restore it from a copy, or start from"):
            copied.checkpoint_to_resume(restarts=False, whole=True)
    copied.journal.path.unlink()
    with pytest.raises(Damaged, match="has 0 bytes"):
        copied.newest_checkpoint(journal=True)
    assert len(list(copied.checkpoints.iterdir())) == 2


def test_damage_after_the_older_checkpoint_costs_only_the_newest(
    copied: RunFolder, reference: Path, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (store.read_tensors(path, kind="checkpoint")[1]["journal"] for path in _checkpoints(copied))
    assert first < second
    whole = bytearray(copied.journal.path.read_bytes())
    whole[second - 5] ^= 1
    copied.journal.path.write_bytes(whole)
    resume(copied.path)
    assert "was changed since the checkpoint was written; resuming from the one before" in caplog.text
    assert outcome(copied.path) == outcome(reference)


def _checkpoints(folder: RunFolder) -> list[Path]:
    return sorted(folder.checkpoints.iterdir())


# What was written last ------------------------------------------------------------------------------------------------


def test_what_a_run_had_no_time_to_write_is_written_by_resume(
    reference: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run", ignore=shutil.ignore_patterns("report")))
    machine = {**json.loads(folder.machine.read_text()), "finished": None}
    folder.machine.write_text(json.dumps(machine))
    code, out, err = command("resume", str(folder.path))
    assert (code, err) == (0, "")
    assert "is finished already: average accuracy" in out
    assert (folder.path / "report" / "index.html").exists()
    assert json.loads(folder.machine.read_text())["finished"] is not None
    kept = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    assert command("resume", str(folder.path))[0] == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_finished_run_is_finished_though_its_data_are_gone_and_options_are_not_dropped_in_silence(
    reference: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run"))
    change(folder, recipe__data=str(tmp_path / "gone"))
    code, out, err = command("resume", str(folder.path), "--track", "wandb", "--tensorboard")
    assert "is finished already: average accuracy" in out
    assert (code, err) == (0, "the run is finished: --tensorboard and --track have no effect\n")
    assert command("resume", str(folder.path))[2] == ""
    folder.result.unlink()
    assert "change the key data" in command("resume", str(folder.path))[2]


def test_a_finished_run_without_its_description_of_the_machine_is_finished(
    reference: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run"))
    folder.machine.write_text("{")
    assert command("resume", str(folder.path))[0] == 0
    assert "machine.json is damaged or was not written by poise (no JSON)" in caplog.text


def test_a_changed_result_is_not_believed(
    reference: Path, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run"))
    text = folder.result.read_text()
    average = f'"average_accuracy": {json.loads(text)["average_accuracy"]}'
    assert average in text
    folder.result.write_text(text.replace(average, '"average_accuracy": 99.9'))
    code, out, err = command("resume", str(folder.path))
    assert (code, out) == (1, "")
    assert "result.json was changed since it was written: its contents do not match their digest" in err
    with pytest.raises(PoiseError, match="do not match their digest"):
        store.read_json(folder.result)


@pytest.mark.parametrize(
    "content",
    [
        {"format": 1},
        {"format": 1, "fingerprint": "x", "recipe": [1]},
        {"format": 1, "fingerprint": 1, "recipe": {}},
        {"format": 1, "fingerprint": "x", "recipe": {"policy": []}},
    ],
)
def test_a_start_in_a_folder_with_another_recipe_json_is_one_line(
    content: dict[str, Any], stopped: Path, copied: RunFolder
) -> None:
    plan = reopen(stopped)[1]
    copied.recipe.write_text(json.dumps(content))
    with pytest.raises(PoiseError, match=r"^[^\n]+$"):
        copied.refuse_other(Run(plan, copied).describe())
