"""More images of known classes, alone and together with new ones, for every method."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poise import Budget, Learner
from poise.data.images import ImageSet
from poise.data.inputs import to_pixels
from poise.learner import LearnerState
from poise.methods import METHODS
from poise.testing import check_resuming

from .samples import begun, digits, grown, keys, learner, memory_for

POLICIES: dict[str, dict[str, Any]] = {"fixed": {}, "online": {"policy": "online", "space": {"lr": [0.1, 0.05]}}}
#: What arrives: the classes of the images, and how many of each.
ARRIVALS = {"known": ((0, 2), 12), "mixed": ((1, 4), 12), "one image": ((3,), 1)}

every_case = pytest.mark.parametrize(
    ("method", "policy"), [*((method, "fixed") for method in sorted(METHODS)), ("lucir", "online")]
)


@cache
def _state(method: str, policy: str) -> LearnerState:
    return grown(method=method, **memory_for(method), **POLICIES[policy]).state()


def two_phases(method: str, policy: str) -> Learner:
    return Learner.from_state(_state(method, policy), device="cpu")


@every_case
@pytest.mark.parametrize("arrival", ARRIVALS)
def test_a_phase_of_known_classes_trains_on_them_and_refreshes_their_memory(
    method: str, policy: str, arrival: str
) -> None:
    learned, (classes, count) = two_phases(method, policy), ARRIVALS[arrival]
    before = {label: memory_of(learned, label) for label in learned.knowledge.classes}
    images, labels = digits(*classes, count=count, first=20)
    learned.partial_fit(images, labels, known="update")
    assert learned.phases_ == 3
    assert learned.knowledge.classes == (0, 1, 2, 3, *(label for label in classes if label > 3))
    for label in learned.knowledge.classes:
        arrived = {image.tobytes() for image, each in zip(images, labels, strict=True) if each == label}
        candidates = before.get(label, set()) | arrived
        assert memory_of(learned, label) <= candidates
        assert len(memory_of(learned, label)) == (len(candidates) if memory_for(method) else 4)
        if not arrived:
            assert memory_of(learned, label) == before[label]
    assert np.isfinite(learned.predict_proba(digits(0, 1, 2, 3, 4)[0])).all()
    assert learned.model.head.classes == len(learned.knowledge.classes) == len(learned.means_)  # type: ignore[arg-type]


def memory_of(learned: Learner, label: int | str) -> set[bytes]:
    return keys(learned.memory_.exemplars.of_labels([learned.knowledge.classes.index(label)]).pixels)


@pytest.mark.parametrize(
    ("method", "policy"),
    [*((method, "fixed") for method in ("aanets", "der", "foster", "joint", "ranpac")), ("lucir", "online")],
)
def test_a_phase_of_known_classes_is_resumed_in_its_middle(method: str, policy: str) -> None:
    classes, count = ARRIVALS["mixed"]
    images, labels = digits(*classes, count=count, first=20)
    for many in (len(labels), count):  # with a new class, and without
        check_resuming(partial(two_phases, method, policy), images[:many], labels[:many], stops=1, known="update")


@pytest.mark.parametrize("method", ["lucir", "icarl", "podnet", "foster", "simplecil", "ranpac", "slca"])
def test_more_images_make_a_class_better_known(method: str) -> None:
    exam = digits(0, 1, 2, 3, count=40, first=100)
    learned = learner(**{"method": method, "epochs": 8, "batch": 16, "memory": 20, **memory_for(method)}).partial_fit(
        *digits(0, 1, 2, 3)
    )
    few = learned.score(*exam)
    learned.partial_fit(*digits(0, 1, 2, 3, count=60, first=40), known="update")
    assert learned.score(*exam) > max(few + 0.03, 0.8)


@pytest.mark.parametrize("method", ["lucir", "der", "ranpac"])
@pytest.mark.parametrize(
    "memory",
    [Budget(6, reserve=2), Budget(None, total=20), Budget(4, rule="rmm", allocation=0.5)],
    ids=["reserve", "total", "rmm"],
)
def test_every_memory_takes_more_images_of_known_classes(method: str, memory: Budget) -> None:
    learned = grown(method=method, memory=memory)
    learned.partial_fit(*digits(0, 1, first=20), known="update").partial_fit(*digits(2, 4, first=40), known="update")
    assert learned.knowledge.classes == (0, 1, 2, 3, 4)
    assert {kept.label for kept in learned.exemplars()} == set(range(5))
    assert learned.held_ <= learned.budget_


# Copies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lucir", "simplecil", "joint"])
def test_the_same_images_again_are_not_kept_twice(method: str) -> None:
    made = learner(method=method, **{"memory": 20, **memory_for(method)}).partial_fit(*digits(0, 1, count=12))
    once = memory_of(made, 0)
    for _ in range(2):
        made.partial_fit(*digits(0, 1, count=12), known="update")
    assert memory_of(made, 0) == once
    assert len(made.memory_.exemplars) == 24, "each image of both classes"
    images, labels = digits(0, count=12, first=6)
    made.partial_fit(images, labels, known="update")
    assert len(made.memory_.exemplars) == 12 + 18


def test_copies_in_one_folder_are_kept_once_and_of_two_classes_twice() -> None:
    images, _ = digits(0, 1, count=4)
    doubled = np.concatenate([images, images])
    made = learner(memory=8).partial_fit(doubled, [*("ab" * 4), *("ba" * 4)])
    assert [exemplar.label for exemplar in made.exemplars()] == [*("a" * 8), *("b" * 8)], "another label, another image"
    made = learner(memory=8).partial_fit(doubled, ["a"] * 16)
    assert len(made.exemplars()) == 8


@pytest.mark.parametrize("method", ["lucir", "simplecil", "joint"])
def test_where_every_image_is_kept_so_are_copies_but_not_those_that_are_given_again(method: str) -> None:
    images, labels = digits(0, 1, count=4)
    made = learner(method=method, memory="all").partial_fit(np.concatenate([images, images]), labels * 2)
    assert len(made.exemplars()) == 16, "each of the eight images twice"
    made.partial_fit(images, labels, known="update")
    assert len(made.exemplars()) == 16
    thrice = np.concatenate([images[:1]] * 3)
    made.partial_fit(thrice, labels[:1] * 3, known="update")
    assert len(made.exemplars()) == 17, "a third copy of one of them"
    made.partial_fit(*digits(2, count=3))
    assert len(made.exemplars()) == 20


def test_no_copy_of_an_image_in_the_reserve_is_trained_on() -> None:
    images, labels = digits(0, 1, count=4)
    made = learner(memory=Budget(per_class=6, reserve=3))
    phase = begun(made, np.concatenate([images, images]), labels * 2)
    reserve, trained = ([image.numpy().tobytes() for image in part.pixels] for part in (phase.reserve, phase.new))
    assert len(reserve) == len({*reserve}) == 4, "half of the four different images of each class"
    assert not {*reserve} & {*trained}
    assert len(trained) == 8, "both copies of the others"
    made.partial_fit(np.concatenate([images, images]), labels * 2)
    assert [exemplar.reserve for exemplar in made.exemplars()] == [False, False, True, True] * 2


def test_a_class_of_one_image_and_its_copies_has_no_reserve() -> None:
    (image, *_), _ = digits(0)
    phase = begun(learner(memory=Budget(per_class=4, reserve=2)), np.stack([image] * 6), [0] * 6)
    assert (len(phase.new), len(phase.reserve)) == (6, 0)


def test_images_of_a_data_set_are_told_apart_by_their_origin() -> None:
    images, labels = digits(0, 1, count=4)
    made, pixels = learner(memory=8), to_pixels(np.concatenate([images, images]))
    twice = ImageSet(pixels, torch.tensor(labels * 2), torch.arange(16))
    for _ in made.fitting(twice):
        pass
    assert len(made.exemplars()) == 16


# Learned already ------------------------------------------------------------------------------------------------------


def test_a_learner_knows_which_images_it_has_learned(tmp_path: Path) -> None:
    (images, labels), later = digits(0, 1), digits(2, 3)
    learned = learner()
    assert not learned.has_learned(images, labels)
    learned.partial_fit(images, labels)
    assert not learned.has_learned(*later)
    learned.partial_fit(*later)
    learned.save(tmp_path / "model")
    for one in (learned, Learner.load(tmp_path / "model")):
        assert one.has_learned(images, labels)
        assert one.has_learned(torch.from_numpy(images)[:, None], np.array(labels))
        assert one.has_learned(*later)
        assert not one.has_learned(images[::-1], labels[::-1])
        assert not one.has_learned(images, [1 - label for label in labels])
        assert not one.has_learned(images[1:], labels[1:])
        assert not one.has_learned(np.concatenate([images, later[0]]), labels + later[1])


def test_where_a_class_was_removed_or_the_memory_left_out_it_does_not_know(tmp_path: Path) -> None:
    learned = grown()
    learned.save(tmp_path / "model", memory=False)
    learned.remove(2)
    for one in (learned, Learner.load(tmp_path / "model")):
        assert not one.has_learned(*digits(0, 1))
    learned.partial_fit(*digits(2, first=20))
    assert learned.has_learned(*digits(2, first=20))
