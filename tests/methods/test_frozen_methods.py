"""SimpleCIL, RanPAC and SLCA: what they compute, and when the network is frozen."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from poise.nets.systems import System
from torch import Tensor, nn

from poise import Learner
from poise.data import Augmentation, ImageSet, Preprocessing
from poise.errors import UserError
from poise.nets import CosineHead, GaussianHead, Head, RidgeHead
from poise.policies import Trial
from poise.training import Event, LocalPhase, StepDone, TrialDone
from poise.tuning import Attempt
from poise.tuning.rewards import TrialResult

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
    assert learner.model is not None
    assert isinstance(learner.model.head, kind)
    return learner.model.head


def features_of(learner: Learner, images: ImageSet) -> Tensor:
    assert learner.model is not None
    return learner.evaluator.extract(learner.model, images.pixels).features


def blurred(images: ImageSet, make_images: MakeImages) -> ImageSet:
    """The same with so much noise that it matters how they are told apart."""
    noise = make_images(images.labels.tolist(), seed=9).pixels
    return ImageSet(images.pixels // 4 + noise // 4 * 3, images.labels, images.origins)


class Watched:
    """What ridge heads solve: their matrices as long as somebody holds them, and the rows that they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.matrices: list[weakref.ref[Tensor]] = []
        self.rows: list[Tensor] = []
        self.reduces = True
        made, given = RidgeHead.system, RidgeHead.set_rows

        def system(head: RidgeHead, *, reduce: bool = False) -> System:
            found = made(head, reduce=reduce and self.reduces)
            self.matrices.append(weakref.ref(found.matrix))
            return found

        def set_rows(head: RidgeHead, rows: Tensor) -> None:
            self.rows.append(rows.clone())
            given(head, rows)

        monkeypatch.setattr(RidgeHead, "system", system)
        monkeypatch.setattr(RidgeHead, "set_rows", set_rows)

    def forget(self) -> None:
        self.matrices.clear()
        self.rows.clear()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("method", METHODS)
def test_they_learn_without_forgetting(method: str, memory: int, arriving: list[ImageSet]) -> None:
    learner = learner_of(method, memory=memory, action={"lr": 0.1} if method == "slca" else {}, epochs=10)
    learn(learner, arriving)
    everything = ImageSet.joined(arriving)
    assert learner.score(everything.pixels, everything.labels) > 0.9


