"""What a learner's file holds, in short, read without its weights and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from poise import Learner, UserError
from poise.data import Budget
from poise.errors import Damaged
from poise.modelfile import LearnerSummary


def digits(*classes: int, count: int = 12) -> tuple[Any, list[int]]:
    """Some images of each of these digits, [N, 8, 8]."""
    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    picks = [np.flatnonzero(labels == label)[:count] for label in classes]
    return pixels[np.concatenate(picks)], [label for label in classes for _ in range(count)]


def learner(**settings: Any) -> Learner:
    """A small learner that has learned nothing."""
    return Learner(**{"policy": "fixed", "net": "small", "epochs": 1, "batch": 8, "memory": 4, **settings})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner after two phases, with a reserve."""
    path = tmp_path_factory.mktemp("summary") / "learner"
    made = learner(memory=Budget(4, reserve=2))
    made.partial_fit(*digits(0, 1)).partial_fit(*digits(2)).save(path)
    return path


def test_a_summary_says_what_the_learner_itself_says(saved: Path) -> None:
    found, whole = LearnerSummary.read(saved), Learner.load(saved)
    told = found.as_json()
    assert told["classes"] == [*whole.knowledge.classes]
    assert (told["channels"], *told["image_size"]) == whole.shape_
    assert (told["phases"], told["classifier"]) == (whole.phases_, whole.classifier_)
    assert (told["network"], told["method"], told["policy"]) == (whole.architecture, "lucir", "fixed")
    assert whole.memory_ is not None
    rows = [*whole.memory_.exemplars.labels.tolist(), *whole.memory_.reserve.labels.tolist()]
    assert found.kept == {label: rows.count(row) for row, label in enumerate(whole.knowledge.classes)}
    assert whole.model is not None
    learned = {name for name, _ in whole.model.named_parameters()} | {"head.old"}
    assert found.parameters == sum(value.numel() for name, value in whole.model.state_dict().items() if name in learned)
    assert not told["pending"]


def test_a_learner_without_its_memory_has_nothing_to_say_of_how_it_learns(saved: Path, tmp_path: Path) -> None:
    Learner.load(saved).save(tmp_path / "small", memory=False)
    found = LearnerSummary.read(tmp_path / "small")
    assert (found.as_json()["kept_images"], found.as_json()["policy"]) == (None, None)
    assert dict(found.rows())["kept images"].startswith("left out when it was saved")


def test_many_classes_are_not_all_named(tmp_path: Path) -> None:
    images, numbers = digits(*range(10), count=6)
    labels = [f"{number}-{place % 3}" for place, number in enumerate(numbers)]
    learner().partial_fit(images, labels).save(tmp_path / "learner")
    found = LearnerSummary.read(tmp_path / "learner")
    assert dict(found.rows())["classes"].startswith("30: 0-0, 0-1, 0-2, 1-0")
    assert dict(found.rows())["classes"].endswith(" and 10 more")
    assert len(found.as_json()["classes"]) == 30


def test_what_is_no_learner_is_refused_in_one_line(saved: Path, tmp_path: Path) -> None:
    other, whole = tmp_path / "other", saved.read_bytes()
    other.write_bytes(whole.replace(b"kind", b"king", 1))
    with pytest.raises(UserError, match="not a learner file"):
        LearnerSummary.read(other)
    other.write_bytes(whole.replace(b"phases", b"faces_", 1))
    with pytest.raises(Damaged, match="not as poise writes it"):
        LearnerSummary.read(other)
