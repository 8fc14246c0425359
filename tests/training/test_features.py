"""A frozen network's features are computed once per phase, and everything comes out as if they were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import poise.learner.phase as phases
from poise import Learner
from poise.data import Augmentation, Budget, ImageSet
from poise.nets import build_backbone
from poise.training.events import Event, TrialDone

MakeImages = Callable[..., ImageSet]
SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 3, "batch": 8, "memory": 4, "device": "cpu"}
TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"lr": [0.1, 0.05]},
    "trials": {"length": 0.5, "validation": 2, "environment": "both"},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lucir": ("lucir", {}),
    "lucir, tried": ("lucir", TRYING),
    "icarl, judged": ("icarl", {**TRYING, "action": {"classifier": "auto", "balance": "finetune"}}),
    "lwf, reserve": ("lwf", {**TRYING, "memory": Budget(per_class=4, reserve=1)}),
    "bilevel": ("lucir", {"policy": "bilevel"}),
    "no mirroring": ("icarl", {"augmentation": Augmentation(pad=0, flip=False)}),
}


class Net(nn.Module):
    """A small network with statistics, dropout and a count of the images that it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(8, 12)
        self.shown: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shown.append(len(images))
        found: Tensor = self.last(self.layers(images).mean(dim=(2, 3)))
        return found


def frozen_net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        with torch.no_grad():
            net(torch.randn(50, 3, 8, 8))
    return net.requires_grad_(False).eval()


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    return [make_images(classes * 8, seed=number) for number, classes in enumerate(([0, 1], [2, 3], [4, 5]))]


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every step run the whole network from now on."""

    def switched_off() -> None:
        monkeypatch.setattr(phases, "features_suffice", lambda context, shape, still: False)

    return switched_off


def learner_of(case: str) -> Learner:
    method, settings = CASES[case]
    plain = {"augmentation": Augmentation(pad=0, flip=True)}  # what is done to features, too
    return Learner(method, net=frozen_net(), **{**SETTINGS, **plain, **settings})


def net_of(learner: Learner) -> Net:
    assert isinstance(learner.model.backbone, Net)
    return learner.model.backbone


def learn(learner: Learner, phases_of: list[ImageSet]) -> list[Event]:
    return [event for images in phases_of for event in learner.fitting(images.pixels, images.labels)]


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_running_the_network_in_every_step(
    case: str, arriving: list[ImageSet], slowly: Callable[[], None]
) -> None:
    fast = learner_of(case)
    told = learn(fast, arriving)
    slowly()
    slow = learner_of(case)
    wanted = learn(slow, arriving)
    assert [type(event) for event in told] == [type(event) for event in wanted]
    for one, other in zip(told, wanted, strict=True):
        if isinstance(one, TrialDone) and isinstance(other, TrialDone):
            assert (one.reward, one.record["hits"]) == (other.reward, other.record["hits"])
    found, expected = fast.state().tensors(images=True)[0], slow.state().tensors(images=True)[0]
    assert found.keys() == expected.keys() | {"memory.features"}
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-4), name
    assert fast.classifier_ == slow.classifier_
    images = arriving[1].pixels
    assert torch.allclose(
        torch.from_numpy(fast.predict_proba(images)), torch.from_numpy(slow.predict_proba(images)), atol=1e-4
    )


def test_the_network_sees_every_image_and_its_mirror_once(arriving: list[ImageSet]) -> None:
    learner = learner_of("icarl, judged")
    learn(learner, arriving[:1])
    net = net_of(learner)
    net.shown.clear()
    arrived = len(arriving[1])  # the features of kept images are known
    tried = sum(isinstance(event, TrialDone) for event in learn(learner, arriving[1:2]))
    assert tried > 2
    assert net.shown == [arrived, arrived]
    learner.remove(0)
    net.shown.clear()
    learn(learner, arriving[2:])
    assert sum(net.shown) == 2 * (len(arriving[2]) + 3 * 4), "after a change of the memory they are computed again"


def test_more_images_of_known_classes(arriving: list[ImageSet], make_images: MakeImages) -> None:
    learner = learner_of("lucir, tried")
    learn(learner, arriving[:2])
    more = make_images([0, 1, 4] * 5, seed=9, first=500)
    list(learner.fitting(more, known="update"))
    exemplars = learner.memory_.exemplars
    assert exemplars.pixels.dtype == torch.uint8
    assert exemplars.labels.bincount().tolist() == [4] * 5
    for image, origin in zip(exemplars.pixels, exemplars.origins.tolist(), strict=True):
        if origin >= 500:
            assert torch.equal(image, more.pixels[origin - 500])


@pytest.mark.parametrize("case", ["one parameter is trained", "training mode"])
def test_a_network_that_is_not_frozen_altogether_is_run_in_every_step(case: str, arriving: list[ImageSet]) -> None:
    net = frozen_net().train(case == "training mode")
    net.last.bias.requires_grad_(case != "training mode")
    learner = Learner("icarl", net=net, **SETTINGS)
    learn(learner, arriving[:1])
    shown = net_of(learner).shown
    shown.clear()
    learn(learner, arriving[1:2])
    assert len([*shown, *net_of(learner).shown]) > 3


def test_so_is_one_whose_maps_a_method_looks_at(arriving: list[ImageSet]) -> None:
    net = build_backbone("small", "pod", 3, 0).requires_grad_(False).eval()
    learn(Learner("podnet", net=net, **SETTINGS), arriving[:2])  # which refuses features without maps


@pytest.mark.parametrize(("method", "shown"), [("icarl", True), ("ranpac", False)])
def test_a_head_that_learns_from_augmented_images_sees_the_network_run_on_them(
    method: str, shown: bool, arriving: list[ImageSet]
) -> None:
    strong = Augmentation(pad=0, flip=False, autoaugment=True, cutout=0.5)
    learner = Learner(method, net=frozen_net(), augmentation=strong, **SETTINGS)
    learn(learner, arriving[:1])
    net = net_of(learner)
    net.shown.clear()
    learn(learner, arriving[1:2])
    held = len(learner.memory_ or ()) + len(arriving[1])
    assert (sum(net.shown) > held) is shown, "in every step, and not once"
