"""The learner as a user meets it: arrays, labels and files in, labels and probabilities out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

from poise import Augmentation, Learner
from poise.data import Budget
from poise.errors import Diverged, PoiseError, UserError
from poise.training import EpochDone, PhaseDone, PhaseStarted, StepDone

Pixels = NDArray[np.uint8]
_BUNCH = load_digits()
_PIXELS = np.rint(_BUNCH.images * (255 / 16)).astype(np.uint8)


def digits(*classes: int, count: int = 12, first: int = 0) -> tuple[Pixels, list[int]]:
    """Some images of each of these digits, [N, 8, 8]."""
    picks = [np.flatnonzero(_BUNCH.target == label)[first : first + count] for label in classes]
    return _PIXELS[np.concatenate(picks)], [label for label in classes for _ in range(count)]


def learner(**settings: Any) -> Learner:
    return Learner(**{"policy": "fixed", "net": "small", "epochs": 1, "batch": 8, "memory": 4, **settings})


def grown(**settings: Any) -> Learner:
    """A learner after two phases."""
    return learner(**settings).partial_fit(*digits(0, 1)).partial_fit(*digits(2, 3))


def state_bytes(learned: Learner, folder: Path) -> bytes:
    learned.save(folder / "state.safetensors")
    return (folder / "state.safetensors").read_bytes()


def keys(images: Tensor) -> set[bytes]:
    """Something to recognise each image by."""
    return {image.numpy().tobytes() for image in images}


def refusal(error: pytest.ExceptionInfo[PoiseError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


class Flat(nn.Module):
    """The smallest backbone that a user could write."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.map = nn.Linear(64, width)

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", self.map(images.flatten(1)))


# Learning and predicting ------------------------------------------------------------------------------------------


def test_it_learns_to_tell_digits_apart() -> None:
    train, labels = digits(0, 1, count=60)
    more, more_labels = digits(2, 3, count=60)
    learned = learner(epochs=10, batch=32, memory=20).partial_fit(train, labels)
    assert learned.score(*digits(0, 1, count=60, first=60)) > 0.95
    learned.partial_fit(more, more_labels)
    assert learned.score(*digits(0, 1, 2, 3, count=60, first=60)) > 0.7
    assert learned.classes_ == (0, 1, 2, 3)
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
        assert (predicted == np.asarray(learned.classes_)[chances.argmax(axis=1)]).all()
        assert (predicted == both[classifier]).all()
    assert (learned.predict(images) == both[learned.classifier_]).all()
    assert learned.classifier_ == ("ncm" if method == "icarl" else "fc")


def test_the_score_is_the_share_of_right_labels() -> None:
    learned, (images, labels) = grown(), digits(0, 1, 2, 3, first=40)
    right = [bool(a == b) for a, b in zip(learned.predict(images), labels, strict=True)]
    assert learned.score(images, labels) == pytest.approx(sum(right) / len(right))


def test_labels_may_be_strings_and_keep_the_order_of_arrival() -> None:
    images, labels = digits(5, 6)
    names = {5: "zebra", 6: "ape", 1: "bee"}
    learned = learner().partial_fit(images, [names[label] for label in labels])
    more, more_labels = digits(1)
    learned.partial_fit(more, np.array([names[label] for label in more_labels]))
    assert learned.classes_ == ("ape", "zebra", "bee")
    assert set(learned.predict(images).tolist()) <= {"ape", "zebra", "bee"}
    assert 0 <= learned.score(images, [names[label] for label in labels]) <= 1


def test_labels_may_be_tensors_arrays_or_numpy_numbers() -> None:
    images, labels = digits(0, 1)
    forms: list[Any] = [torch.tensor(labels), np.array(labels, dtype=np.int8), [np.int64(label) for label in labels]]
    for given in forms:
        assert learner().partial_fit(images, given).classes_ == (0, 1)


