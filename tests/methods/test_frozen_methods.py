"""SimpleCIL, RanPAC and SLCA: what they compute, and when the network is frozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poise import Learner
from poise.data import Augmentation, ImageSet, Preprocessing
from poise.methods import RidgeHead, slca
from poise.nets import Head
from poise.training.events import Event, Progress, TrialDone

MakeImages = Callable[..., ImageSet]
H = TypeVar("H", bound=Head)
SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 2, "batch": 8, "device": "cpu"}
TRYING: dict[str, Any] = {"policy": "online", "trials": {"validation": 2}}
METHODS = ("simplecil", "ranpac", "slca")


class Net(nn.Module):
    """A net of the user's own: how bright each of 16 parts of an image is, and their products with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(48, 10)
        nn.init.normal_(self.last.weight, std=0.2, generator=torch.Generator().manual_seed(0))
        nn.init.zeros_(self.last.bias)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(nn.functional.avg_pool2d(images, 2).flatten(1))
        return found


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    """Images of six classes: noise around a pattern that belongs to the class."""
    phases = []
    patterns = np.random.default_rng(5).integers(0, 200, (6, 3, 8, 8))
    for number, classes in enumerate(([0, 1], [2, 3], [4, 5])):
        noise = make_images(classes * 12, seed=number, first=100 * number)
        pixels = noise.pixels // 4 + torch.from_numpy(patterns[noise.labels.numpy()].astype(np.uint8))
        phases.append(ImageSet(pixels, noise.labels, noise.origins))
    return phases


def learner_of(method: str, **settings: Any) -> Learner:
    return Learner(method, **{**SETTINGS, "net": Net(), **settings})


def learn(learner: Learner, arrived: list[ImageSet]) -> list[Event]:
    return [event for images in arrived for event in learner.fitting(images.pixels, images.labels)]


def head_of(learner: Learner, kind: type[H]) -> H:
    assert isinstance(learner.model.head, kind)
    return learner.model.head


def features_of(learner: Learner, images: ImageSet) -> Tensor:
    assert learner.model is not None
    return learner.evaluator.extract(learner.model, images.pixels).features


class TestSimpleCIL:
    def test_it_is_the_nearest_mean_of_all_images_by_cosine(self, arriving: list[ImageSet]) -> None:
        learner = learner_of("simplecil", memory=2)
        learn(learner, arriving)
        everything = ImageSet.joined(arriving)
        features = features_of(learner, everything)
        means = torch.stack([features[everything.labels == label].mean(dim=0) for label in range(6)])
        cosines = nn.functional.cosine_similarity(features[:, None], means[None], dim=2)
        temperature = learner.knowledge.temperature("fc")
        shares = learner.predict_proba(everything.pixels, classifier="fc")
        np.testing.assert_allclose(shares, (10 * cosines / temperature).softmax(dim=1).numpy(), atol=1e-4)

    def test_new_images_of_known_classes_move_the_mean_to_that_of_all(self, arriving: list[ImageSet]) -> None:
        first, more = arriving[0].select(torch.arange(10)), arriving[0].select(torch.arange(10, 24))
        same = {"memory": 0, "preprocessing": prepared(arriving[0])}  # it is measured on the first phase's images
        apart, once = learner_of("simplecil", **same), learner_of("simplecil", **same)
        learn(apart, [first])
        apart.partial_fit(more.pixels, more.labels, known="update")
        learn(once, [arriving[0]])
        images = arriving[0].pixels
        torch.testing.assert_close(apart._scores(images)["fc"], once._scores(images)["fc"], atol=1e-4, rtol=0)


class TestRanPAC:
    @pytest.mark.parametrize("ridge", [0.0, 10.0])
    @pytest.mark.parametrize("memory", [0, 3])
    def test_the_order_of_phases_does_not_matter(self, ridge: float, memory: int, arriving: list[ImageSet]) -> None:
        prepares = prepared(ImageSet.joined(arriving))
        images, found = ImageSet.joined(arriving).pixels, []
        for order in ([0, 1, 2], [2, 0, 1]):
            learner = learner_of("ranpac", memory=memory, action={"ridge": ridge}, preprocessing=prepares)
            learn(learner, [arriving[place] for place in order])
            head = head_of(learner, RidgeHead)
            columns = [learner.knowledge.classes.index(label) for label in range(6)]
            found.append(head.scores(features_of(learner, ImageSet.joined(arriving)))[:, columns].detach())
            assert learner.score(images, ImageSet.joined(arriving).labels) > 0.9
        assert torch.allclose(found[0], found[1], atol=1e-4)

    def test_a_policy_chooses_the_ridge(self, arriving: list[ImageSet]) -> None:
        settings = {"policy": "grid", "trials": {"validation": 4}, "space": {"ridge": [1e-4, 1.0, 1e8]}, "memory": 8}
        learner = learner_of("ranpac", **settings)
        tried = [
            event for event in learn(learner, arriving) if isinstance(event, TrialDone) and "ridge" in event.action
        ]
        assert {event.action["ridge"] for event in tried} == {0.0, 1e-4, 1.0, 1e8}
        assert len({str(event.record["hits"]) for event in tried}) > 1
        assert learner.action_.ridge < 1e8


class TestSLCA:
    def test_alignment_brings_old_classes_back(self, arriving: list[ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
        old, found = ImageSet.joined(arriving[:2]), {}
        for epochs in (0, 5):
            monkeypatch.setattr(slca, "EPOCHS", epochs)
            learner = learner_of("slca", memory=0, epochs=10, action={"lr": 0.1})
            learn(learner, arriving)
            found[epochs] = learner.score(old.pixels, old.labels)
        assert found[5] > 0.9
        assert found[5] >= found[0]


class TestWhenTheNetworkIsFrozen:
    @pytest.mark.parametrize("method", ["simplecil", "ranpac"])
    @pytest.mark.parametrize(("net", "phases_trained"), [("own", 0), ("small", 1)])
    def test_it_is_trained_in_the_first_phase_or_never(
        self, method: str, net: str, phases_trained: int, arriving: list[ImageSet]
    ) -> None:
        learner = learner_of(method, **({"net": net} if net != "own" else {}))
        steps = {event.phase for event in learn(learner, arriving) if (isinstance(event, Progress) and event.done > 0)}
        assert steps == set(range(phases_trained))
        assert learner.model.is_frozen
        assert not learner.model.extras


def prepared(images: ImageSet) -> Preprocessing:
    """What these images give."""
    return Preprocessing.measured(images.pixels, Augmentation(pad=0, flip=False))


@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_only_predicts_holds_no_sums(method: str, arriving: list[ImageSet], tmp_path: Path) -> None:
    learner, images = learner_of(method), arriving[0].pixels
    learn(learner, arriving)
    learner.save(tmp_path / "whole")
    learner.save(tmp_path / "predicts", memory=False)
    small = Learner.load(tmp_path / "predicts", device="cpu", net=Net())
    np.testing.assert_array_equal(small.predict_proba(images), learner.predict_proba(images))
    if method == "ranpac":  # half of G in double precision
        assert (tmp_path / "whole").stat().st_size > 8 * 1000 * 1001 // 2 > (tmp_path / "predicts").stat().st_size
    whole = Learner.load(tmp_path / "whole", device="cpu", net=Net())
    whole.partial_fit(arriving[0].pixels, arriving[0].labels, known="update")
