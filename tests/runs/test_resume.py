"""Killed anywhere and resumed: the same bytes as a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from poise import store
from poise.errors import UserError
from poise.journal import read_journal
from poise.runs import Plan, Run, RunFolder, reopen
from poise.runs.machine import Machine

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
Driven = Callable[..., tuple[int, str]]
RUN = ["run", "groups=[2,1,1]", "epochs=1", "batch=64", "--checkpoint-every", "0", "--out"]


Command = Callable[..., tuple[int, str, str]]

TRAINING = "poise.training.optimiser:Optimiser:step"
HERDING = "poise.data.memory:herd"
FLUSHING = "os:fsync"
RENAMING = "pathlib:Path:replace"
REMOVING = "pathlib:Path:unlink"
JOURNAL = "poise.journal:Journal:append"


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (TRAINING, 2),
        (TRAINING, 6),
        (HERDING, 1),
        (HERDING, 3),
        (FLUSHING, 3),
        (FLUSHING, 27),
        (RENAMING, 2),
        (RENAMING, 20),
        (REMOVING, 4),
        (JOURNAL, 9),
    ],
)
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    place: str, number: int, driven: Driven, reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert driven(place, number, signal.SIGKILL, *RUN, str(folder))[0] == -signal.SIGKILL
    assert not (folder / "result.json").exists()
    if (folder / "recipe.json").exists():
        code, out, _ = command("resume", str(folder))
    else:  # killed before the run had begun
        code, out, _ = command(*RUN, str(folder))
    assert code == 0
    assert "average accuracy" in out
    assert outcome(folder) == outcome(reference)


def test_killed_again_and_again_it_still_arrives(
    driven: Driven, reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    assert driven(TRAINING, 3, signal.SIGKILL, *RUN, folder)[0] == -signal.SIGKILL
    words = ["resume", "--checkpoint-every", "0", folder]
    assert driven(RENAMING, 3, signal.SIGKILL, *words)[0] == -signal.SIGKILL
    assert driven(HERDING, 2, signal.SIGKILL, *words)[0] == -signal.SIGKILL
    assert command("resume", folder)[0] == 0
    assert outcome(tmp_path / "run") == outcome(reference)
    machine = json.loads((tmp_path / "run" / "machine.json").read_bytes())
    assert [resume["exact"] for resume in machine["resumes"]] == [True, True, True]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_writes_a_checkpoint_and_says_how_to_go_on(
    signum: int, driven: Driven, reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = [word if word != "0" else "60" for word in RUN]
    code, printed = driven(TRAINING, 5, signum, *words, str(folder))
    assert code == 128 + signum
    assert printed.splitlines()[-1] == f"poise: interrupted; continue with 'poise resume {folder}'"
    assert "Traceback" not in printed
    assert list((folder / "checkpoints").iterdir())
    assert command("resume", str(folder))[0] == 0
    assert outcome(folder) == outcome(reference)


def test_a_signal_while_herding_is_not_lost_either(
    driven: Driven, reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert driven(HERDING, 2, signal.SIGINT, *RUN, str(folder))[0] == 130
    assert command("resume", str(folder))[0] == 0
    assert outcome(folder) == outcome(reference)


# Stopped in this process, between any two events --------------------------------------------------------------------


def stopped_after(plan: Plan, folder: Path, events: int) -> RunFolder:
    """A run that was left after so many events, as a kill would leave it."""
    opened = RunFolder(folder)
    going = Run(plan, opened, checkpoint_seconds=0).starting()
    for _ in range(events):
        next(going)
    going.close()
    return opened


def test_every_event_is_a_place_to_go_on_from(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    for events in (1, 2, 3, 5, 7, 8, 9, 11):
        folder = stopped_after(plan(), tmp_path / str(events), events)
        Run(plan(), folder).resume()
        assert outcome(folder.path) == outcome(reference)


def test_two_branches_start_from_another_methods_phase_0_and_go_on_from_anywhere(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    words = f"start={reference}", "options.base=lucir", "options.alpha=learned", "epochs=2"
    whole = Run(plan(*words, name="digits/aanets"), RunFolder(tmp_path / "whole")).start()
    assert whole["curve"][0] == outcome(reference)[0]["curve"][0]
    for events in (6, 18):  # in the second phase and in the third
        folder = stopped_after(plan(*words, name="digits/aanets"), tmp_path / str(events), events)
        Run(plan(*words, name="digits/aanets"), folder).resume()
        assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_with_a_space_of_several_grids_it_is_reopened_and_goes_on_from_between_any_two_trials(
    plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    words = (
        *("policy=online", "groups=[2,2,1]", "policy_options.fewest=2"),
        "space=[{lr=[0.05,0.02],feature_kd=[0.5]},{lr=[0.1],feature_kd=[0],adjustment=[1]}]",
    )
    whole = Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    assert whole["space"]["actions"] == 4
    arms = [(arm["lr"], arm["feature_kd"], arm["adjustment"]) for arm in whole["space"]["arms"]]
    assert arms == [(0.05, 0.5, 0), (0.02, 0.5, 0), (0.1, 0, 1), (0.1, 1, 0)]
    trials = [
        (event["phase"], event["trial"]["arm"])
        for event in read_journal(tmp_path / "whole" / "journal.jsonl")
        if event["event"] == "trial"
    ]
    assert [arm for phase, arm in trials if phase == 1] == [0, 1, 2, 3]
    assert len([arm for phase, arm in trials if phase == 2]) == 2  # half of them, the default (arm 3) among them
    assert (2, 3) in trials
    for events in (8, 15):  # in the second phase and in the third
        folder = stopped_after(plan(*words), tmp_path / str(events), events)
        opened, reopened = reopen(folder.path)
        assert reopened.recipe == plan(*words).recipe
        Run(reopened, opened).resume()
        assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 9)
    newest = sorted(folder.checkpoints.iterdir())[-1]
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes(content)
    Run(plan(), folder).resume()
    assert f"{newest} is damaged" in caplog.text
    assert "falling back to the one before" in caplog.text
    assert outcome(folder.path) == outcome(reference)


def damage_checkpoints(folder: RunFolder) -> dict[Path, bytes]:
    """Cut all checkpoints; what then lies in the folder."""
    for number, checkpoint in enumerate(sorted(folder.checkpoints.iterdir())):
        checkpoint.write_bytes(checkpoint.read_bytes()[: 1000 * number])
    return {path: path.read_bytes() for path in (*folder.checkpoint_files(), folder.journal.path)}


def test_with_both_checkpoints_damaged_it_starts_over_only_if_asked(
    reference: Path, plan: Plans, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 9)
    files = damage_checkpoints(folder)
    first, second = (path.name for path in folder.checkpoint_files())
    code, _, err = command("resume", str(folder.path))
    assert code == 1
    assert err == (
        f"poise: all checkpoints in {folder.checkpoints} are damaged ({first}, {second}), and what was trained is lost "
        f"with them; restore one from a copy, or start from the beginning with 'poise resume {folder.path} --restart'\n"
    )
    assert {path: path.read_bytes() for path in files} == files
    assert command("resume", str(folder.path), "--restart")[0] == 0
    assert outcome(folder.path) == outcome(reference)
    assert "--restart has no effect" in command("resume", str(folder.path), "--restart")[2]


def test_to_start_over_discards_nothing_that_is_intact(
    reference: Path, plan: Plans, outcome: Outcome, command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same command may be given again: by torchrun, or by a cluster that puts a job back into its queue."""
    folder = stopped_after(plan(), tmp_path / "run", 9)
    newest = folder.checkpoint_files()[-1]
    assert command("resume", str(folder.path), "--restart")[0] == 0
    assert f"{newest} is intact: resuming from it; remove the folder to start from the beginning" in caplog.text
    assert "starting from the beginning" not in caplog.text
    assert outcome(folder.path) == outcome(reference)