class TestSimpleCIL:
    def test_it_is_the_nearest_mean_of_all_images_by_cosine(self, arriving: list[ImageSet]) -> None:
        learner = learner_of("simplecil", memory=2)
        learn(learner, arriving)
        everything = ImageSet.joined(arriving)
        features = features_of(learner, everything)
        means = torch.stack([features[everything.labels == label].mean(dim=0) for label in range(6)])
        cosines = nn.functional.cosine_similarity(features[:, None], means[None], dim=2)
        shares = learner.predict_proba(everything.pixels, classifier="fc")
        np.testing.assert_allclose(shares, (10 * cosines).softmax(dim=1).numpy(), atol=1e-4)

    def test_new_images_of_known_classes_move_the_mean_to_that_of_all(self, arriving: list[ImageSet]) -> None:
        first, more = arriving[0].select(torch.arange(10)), arriving[0].select(torch.arange(10, 24))
        same = {"memory": 0, "preprocessing": prepared(arriving[0])}  # it is measured on the first phase's images
        apart, once = learner_of("simplecil", **same), learner_of("simplecil", **same)
        learn(apart, [first])
        apart.partial_fit(more.pixels, more.labels, known="update")
        learn(once, [arriving[0]])
        images = arriving[0].pixels
        np.testing.assert_allclose(apart.predict_proba(images), once.predict_proba(images), atol=1e-5)


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
            columns = [learner.classes_.index(label) for label in range(6)]
            found.append(head.scores(features_of(learner, ImageSet.joined(arriving)))[:, columns].detach())
            assert learner.score(images, ImageSet.joined(arriving).labels) > 0.9
        assert torch.allclose(found[0], found[1], atol=1e-4)

    def test_phases_give_what_one_phase_with_all_classes_gives(self, arriving: list[ImageSet]) -> None:
        everything = ImageSet.joined(arriving)
        prepares, shares = prepared(everything), []
        for phases in (arriving, [everything]):
            learner = learner_of("ranpac", memory=0, preprocessing=prepares, first_lr=0.1)
            for images in phases:
                list(learner.fitting(images.pixels, images.labels, action={"ridge": 10.0}))
            shares.append(learner.predict_proba(everything.pixels))
        np.testing.assert_allclose(shares[0], shares[1], atol=1e-4)

    def test_a_policy_chooses_the_ridge(self, arriving: list[ImageSet]) -> None:
        settings = {"policy": "grid", "trials": {"validation": 4}, "space": {"ridge": [1e-4, 1.0, 1e8]}, "memory": 8}
        learner = learner_of("ranpac", **settings)
        tried = [
            event for event in learn(learner, arriving) if isinstance(event, TrialDone) and "ridge" in event.action
        ]
        assert {event.action["ridge"] for event in tried} == {0.0, 1e-4, 1.0, 1e8}
        assert len({str(event.record["hits"]) for event in tried}) > 1
        assert learner.action_.ridge < 1e8

    @pytest.mark.parametrize("projection", [200, 30])  # more than twice as many features as images, and fewer
    @pytest.mark.parametrize(
        ("trying", "systems"),
        [({}, 1), ({"environment": "lookahead"}, 2), ({"environment": "both"}, 3), ({"horizon": 1}, 2)],
        ids=["local", "lookahead", "both", "repeated"],
    )
    def test_trials_that_share_what_they_can_come_out_as_if_each_were_alone(
        self,
        trying: dict[str, Any],
        systems: int,
        projection: int,
        arriving: list[ImageSet],
        make_images: MakeImages,
        watched: Watched,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Sums, equations and rows are made once in every local phase, and their memory is given back."""
        faint = [blurred(images, make_images) for images in arriving[:2]]
        learner = learner_of("ranpac", memory=6, options={"projection": projection}, trials={"validation": 4, **trying})
        learn(learner, faint[:1])

        def results() -> list[TrialResult]:
            trials = learner.phase_of(faint[1].pixels, faint[1].labels).task.trials
            action = learner.settings.default_action
            watched.forget()
            found = [
                trials.run(Attempt(Trial(number, number, 1), action.replace(ridge=ridge), "fc"))
                for number, ridge in enumerate((1e-2, 0.0, 1e2, 1e5, 1e2, 1e8))
            ]
            trials.rest()
            assert not any(matrix() is not None for matrix in watched.matrices)
            return found

        shared, rows = results(), list(watched.rows)
        assert len(watched.matrices) == systems
        assert len({str(result.hits) for result in shared}) > 1
        monkeypatch.setattr(LocalPhase, "once", lambda begun, model, key, make: make())
        watched.reduces = False
        assert results() == shared
        assert len(watched.matrices) == len(watched.rows) == len(rows) == 6 * systems
        for found, wanted in zip(rows, watched.rows, strict=True):
            assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("memory", [0, 6])
    def test_tuned_and_stopped_anywhere_it_goes_on_to_the_same_bytes(
        self,
        memory: int,
        arriving: list[ImageSet],
        stop_anywhere: Callable[..., list[Event]],
        tmp_path: Path,
    ) -> None:
        settings = {**TRYING, "memory": memory, "space": {"ridge": [1e-4, 1.0, 1e8]}}
        settings["options"] = {"projection": 100}
        first, images = learner_of("ranpac", **settings), arriving[1]
        learn(first, arriving[:1])
        first.save(tmp_path / "first")

        def again() -> Learner:
            return Learner.load(tmp_path / "first", device="cpu", net=Net())

        events = stop_anywhere(again, images.pixels, images.labels, net=Net())
        assert sum(isinstance(event, TrialDone) for event in events) >= 4

    def test_the_width_of_the_projection_is_an_option(self, arriving: list[ImageSet]) -> None:
        learner = learner_of("ranpac", options={"projection": 50})
        learn(learner, arriving[:1])
        head = head_of(learner, RidgeHead)
        assert (head.breadth, len(head.gram)) == (50, 50 * 51 // 2)
        for bad in (0, 1.5, "wide"):
            with pytest.raises(UserError, match=r"projection=.* must be .*a whole number"):
                learner_of("ranpac", options={"projection": bad})


class TestSLCA:
    def test_the_gaussians_are_those_of_each_class_when_it_arrived(self, arriving: list[ImageSet]) -> None:
        learner = learner_of("slca", memory=0, action={"backbone_rate": 0})
        learn(learner, arriving)
        head = head_of(learner, GaussianHead)
        for images in arriving[1:]:
            features = features_of(learner, images)
            for label in torch.unique(images.labels).tolist():
                points = features[images.labels == label]
                assert torch.allclose(head.means[label], points.mean(dim=0), atol=1e-4)
                spread = head.factors[label].T @ head.factors[label] + head.rest[label].diag()
                assert torch.allclose(spread, torch.cov(points.T, correction=0), atol=1e-3)

    def test_alignment_brings_old_classes_back(self, arriving: list[ImageSet]) -> None:
        old, found = ImageSet.joined(arriving[:2]), {}
        for epochs in (0, 5):
            learner = learner_of("slca", memory=0, epochs=10, action={"lr": 0.1}, options={"align_epochs": epochs})
            learn(learner, arriving)
            found[epochs] = learner.score(old.pixels, old.labels)
        assert found[5] > 0.9
        assert found[5] >= found[0]

    @pytest.mark.parametrize("bad", [{"draws": 0}, {"rank": 1.5}, {"temperature": 0}, {"align_lr": "fast"}])
    def test_bad_options_are_refused(self, bad: Mapping[str, Any]) -> None:
        with pytest.raises(UserError, match=next(iter(bad))):
            learner_of("slca", options=bad)


class TestWhenTheNetworkIsFrozen:
    @pytest.mark.parametrize("method", ["simplecil", "ranpac"])
    @pytest.mark.parametrize(
        ("net", "adapt", "phases_trained"),
        [("own", "auto", 0), ("own", "always", 1), ("small", "auto", 1), ("small", "never", 0)],
    )
    def test_it_is_trained_in_the_first_phase_or_never(
        self, method: str, net: str, adapt: str, phases_trained: int, arriving: list[ImageSet]
    ) -> None:
        settings = {"net": net} if net != "own" else {}
        learner = learner_of(method, options={"adapt": adapt}, **settings)
        steps = {event.phase for event in learn(learner, arriving) if isinstance(event, StepDone)}
        assert steps == set(range(phases_trained))
        assert learner.model is not None
        assert learner.model.is_frozen
        assert not learner.model.extras

    def test_the_network_stays_the_users(self, arriving: list[ImageSet]) -> None:
        net = Net()
        learn(learner_of("ranpac", net=net), arriving)
        assert net.training
        assert all(parameter.requires_grad for parameter in net.parameters())

    def test_a_wrong_word_is_refused(self) -> None:
        with pytest.raises(UserError, match="adapt 'sometimes'"):
            learner_of("ranpac", options={"adapt": "sometimes"})


@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("method", METHODS)
def test_online_tries_what_they_have(method: str, memory: int, arriving: list[ImageSet]) -> None:
    learner = learner_of(method, memory=memory, **TRYING)
    events = learn(learner, arriving)
    assert set(learner.space.axes) == {"simplecil": set(), "ranpac": {"ridge"}, "slca": {"lr", "backbone_rate"}}[method]
    assert any(isinstance(event, TrialDone) for event in events)  # for simplecil, of the classifier
    everything = ImageSet.joined(arriving)
    assert learner.score(everything.pixels, everything.labels) > 0.8


def prepared(images: ImageSet) -> Preprocessing:
    """What these images give."""
    return Preprocessing.measured(images.pixels, Augmentation(pad=0, flip=False))


def test_the_cosine_head_is_simplecils(arriving: list[ImageSet]) -> None:
    learner = learner_of("simplecil")
    learn(learner, arriving[:1])
    head_of(learner, CosineHead)


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


@pytest.mark.parametrize("method", ["simplecil", "ranpac"])
def test_a_first_phase_that_trains_the_network_is_resumed_to_the_same_bytes(
    method: str, arriving: list[ImageSet], stop_anywhere: Callable[..., list[Event]]
) -> None:
    images = arriving[0]  # stopped from its second event on, once the defaults are chosen
    stop_anywhere(lambda: learner_of(method, net="small"), images.pixels, images.labels, 3, first=2)