def test_all_forms_of_the_same_images_are_the_same_to_it(tmp_path: Path) -> None:
    images, labels = digits(0, 1)
    forms: list[Any] = [images, images[..., None], torch.from_numpy(images)[:, None], list(images)]
    learned = [learner().partial_fit(form, labels) for form in forms]
    expected = learned[0].predict_proba(images)
    for form, one in zip(forms, learned, strict=True):
        assert np.array_equal(one.predict_proba(form), expected)
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    assert np.array_equal(learned[0].predict_proba(paths), expected)
    assert np.array_equal(learned[0].predict_proba([str(path) for path in paths]), expected)


def test_files_are_read_in_colour_and_at_the_size_asked_for(tmp_path: Path) -> None:
    paths, labels = [], []
    for number in range(8):
        colour = (250, 10, 10) if number % 2 else (10, 10, 250)
        Image.new("RGB", (20 + number, 18), colour).save(tmp_path / f"{number}.png")
        paths.append(tmp_path / f"{number}.png")
        labels.append("red" if number % 2 else "blue")
    learned = learner(image_size=16, epochs=5).partial_fit(paths, labels)
    assert learned.shape_ == (3, 16, 16)
    assert learned.predict(paths[:2]).shape == (2,)


def test_it_trains_on_a_copy_of_what_it_was_given() -> None:
    images, labels = digits(0, 1)
    learned, expected = learner().partial_fit(images, labels), learner().partial_fit(images, labels)
    held = learned.memory
    images[:] = 0
    assert held is not None
    assert expected.memory is not None
    assert int(held.exemplars.pixels.sum()) > 0
    assert torch.equal(held.exemplars.pixels, expected.memory.exemplars.pixels)


# Little data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lucir", "icarl", "lwf"])
def test_one_class_then_one_image_works(method: str) -> None:
    learned = learner(method=method).partial_fit(*digits(0))
    assert learned.predict(digits(0)[0]).tolist() == [0] * 12
    learned.partial_fit(*digits(1, count=1))
    assert learned.classes_ == (0, 1)
    assert len(learned.memory or ()) == 4 + 1
    assert np.isfinite(learned.predict_proba(digits(0, 1)[0])).all()


@pytest.mark.parametrize("net", ["small", "resnet32", "resnet18", Flat()])
def test_one_image_in_all_works_with_every_net(net: str | nn.Module) -> None:
    learned = learner(net=net, memory=Budget(4, reserve=2)).partial_fit(*digits(7, count=1))
    assert learned.predict(digits(7, count=2)[0]).tolist() == [7, 7]
    assert len(learned.memory or ()) == 1


def test_fewer_images_than_the_memory_wants_are_all_kept() -> None:
    learned = learner(memory=50).partial_fit(*digits(0, 1, count=5))
    assert learned.memory is not None
    assert keys(learned.memory.exemplars.pixels) == keys(torch.from_numpy(digits(0, 1, count=5)[0])[:, None])


# Known classes ----------------------------------------------------------------------------------------------------


def test_new_images_of_a_known_class_are_refused_and_the_way_is_named(tmp_path: Path) -> None:
    learned = grown()
    before = state_bytes(learned, tmp_path)
    with pytest.raises(UserError) as error:
        learned.partial_fit(*digits(3, 4))
    assert "class 3 is known already" in refusal(error)
    assert "known='update'" in refusal(error)
    assert state_bytes(learned, tmp_path) == before


@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_an_update_trains_on_known_classes_and_refreshes_their_memory(method: str) -> None:
    learned = grown(method=method)
    assert learned.memory is not None
    assert learned.model is not None
    before, weights = learned.memory.exemplars, learned.model.backbone.state_dict()
    fresh, labels = digits(0, count=40, first=60)
    learned.partial_fit(fresh, labels, known="update")
    after = learned.memory.exemplars
    assert learned.classes_ == (0, 1, 2, 3)
    assert learned.phases_ == 3
    assert keys(after.of_labels([0]).pixels) & keys(torch.from_numpy(fresh)[:, None])
    allowed = keys(before.of_labels([0]).pixels) | keys(torch.from_numpy(fresh)[:, None])
    assert keys(after.of_labels([0]).pixels) <= allowed
    assert len(after.of_labels([0])) == 4
    for row in (1, 2, 3):
        assert torch.equal(after.of_labels([row]).pixels, before.of_labels([row]).pixels)
    assert any(not torch.equal(weights[name], new) for name, new in learned.model.backbone.state_dict().items())


