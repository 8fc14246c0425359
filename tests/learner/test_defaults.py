"""What a user did not say is chosen from the first images, told, recorded, and can be said instead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poise import Augmentation, Learner, Preprocessing
from poise.data import ImageSet
from poise.learner.defaults import PLASTIC, _judging_trainer, fill_in_defaults, split_for_judging, surely_better
from poise.learner.settings import Runtime, Settings
from poise.training.events import DefaultsChosen, Event, Progress
from poise.training.optimiser import Schedule

from .samples import Flat, digits, state_bytes


def image_set(images: np.ndarray[Any, np.dtype[np.uint8]], labels: Any) -> ImageSet:
    pixels = torch.from_numpy(images)[:, None] if images.ndim == 3 else torch.from_numpy(images)
    return ImageSet(pixels, torch.as_tensor(labels), torch.full((len(pixels),), -1))


def blank(count: int, side: int = 32) -> ImageSet:
    pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 2, torch.full((count,), -1))


def coloured(images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> tuple[Any, list[int]]:
    return np.stack([images, images // 2, 255 - images], axis=-1), labels


def suited(images: ImageSet, **given: Any) -> Settings:
    settings = Settings.resolve(automatic=True, **given)
    return fill_in_defaults(settings, images, Runtime.of(settings, "cpu"))


def chosen_in(phase: Iterable[Event]) -> DefaultsChosen:
    """What was chosen in a phase, which is learned to its end."""
    (found,) = (event for event in phase if isinstance(event, DefaultsChosen))
    return found


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 40, 300, 3_000, 19_000])
def test_a_phase_is_long_enough_in_steps(count: int) -> None:
    schedule = suited(blank(count, 8), policy="fixed").schedule
    steps = -(-count // schedule.batch) * schedule.epochs
    assert steps >= min(80 * -(-count // 32), 400)
    assert 30 <= schedule.epochs <= 80


def test_photos_start_from_a_pretrained_network_unless_the_user_says_otherwise() -> None:
    colours = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8)
    photos = ImageSet(colours, torch.arange(8) % 2, torch.full((8,), -1))
    chosen = suited(photos)
    assert (chosen.net, chosen.method, chosen.policy) == ("efficientnet-lite0", "ranpac", "fixed")
    assert chosen.default_action.classifier == "fc"
    assert suited(photos, net="small").net == "small"
    assert suited(photos, method="lucir").method == "lucir"
    grey = ImageSet(colours[:, :1].expand(-1, 3, -1, -1), photos.labels, photos.origins)
    assert suited(grey).method == "lucir"
    assert suited(blank(8, 32)).method == "lucir"


def test_nothing_is_tuned_on_few_images_unless_it_is_asked_for() -> None:
    assert suited(blank(40)).policy == "fixed"
    assert suited(blank(20_001, 8)).policy == "online"
    assert suited(blank(40), space={"lr": (0.05, 0.02)}).policy == "online"
    assert suited(blank(40), policy="race").policy == "race"


def test_a_later_phase_is_paced_by_its_own_images() -> None:
    assert [Schedule(epochs=60, images=200).scaled_to(count).epochs for count in (200, 50, 1)] == [60, 120, 120]
    assert suited(blank(200), epochs=7).schedule.scaled_to(800).epochs == 7, "said by the user, for every phase"


def test_what_is_given_stays() -> None:
    given: dict[str, Any] = {
        "method": "icarl",
        "net": "resnet32",
        "epochs": 3,
        "batch": 5,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "optimiser": "adamw",
        "decay": "steps",
        "warmup": 0.25,
        "action": {"lr": 0.003, "classifier": "fc"},
        "first_lr": 0.004,
        "space": {"logit_kd": (0.5, 1.0)},
        "trials": {"length": 0.5},
        "policy_options": {"safe": 0.5},
    }
    found, plain = suited(blank(40), **given), Settings.resolve(**given)
    assert found == plain


def test_where_no_method_is_named_it_is_plastic_and_where_one_is_it_keeps_its_weights() -> None:
    assert PLASTIC.items() <= dict(suited(blank(40), policy="fixed").default_action).items()
    own = suited(blank(40), policy="fixed", method="lucir").default_action
    assert own.replace(lr=0.1) == Settings.resolve(method="lucir", policy="fixed").default_action
    assert own.lr == 0.05
    mine = suited(blank(40), policy="fixed", action={"classifier": "fc", "lr": 0.02})
    assert (mine.default_action.classifier, mine.default_action.lr, mine.first_action().lr) == ("fc", 0.02, 0.05)


@pytest.mark.parametrize(("count", "side"), [(40, 32), (20_001, 8)])
def test_adamw_which_the_paper_has_not_gets_a_rate_of_its_own_and_keeps_the_rules(count: int, side: int) -> None:
    found = suited(blank(count, side), optimiser="adamw", policy="fixed")
    assert (found.decay, found.weight_decay, found.images) == ("cosine", 0.01, count)
    assert found.first_action().lr == found.default_action.lr == 1e-3


def test_with_many_images_everything_but_the_network_is_the_papers() -> None:
    found = suited(blank(20_001, 8))
    assert found.replace(net=None) == Settings.resolve()
    assert found.net == "small"


# Judging --------------------------------------------------------------------------------------------------------------


def test_the_held_out_fifth_is_of_every_class_and_of_no_other_image() -> None:
    images, labels = digits(0, 1, 2, count=20)
    training, held = split_for_judging(image_set(images, labels), 0)
    assert torch.bincount(held.labels).tolist() == [4, 4, 4]
    assert torch.bincount(training.labels).tolist() == [16, 16, 16]
    seen = {image.numpy().tobytes() for image in training.pixels}
    assert not any(image.numpy().tobytes() in seen for image in held.pixels)


def test_better_by_chance_is_not_surely_better() -> None:
    one, other = torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 0, 0, 0]).bool()
    assert not surely_better(one, other, 2.0)
    assert surely_better(torch.ones(30).bool(), torch.zeros(30).bool(), 2.0)
    assert not surely_better(other, one, 0.0)


def test_images_in_colour_are_judged_for_and_grey_ones_are_not() -> None:
    for arrived, judged in ((digits(0, 1, count=25), False), (coloured(*digits(0, 1, count=25)), True)):
        learner = Learner(epochs=20, policy="fixed", device="cpu", batch=8)
        events = list(learner.fitting(*arrived))
        assert any(isinstance(event, Progress) and event.what == "augmentation" for event in events) == judged
        assert ("judged on 10 held-out images" in chosen_in(iter(events)).line) == judged
        assert learner.preprocessing_.augmentation.pad == 1


def test_mirroring_is_judged_with_the_action_of_the_phase(make_images: Callable[..., ImageSet]) -> None:
    learner = Learner("slca", epochs=1, policy="fixed", device="cpu", batch=8)
    images, kind = make_images([0, 1] * 5), Augmentation(pad=0, flip=False)
    assert learner.settings.first_action().backbone_rate < 1
    assert _judging_trainer(learner.settings, images, learner.runtime, kind).action.backbone_rate == 1


def test_what_grey_photos_should_be_given_is_said() -> None:
    line = "grey photos are learned better with net=efficientnet-lite0 and method=ranpac"
    images = np.random.default_rng(0).integers(0, 256, (6, 48, 48), dtype=np.uint8)
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"net": "small"}, False), ({"method": "lwf"}, False)]
    for given, said in cases:
        learner = Learner(epochs=1, device="cpu", **given)
        assert (line in chosen_in(learner.fitting(images, [0, 1] * 3)).line) == said
    assert line not in chosen_in(Learner(epochs=1, device="cpu").fitting(images[:, :47], [0, 1] * 3)).line


def test_judging_that_is_stopped_changes_nothing_and_starts_again_to_the_same_bytes(tmp_path: Path) -> None:
    images, labels = coloured(*digits(0, 1, count=25))
    once = state_bytes(Learner(epochs=2, policy="fixed", device="cpu").partial_fit(images, labels), tmp_path)

    def stop(event: Event) -> None:
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    learner = Learner(epochs=2, policy="fixed", device="cpu", callbacks=[stop])
    before = learner.settings
    with pytest.raises(KeyboardInterrupt):
        learner.partial_fit(images, labels)
    assert (learner.settings, learner.phases_) == (before, 0)
    learner.set_params(callbacks=None).partial_fit(images, labels)
    assert state_bytes(learner, tmp_path) == once


# Told, recorded -------------------------------------------------------------------------------------------------------


def test_it_is_told_in_one_line_recorded_and_saved(tmp_path: Any) -> None:
    learner = Learner(epochs=3, policy="fixed", device="cpu", seed=1)
    assert "batch" in learner.settings.automatic
    chosen = chosen_in(learner.fitting(*digits(0, 1, count=30)))
    assert "\n" not in chosen.line
    assert "not mirrored" in chosen.line
    assert "60 images of 8×8 pixels" in chosen.line
    assert chosen.values["batch"] == learner.settings.schedule.batch == 32
    assert "epochs" not in chosen.values, "that was said"
    assert learner.settings.automatic == ()
    assert learner.preprocessing_.augmentation == Augmentation(pad=1, flip=False)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert loaded.settings == learner.settings
    assert next(event.kind for event in loaded.fitting(*digits(2, count=30))) == "phase"


def test_given_augmentation_and_preprocessing_are_told_and_not_judged() -> None:
    mine = Augmentation(pad=1, flip=False, autoaugment=True, cutout=0.5)
    learner = Learner(epochs=1, policy="fixed", augmentation=mine, device="cpu")
    chosen = chosen_in(learner.fitting(*digits(0, 1, count=30)))
    assert learner.preprocessing_.augmentation == mine
    assert "shifts of up to 1 pixel, not mirrored, autoaugment+cutout (as given)" in chosen.line
    assert chosen.values["augmentation"] == {**Augmentation(1, False).as_json(), "autoaugment": True, "cutout": 0.5}
    chain = Preprocessing((0.5,), (0.25,), mine)
    learner = Learner(epochs=1, policy="fixed", preprocessing=chain, device="cpu").partial_fit(*digits(0, 1, count=30))
    assert learner.preprocessing_ == chain


@pytest.mark.parametrize("count", [1, 2, 3])
def test_very_few_images_are_learned_without_judging(count: int) -> None:
    learner = Learner(epochs=2, device="cpu", memory=2)
    events = list(learner.fitting(*coloured(*digits(0, 1, count=count))))
    assert isinstance(events[0], DefaultsChosen)
    assert "too few" in events[0].line
    learner.partial_fit(*coloured(*digits(2, count=count)))
    assert len(learner.predict(coloured(*digits(0, 1, 2, count=2))[0])) == 6


def test_a_network_of_ones_own_is_named_so() -> None:
    learner = Learner(net=Flat(), epochs=1, policy="fixed", device="cpu")
    assert "net of your own" in chosen_in(learner.fitting(*digits(0, 1, count=20))).line


def test_too_few_steps_of_ones_own_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Learner(net="small", epochs=1, policy="fixed", device="cpu").partial_fit(*digits(0, 1, count=20))
    assert [line for line in caplog.messages if "epochs=1 makes only 2 training steps for 40 images" in line]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Learner(net="small", policy="fixed", batch=8, epochs=41, device="cpu").partial_fit(*digits(0, 1, count=20))
    assert not [line for line in caplog.messages if "steps" in line]


def test_too_few_steps_of_a_later_phase_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    small: dict[str, Any] = {"net": "small", "policy": "fixed", "memory": 2, "device": "cpu"}
    made = Learner(epochs=30, batch=32, **small).partial_fit(*digits(0, 1, count=112))
    assert not [line for line in caplog.messages if "steps" in line], "enough for the first phase"
    made.partial_fit(*digits(2, 3, count=10))
    (line,) = (line for line in caplog.messages if "steps" in line)
    assert "epochs=30 makes only 30 training steps for the 24 images of phase 1" in line
    caplog.clear()
    Learner(**small).partial_fit(*digits(0, 1, count=3)).partial_fit(*digits(2, count=3))
    still = Flat().requires_grad_(False).eval()
    Learner(net=still, epochs=1, policy="fixed", device="cpu").partial_fit(*digits(0, 1)).partial_fit(*digits(2))
    assert not [line for line in caplog.messages if "steps" in line], "a length that was left open suits every phase"
