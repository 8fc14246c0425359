"""Between phases: classes removed, kept images listed and deleted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poise import Budget, Learner, UserError
from poise.data.images import ImageSet
from poise.data.inputs import to_pixels
from poise.learner import LearnerState
from poise.methods import METHODS

from .samples import Flat, digits, grown, keys, learner, memory_for, refused, state_bytes


@cache
def _state(method: str) -> LearnerState:
    return grown(method=method, **memory_for(method)).partial_fit(*digits(4)).state()


def three_phases(method: str) -> Learner:
    """A learner of the classes 0 to 4 after three phases: rows of old classes and of new ones."""
    return Learner.from_state(_state(method), device="cpu")


# Classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("gone", [[1], [4], [0, 1, 2, 3], [0, 2, 4]], ids=str)
def test_the_other_classes_are_predicted_as_by_the_scores_that_are_left(method: str, gone: list[int]) -> None:
    learned, (images, _) = three_phases(method), digits(0, 1, 2, 3, 4, first=40)
    left = [label for label in range(5) if label not in gone]
    before = {name: scores[:, left] for name, scores in learned._scores(images).items()}
    assert learned.remove(gone) is learned
    assert learned.knowledge.classes == tuple(left)
    for name, scores in learned._scores(images).items():
        torch.testing.assert_close(scores, before[name], rtol=1e-5, atol=1e-5)
        predicted = learned.predict(images, classifier=name)
        assert predicted.tolist() == [left[row] for row in before[name].argmax(dim=1).tolist()]
    assert {each.label for each in learned.exemplars()} == set(left)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_learner_without_a_class_learns_further_and_the_same_class_again(method: str, tmp_path: Path) -> None:
    learned = three_phases(method).remove(1)
    learned.save(tmp_path / "without")
    files = []
    for each in (learned, Learner.load(tmp_path / "without", device="cpu")):
        each.partial_fit(*digits(1, 5, first=20))
        assert each.knowledge.classes == (0, 2, 3, 4, 1, 5)
        assert np.isfinite(each.predict_proba(digits(0, 1, 5)[0])).all()
        assert sorted({kept.label for kept in each.exemplars()}) == [0, 1, 2, 3, 4, 5]
        files.append(state_bytes(each, tmp_path))
    assert files[0] == files[1]


def test_a_class_that_returns_after_its_removal_is_known_again() -> None:
    learned = learner(method="icarl", epochs=10, batch=32, memory=20).partial_fit(*digits(0, 1, 2, count=60)).remove(1)
    exam = digits(1, count=60, first=60)
    assert 1 not in learned.predict(exam[0])
    assert learned.partial_fit(*digits(1, 3, count=60)).score(*exam) > 0.8
    assert learned.score(*digits(0, 1, 2, 3, count=60, first=60)) > 0.7


@pytest.mark.parametrize("method", ["finetune", "simplecil", "slca"])
def test_without_any_image_the_means_that_were_measured_stay_with_their_classes(method: str, tmp_path: Path) -> None:
    learned = grown(method=method, memory=0).partial_fit(*digits(4, count=7))
    means = learned.means_[[1, 3, 4]].clone()  # type: ignore[index]
    learned.remove([0, 2]).save(tmp_path / "without")
    assert torch.equal(learned.means_, means)  # type: ignore[arg-type]
    assert learned.knowledge.mean_images == (12, 12, 7)
    again = Learner.load(tmp_path / "without", device="cpu").partial_fit(*digits(5, count=9))
    assert again.knowledge.classes == (1, 3, 4, 5)
    assert again.knowledge.mean_images == (12, 12, 7, 9)


def test_a_policy_goes_on_from_its_history(tmp_path: Path) -> None:
    learned = grown(policy="online", space={"lr": [0.1, 0.05]})
    tried = len(learned.knowledge.history)
    learned.remove(0).save(tmp_path / "without")
    again = Learner.load(tmp_path / "without", device="cpu").partial_fit(*digits(4))
    assert len(again.knowledge.history) > tried > 0
    assert again.knowledge.classes == (1, 2, 3, 4)


def test_reserve_strings_a_net_of_ones_own_and_a_file_without_memory(tmp_path: Path) -> None:
    images, labels = digits(0, 1, 2)
    names = [f"class {label}" for label in labels]
    net = Flat()
    learned = learner(net=net, memory=Budget(4, reserve=2)).partial_fit(images, names)
    learned.save(tmp_path / "predicts", memory=False)
    learned.remove("class 1")
    assert sorted(set(learned.memory_.reserve.labels.tolist())) == [0, 1]
    assert keys(learned.memory_.reserve.pixels) <= keys(
        torch.from_numpy(np.concatenate([images[:12], images[24:]]))[:, None]
    )
    alone = Learner.load(tmp_path / "predicts", device="cpu", net=net).remove(np.array(["class 1", "class 0"]))
    assert set(alone.predict(images)) == {"class 2"}
    assert set(learned.predict(images)) <= {"class 0", "class 2"}


def test_the_images_of_a_removed_class_are_in_no_file(tmp_path: Path) -> None:
    learned = grown()
    kept = [each.image.tobytes() for each in learned.exemplars() if each.label == 2]
    assert all(image in state_bytes(learned, tmp_path) for image in kept)
    left = state_bytes(learned.remove(np.array(2)), tmp_path)
    assert len(kept) == 4
    assert not any(image in left for image in kept)


@pytest.mark.parametrize(
    ("change", "given", "line"),
    [
        (Learner.remove, [0, 1, 2, 3], "all the classes"),
        (Learner.remove, 7, "class 7 is not known"),
        (Learner.remove, [0, "0"], "class '0' is not known, but 0 is: labels of this learner are whole numbers"),
        (Learner.remove, [], "no class was named"),
        (Learner.remove, True, "neither a whole number nor a string"),
        (Learner.remove, None, "label None is neither a whole number nor a string"),
        (Learner.delete_exemplars, 3, "no kept image has the id 3"),
        (Learner.delete_exemplars, ["1234", 3], "no kept image has the id '1234'"),
        (Learner.delete_exemplars, [], "no id was given"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line_and_nothing_changes(
    change: Any, given: Any, line: str, tmp_path: Path
) -> None:
    learned = grown()
    before = state_bytes(learned, tmp_path)
    with refused(line):
        change(learned, given)
    assert state_bytes(learned, tmp_path) == before


def test_nothing_is_changed_in_the_middle_of_a_saved_phase(tmp_path: Path) -> None:
    learned = grown()
    running = learned.fitting(*digits(4))
    next(running)
    learned.save(tmp_path / "middle")
    again = Learner.load(tmp_path / "middle", device="cpu")
    with pytest.raises(UserError, match="in the middle of a phase"):
        again.remove(0)
    with pytest.raises(UserError, match="in the middle of a phase"):
        again.delete_exemplars("0")


def test_a_phase_that_was_asked_for_before_a_removal_is_refused() -> None:
    learned = grown()
    running = learned.fitting(*digits(4))
    learned.remove(0)
    with pytest.raises(UserError, match="call fitting again"):
        next(running)


# Single images ----------------------------------------------------------------------------------------------------


def means_anew(learned: Learner) -> torch.Tensor:
    assert learned.model is not None
    assert learned.memory_ is not None
    return learned.evaluator.class_means(learned.model, learned.memory_.exemplars, len(learned.knowledge.classes))


def test_every_kept_image_is_listed_with_a_stable_id(tmp_path: Path) -> None:
    images, labels = digits(0, 1)
    learned = learner(memory=Budget(4, reserve=1))
    for _ in learned.fitting(ImageSet(to_pixels(images), torch.tensor(labels), torch.arange(100, 124))):
        pass
    learned.save(tmp_path / "state")
    for each in (learned, Learner.load(tmp_path / "state", device="cpu")):
        listed = each.exemplars()
        assert [(kept.label, kept.index) for kept in listed] == [
            (label, index) for label in (0, 1) for index in range(4)
        ]
        assert [kept.reserve for kept in listed] == [False, False, False, True] * 2
        for kept in listed:
            assert kept.origin is not None
            np.testing.assert_array_equal(kept.image, images[kept.origin - 100])
            assert each.image_ids(images)[kept.origin - 100] == kept.id
        assert listed == learned.exemplars()
    assert grown().exemplars()[0].origin is None


@pytest.mark.parametrize("reserve", [0, 2])
def test_a_deleted_image_is_gone_from_memory_means_and_file(reserve: int, tmp_path: Path) -> None:
    learned = grown(memory=Budget(6, reserve=reserve))
    listed = learned.exemplars()
    gone = [kept for kept in listed if kept.label in (0, 3) and kept.index == 1]
    others = learned.means_[[1, 2]].clone()  # type: ignore[index]
    assert all(kept.image.tobytes() in state_bytes(learned, tmp_path) for kept in gone)
    assert learned.delete_exemplars([kept.id for kept in gone]) is learned
    assert {kept.id for kept in learned.exemplars()} == {kept.id for kept in listed} - {kept.id for kept in gone}
    torch.testing.assert_close(learned.means_, means_anew(learned))
    kept_for = [kept.label for kept in learned.exemplars() if not kept.reserve]
    assert list(learned.knowledge.mean_images) == [kept_for.count(label) for label in learned.knowledge.classes]
    assert torch.equal(learned.means_[[1, 2]], others)  # type: ignore[index]
    left = state_bytes(learned, tmp_path)
    assert not any(kept.image.tobytes() in left for kept in gone)
    resumed = Learner.load(tmp_path / "state.safetensors", device="cpu")
    for each in (learned, resumed):
        each.partial_fit(*digits(4))
    assert state_bytes(learned, tmp_path) == state_bytes(resumed, tmp_path)


def test_every_copy_of_a_deleted_image_goes() -> None:
    images, labels = digits(0, 1, count=4)
    learned = learner(memory=9).partial_fit(np.concatenate([images, images[:1]]), [*labels, 1])  # under both labels
    (twice,) = {kept.id for kept in learned.exemplars()} & {learned.image_ids(images[:1])[0]}
    assert [kept.id for kept in learned.exemplars()].count(twice) == 2
    learned.delete_exemplars(twice)
    assert len(learned.exemplars()) == 7
    assert twice not in {kept.id for kept in learned.exemplars()}


def test_the_last_image_of_a_class_stays_and_the_line_says_what_to_do(tmp_path: Path) -> None:
    learned = grown()
    before = state_bytes(learned, tmp_path)
    ids = [kept.id for kept in learned.exemplars() if kept.label == 1]
    with refused("class 1 would have no image left to train on; remove(1), or"):
        learned.delete_exemplars(ids)
    assert state_bytes(learned, tmp_path) == before


def test_without_a_memory_there_is_nothing_to_list(tmp_path: Path) -> None:
    grown().save(tmp_path / "predicts", memory=False)
    with pytest.raises(UserError, match="saved without its memory"):
        Learner.load(tmp_path / "predicts").exemplars()