def test_an_update_may_bring_new_classes_too() -> None:
    learned = grown().partial_fit(*digits(1, 9, first=30), known="update")
    assert learned.classes_ == (0, 1, 2, 3, 9)
    assert learned.predict_proba(digits(9)[0]).shape == (12, 5)


# One's own backbone -----------------------------------------------------------------------------------------------


def test_a_backbone_of_ones_own_is_trained_and_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = Flat()
    given = {name: value.clone() for name, value in net.state_dict().items()}
    learned = grown(net=net)
    assert all(torch.equal(value, given[name]) for name, value in net.state_dict().items())
    assert learned.model is not None
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
        (nn.Conv2d(3, 4, 3), "does not take images of shape (1, 8, 8)"),
        (nn.Conv2d(1, 4, 3), "must return features of shape [batch, width]"),
        (nn.LSTM(8, 3), "your net"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_in_one_line(net: nn.Module, line: str) -> None:
    learned = learner(net=net)
    with pytest.raises(UserError) as error:
        learned.partial_fit(*digits(0, 1))
    assert line in refusal(error)
    assert learned.phases_ == 0


def test_a_class_instead_of_a_module_is_refused() -> None:
    with pytest.raises(UserError, match=r"net=Net\(\)"):
        Learner(net=cast("nn.Module", Flat))


def test_another_module_than_the_one_saved_is_refused(tmp_path: Path) -> None:
    learner(net=Flat()).partial_fit(*digits(0, 1)).save(tmp_path / "own")
    with pytest.raises(UserError, match="does not fit the saved weights"):
        Learner.load(tmp_path / "own", net=Flat(width=7))
    learner().partial_fit(*digits(0, 1)).save(tmp_path / "named")
    with pytest.raises(UserError, match="leave net out"):
        Learner.load(tmp_path / "named", net=Flat())


# Saving and loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_what_was_saved_predicts_and_learns_on_as_if_it_never_had_been(method: str, tmp_path: Path) -> None:
    settings = {"method": method, "action": {"classifier": "auto"}, "memory": Budget(6, reserve=2), "seed": 5}
    learned = grown(**settings)
    learned.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    images = digits(0, 1, 2, 3, first=40)[0]
    assert loaded.classes_ == learned.classes_
    assert loaded.classifier_ == learned.classifier_
    assert loaded.settings == learned.settings
    for classifier in ("fc", "ncm"):
        ours, theirs = (one.predict_proba(images, classifier=classifier) for one in (learned, loaded))
        assert np.array_equal(ours, theirs)
    assert state_bytes(loaded, tmp_path) == state_bytes(learned, tmp_path)
    for one in (learned, loaded):
        one.partial_fit(*digits(4, 5))
    assert state_bytes(loaded, tmp_path) == state_bytes(learned, tmp_path)


def test_string_labels_survive_saving(tmp_path: Path) -> None:
    images, labels = digits(0, 1)
    learner().partial_fit(images, [f"class {label}" for label in labels]).save(tmp_path / "model")
    assert Learner.load(tmp_path / "model").classes_ == ("class 0", "class 1")


def test_without_its_memory_it_predicts_but_refuses_to_learn(tmp_path: Path) -> None:
    learned = grown(memory=Budget(4, reserve=1))
    learned.save(tmp_path / "model", memory=False)
    assert not [name for name, tensor in load_file(tmp_path / "model").items() if tensor.dtype == torch.uint8]
    loaded = Learner.load(tmp_path / "model")
    images = digits(0, 1, 2, 3)[0]
    assert np.array_equal(loaded.predict_proba(images), learned.predict_proba(images))
    with pytest.raises(UserError, match="without its memory"):
        loaded.partial_fit(*digits(4))


def test_the_file_says_whether_it_contains_training_images(tmp_path: Path) -> None:
    learned = grown()
    learned.save(tmp_path / "model")
    held = [tensor for tensor in load_file(tmp_path / "model").values() if tensor.dtype == torch.uint8]
    assert sum(len(tensor) for tensor in held) == len(learned.memory or ()) == 16


def test_nothing_learned_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learned nothing yet"):
        learner().save(tmp_path / "model")
    with pytest.raises(UserError, match="does not exist"):
        grown().save(tmp_path / "nowhere" / "model")
    with pytest.raises(UserError, match="does not exist"):
        Learner.load(tmp_path / "model")


def test_saved_in_the_middle_of_a_phase_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole, stopped = learner(batch=12).partial_fit(*digits(0, 1)), learner(batch=12).partial_fit(*digits(0, 1))
    events = [type(event) for event in whole.fitting(*digits(2, 3))]
    for many in range(1, len(events) + 1):
        learned = Learner.load(_saved(stopped, tmp_path))
        halves = learned.fitting(*digits(2, 3))
        seen = [type(next(halves)) for _ in range(many)]
        again = Learner.load(_saved(learned, tmp_path))
        if events[many - 1] is not PhaseDone:
            seen += [type(event) for event in again.fitting(*digits(2, 3))]
        assert seen == events
        assert state_bytes(again, tmp_path) == state_bytes(whole, tmp_path)


def _saved(learned: Learner, folder: Path) -> Path:
    learned.save(folder / "middle")
    return folder / "middle"


def test_saved_in_the_middle_of_a_phase_it_wants_the_same_images(tmp_path: Path) -> None:
    learned = grown()
    events = learned.fitting(*digits(4))
    next(events)
    again = Learner.load(_saved(learned, tmp_path))
    with pytest.raises(UserError, match="give it the same ones"):
        again.partial_fit(*digits(5))


# When something goes wrong in the middle -------------------------------------------------------------------------


def test_a_diverged_phase_changes_nothing(tmp_path: Path) -> None:
    learned = learner(action={"lr": 1e9}, epochs=3).partial_fit(*digits(0, 1))
    before = state_bytes(learned, tmp_path)
    with pytest.raises(Diverged) as error:
        learned.partial_fit(*digits(2, 3))
    assert "lower the learning rate" in refusal(error)
    assert state_bytes(learned, tmp_path) == before
    assert learned.classes_ == (0, 1)
    assert learned.predict(digits(0)[0]).shape == (12,)


@pytest.mark.parametrize("rate", [1e4, 1e6, 1e9])
@pytest.mark.parametrize("method", ["lucir", "icarl"])
def test_however_far_it_diverged_no_probability_is_not_a_number(method: str, rate: float) -> None:
    learned = learner(method=method, first_lr=rate)
    try:
        learned.partial_fit(*digits(0, 1))
    except Diverged:
        assert learned.phases_ == 0
    else:
        assert np.isfinite(learned.predict_proba(digits(0, 1)[0])).all()


def test_an_exception_thrown_into_the_phase_changes_nothing(tmp_path: Path) -> None:
    learned, twin = grown(), grown()
    before = state_bytes(learned, tmp_path)
    events = learned.fitting(*digits(4, 5))
    for event in events:
        if isinstance(event, StepDone):
            break
    with pytest.raises(KeyboardInterrupt) as held:
        events.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert state_bytes(learned, tmp_path) == before
    assert held.value is not None
    after = [state_bytes(one.partial_fit(*digits(4, 5)), tmp_path) for one in (learned, twin)]
    assert after[0] == after[1]


def test_a_phase_left_early_changes_nothing(tmp_path: Path) -> None:
    learned, twin = grown(), grown()
    before = state_bytes(learned, tmp_path)
    events = learned.fitting(*digits(4, 5))
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert state_bytes(learned, tmp_path) == before
    after = [state_bytes(one.partial_fit(*digits(4, 5)), tmp_path) for one in (learned, twin)]
    assert after[0] == after[1]


def test_a_phase_that_another_overtook_is_refused(tmp_path: Path) -> None:
    learned = grown()
    early, late = learned.fitting(*digits(4)), learned.fitting(*digits(5))
    next(early)
    learned.partial_fit(*digits(6))
    before = state_bytes(learned, tmp_path)
    for events in (early, late):
        with pytest.raises(UserError, match="in the meantime"):
            list(events)
    assert state_bytes(learned, tmp_path) == before


# Nothing outside is touched --------------------------------------------------------------------------------------


def _global_state() -> list[bytes]:
    flags = (
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
    )
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is the point
    return [
        torch.get_rng_state().numpy().tobytes(),
        repr(numpy_state).encode(),
        repr(random.getstate()).encode(),
        repr(flags).encode(),
    ]


def test_global_random_state_and_flags_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = _global_state()
    learned = learner(deterministic=True)
    images, labels = digits(0, 1)
    events = learned.fitting(images, labels)
    for _ in events:
        assert _global_state() == before
    learned.partial_fit(*digits(2, 3))
    learned.predict(images)
    learned.predict_proba(images)
    learned.score(images, labels)
    learned.save(tmp_path / "model")
    Learner.load(tmp_path / "model").partial_fit(*digits(4))
    with pytest.raises(UserError):
        learned.partial_fit(images, labels)
    assert _global_state() == before


def test_the_result_does_not_depend_on_global_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = state_bytes(grown(), tmp_path)
    torch.manual_seed(2)
    assert state_bytes(grown(), tmp_path) == first


def test_other_seeds_give_other_learners(tmp_path: Path) -> None:
    images = digits(0, 1, 2, 3)[0]
    first, second = (grown(seed=seed).predict_proba(images) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_it_knows_nothing_of_the_future() -> None:
    learned = learner().partial_fit(*digits(0, 1))
    assert learned.model is not None
    assert learned.model.head.classes == 2
    assert learned.predict_proba(digits(5)[0]).shape == (12, 2)
    events = list(learned.fitting(*digits(2)))
    assert isinstance(events[0], PhaseStarted)
    assert (events[0].new_classes, events[0].classes, events[0].new_images, events[0].memory_images) == (1, 3, 12, 8)
    assert isinstance(events[-1], PhaseDone)
    assert sum(isinstance(event, EpochDone) for event in events) == 1


# Memory and reserve -----------------------------------------------------------------------------------------------


def test_the_reserve_is_inside_the_budget_and_apart_from_the_exemplars() -> None:
    learned = learner(memory=Budget(6, reserve=2)).partial_fit(*digits(0, 1)).partial_fit(*digits(2))
    assert learned.memory is not None
    kept, reserve = learned.memory.exemplars, learned.memory.reserve
    assert torch.bincount(kept.labels).tolist() == [4, 4, 4]
    assert torch.bincount(reserve.labels).tolist() == [2, 2, 2]
    assert not keys(kept.pixels) & keys(reserve.pixels)


def test_the_reserve_is_never_trained_on() -> None:
    learned = learner(memory=Budget(6, reserve=2))
    for classes in ((0, 1), (2,), (3,)):
        events = learned.fitting(*digits(*classes))
        for event in events:
            if isinstance(event, StepDone):
                break
        assert learned._job is not None
        assert learned._job.trainer is not None
        fed = keys(learned._job.trainer.feed.pixels)
        list(events)
        assert learned.memory is not None
        assert len(learned.memory.reserve) == 2 * len(learned.classes_)
        assert not fed & keys(learned.memory.reserve.pixels)


def test_a_total_budget_is_shared_among_the_classes() -> None:
    learned = learner(memory=Budget(per_class=None, total=12))
    counts = []
    for label in range(4):
        learned.partial_fit(*digits(label))
        assert learned.memory is not None
        counts.append(torch.bincount(learned.memory.exemplars.labels).tolist())
    assert counts == [[12], [6, 6], [4, 4, 4], [3, 3, 3, 3]]


def test_a_class_that_shrinks_keeps_its_first_exemplars() -> None:
    learned = learner(memory=Budget(per_class=None, total=12)).partial_fit(*digits(0))
    assert learned.memory is not None
    first = learned.memory.exemplars.of_labels([0]).pixels
    learned.partial_fit(*digits(1))
    assert torch.equal(learned.memory.exemplars.of_labels([0]).pixels, first[:6])


def test_a_budget_that_is_too_small_is_refused_before_training() -> None:
    learned = learner(memory=Budget(per_class=None, total=3)).partial_fit(*digits(0, 1))
    with pytest.raises(UserError, match="use at least 4"):
        learned.fitting(*digits(2, 3))
    assert learned.phases_ == 1


def test_auto_becomes_the_classifier_that_is_better_on_the_reserve() -> None:
    learned = learner(action={"classifier": "auto"}, memory=Budget(8, reserve=4), epochs=2)
    learned.partial_fit(*digits(0, 1))
    assert learned.classifier_ == "fc"
    learned.partial_fit(*digits(2, 3))
    assert learned.classifier_ in ("fc", "ncm")
    assert learned.action_.classifier == "auto"
    hits = learned._judged
    assert hits["fc"] == hits["ncm"] or learned.classifier_ == max(hits, key=lambda name: hits[name])
    images = digits(0, 1)[0]
    assert (learned.predict(images) == learned.predict(images, classifier=learned.classifier_)).all()


# Bad input --------------------------------------------------------------------------------------------------------

IMAGES, LABELS = digits(0, 1)


@pytest.mark.parametrize(
    ("images", "labels", "line"),
    [
        (IMAGES / 255, LABELS, "expected uint8"),
        (IMAGES, LABELS[:-1], "24 images and 23 labels"),
        (IMAGES, [*LABELS[:-1], "one"], "partly numbers and partly strings"),
        (IMAGES[:0], [], "no images"),
        ([], [], "no images"),
        (IMAGES, np.array(LABELS) / 2, "neither a whole number nor a string"),
        (IMAGES, [True] * 24, "neither a whole number nor a string"),
        (IMAGES, np.array(LABELS)[:, None], "neither a whole number nor a string"),
        (IMAGES, None, "labels came as NoneType"),
        (IMAGES, 1, "labels came as int"),
        (IMAGES[:3], "cat", "labels came as str"),
        (IMAGES[0], LABELS[:1], "numpy images must be"),
        ("folder/", LABELS, "is a single path"),
        (["nowhere.png"], [1], "nowhere.png does not exist"),
        (None, LABELS, "NoneType"),
    ],
)
def test_bad_images_and_labels_are_refused_in_one_line(images: Any, labels: Any, line: str) -> None:
    learned = learner()
    with pytest.raises(UserError) as error:
        learned.partial_fit(images, labels)
    assert line in refusal(error)
    assert learned.partial_fit(IMAGES, LABELS).phases_ == 1


def test_later_images_and_labels_must_be_like_the_first() -> None:
    learned = learner().partial_fit(IMAGES, LABELS)
    for images, labels, line in (
        (np.zeros((2, 9, 9), np.uint8), [5, 6], "9×9 pixels, expected 8×8"),
        (np.zeros((2, 8, 8, 3), np.uint8), [5, 6], "trained on (1, 8, 8)"),
        (IMAGES, ["a"] * 24, "partly numbers and partly strings"),
    ):
        with pytest.raises(UserError) as error:
            learned.partial_fit(images, labels)
        assert line in refusal(error)
    with pytest.raises(UserError, match="9×9"):
        learned.predict(np.zeros((2, 9, 9), np.uint8))
    with pytest.raises(UserError, match="24 images and 3 labels"):
        learned.score(IMAGES, LABELS[:3])
    with pytest.raises(UserError, match="use fc or ncm"):
        learned.predict(IMAGES, classifier="auto")
    with pytest.raises(UserError, match="'refuse' or 'update'"):
        learned.partial_fit(IMAGES, LABELS, known="yes")


def test_predicting_before_learning_says_what_to_call() -> None:
    for ask in (learner().predict, learner().predict_proba, learner().predictions):
        with pytest.raises(UserError, match="call partial_fit first"):
            ask(IMAGES)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "lucri"}, "unknown method 'lucri'; did you mean 'lucir'?"),
        ({"policy": "fixd"}, "unknown policy 'fixd'; did you mean 'fixed'?"),
        ({"net": "resnet23"}, "unknown net 'resnet23'; did you mean 'resnet32'?"),
        ({"net": "resnet32/lucri"}, "did you mean 'lucir'?"),
        ({"options": {"lambda_bse": 3.0}}, "did you mean 'lambda_base'?"),
        ({"method": "icarl", "options": {"loss": "sigmod"}}, "did you mean 'sigmoid'?"),
        ({"action": {"feature_dk": 1.0}}, "unknown action axis 'feature_dk'; did you mean 'feature_kd'?"),
        ({"action": {"classifier": "nmc"}}, "did you mean 'ncm'?"),
        ({"action": {"lr": float("nan")}}, "must be above 0 and finite"),
        ({"action": {"feature_kd": -1.0}}, "must be at least 0"),
        ({"precision": "bf61"}, "did you mean 'bf16'?"),
        ({"device": "gpu"}, "use auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, "use device=cpu"),
        ({"epochs": 0}, "epochs=0 must be a whole number, at least 1"),
        ({"epochs": "3"}, "must be a whole number"),
        ({"batch": 1}, "batch=1 must be a whole number, at least 2"),
        ({"momentum": -1}, "momentum=-1"),
        ({"weight_decay": float("inf")}, "weight_decay=inf"),
        ({"memory": 0}, "memory.per_class=0 must be a whole number, at least 1"),
        ({"memory": "20"}, "memory.per_class='20' must be a whole number"),
        ({"memory": True}, "memory.per_class=True must be a whole number"),
        ({"seed": "x"}, "seed='x' must be a whole number"),
        ({"first_lr": 0}, "first_lr=0 must be a number above 0"),
        ({"image_size": -3}, "image_size=-3 must be a whole number, at least 8"),
        ({"momentum": "a"}, "momentum='a' must be a number"),
        ({"action": [1]}, "must be a mapping"),
        ({"method": 3}, "unknown method '3'"),
        ({"options": {"lambda_base": float("nan")}}, "lambda_base=nan must be a number above 0"),
    ],
)
def test_a_word_or_number_that_does_not_fit_is_refused_when_the_learner_is_made(
    settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError) as error:
        Learner(**settings)
    assert line in refusal(error)


