"""What may arrive: images and labels in every form, known classes, the reserve; all the rest is refused."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from poise import Learner
from poise.data import Budget
from poise.errors import UserError
from poise.training.events import Progress

from .samples import digits, grown, keys, learner, refused, state_bytes


def test_labels_may_be_strings_and_keep_the_order_of_arrival() -> None:
    images, labels = digits(5, 6)
    names = {5: "zebra", 6: "ape", 1: "bee"}
    learned = learner().partial_fit(images, [names[label] for label in labels])
    more, more_labels = digits(1)
    learned.partial_fit(more, np.array([names[label] for label in more_labels]))
    assert learned.knowledge.classes == ("ape", "zebra", "bee")
    assert set(learned.predict(images).tolist()) <= {"ape", "zebra", "bee"}
    assert 0 <= learned.score(images, [names[label] for label in labels]) <= 1


def test_new_images_of_a_known_class_are_refused_and_the_way_is_named(tmp_path: Path) -> None:
    learned = grown()
    before = state_bytes(learned, tmp_path)
    with refused("class 3 is known already; pass known='update'"):
        learned.partial_fit(*digits(3, 4))
    assert state_bytes(learned, tmp_path) == before


# The reserve --------------------------------------------------------------------------------------------------------


def trained_on(learned: Learner) -> Tensor:
    """The images that are being trained on."""
    return learned.phase_under_way.trainer.feed.images().pixels


def test_the_reserve_is_never_trained_on() -> None:
    learned = learner(memory=Budget(6, reserve=2))
    for classes in ((0, 1), (2,), (3,)):
        events = learned.fitting(*digits(*classes))
        for event in events:
            if isinstance(event, Progress) and event.done > 0:
                break
        fed = keys(trained_on(learned))
        list(events)
        assert len(learned.memory_.reserve) == 2 * len(learned.knowledge.classes)
        assert not fed & keys(learned.memory_.reserve.pixels)


def test_an_image_that_comes_again_is_not_trained_on_if_it_is_in_the_reserve() -> None:
    learned = learner(memory=Budget(6, reserve=2)).partial_fit(*digits(0, 1))
    reserve = keys(learned.memory_.reserve.pixels)
    for event in learned.fitting(*digits(0, 1), known="update"):
        if isinstance(event, Progress) and event.done > 0:
            assert not keys(trained_on(learned)) & reserve
    assert not keys(learned.memory_.exemplars.pixels) & keys(learned.memory_.reserve.pixels)
    pixels, labels = learned.memory_.reserve.pixels, learned.memory_.reserve.labels
    with pytest.raises(UserError, match="in the reserve already"):
        learned.partial_fit(pixels, [learned.knowledge.classes[row] for row in labels.tolist()], known="update")


IMAGES, LABELS = digits(0, 1)


@pytest.mark.parametrize(
    ("images", "labels", "line"),
    [
        (IMAGES / 2, LABELS, "must lie between 0 and 1"),
        (IMAGES, LABELS[:-1], "24 images and 23 labels"),
        (IMAGES, [*LABELS[:-1], "one"], "partly numbers and partly strings"),
        (IMAGES[:0], [], "no images"),
        ([], [], "no images"),
        (IMAGES, np.array(LABELS) / 2, "neither a whole number nor a string"),
        (IMAGES, [True] * 24, "neither a whole number nor a string"),
        (IMAGES, np.array(LABELS)[:, None], "neither a whole number nor a string"),
        (IMAGES, None, "ndarray without labels; pass labels"),
        (IMAGES, 1, "labels came as int"),
        (IMAGES[:3], "cat", "labels came as str"),
        (IMAGES[0], LABELS[:1], "numpy images must be"),
        (__file__, LABELS, "is a single file; pass a list of paths"),
        ("folder/", None, "images='folder/' does not exist; check the path"),
        (["nowhere.png"], [1], "nowhere.png cannot be read (No such file or directory)"),
        (None, LABELS, "NoneType"),
        (IMAGES, np.array(LABELS, np.uint64) + np.uint64(2**63), "does not fit into 64 bits"),
        (IMAGES, [-(2**63) - 1] * 24, "does not fit into 64 bits"),
        (IMAGES, dict(enumerate(LABELS)), "labels came as dict; give a list with one label per image"),
        (IMAGES[:2], {3, 4}, "labels came as set; give a list with one label per image"),
        (IMAGES, list(torch.eye(24, dtype=torch.long)), "of one-hot labels, give the number of the class"),
        (TensorDataset(torch.from_numpy(IMAGES), torch.eye(24)), None, "of one-hot labels, give the number"),
    ],
)
def test_bad_images_and_labels_are_refused_in_one_line(images: Any, labels: Any, line: str) -> None:
    learned = learner()
    with refused(line):
        learned.partial_fit(images, labels)
    assert learned.partial_fit(IMAGES, LABELS).phases_ == 1


Animal = StrEnum("Animal", {"CAT": "cat", "DOG": "dog"})
Number = IntEnum("Number", {"CAT": 5, "DOG": 7})


class Name(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (Animal.CAT, Animal.DOG, ("cat", "dog")),
        (Number.CAT, Number.DOG, (5, 7)),
        (Name("cat"), Name("dog"), ("cat", "dog")),
        (-(2**63), 2**63 - 1, (-(2**63), 2**63 - 1)),
    ],
)
def test_labels_become_plain_ones_that_are_predicted_saved_and_found_again(
    first: Any, second: Any, wanted: tuple[Any, ...], tmp_path: Path
) -> None:
    images, labels = digits(0, 1)
    learned = learner(epochs=3).partial_fit(images, [second if label else first for label in labels])
    assert [(label, type(label)) for label in learned.knowledge.classes] == [(label, type(label)) for label in wanted]
    assert set(learned.predict(images).tolist()) == set(wanted)
    assert learned.score(images, [second if label else first for label in labels]) > 0.5
    learned.save(tmp_path / "plain.safetensors")
    assert Learner.load(tmp_path / "plain.safetensors").knowledge.classes == learned.knowledge.classes
    assert tuple(learned.remove([second]).knowledge.classes) == wanted[:1]


def test_later_images_and_labels_must_be_like_the_first() -> None:
    learned = learner().partial_fit(IMAGES, LABELS)
    for images, labels, line in (
        (np.zeros((2, 9, 9), np.uint8), [5, 6], "9×9 pixels, expected 8×8"),
        (np.zeros((2, 8, 8, 3), np.uint8), [5, 6], "trained on (1, 8, 8)"),
        (IMAGES, ["a"] * 24, "partly numbers and partly strings"),
    ):
        with refused(line):
            learned.partial_fit(images, labels)
    with pytest.raises(UserError, match="9×9"):
        learned.predict(np.zeros((2, 9, 9), np.uint8))
    with pytest.raises(UserError, match="24 images and 3 labels"):
        learned.score(IMAGES, LABELS[:3])
    with pytest.raises(UserError, match="use fc or ncm"):
        learned.predict(IMAGES, classifier="auto")
    with pytest.raises(UserError, match="'refuse' or 'update'"):
        learned.partial_fit(IMAGES, LABELS, known="yes")  # type: ignore[arg-type]


def test_an_image_that_comes_under_two_labels_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    images, labels = digits(0, 1, count=6)
    learner().partial_fit(np.concatenate([images, images[:2]]), [*labels, 1, 1])
    assert caplog.messages.count("2 images of class 1 came as class 0, too") == 1
