"""The learner as a user meets it: arrays, labels and files in, labels and probabilities out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from poise import Learner
from poise.data import Budget
from poise.errors import Diverged, UserError
from poise.training.events import Progress

from .samples import Flat, digits, grown, learner, refused, state_bytes

# Learning and predicting ------------------------------------------------------------------------------------------


def test_it_learns_to_tell_digits_apart() -> None:
    train, labels = digits(0, 1, count=60)
    more, more_labels = digits(2, 3, count=60)
    learned = learner(epochs=10, batch=32, memory=20).partial_fit(train, labels)
    assert learned.score(*digits(0, 1, count=60, first=60)) > 0.95
    learned.partial_fit(more, more_labels)
    assert learned.score(*digits(0, 1, 2, 3, count=60, first=60)) > 0.7
    assert learned.knowledge.classes == (0, 1, 2, 3)
    assert learned.phases_ == 2


@pytest.mark.parametrize("method", ["lucir", "icarl", "lwf"])
def test_probabilities_agree_with_predictions_for_both_classifiers(method: str) -> None:
    learned, (images, _) = grown(method=method), digits(0, 1, 2, 3, first=40)
    both = learned.predictions(images)
    for classifier in ("fc", "ncm"):
        chances = learned.predict_proba(images, classifier=classifier)
        assert chances.shape == (len(images), 4)
        assert np.allclose(chances.sum(axis=1), 1, atol=1e-5)
        assert (chances >= 0).all()
        predicted = learned.predict(images, classifier=classifier)
        assert (predicted == np.asarray(learned.knowledge.classes)[chances.argmax(axis=1)]).all()
        assert (predicted == both[classifier]).all()
    assert (learned.predict(images) == both[learned.classifier_]).all()
    assert learned.classifier_ == ("ncm" if method == "icarl" else "fc")


def test_the_score_warns_of_images_of_classes_that_it_cannot_predict(caplog: pytest.LogCaptureFixture) -> None:
    learned = learner().partial_fit(*digits(0, 1))
    caplog.clear()
    known = learned.score(*digits(0, 1))
    assert not caplog.records
    assert learned.score(*digits(0, 1, 2, 3)) == pytest.approx(known / 2)
    assert "24 of 48 images count as wrong, because this learner does not know their classes (2, 3)" in caplog.text


@pytest.mark.parametrize("net", ["small", "resnet32", "resnet18", Flat()])
def test_one_image_in_all_works_with_every_net(net: str | nn.Module) -> None:
    learned = learner(net=net, memory=Budget(4, reserve=2)).partial_fit(*digits(7, count=1))
    assert learned.predict(digits(7, count=2)[0]).tolist() == [7, 7]
    assert len(learned.memory_ or ()) == 1


def test_a_backbone_of_ones_own_is_trained_and_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = Flat()
    given = {name: value.clone() for name, value in net.state_dict().items()}
    learned = grown(net=net)
    assert all(torch.equal(value, given[name]) for name, value in net.state_dict().items())
    assert not torch.equal(learned.model.state_dict()["backbone.map.weight"], given["map.weight"])
    learned.save(tmp_path / "own")
    with pytest.raises(UserError, match="net of your own; pass it again"):
        Learner.load(tmp_path / "own")
    again = Learner.load(tmp_path / "own", net=Flat())
    images = digits(0, 1, 2, 3)[0]
    assert np.array_equal(again.predict_proba(images), learned.predict_proba(images))
    assert state_bytes(again.partial_fit(*digits(4)), tmp_path) == state_bytes(
        learned.partial_fit(*digits(4)), tmp_path
    )


@pytest.mark.parametrize(
    ("net", "line"),
    [
        (nn.Conv2d(3, 4, 3), "the net does not map images of shape (1, 8, 8)"),
        (nn.Conv2d(1, 4, 3), "it returns [1, 4, 6, 6]"),
        (nn.LSTM(8, 3), "the net"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_in_one_line(net: nn.Module, line: str) -> None:
    learned = learner(net=net)
    with refused(line):
        learned.partial_fit(*digits(0, 1))
    assert learned.phases_ == 0


# When something goes wrong in the middle -------------------------------------------------------------------------


def test_a_diverged_phase_changes_nothing(tmp_path: Path) -> None:
    learned = learner(action={"lr": 1e9}, epochs=3).partial_fit(*digits(0, 1))
    before = state_bytes(learned, tmp_path)
    with refused("lower the learning rate", Diverged):
        learned.partial_fit(*digits(2, 3))
    assert state_bytes(learned, tmp_path) == before
    assert learned.knowledge.classes == (0, 1)
    assert learned.predict(digits(0)[0]).shape == (12,)


@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_however_far_it_diverged_no_probability_is_not_a_number(method: str) -> None:
    for rate in (1e4, 1e6, 1e9):
        learned = learner(method=method, first_lr=rate)
        try:
            learned.partial_fit(*digits(0, 1))
        except Diverged:
            assert learned.phases_ == 0
        else:
            assert np.isfinite(learned.predict_proba(digits(0, 1)[0])).all()


@pytest.mark.parametrize("way", ["thrown into", "left early"])
def test_a_phase_that_is_not_finished_changes_nothing(way: str, tmp_path: Path) -> None:
    learned, twin = grown(), grown()
    before = state_bytes(learned, tmp_path)
    events = learned.fitting(*digits(4, 5))
    while not (isinstance(event := next(events), Progress) and event.done):
        pass
    if way == "left early":
        events.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt)
    assert state_bytes(learned, tmp_path) == before
    after = [state_bytes(one.partial_fit(*digits(4, 5)), tmp_path) for one in (learned, twin)]
    assert after[0] == after[1]


def test_a_second_change_is_refused_while_a_phase_is_learned(tmp_path: Path) -> None:
    learned, twin = grown(), grown()
    early, late = learned.fitting(*digits(4)), learned.fitting(*digits(5))
    next(early)
    changes: tuple[Callable[[], object], ...] = (
        lambda: learned.partial_fit(*digits(6)),
        lambda: learned.fit(*digits(6)),
        lambda: learned.remove(0),
        lambda: learned.calibrate_reject(0.5),
    )
    for change in changes:
        with pytest.raises(UserError, match="in the middle of a phase"):
            change()
    assert learned.predict(digits(0)[0]).shape == (12,)
    list(early)
    with pytest.raises(UserError, match="in the meantime"):
        list(late)
    assert state_bytes(learned, tmp_path) == state_bytes(twin.partial_fit(*digits(4)), tmp_path)


def test_while_one_thread_trains_others_predict_and_save_what_was_before(tmp_path: Path) -> None:
    learned, images = grown(), digits(0, 1, 2, 3)[0]
    before, events = learned.predict_proba(images), learned.fitting(*digits(4))
    while not (isinstance(event := next(events), Progress) and event.done):
        pass
    with ThreadPoolExecutor(1) as other:
        assert np.array_equal(other.submit(learned.predict_proba, images).result(), before)
        other.submit(learned.save, tmp_path / "middle").result()
        with pytest.raises(UserError, match="in the middle of a phase, in another thread"):
            other.submit(learned.partial_fit, *digits(5)).result()
    list(events)
    saved = Learner.load(tmp_path / "middle")
    assert np.array_equal(saved.predict_proba(images), before)
    assert state_bytes(saved.partial_fit(*digits(4)), tmp_path) == state_bytes(learned, tmp_path)