@pytest.mark.parametrize("values", [{"per_class": 5, "total": 9}, {"per_class": None}, {"per_class": 3, "reserve": 3}])
def test_a_budget_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="memory"):
        Budget(**values)


def test_its_own_augmentation_survives_in_the_middle_of_the_first_phase() -> None:
    settings: dict[str, Any] = {"net": "small", "epochs": 2, "memory": 4, "device": "cpu"}
    straight = Learner(**settings, augmentation=Augmentation(pad=1, flip=False))
    for event in straight.fitting(*digits(0, 1)):
        if isinstance(event, EpochDone) and event.epoch == 1:
            tensors, meta = straight.state(images=True)
            saved = {name: value.clone() for name, value in tensors.items()}
    resumed = Learner.from_state(saved, meta, device="cpu")
    list(resumed.fitting(*digits(0, 1)))
    assert resumed.preprocessing == straight.preprocessing
    assert resumed.model is not None
    assert straight.model is not None
    for name, value in straight.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


def test_an_image_that_comes_again_is_not_trained_on_if_it_is_in_the_reserve() -> None:
    learned = learner(memory=Budget(6, reserve=2)).partial_fit(*digits(0, 1))
    assert learned.memory is not None
    reserve = keys(learned.memory.reserve.pixels)
    for event in learned.fitting(*digits(0, 1), known="update"):
        if isinstance(event, StepDone):
            assert learned._job is not None
            assert learned._job.trainer is not None
            assert not keys(learned._job.trainer.feed.pixels) & reserve
    assert learned.memory is not None
    assert not keys(learned.memory.exemplars.pixels) & keys(learned.memory.reserve.pixels)
    pixels, labels = learned.memory.reserve.pixels, learned.memory.reserve.labels
    with pytest.raises(UserError, match="in the reserve already"):
        learned.partial_fit(pixels, [learned.classes_[row] for row in labels.tolist()], known="update")