def test_what_cannot_start_over_loses_nothing(
    reference: Path, plan: Plans, command: Command, outcome: Outcome, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(reference, start)
    folder = stopped_after(plan(f"start={start}"), tmp_path / "run", 3)
    files = damage_checkpoints(folder)
    start.rename(tmp_path / "elsewhere")
    assert "has no phase-0.safetensors" in refused(command, "resume", str(folder.path), "--restart")
    assert {path: path.read_bytes() for path in files} == files
    (tmp_path / "elsewhere").rename(start)
    folder.machine.write_text("{")  # it is written anew
    assert command("resume", str(folder.path), "--restart")[0] == 0
    assert outcome(folder.path)


def test_start_again_in_python_says_what_the_folder_holds(reference: Path, plan: Plans, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{reference} holds this run, finished: .*result.json; give another folder"):
        Run(plan(), RunFolder(reference)).start()
    folder = stopped_after(plan(), tmp_path / "run", 4)
    with pytest.raises(UserError, match=r"run holds this run, unfinished; continue with resume\(\), or 'poise resume"):
        Run(plan(), folder).start()


def test_resume_in_python_of_a_folder_without_a_run_leaves_no_trace(plan: Plans, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"new is not a run folder; begin with start\(\), or 'poise run'"):
        Run(plan(), RunFolder(str(tmp_path / "new"))).resume()
    assert not (tmp_path / "new").exists()


def test_a_torn_line_of_the_journal_is_cut(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 9)
    whole = list(read_journal(folder.journal.path))
    with folder.journal.path.open("ab") as file:
        file.write(b'{"event": "epoch", "phase": 1, "st')
    assert list(read_journal(folder.journal.path)) == whole
    Run(plan(), folder).resume()
    assert outcome(folder.path) == outcome(reference)


def test_stopped_before_the_first_checkpoint_it_starts_from_the_beginning(
    reference: Path, plan: Plans, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Run(plan(), folder).starting()
    next(going)
    going.close()
    assert not list(folder.checkpoints.iterdir())
    assert command("resume", str(folder.path))[0] == 0
    assert outcome(folder.path) == outcome(reference)


def test_the_memory_of_a_run_with_a_reserve_survives(plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    words = ("action.classifier=auto", "memory.total=24", "memory.reserve=2", "exam=dev")
    Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    folder = stopped_after(plan(*words), tmp_path / "stopped", 10)
    Run(plan(*words), folder).resume()
    assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_as_many_threads_as_at_the_start(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    torch.set_num_threads(2)
    try:
        Run(plan(), folder).resume()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert outcome(folder.path) == outcome(reference)
    assert json.loads(folder.machine.read_bytes())["resumes"][0]["exact"] is True


@pytest.mark.parametrize(
    ("changed", "threads"),
    [
        ({}, 64),
        ({"exact_resume": False}, 1),
        ({"hardware": {"processor": "another one", "cores": 64, "device": "cpu", "gpu": None}}, 1),
    ],
    ids=["same-machine", "gpu", "other-processor"],
)
def test_no_more_threads_than_here_where_the_bytes_differ_anyway(
    changed: dict[str, Any], threads: int, plan: Plans, tmp_path: Path
) -> None:
    """A run of a large GPU machine, resumed on a laptop, must not fill it with threads."""
    folder = stopped_after(plan(), tmp_path / "run", 4)
    machine = json.loads(folder.machine.read_bytes())
    folder.machine.write_text(json.dumps({**machine, "threads": 64, **changed}))
    assert Machine.read(folder.machine).threads_to_resume_with == threads


# Refusals -----------------------------------------------------------------------------------------------------------


def test_a_finished_folder_says_so(reference: Path, command: Command, outcome: Outcome) -> None:
    before = outcome(reference)
    code, out, err = command("resume", str(reference))
    assert code == 0
    assert "is finished already: average accuracy" in out
    assert err == ""
    assert outcome(reference) == before


def test_to_resume_a_finished_run_in_python_does_nothing(reference: Path, plan: Plans) -> None:
    before = {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()}
    result = Run(plan(), RunFolder(reference)).resume()
    assert result == store.read_json(reference / "result.json")
    assert {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()} == before


def refused(command: Command, *words: str) -> str:
    code, _, err = command(*words)
    assert code == 2
    assert err.startswith("poise: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(("key", "word"), [("method", "my-lwf"), ("policy", "my-policy")])
def test_a_run_of_ones_own_method_or_policy_names_the_way(
    key: str, word: str, reference: Path, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    saved = store.read_json(folder / "recipe.json")
    saved["recipe"][key] = word
    store.write_json(folder / "recipe.json", saved)
    cam = command("cam", str(folder))
    (folder / "result.json").unlink()
    for status, _, error in (cam, command("resume", str(folder))):
        assert status == 2
        assert f"{folder} uses the {key} '{word}' of your own, which is not registered here" in error
        assert "with 'python FILE.py' in place of 'poise'" in error


def test_a_second_process_is_refused(plan: Plans, command: Command, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    going = Run(plan(), folder).resuming()
    next(going)
    assert f"process {os.getpid()} runs in" in refused(command, "resume", str(folder.path))
    going.close()
    assert command("resume", str(folder.path))[0] == 0


def test_a_folder_that_is_no_run_is_refused(command: Command, tmp_path: Path) -> None:
    assert "is not a run folder; start one with 'poise run'" in refused(command, "resume", str(tmp_path))
    assert "is not a run folder" in refused(command, "resume", str(tmp_path / "nowhere"))


def test_a_newer_format_is_refused(plan: Plans, command: Command, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    folder.recipe.write_text(folder.recipe.read_text().replace('"format": 1', '"format": 99'))
    assert "install a newer poise" in refused(command, "resume", str(folder.path))


def test_checkpoints_of_an_older_format_are_refused_and_kept(
    plan: Plans, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "FORMAT", 1)
        folder = stopped_after(plan(), tmp_path / "run", 4)
    files = {path: path.read_bytes() for path in (*folder.checkpoints.iterdir(), folder.journal.path)}
    assert "has format 1, this poise reads 2; train it again" in refused(command, "resume", str(folder.path))
    assert {path: path.read_bytes() for path in files} == files


def test_a_recipe_that_was_changed_since_is_refused(plan: Plans, command: Command, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    before = folder.recipe.read_text()
    folder.recipe.write_text(before.replace('"epochs": 1', '"epochs": 2'))
    assert "was changed since (epochs); restore it" in refused(command, "resume", str(folder.path))
    folder.recipe.write_text(before.replace('"epochs": 1', '"epochs": "x"'))
    assert f"{folder.recipe}: key 'epochs'" in refused(command, "resume", str(folder.path))
    folder.recipe.write_text(before)
    assert command("resume", str(folder.path))[0] == 0


def test_a_key_that_an_older_poise_did_not_know_is_no_change(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    saved = json.loads(folder.recipe.read_text())
    del saved["recipe"]["trials"]["longest"]
    folder.recipe.write_text(json.dumps(saved))
    opened, found = reopen(folder.path)
    assert not opened.difference(found.as_json())
    Run(found, opened).resume()
    assert outcome(folder.path) == outcome(reference)


def test_other_exam_images_are_refused(plan: Plans, command: Command, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    saved = json.loads(folder.recipe.read_text())
    folder.recipe.write_text(json.dumps({**saved, "exam_images": "0" * 32}))
    assert "the exam images are not those" in refused(command, "resume", str(folder.path))


def test_a_damaged_description_of_the_machine_is_one_line(plan: Plans, command: Command, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "run", 4)
    folder.machine.write_text('{"format": 1}')
    code, _, err = command("resume", str(folder.path))
    assert (code, err.count("\n")) == (1, 1)
    assert "machine.json is not as poise writes it: versions is missing" in err
    again = "; restore it from a copy, or start the run again in another folder\n"
    for path in (folder.machine, folder.recipe):
        whole = path.read_bytes()
        path.write_text("{")
        line = f"poise: {path} is damaged or was not written by poise (no JSON){again}"
        assert command("resume", str(folder.path))[::2] == (1, line)
        path.write_bytes(whole)
    folder.machine.unlink()
    assert "No such file or directory (machine.json)" in refused(command, "resume", str(folder.path))


@pytest.mark.parametrize("words", [("policy=race",), ("policy=exp3", "policy_options.iterations=3")], ids=" ".join)
def test_killed_in_the_middle_of_policy_learning(
    words: tuple[str, ...], plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    tuned = plan(*words, "space={lr=[0.1,0.02]}", "epochs=6", "images_per_class=30", "batch=16")
    Run(tuned, RunFolder(tmp_path / "whole")).start()
    events = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()
    steps = [number for number, line in enumerate(events) if json.loads(line).get("event") == "trial"]
    assert len(steps) > 4
    for trials in (1, 3):
        folder = RunFolder(tmp_path / str(trials))
        going = Run(tuned, folder, checkpoint_seconds=0).starting()
        while sum(event["event"] == "trial" for event in read_journal(folder.journal.path)) < trials:
            next(going)
        going.close()
        Run(tuned, folder).resume()
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
        (result, journal, model), expected = outcome(folder.path), outcome(tmp_path / "whole")
        assert (result, model) == (expected[0], expected[2])
        assert sorted(journal.splitlines()) == sorted(
            expected[1].splitlines()
        )  # the judgement may end earlier or later
        assert json.loads(folder.machine.read_bytes())["resumes"][0]["exact"] is True


def test_other_data_are_refused(driven: Driven, command: Command, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    for label in range(3):
        (pictures / f"class {label}").mkdir(parents=True)
        for number in range(4):
            colour = (80 * label, 20 * number, 9)
            Image.new("RGB", (32, 32), colour).save(pictures / f"class {label}" / f"{number}.png")
    folder = tmp_path / "run"
    words = [f"data={pictures}", "image_size=8", "groups=[2,1]", "epochs=1", "--out", str(folder)]
    assert driven(TRAINING, 2, signal.SIGTERM, "run", *words)[0] == 143
    Image.new("RGB", (32, 32), (1, 2, 3)).save(pictures / "class 0" / "0.png")
    Image.new("RGB", (32, 32), (1, 2, 3)).save(pictures / "class 0" / "1.png")
    assert "are not those that" in refused(command, "resume", str(folder))
    for file in (pictures / "class 2").iterdir():
        file.unlink()
    assert "class 2" in refused(command, "resume", str(folder))
    assert list((folder / "checkpoints").iterdir())


def test_a_run_from_a_moved_folder_goes_on(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    folder = stopped_after(plan(), tmp_path / "here", 8)
    folder.path.rename(tmp_path / "there")
    opened, found = reopen(tmp_path / "there")
    Run(found, opened).resume()
    assert outcome(tmp_path / "there") == outcome(reference)


def test_killed_while_its_page_is_drawn_it_is_finished_by_resume(
    driven: Driven, reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, _ = driven("poise.report.writing:make_page", 1, signal.SIGKILL, *RUN, str(folder))
    assert code == -signal.SIGKILL
    assert (folder / "result.json").exists()
    assert not (folder / "report" / "index.html").exists()
    code, out, _ = command("resume", str(folder))
    assert code == 0
    assert out.splitlines()[-1] == f"report {folder / 'report' / 'index.html'}"
    assert "average accuracy" in (folder / "report" / "index.html").read_text()
    assert outcome(folder) == outcome(reference)


def test_a_missing_model_of_a_finished_run_is_written_again(
    reference: Path, outcome: Outcome, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    (folder / "model.safetensors").unlink()
    code, out, _ = command("resume", str(folder))
    assert code == 0
    assert "model.safetensors was missing and is written again" in out
    assert outcome(folder) == outcome(reference)
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "checkpoints")
    code, _, error = command("resume", str(folder))
    assert code == 0
    assert "model.safetensors is missing and cannot be written again" in error
    assert "no checkpoint of its last phase" in error


def test_killed_between_its_result_and_the_end_it_is_finished_by_resume(
    driven: Driven, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, _ = driven("poise.runs.run:record_end", 1, signal.SIGKILL, *RUN, str(folder))
    assert code == -signal.SIGKILL
    assert json.loads((folder / "machine.json").read_bytes())["finished"] is None
    assert command("resume", str(folder))[0] == 0
    machine = json.loads((folder / "machine.json").read_bytes())
    assert machine["finished"] >= machine["started"]
    assert (folder / "report" / "index.html").exists()
