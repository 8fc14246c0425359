"""Trials on a cluster: the same journal as here, also when a worker that holds a paused trial is killed."""

from __future__ import annotations

import pickle
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from poise import Learner, cli
from poise.data import DenseStore, ImageSet
from poise.data.sources import open_source
from poise.errors import UserError
from poise.policies import Trial
from poise.ray import Executor
from poise.ray import executor as executor_module
from poise.ray.letters import OpenData, open_letter, write_letter
from poise.runs import RunFolder, load_recipe, make_plan
from poise.runs.provenance import versions
from poise.training import Event, Situation, TrialDone
from poise.tuning import Attempt, TrialInputs, Trials

from .conftest import kill, result_bytes, start_command, wait_for

RACE = {"policy": "race", "policy_options": {"rungs": 3, "finalists": 1}, "trials": {"length": 0.5}}
SMALL: dict[str, Any] = {
    **{"method": "lucir", "net": "small", "epochs": 8, "batch": 64, "device": "cpu"},
    **{"space": {"lr": [0.1, 0.05, 0.02, 0.01]}, **RACE},
}


def digits(labels: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    images = open_source("digits").train().of_labels(labels)
    return images.pixels, images.labels


def journal(events: list[Event]) -> list[dict[str, Any]]:
    return [event.as_json() for event in events if event.kept]


@pytest.mark.ray
def test_a_learner_whose_trials_run_on_a_cluster_is_the_same_though_a_worker_is_killed(
    address: str, tmp_path: Path
) -> None:
    here = Learner(**SMALL)
    with Executor(address) as executor:
        there = Learner(**SMALL, executor=executor)
        for learner in (here, there):
            learner.partial_fit(*digits([0, 1]))
        expected, told, killed = list(here.fitting(*digits([2]))), list[Event](), list[int]()
        for event in there.fitting(*digits([2])):
            told.append(event)
            if isinstance(event, TrialDone) and event.trial["id"] == 4:  # survivors are to be continued
                (staff,) = [driver.staff for driver in executor._trials.values()]
                killed += [member.process for member in staff.ready[:1]]
                kill(killed[-1])
        assert killed
        assert journal(told) == journal(expected)
        assert max(event.trial["id"] for event in told if isinstance(event, TrialDone)) > 4
        here.save(tmp_path / "here")
        there.save(tmp_path / "there")
        assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()
        processes = [member.process for member in staff.ready]
        there.partial_fit(*digits([3]))
        assert set(processes) <= {member.process for member in staff.members}, "workers stay for the next phase"


@contextmanager
def full(address: str) -> Iterator[None]:
    """Somebody else has all CPUs of the cluster."""
    from ray.util.placement_group import placement_group, remove_placement_group

    with Executor(address) as executor:
        executor.connect()
        taken = placement_group([{"CPU": 1}] * 2)
        assert taken.wait(30)
        yield
        remove_placement_group(taken)


@pytest.mark.ray
def test_a_run_whose_trials_are_elsewhere_has_the_same_folder_though_it_was_stopped_while_it_waited_for_workers(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits/lucir", "groups=[2,1]", "epochs=3", "policy=race", "space={lr=[0.1,0.02]}", "--out"]
    here, there = tmp_path / "here", RunFolder(tmp_path / "there")
    elsewhere = ["--trials-on", f"ray:{address}", "--cpus-per-worker", "1"]
    with full(address):
        job = start_command(*words, str(there.path), *elsewhere)
        wait_for(lambda: there.journal.path.exists() and b'"phase": 1' in there.journal.path.read_bytes(), job=job)
        before, asked = there.last_checkpoint(), time.monotonic()
        time.sleep(1)  # it waits for workers now
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=60)
        assert time.monotonic() - asked < 8, "as soon as it has left the cluster"
    assert job.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == f"poise: interrupted; continue with 'poise resume {there.path}'"
    assert there.last_checkpoint() > before
    for command in ([*words, str(here)], ["resume", str(there.path), *elsewhere]):
        monkeypatch.setattr(sys, "argv", ["poise", *command])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        assert not leaving.value.code, capsys.readouterr().err
    assert result_bytes(here) == result_bytes(there.path)
    for name in ("journal.jsonl", "model.safetensors"):
        assert (here / name).read_bytes() == (there.path / name).read_bytes()


@pytest.mark.ray
def test_an_answer_that_nobody_waited_for_is_not_taken_for_another_and_warnings_are_passed_on_once(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    trials = second_phase(net=nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.1)))
    action = Learner(**SMALL).settings.default_action
    first, then = (
        [Attempt(Trial(arm, arm, epochs), action, "fc", 60) for arm, epochs in enumerate(lengths)]
        for lengths in ((1, 60, 60), (2, 2, 2))
    )
    with Executor(address) as executor:
        expected = list(trials.run_all(then))
        assert list(executor.run(trials, then)) == expected
        assert next(executor.run(trials, first)).outcome.trial == first[0].trial  # another worker has not ended yet
        assert list(executor.run(trials, then)) == expected
    drawing = r"Sequential draws random numbers in its forward pass"
    by_workers = [record for record in caplog.records if re.match(rf"node \S+ \([0-9.]+\): {drawing}", record.message)]
    assert [(each.name, each.levelname) for each in by_workers] == [("poise.training.noise", "WARNING")]


