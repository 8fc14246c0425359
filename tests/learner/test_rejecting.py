"""Images of no known class, on digits of which three classes are held back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from poise import Augmentation, Budget, Learner, UserError

from .samples import digits, grown, learner, refused


@pytest.fixture(scope="module")
def trained() -> Learner:
    """A learner of the digits 0 to 6, two phases; 7, 8 and 9 are unknown to it."""
    made = learner(method="icarl", epochs=10, batch=32, memory=20, augmentation=Augmentation(pad=1, flip=False))
    return made.partial_fit(*digits(0, 1, 2, 3, count=80)).partial_fit(*digits(4, 5, 6, count=80))


@pytest.mark.parametrize("classifier", ["fc", "ncm"])
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_about_the_asked_share_of_known_classes_is_rejected_and_unknown_ones_clearly_more_often(
    trained: Learner, rate: float, classifier: str
) -> None:
    known, _ = digits(0, 1, 2, 3, 4, 5, 6, count=90, first=80)
    held_out, later = known[::2], known[1::2]  # the same people wrote both
    unknown, _ = digits(7, 8, 9, count=150)
    trained.calibrate_reject(rate, held_out)
    rejected = {
        name: np.mean([label is None for label in trained.predict(images, classifier=classifier, reject=True)])
        for name, images in (("held out", held_out), ("later", later), ("unknown", unknown))
    }
    assert rejected["held out"] <= rate
    assert abs(rejected["later"] - rate) < 3 * np.sqrt(rate * (1 - rate) * 2 / 315) + 0.01
    assert rejected["unknown"] > rejected["later"] + 0.25


def test_what_is_not_rejected_is_predicted_as_before_and_probabilities_do_not_change(trained: Learner) -> None:
    images, _ = digits(0, 1, 2, 7, 8, count=30, first=80)
    chances = trained.predict_proba(images)
    trained.calibrate_reject(0.1, digits(0, 1, 2, 3, 4, 5, 6, first=100)[0])
    plain, found = trained.predict(images), trained.predict(images, reject=True, rejected=-1)
    assert found.dtype == plain.dtype
    assert 0 < (found == -1).sum() < len(images)
    assert (found[found != -1] == plain[found != -1]).all()
    np.testing.assert_array_equal(trained.predict_proba(images), chances)


def test_thresholds_are_saved_with_the_model_and_belong_to_it(tmp_path: Path) -> None:
    images, labels = digits(0, 1, 2)
    names = [f"digit {label}" for label in labels]
    learned = learner(memory=Budget(10, reserve=5)).partial_fit(images, names).calibrate_reject(0.25)
    held = learned._scores(learned.memory_.reserve.pixels)
    for classifier, threshold in learned.reject_thresholds_.items():
        assert threshold == pytest.approx(float(np.sort(held[classifier].max(dim=1).values.numpy())[3]))
    learned.save(tmp_path / "predicts", memory=False)
    found = learned.predict(digits(7)[0], reject=True, rejected="none of them")
    loaded = Learner.load(tmp_path / "predicts", device="cpu")
    assert (loaded.predict(digits(7)[0], reject=True, rejected="none of them") == found).all()
    assert set(found) <= {*names, "none of them"}
    kept = learned.exemplars()[0].id
    changes: list[Any] = [
        lambda: learned.delete_exemplars(kept),
        lambda: learned.remove("digit 1"),
        lambda: learned.partial_fit(digits(7)[0], ["digit 7"] * 12),
    ]
    for change in changes:
        learned.calibrate_reject(0.25)
        change()
        with pytest.raises(UserError, match="call calibrate_reject first"):
            learned.predict(images, reject=True)


def test_images_that_were_trained_on_are_used_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    learned = grown(memory=10).calibrate_reject(0.1)
    assert "trained on" in caplog.text
    assert set(learned.reject_thresholds_) == {"fc", "ncm"}


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda each: each.predict(digits(0)[0], reject=True), "call calibrate_reject first"),
        (lambda each: each.calibrate_reject(0.01), "16 images are too few for a reject rate of 0.01; give at least 99"),
        (lambda each: each.calibrate_reject(0), "must be a number above 0 and below 1"),
        (lambda each: each.calibrate_reject(1), "must be a number above 0 and below 1"),
        (lambda each: each.calibrate_reject(0.2).predict(digits(0)[0], reject=True, rejected=3), "is a known class"),
        (lambda each: each.predict(digits(0)[0], reject=True, classifier="svm"), "unknown classifier"),
        (lambda each: each.predict(digits(0)[0], rejected=-1), "rejected=-1 is the label of rejected images; pass"),
    ],
)
def test_bad_calls_are_one_line(ask: Any, line: str) -> None:
    with refused(line):
        ask(grown())


def test_a_learner_without_images_asks_for_some(tmp_path: Path) -> None:
    grown().save(tmp_path / "predicts", memory=False)
    with pytest.raises(UserError, match="give some: images="):
        Learner.load(tmp_path / "predicts").calibrate_reject()
    with pytest.raises(UserError, match="call partial_fit first"):
        learner().calibrate_reject(images=digits(0)[0])


@pytest.mark.parametrize("method", ["ranpac", "simplecil"])
@pytest.mark.parametrize("memory", [20, 0])
def test_on_a_frozen_network_probabilities_are_calibrated_and_thresholds_need_no_new_images(
    method: str, memory: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).requires_grad_(False).eval()
    made = learner(method=method, net=net, memory=memory)
    made.partial_fit(*digits(0, 1, 2, 3, count=80)).partial_fit(*digits(4, 5, 6, count=80))
    images, labels = digits(0, 1, 2, 3, 4, 5, 6, count=90, first=80)
    made.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", net=net)
    for classifier in ("fc", "ncm"):
        chances = again.predict_proba(images, classifier=classifier)
        right = np.mean(again.classes_[chances.argmax(axis=1)] == labels)
        assert abs(chances.max(axis=1).mean() - right) < 0.1
    if memory:
        again.calibrate_reject(0.1)
        assert "trained on" not in caplog.text
        assert np.mean([label is None for label in again.predict(images, reject=True)]) < 0.25
