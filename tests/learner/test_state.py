"""A learner as tensors and plain values, and back; saved, loaded, and in the middle of a phase."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from poise import Learner, store
from poise.data import Budget
from poise.errors import RunFailed, UserError
from poise.learner import LearnerState
from poise.training.events import EpochDone, Event, TrialDone

from .samples import Flat, digits, grown, learner, refused, state_bytes


@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_what_was_saved_predicts_and_learns_on_as_if_it_never_had_been(method: str, tmp_path: Path) -> None:
    settings = {"method": method, "action": {"classifier": "auto"}, "memory": Budget(6, reserve=2), "seed": 5}
    learned = grown(**settings)
    learned.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    images = digits(0, 1, 2, 3, first=40)[0]
    assert loaded.knowledge.classes == learned.knowledge.classes
    assert loaded.classifier_ == learned.classifier_
    assert loaded.settings == learned.settings
    for classifier in ("fc", "ncm"):
        ours, theirs = (one.predict_proba(images, classifier=classifier) for one in (learned, loaded))
        assert np.array_equal(ours, theirs)
    assert state_bytes(loaded, tmp_path) == state_bytes(learned, tmp_path)
    for one in (learned, loaded):
        one.partial_fit(*digits(4, 5))
    assert state_bytes(loaded, tmp_path) == state_bytes(learned, tmp_path)


def test_without_its_memory_it_predicts_but_refuses_to_learn(tmp_path: Path) -> None:
    learned = grown(memory=Budget(4, reserve=1), policy="grid", space={"lr": [0.1, 0.02]}, trials={"length": 1.0})
    learned.save(tmp_path / "model", memory=False)
    assert not [name for name, tensor in load_file(tmp_path / "model").items() if tensor.dtype == torch.uint8]
    loaded = Learner.load(tmp_path / "model")
    images = digits(0, 1, 2, 3)[0]
    assert np.array_equal(loaded.predict_proba(images), learned.predict_proba(images))
    assert (loaded.knowledge.history, loaded.settings.kind.tunes) == ((), False)
    with pytest.raises(UserError, match="without its memory"):
        loaded.partial_fit(*digits(4))


def test_nothing_learned_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learned nothing yet"):
        learner().save(tmp_path / "model")
    with pytest.raises(UserError, match="does not exist"):
        grown().save(tmp_path / "nowhere" / "model")
    with pytest.raises(UserError, match="does not exist"):
        Learner.load(tmp_path / "model")


def test_a_tilde_in_the_path_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    learned = learner().partial_fit(*digits(0, 1))
    learned.save("~/model")
    assert (tmp_path / "model").is_file()
    assert Learner.load(Path("~/model")).knowledge.classes == (0, 1)
    learned.export("~/model.pt2")
    assert (tmp_path / "model.pt2").is_file()


def test_another_module_than_the_one_saved_is_refused(tmp_path: Path) -> None:
    learner(net=Flat()).partial_fit(*digits(0, 1)).save(tmp_path / "own")
    with pytest.raises(UserError, match="does not fit the saved weights"):
        Learner.load(tmp_path / "own", net=Flat(width=7))
    learner().partial_fit(*digits(0, 1)).save(tmp_path / "named")
    with pytest.raises(UserError, match="leave net out"):
        Learner.load(tmp_path / "named", net=Flat())


# In the middle of a phase -------------------------------------------------------------------------------------------


def test_saved_in_the_middle_of_a_phase_it_wants_the_same_images_and_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    learned = learner(epochs=2).partial_fit(*digits(0, 1))
    events = learned.fitting(*digits(2, 3))
    next(event for event in events if isinstance(event, EpochDone))
    learned.save(tmp_path / "middle")
    with pytest.raises(UserError, match="give it the same ones"):
        Learner.load(tmp_path / "middle").partial_fit(*digits(5))
    again = Learner.load(tmp_path / "middle").partial_fit(*digits(2, 3))
    list(events)
    assert state_bytes(again, tmp_path) == state_bytes(learned, tmp_path)


def test_a_kept_file_of_the_present_format_is_read_and_its_phase_goes_on() -> None:
    """It was saved between two trials of its second phase."""
    kept = Learner.load(Path(__file__).with_name(f"format-{store.FORMAT}.safetensors"), net=Flat(), device="cpu")
    assert (kept.knowledge.classes, kept.settings.policy, len(kept.exemplars())) == ((0, 1), "grid", 4)
    assert kept.score(*digits(0, 1, count=40, first=40)) > 0.8
    assert kept.partial_fit(*digits(2, 3)).knowledge.classes == (0, 1, 2, 3)


def test_a_phase_that_goes_on_under_other_switches_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = at("training")
    one.save(tmp_path / "model")
    Learner.load(tmp_path / "model").partial_fit(*digits(2, 3))
    assert "other switches" not in caplog.text
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        Learner.load(tmp_path / "model").partial_fit(*digits(2, 3))
    finally:
        torch.set_num_threads(threads)
    assert f"goes on under other switches (threads={threads} then, threads={threads + 1} now)" in caplog.text


# As a value -----------------------------------------------------------------------------------------------------------

Plain = tuple[dict[str, Tensor], dict[str, Any]]
TUNED: dict[str, Any] = {"policy": "grid", "space": {"feature_kd": [0.1, 1], "lr": [0.1, 0.02]}, "epochs": 2}
MOMENTS = ("fresh", "learned", "tuning", "training")


def plain(state: LearnerState) -> Plain:
    """A copy of all that is written of a state, as it is read back."""
    tensors, meta = state.tensors(images=True)
    return {name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(meta))


def same(before: Plain, after: Plain) -> bool:
    """Whether two states are written alike."""
    tensors = before[0].keys() == after[0].keys() and all(map(torch.equal, before[0].values(), after[0].values()))
    return tensors and before[1] == after[1]


def at(moment: str, **settings: Any) -> tuple[Learner, Iterator[Event]]:
    """A learner at some moment of its life, and what follows in its second phase."""
    one = learner(**{**TUNED, "memory": Budget(6, reserve=2), **settings})
    if moment == "fresh":
        return one, one.fitting(*digits(0, 1))
    events = one.partial_fit(*digits(0, 1)).fitting(*digits(2, 3))
    if moment == "tuning":
        next(event for event in events if isinstance(event, TrialDone))
    if moment == "training":
        next(event for event in events if isinstance(event, EpochDone))
    return one, events


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("method", ["lucir", "aanets"])
def test_tensors_and_back_is_the_same_state(method: str, moment: str) -> None:
    one, _ = at(moment, method=method)
    state = one.state()
    again = LearnerState.from_tensors(*plain(state))
    assert same(plain(state), plain(again))
    assert again.settings == state.settings
    known, found = state.knowledge, again.knowledge
    for name in set(state.tensors(images=False)[1]) & set(vars(known)):
        assert getattr(found, name) == getattr(known, name), name
    assert (found.start is found.predictor) is (known.start is known.predictor)
    assert (again.pending is None) is (moment not in ("tuning", "training"))
    if state.pending is not None and again.pending is not None:
        assert again.pending.history == state.pending.history
        assert again.pending.action == state.pending.action
        assert (again.pending.action is None) is (moment == "tuning")
        assert bool(again.pending.tensors) is (moment == "training")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_state_stays_what_it_was_while_the_learner_goes_on(moment: str) -> None:
    one, events = at(moment)
    state = one.state()
    before = plain(state)
    list(events)
    one.partial_fit(*digits(5, 6))
    assert same(before, plain(state))


def test_a_full_disk_is_an_error_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    learned = learner().partial_fit(*digits(0, 1))
    monkeypatch.setattr(os, "fsync", fail)
    for write, again in ((learned.save, "save"), (learned.export, "export")):
        line = f"{tmp_path}/full.pt2; free some, then {again} it again (nothing that was saved is lost)"
        with refused(f"no space left for {line}", RunFailed):
            write(tmp_path / "full.pt2")


def test_a_file_with_training_images_is_said_to_have_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner(memory=1).partial_fit(*digits(0, 1)).save(tmp_path / "model")
    assert caplog.messages[-1].endswith(
        "model contains 2 training images; in Python, save(memory=False) leaves them out"
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_kept_photos_are_stored_smaller_and_come_back_to_the_bit(channels: int, tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(60), np.arange(50))[None, :, :, None] + np.arange(8)[:, None, None, None]
    images = np.repeat(smooth, channels, axis=3).astype(np.uint8)
    images[..., 0] ^= 1
    labels = [0, 1] * 4
    net = nn.Sequential(nn.Conv2d(channels, 4, 5), nn.AdaptiveAvgPool2d(2), nn.Flatten()).requires_grad_(False).eval()
    made = learner(method="simplecil", net=net).partial_fit(images, labels)
    made.save(tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < images.nbytes
    again = Learner.load(tmp_path / "model", net=net)
    assert torch.equal(again.memory_.exemplars.pixels, made.memory_.exemplars.pixels)
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