@pytest.mark.ray
def test_workers_that_began_before_a_resume_are_replaced_where_the_run_has_other_threads(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes depend on threads, and a run goes on with those that it was started with."""
    monkeypatch.setattr(executor_module, "MEET_SECONDS", 240.0)  # a busy machine takes longer
    trials, action = second_phase(), Learner(**SMALL).settings.default_action
    attempts = [Attempt(Trial(0, 0, 1), action, "fc", 4)]
    with Executor(address, cpus_per_worker=1, workers=1) as executor:
        assert executor.meet_workers("cpu") == "1 worker on 1 node, 1 CPU each"
        (before,) = executor._trials.values()
        assert list(executor.run(trials, attempts)) == list(trials.run_all(attempts))
        assert list(executor._trials.values()) == [before]
        torch.set_num_threads(2)
        try:
            assert list(executor.run(trials, attempts)) == list(trials.run_all(attempts))
        finally:
            torch.set_num_threads(1)
        (after,) = executor._trials.values()
        assert (before.staff.threads, before.staff.members, after.staff.threads) == (1, [], 2)


@pytest.mark.ray
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cpus-per-worker", "1000"], "no node of the cluster has 1000 CPUs for a worker"),
        (["other version"], "torch .* is installed there, 0.1 here; install the same"),
    ],
)
def test_what_is_wrong_with_workers_is_said_before_anything_is_trained(
    words: list[str],
    expected: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(executor_module, "MEET_SECONDS", 240.0)  # a busy machine takes longer, and says so
    if words == ["other version"]:
        own, words = versions(), []
        monkeypatch.setattr(executor_module, "versions", lambda: {**own, "torch": "0.1"})
    out = ["--out", str(tmp_path / "run"), "--trials-on", f"ray:{address}"]
    monkeypatch.setattr(sys, "argv", ["poise", "run", "policy=race", *out, *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    line = capsys.readouterr().err.splitlines()[-1]
    assert leaving.value.code == 2
    assert re.search(expected, line), line
    assert not (tmp_path / "run").exists()


@pytest.mark.ray
def test_that_a_policy_asks_for_no_trials_is_said(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "groups=[2,1]", "epochs=1", "--out", str(tmp_path / "run"), "--trials-on", f"ray:{address}"]
    monkeypatch.setattr(sys, "argv", ["poise", *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert not leaving.value.code
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "policy=fixed asks for no trials: --trials-on makes this run no faster"


# Letters --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trials() -> Trials:
    """The trials of the second phase of a learner."""
    return second_phase()


def second_phase(**settings: Any) -> Trials:
    learner = Learner(**{**SMALL, **settings}).partial_fit(*digits([0, 1]))
    images = open_source("digits").train().of_labels([2])
    return learner.phase_of(images.pixels, images.labels).task.trials


def test_images_go_as_their_places_where_the_data_can_be_opened(trials: Trials) -> None:
    source, inputs = open_source("digits"), trials.inputs
    train = source.train()
    pick = torch.tensor([3, 700, 5])
    known = ImageSet(train.pixels[pick], torch.tensor([0, 1, 2]), train.origins[pick])
    placed = Trials(TrialInputs(inputs.situation, inputs.memory, known, inputs.reserve, inputs.quota, inputs.settings))
    data = OpenData("digits", None, source.fingerprint, train.shape)
    by_place, by_pixels = (write_letter(placed, pickle.Pickler, each) for each in (data, None))
    assert by_place.nbytes + known.pixels.nbytes == pytest.approx(by_pixels.nbytes, abs=200)
    for letter in (by_place, by_pixels):
        again = open_letter(letter, lambda name, size: open_source(name, size=size)).inputs
        assert torch.equal(again.new.pixels, known.pixels)
        assert torch.equal(again.new.labels, known.labels)
        assert torch.equal(again.new.origins, known.origins)
    other = OpenData("digits", None, "other", train.shape)
    with pytest.raises(UserError, match="are not those here"):
        open_letter(write_letter(placed, pickle.Pickler, other), lambda name, size: open_source(name, size=size))


@pytest.mark.gpu
def test_copies_on_a_gpu_go_as_pixels_since_their_origins_are_other_places(trials: Trials) -> None:
    source, inputs = open_source("digits"), trials.inputs
    train, pick = source.train(), torch.tensor([3, 700, 5])
    copies = ImageSet(DenseStore(train.pixels[pick].cuda()), torch.tensor([0, 1, 2]), torch.arange(3))
    placed = Trials(TrialInputs(inputs.situation, inputs.memory, copies, inputs.reserve, inputs.quota, inputs.settings))
    letter = write_letter(placed, pickle.Pickler, OpenData("digits", None, source.fingerprint, train.shape))
    again = open_letter(letter, lambda name, size: open_source(name, size=size)).inputs
    assert torch.equal(again.new.pixels.cpu(), train.pixels[pick])


def test_a_letter_gives_the_same_results_though_its_pixels_cannot_be_written(trials: Trials) -> None:
    letter = write_letter(trials, pickle.Pickler)
    for array in letter.arrays:
        assert isinstance(array, np.ndarray)
        array.flags.writeable = False  # as they lie in the object store
    again = open_letter(letter, lambda name, size: open_source(name, size=size))
    action = Learner(**SMALL).settings.default_action
    attempts = [Attempt(Trial(0, 0, 1), action, "fc", 4), Attempt(Trial(1, 0, 3, continues=0), action, "fc", 4)]
    assert list(again.run_all(attempts)) == list(trials.run_all(attempts))
    situation: Situation = again.inputs.situation
    assert all(parameter.requires_grad for parameter in situation.model.backbone.parameters())


def test_an_executor_is_copied_with_a_learner_and_connects_anew() -> None:
    executor = Executor("host:1", cpus_per_worker=3, patience=7.0)
    for again in (pickle.loads(pickle.dumps(executor)), deepcopy(executor)):
        assert (again.address, again.cpus_per_worker, again.patience) == ("host:1", 3, 7.0)
    copied = clone(Learner(executor=executor, device="cpu"))
    assert copied.get_params()["executor"].address == "host:1"


def test_a_run_tells_its_workers_which_data_to_open() -> None:
    plan = make_plan("digits/lucir", load_recipe("digits/lucir", []))
    data = Executor().for_plan(plan).data
    assert data is not None
    assert (data.data, data.size, data.shape) == ("digits", None, (1, 8, 8))
    assert data.fingerprint == plan.source.fingerprint


# Without Ray ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if it were not installed."""

    def hide() -> None:
        monkeypatch.setitem(sys.modules, "ray", None)

    return hide


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--trials-on", "ray"],
        ["resume", "{run}", "--trials-on", "ray"],
        ["sweep", "{sweep}", "--on", "ray", "--out", "{out}"],
    ],
)
def test_without_ray_it_is_one_line(
    words: list[str],
    reference: Path,
    sweep_file: Path,
    without_ray: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without_ray()
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    for path in reference.iterdir():
        if path.name in ("recipe.json", "machine.json"):
            (unfinished / path.name).write_bytes(path.read_bytes())
    out = ["--out", str(tmp_path / "new")] if words[0] == "run" else []
    places = {"run": unfinished, "sweep": sweep_file, "out": tmp_path / "new"}
    monkeypatch.setattr(sys, "argv", ["poise", *(word.format(**places) for word in words), *out])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert leaving.value.code == 2
    assert (
        capsys.readouterr().err
        == "poise: Ray is not installed; it is an extra; in a clone of poise: pip install '.[ray]'\n"
    )
    assert not (tmp_path / "new").exists()


def test_workers_of_a_cluster_that_was_left_meanwhile_are_not_looked_for(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would connect to whatever cluster it finds, or start one."""
    ray: Any = pytest.importorskip("ray")
    connected: list[str] = []
    with Executor(address, workers=1) as executor:
        executor.meet_workers("cpu")
        ray.shutdown()
        monkeypatch.setattr(ray, "init", lambda: connected.append("again"))
        executor.close()
    assert not connected
