"""Stopped anywhere and resumed: the same bytes as a run that nobody disturbed; and what a resume refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from poise import store
from poise.errors import Damaged, PoiseError, UserError
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen
from poise.runs.checks import Audit
from poise.runs.folder import RunDescription
from poise.runs.journal import read_journal

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
Command = Callable[..., tuple[int, str, str]]


def stop_after(plan: Plan, folder: Path, events: int) -> RunFolder:
    """A run that was left after so many events, as a kill would leave it."""
    opened = RunFolder(folder)
    going = Run(plan, opened, checkpoint_seconds=0).starting()
    for _ in range(events):
        next(going)
    going.close()
    return opened


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


def refusal(poise: Command, *words: object) -> str:
    code, _, err = poise(*words)
    assert code == 2
    assert err.startswith("poise: ")
    assert err.count("\n") == 1
    return err


# The same bytes -------------------------------------------------------------------------------------------------------


def test_two_branches_start_from_another_methods_phase_0_and_go_on_from_anywhere(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    words = f"start={reference}", "options.base=lucir", "options.alpha=learned", "epochs=2"
    whole = Run(plan(*words, name="digits/aanets"), RunFolder(tmp_path / "whole")).start()
    assert whole["curve"][0] == outcome(reference)[0]["curve"][0]
    folder = stop_after(plan(*words, name="digits/aanets"), tmp_path / "stopped", 12)
    Run(plan(*words, name="digits/aanets"), folder).resume()
    assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_between_any_two_trials_it_goes_on(plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    words = (
        *("policy=online", "policy_options.fewest=2"),
        "space=[{lr=[0.05,0.02],feature_kd=[0.5]},{lr=[0.1],feature_kd=[0],adjustment=[1]}]",
    )
    whole = Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    assert whole["space"]["actions"] > 1
    for trials in (1, 3):
        folder = RunFolder(tmp_path / str(trials))
        going = Run(plan(*words), folder, checkpoint_seconds=0).starting()
        while sum(event["event"] == "trial" for event in read_journal(folder.journal.path)) < trials:
            next(going)
        going.close()
        opened, reopened = reopen(folder.path)
        assert reopened.recipe == plan(*words).recipe
        Run(reopened, opened).resume()
        assert outcome(folder.path) == outcome(tmp_path / "whole")


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["fixed", "online"])
def test_on_a_gpu_a_deterministic_run_goes_on_to_the_same_bytes(
    policy: str, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    """Left in the middle of a phase: of its training, and of policy learning or with the judgement beside it."""
    words = [f"policy={policy}", "device=cuda", "deterministic=true", "groups=[2,2,1]", "epochs=5", "batch=32"]
    words += ["space={lr=[0.1,0.02]}"] if policy == "online" else []
    Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    kinds = [event["event"] for event in read_journal(tmp_path / "whole" / "journal.jsonl")]
    second = [number for number, kind in enumerate(kinds) if kind == "phase"][1]
    decided = kinds.index("action", second)
    assert ("trial" in kinds[second:decided]) is (policy == "online")
    for left in {(second + decided) // 2, decided + 1, decided + 4}:
        folder = RunFolder(tmp_path / str(left))
        going = Run(plan(*words), folder, checkpoint_seconds=0).starting()
        while len(list(read_journal(folder.journal.path))) <= left:
            next(going)
        going.close()
        Run(plan(*words), folder).resume()
        assert outcome(folder.path) == outcome(tmp_path / "whole")
        assert json.loads(folder.machine.read_bytes())["resumes"][0]["exact"] is True


def test_the_memory_of_a_run_with_a_reserve_survives(plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    words = ("action.classifier=auto", "memory.total=24", "memory.reserve=2", "exam=dev")
    Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    folder = stop_after(plan(*words), tmp_path / "stopped", 10)
    Run(plan(*words), folder).resume()
    assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_with_as_many_threads_as_at_the_start_in_a_moved_folder_on_another_device(
    stopped: RunFolder, reference: Path, outcome: Outcome, tmp_path: Path
) -> None:
    folder = RunFolder(stopped.path.rename(tmp_path / "there"))
    change(folder, recipe__device="cpu")
    torch.set_num_threads(2)
    try:
        resume(folder.path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert outcome(folder.path) == outcome(reference)
    assert json.loads(folder.machine.read_bytes())["resumes"][0]["exact"] is True


def test_stopped_before_the_first_checkpoint_it_starts_from_the_beginning(
    reference: Path, plan: Plans, outcome: Outcome, poise: Command, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Run(plan(), folder).starting()
    next(going)
    going.close()
    assert not list(folder.checkpoints.iterdir())
    assert poise("resume", folder.path)[0] == 0
    assert outcome(folder.path) == outcome(reference)


def test_where_the_data_lie_may_change(tmp_path: Path) -> None:
    before, after = tmp_path / "photos", tmp_path / "elsewhere" / "pictures"
    random = np.random.default_rng(0)
    for place in [before / f"class {number}" for number in range(4)]:
        place.mkdir(parents=True)
        for index in range(8):
            Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(place / f"{index}.png")
    recipe = load_recipe("folder", [f"data={before}", "image_size=8", "epochs=2", "exam=dev", "augmentation=data"])
    plan = make_plan("folder", recipe)
    whole = Run(plan, RunFolder(tmp_path / "whole")).start()
    folder = stop_after(plan, tmp_path / "run", 9)
    after.parent.mkdir()
    before.rename(after)
    with pytest.raises(UserError, match=r"photos' of .* not there any more; put them back, or change the key data in "):
        resume(folder.path)
    change(folder, recipe__data=str(after))
    assert resume(folder.path)["curve"] == whole["curve"]
    assert folder.journal.path.read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()
    change(folder, recipe__data="pictures")
    with pytest.raises(UserError, match=r"register them .'poise data add pictures --from FOLDER'., or change the key"):
        reopen(folder.path)
    change(folder, recipe__data=str(after))
    Image.new("RGB", (9, 9), (1, 2, 3)).save(after / "class 0" / "0.png")
    with pytest.raises(UserError, match=r"are not those that .* was started with"):
        reopen(folder.path)


# Checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    stopped: RunFolder, reference: Path, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    newest = stopped.checkpoint_files()[-1]
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    resume(stopped.path)
    assert f"{newest} is damaged" in caplog.text
    assert "resuming from the one before" in caplog.text
    assert outcome(stopped.path) == outcome(reference)


def damage_checkpoints(folder: RunFolder) -> dict[Path, bytes]:
    """Cut all checkpoints; what then lies in the folder."""
    for number, checkpoint in enumerate(sorted(folder.checkpoints.iterdir())):
        checkpoint.write_bytes(checkpoint.read_bytes()[: 1000 * number])
    return {path: path.read_bytes() for path in (*folder.checkpoint_files(), folder.journal.path)}


def test_with_both_checkpoints_damaged_it_starts_over_only_if_asked(
    stopped: RunFolder, reference: Path, outcome: Outcome, poise: Command
) -> None:
    files = damage_checkpoints(stopped)
    first, second = (path.name for path in stopped.checkpoint_files())
    code, _, err = poise("resume", stopped.path)
    assert code == 1
    assert err.startswith(f"poise: no checkpoint in {stopped.checkpoints} is intact ({second}, {first}): ")
    assert err.endswith(f"or start from the beginning with 'poise resume {stopped.path} --restart'\n")
    assert {path: path.read_bytes() for path in files} == files
    assert poise("resume", stopped.path, "--restart")[0] == 0
    assert outcome(stopped.path) == outcome(reference)


def test_to_start_over_discards_nothing_that_is_intact(
    stopped: RunFolder, reference: Path, outcome: Outcome, poise: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """The same command may be given again: by torchrun, or by a cluster that puts a job back into its queue."""
    assert poise("resume", stopped.path, "--restart")[0] == 0
    assert "starting from the beginning" not in caplog.text
    assert outcome(stopped.path) == outcome(reference)


def test_what_cannot_start_over_loses_nothing(
    reference: Path, plan: Plans, poise: Command, outcome: Outcome, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(reference, start)
    folder = stop_after(plan(f"start={start}"), tmp_path / "run", 3)
    files = damage_checkpoints(folder)
    start.rename(tmp_path / "elsewhere")
    assert "has no phase-0.safetensors" in refusal(poise, "resume", folder.path, "--restart")
    assert {path: path.read_bytes() for path in files} == files
    (tmp_path / "elsewhere").rename(start)
    folder.machine.write_text("{")  # it is written anew
    assert poise("resume", folder.path, "--restart")[0] == 0
    assert outcome(folder.path)


def test_no_damaged_journal_is_taken(stopped: RunFolder) -> None:
    """Every few bytes one is changed, removed or added, and whole lines are removed and exchanged."""
    whole, oldest = stopped.journal.path.read_bytes(), stopped.checkpoint_files()[0]
    position = store.read_tensors(oldest, kind="checkpoint")[1]["journal"]
    lines = whole[:position].splitlines(keepends=True)
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, position, 97)]
    damaged += [whole[:at] + whole[at + 1 :] for at in range(3, position, 131)]
    damaged += [whole[:at] + b"7" + whole[at:] for at in range(5, position, 131)]
    damaged += [b"".join([*lines[:at], *lines[at + 1 :]]) for at in range(0, len(lines), 3)]
    damaged += [b"".join([lines[0], *reversed(lines[1:])]), b""]
    for content in damaged:
        stopped.journal.path.write_bytes(content)
        with pytest.raises(Damaged, match=r"journal\.jsonl [^\n]*; restore one from a copy, or start from"):
            stopped.newest_checkpoint()
    assert len(stopped.checkpoint_files()) == 2


def test_damage_of_the_journal_after_the_older_checkpoint_costs_only_the_newest(
    stopped: RunFolder, reference: Path, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    newest = store.read_tensors(stopped.checkpoint_files()[-1], kind="checkpoint")[1]["journal"]
    whole = bytearray(stopped.journal.path.read_bytes())
    whole[newest - 5] ^= 1
    stopped.journal.path.write_bytes(whole)
    resume(stopped.path)
    assert "was changed since the checkpoint was written; resuming from the one before" in caplog.text
    assert outcome(stopped.path) == outcome(reference)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"recipe__groups": [2, 1, 2]}, "groups"),
        ({"recipe__order": 7}, "order"),
        ({"recipe__exam": "dev"}, "exam"),
        ({"recipe__images_per_class": 40}, "images_per_class"),
        ({"recipe__epochs": 4}, "epochs"),
        ({"recipe__memory": {"per_class": 3}}, "memory"),
        ({"name": "digits/lwf"}, "name"),
        ({"class_names": ["zero"] * 10}, "class_names"),
        ({"space": {"name": "other"}}, "space"),
    ],
)
def test_a_changed_recipe_is_named_and_nothing_is_touched(keys: dict[str, Any], named: str, stopped: RunFolder) -> None:
    before = {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file() and path != stopped.recipe}
    change(stopped, **keys)
    with pytest.raises(UserError, match=r"^[^\n]*$") as refused:
        resume(stopped.path)
    if named == "exam":  # which the exam images tell first
        assert "the exam images are not those" in str(refused.value)
    else:
        assert f"was changed since ({named}" in str(refused.value)
        assert str(refused.value).endswith("; restore it")
    assert {path: path.read_bytes() for path in before} == before


def test_a_leak_audit_cannot_become_an_honest_run(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "audit")
    going = Audit(plan("policy=race", "space={lr=[0.1,0.02]}", "groups=[2,2,1]"), folder, checkpoint_seconds=0)
    running = going.starting()
    for _ in range(8):
        next(running)
    running.close()
    saved = json.loads(folder.recipe.read_text())
    del saved["runner"]
    folder.recipe.write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"was changed since \(runner\)"):
        resume(folder.path)


@pytest.mark.parametrize(("key", "word"), [("method", "my-lwf"), ("policy", "my-policy")])
def test_a_run_of_ones_own_method_or_policy_names_the_way(
    key: str, word: str, reference: Path, poise: Command, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run"))
    change(folder, **{f"recipe__{key}": word})
    cam = poise("cam", folder.path)
    folder.result.unlink()
    for status, _, error in (cam, poise("resume", folder.path)):
        assert status == 2
        assert f"{folder.path} uses the {key} '{word}' of your own, which is not registered here" in error
        assert "with 'python FILE.py' in place of 'poise'" in error


def test_a_second_process_is_refused(stopped: RunFolder, poise: Command, plan: Plans) -> None:
    going = Run(plan(), stopped).resuming()
    next(going)
    assert "another process runs in" in refusal(poise, "resume", stopped.path)
    going.close()
    assert poise("resume", stopped.path)[0] == 0


def test_what_cannot_be_resumed_is_one_line(stopped: RunFolder, plan: Plans, poise: Command, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert "is not a run folder" in refusal(poise, "resume", folder)
    with pytest.raises(UserError, match=r"new is not a run folder; begin with start\(\), or 'poise run'"):
        Run(plan(), RunFolder(str(tmp_path / "new"))).resume()
    assert not (tmp_path / "new").exists()
    whole = stopped.recipe.read_text()
    stopped.recipe.write_text(whole.replace('"format": 1', '"format": 99'))
    assert "install a newer poise" in refusal(poise, "resume", stopped.path)
    stopped.recipe.write_text(whole.replace('"epochs": 1', '"epochs": "x"'))
    assert f"{stopped.recipe}: epochs='x' must be" in refusal(poise, "resume", stopped.path)
    stopped.recipe.write_text(whole)
    stopped.machine.unlink()
    assert "No such file or directory (machine.json)" in refusal(poise, "resume", stopped.path)


def test_start_says_what_the_folder_holds(reference: Path, stopped: RunFolder, plan: Plans) -> None:
    with pytest.raises(UserError, match=f"^{reference} holds this run, finished: .*result.json; give another folder"):
        Run(plan(), RunFolder(reference)).start()
    with pytest.raises(UserError, match=r"holds this run, unfinished; continue with resume\(\), or 'poise resume"):
        Run(plan(), stopped).start()


@pytest.mark.parametrize(
    "content", [{"format": 1}, {"format": 1, "name": "x", "fingerprint": 1, "recipe": [1]}, {"format": 1, "recipe": {}}]
)
def test_a_folder_with_another_recipe_json_is_one_line(content: dict[str, Any], stopped: RunFolder) -> None:
    wanted = RunDescription(**reopen(stopped.path)[1].as_json())
    stopped.recipe.write_text(json.dumps(content))
    with pytest.raises(PoiseError, match=r"^[^\n]+$"):
        stopped.difference(wanted)


# Finished runs --------------------------------------------------------------------------------------------------------


def test_to_resume_a_finished_run_does_nothing(reference: Path, plan: Plans, poise: Command, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(reference, tmp_path / "run"))
    assert poise("resume", folder.path)[0] == 0  # which draws its page
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert Run(plan(), folder).resume() == store.read_json(folder.result)
    change(folder, recipe__data=str(tmp_path / "gone"))  # the data need not be here
    code, out, err = poise("resume", folder.path)
    assert (code, err) == (0, "")
    assert "holds this run, finished: average accuracy" in out
    assert {path for path in before if before[path] != path.read_bytes()} == {folder.recipe}
    folder.result.unlink()
    assert "change the key data" in poise("resume", folder.path)[2]


def test_a_page_that_a_run_had_no_time_to_write_is_written_by_resume(
    reference: Path, poise: Command, tmp_path: Path
) -> None:
    folder = shutil.copytree(reference, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    assert poise("resume", folder)[1].splitlines()[-1] == f"report {folder / 'report' / 'index.html'}"
    assert "average accuracy" in (folder / "report" / "index.html").read_text()
