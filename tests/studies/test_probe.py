"""Probes: every action in one phase, rewards beside exams, killed anywhere and resumed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poise import store
from poise.errors import Interrupted, UserError
from poise.journal import read_journal
from poise.policies import Trial
from poise.runs import Examiner, Plan, Quiet, Run, RunFolder, load_recipe, make_plan
from poise.studies import Probe, ProbeTable, Question, probe, reach, reopen_for_probe
from poise.tuning import Attempt

Plans = Callable[..., Plan]
WORDS = ("groups=[3,2,2]", "epochs=3", "batch=64", "space={feature_kd=[0,1],lr=[0.05,0.02]}")


@pytest.fixture(scope="session")
def before_phase_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that stands before phase 1."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    reach(make_plan("digits/lucir", load_recipe("digits/lucir", WORDS)), RunFolder(folder), 1, Quiet())
    return folder


def quiet(line: str) -> None:
    """Nobody listens."""


def probed(folder: Path, out: Path, *words: str, **asked: Any) -> dict[str, Any]:
    return Probe(*reopen_for_probe(folder, words), Question(**{"phase": 1, "lengths": (1, 2), **asked}), out).run(quiet)


@pytest.fixture(scope="session")
def table(before_phase_1: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("table") / "probe.json"
    probed(before_phase_1, out, full=True, rounds=2)
    return store.read_json(out)


def test_every_action_is_tried_at_every_length_in_every_round(table: dict[str, Any]) -> None:
    tried = [(entry["length"], entry["round"], entry["arm"]) for entry in table["trials"]]
    short = [(length, number, arm) for number in (0, 1) for length in (1, 2) for arm in range(4)]
    assert tried == [*short, *(("full", 0, arm) for arm in range(4))]
    looked = {entry["length"]: [*map(int, entry["hits"])] for entry in table["trials"]}
    assert looked == {1: [1], 2: [1, 2], "full": [1, 2, 3]}
    assert all(entry["exam"].keys() == entry["hits"].keys() for entry in table["trials"])


def test_the_table_says_what_it_is(table: dict[str, Any]) -> None:
    assert (table["kind"], table["name"], table["phase"], table["seed"]) == ("probe", "digits/lucir", 1, 0)
    assert table["recipe"]["epochs"] == table["full"] == 3
    assert (table["lengths"], table["rounds"]) == ([1, 2], 2)
    assert (len(table["classes"]), table["old"], table["new"]) == (5, 3, 2)
    assert len(table["actions"]) == table["space"]["actions"] == 4
    assert table["actions"][table["default"]]["feature_kd"] == 1
    assert table["environment"]["memory"]["per_class"] == 5
    assert table["exam"]["name"] == "test"
    assert "never enter a reward" in table["exam"]["what"]
    text = json.dumps(table)
    assert not any(word in text for word in ("second", "date", "folder"))


def test_exams_never_enter_a_reward(before_phase_1: Path, table: dict[str, Any], tmp_path: Path) -> None:
    """The same trials without a witness have the same hits."""
    job = Probe(*reopen_for_probe(before_phase_1, ()), Question(1, (1,)), tmp_path / "probe.json")
    train, _ = job.plan.images()
    arrived = train.of_labels(job.plan.stream[1])
    learner = job._learner(train)
    trials = learner.phase_of(arrived.pixels, arrived.labels).task.trials
    for arm, action in enumerate(job.space.actions):
        result = trials.run(Attempt(Trial(arm, arm, 1), action, "fc", short=1))
        assert result.witnessed == {}
        assert {str(epoch): hits for epoch, hits in result.hits.items()} == table["trials"][arm]["hits"]


def test_a_killed_probe_goes_on_where_it_was(
    table: dict[str, Any], before_phase_1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LINE_SECONDS", -1.0)  # a line after every trial
    out = tmp_path / "probe.json"
    job = Probe(*reopen_for_probe(before_phase_1, ()), Question(1, (1, 2), full=True, rounds=2), out)
    said: list[str] = []

    def killed(line: str) -> None:
        said.append(line)
        if len(said) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(killed)
    assert not out.exists()
    with job.journal.path.open("ab") as file:
        file.write(b'{"event": "trial", "leng')
    said.clear()
    job.run(said.append)
    assert said[0].startswith("phase 1: 15 of 20 trials to run")
    assert len(said) == 16
    assert store.read_json(out) == table
    assert not job.journal.path.exists()


@pytest.mark.parametrize("lines", [1, 3])
def test_a_signal_ends_a_probe_inside_of_a_trial_and_nothing_else_is_lost(
    lines: int, table: dict[str, Any], before_phase_1: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LINE_SECONDS", -1.0)  # a line before the first trial, and one after each
    out, said = tmp_path / "probe.json", list[str]()
    job = Probe(*reopen_for_probe(before_phase_1, ()), Question(1, (1, 2), full=True, rounds=2), out)

    def signalled(line: str) -> None:
        said.append(line)
        if len(said) == lines:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="the same command continues") as stopped:
        job.run(signalled)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert len(said) == lines, "the next trial did not end"
    assert len([*read_journal(job.journal.path)]) == lines, "the question, and the trials that had ended"
    assert job.run(quiet) == table


def test_a_probe_in_the_middle_of_a_phase_is_the_same(table: dict[str, Any], plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    going = Run(plan(*WORDS), folder, checkpoint_seconds=0).starting()
    while sum(event["event"] == "epoch" for event in read_journal(folder.journal.path)) < 4:
        next(going)
    going.close()
    folder.phase_0.unlink()
    checkpoint = folder.newest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.meta["learner"]["pending"] is not None
    found = probed(folder.path, tmp_path / "probe.json")
    assert found["state"] == table["state"]
    assert found["trials"][:8] == table["trials"][:8]


def test_a_run_that_stopped_for_a_probe_goes_on_as_if_nothing_was(plan: Plans, tmp_path: Path) -> None:
    short, whole = RunFolder(tmp_path / "short"), RunFolder(tmp_path / "whole")
    reach(plan(*WORDS), short, 2, Quiet())
    assert not short.finished
    found = probed(short.path, tmp_path / "probe.json", phase=2, lengths=(1,))
    assert (found["old"], found["new"], found["phase"]) == (5, 2, 2)
    Run(plan(*WORDS), short).resume()
    Run(plan(*WORDS), whole).start()
    assert short.journal.path.read_bytes() == whole.journal.path.read_bytes()
    with pytest.raises(UserError, match="stands in phase 3, its state before phase 2 is gone"):
        probed(short.path, tmp_path / "other.json", phase=2)


def test_a_tuned_run_can_be_probed_with_another_space_and_environment(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    reach(plan(*WORDS, "policy=grid", "memory=6", "memory.reserve=1"), folder, 2, Quiet())
    words = ("space={lr=[0.1,0.01]}", "trials.validation=3", "policy=fixed")
    found = probed(folder.path, tmp_path / "probe.json", *words, phase=2, lengths=(1,))
    assert found["space"]["axes"] == {"lr": [0.1, 0.01]}
    assert found["environment"]["trials"]["validation"] == 3
    assert {tuple(entry["images"]) for entry in found["trials"]} == {(1, 1, 1, 1, 1, 4, 4)}


def test_a_look_ahead_has_no_exam(before_phase_1: Path, tmp_path: Path) -> None:
    words = ("trials.environment=lookahead", "space={lr=[0.1,0.01]}")
    found = ProbeTable(probed(before_phase_1, tmp_path / "probe.json", *words, lengths=(1,)))
    assert not found.has_exam
    with pytest.raises(UserError, match="examined no model"):
        found.exam(1, "fc")


@pytest.mark.parametrize(
    ("words", "asked", "line"),
    [
        ((), {"phase": 0}, "nothing is tuned"),
        ((), {"phase": 3}, "has no phase 3; its last one is 2"),
        ((), {"phase": 2}, "stands in phase 1, its state before phase 2 is gone"),
        ((), {"lengths": (0,)}, "--lengths=0 must be a whole number, at least 1"),
        (("epochs=4",), {}, "epochs cannot be changed"),
        (("space=papr",), {}, "did you mean 'paper'"),
    ],
)
def test_what_cannot_be_probed_is_one_line(
    words: tuple[str, ...], asked: dict[str, Any], line: str, before_phase_1: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=line) as error:
        probed(before_phase_1, tmp_path / "probe.json", *words, **asked)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_file_of_another_probe_is_refused(before_phase_1: Path, tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    first = probed(before_phase_1, out, lengths=(1,))
    assert probed(before_phase_1, out, lengths=(1,)) == first
    before = out.read_bytes()
    with pytest.raises(UserError, match=r"holds another probe \(other lengths, rounds\)"):
        probed(before_phase_1, out, lengths=(2,), rounds=3)
    out.unlink()
    out.with_suffix(".jsonl").write_text(json.dumps({"journal": "poise", "format": 1}) + '\n{"event": "probe"}\n')
    with pytest.raises(UserError, match="holds another probe"):
        probed(before_phase_1, out)
    with pytest.raises(UserError, match="must end in"):
        probed(before_phase_1, tmp_path / "probe.txt")
    assert json.loads(before)["lengths"] == [1]


def test_nothing_to_validate_on_is_refused(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    reach(plan("memory=1"), folder, 1, Quiet())
    with pytest.raises(UserError, match="nothing to validate on"):
        probed(folder.path, tmp_path / "probe.json")


@pytest.mark.gpu
def test_on_a_gpu_trials_side_by_side_have_the_exams_they_have_alone(plan: Plans, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    reach(plan(*WORDS, "device=cuda", "deterministic=true"), folder, 1, Quiet())
    job = Probe(*reopen_for_probe(folder.path, ()), Question(1, (2,)), tmp_path / "probe.json")
    table = job.run(quiet)
    train, exam = job.plan.images()
    learner = job._learner(train)
    alone = job._phase(learner, Examiner(exam, job.plan.stream), train).task.trials
    for arm, action in enumerate(job.space.actions):
        with learner.backend.active():
            result = alone.run(Attempt(Trial(arm, arm, 2), action, "fc", short=2))
        assert {str(epoch): seen for epoch, seen in result.witnessed.items()} == table["trials"][arm]["exam"]
