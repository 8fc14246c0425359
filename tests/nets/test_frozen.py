"""What a user's network keeps frozen stays frozen: in every stage, phase, trial and copy, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poise import Learner
from poise.data import ImageSet
from poise.methods import METHODS, Growth, ICaRL
from poise.nets import Model, build_head, torch_generator
from poise.training.context import LocalPhase
from poise.training.device import Backend, make_backend
from poise.training.events import Event, TrialDone
from poise.training.lanes import Lane

MakeImages = Callable[..., ImageSet]
StopAndResume = Callable[..., tuple[list[Event], Learner]]


class Net(nn.Module):
    """A stem that is frozen with its statistics, a body to be trained, and a last layer of which only the bias is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())
        self.last = nn.Linear(6, 8)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.last(self.body(self.stem(images)).mean(dim=(2, 3)))
        return found


def make_net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        with torch.no_grad():
            net(3 * torch.randn(20, 3, 8, 8) + 1)  # its statistics are those of other images
    net.stem.requires_grad_(False).eval()
    net.last.weight.requires_grad_(False)
    return net


STILL = [name for name in make_net().state_dict() if name.startswith("stem.")]
FROZEN = [*STILL, "last.weight"]
TRAINED = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "body.1.running_mean", "last.bias"]
SETTINGS: dict[str, Any] = {"policy": "fixed", "epochs": 2, "batch": 8, "memory": 3, "device": "cpu"}
TRYING: dict[str, Any] = {"policy": "grid", "space": {"lr": [0.1, 0.05]}, "trials": {"length": 0.5, "validation": 2}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lucir": ("lucir", {}),
    "finetuned": ("icarl", {"action": {"balance": "finetune"}}),
    "trying": ("lucir", TRYING),
    "look-ahead": ("icarl", {**TRYING, "trials": {"length": 0.5, "validation": 2, "environment": "both"}}),
    "horizon": ("icarl", {**TRYING, "trials": {"length": 0.5, "validation": 2, "horizon": 1}}),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return CASES[request.param]


@pytest.fixture
def arriving(make_images: MakeImages) -> list[ImageSet]:
    return [make_images(classes * 6, seed=number) for number, classes in enumerate(([0, 1], [2, 3], [4, 5]))]


def learner_of(case: tuple[str, dict[str, Any]], net: nn.Module) -> Learner:
    return Learner(case[0], net=net, **{**SETTINGS, **case[1]})


def backbone(learner: Learner) -> dict[str, Tensor]:
    return learner.model.backbone.state_dict()


def model_of(net: nn.Module) -> Model:
    model = Model(net, build_head("linear", 8))
    model.head.grow(2, torch_generator(0, "head", 0))
    return model


class TestPhases:
    def test_frozen_layers_and_the_users_own_network_stay_to_the_bit_and_the_rest_is_trained(
        self, case: tuple[str, dict[str, Any]], arriving: list[ImageSet]
    ) -> None:
        net, given = make_net(), make_net()
        learner, start, before = learner_of(case, given), net.state_dict(), net.state_dict()
        tried = 0
        for images in arriving[:2]:
            tried += sum(isinstance(event, TrialDone) for event in learner.fitting(images.pixels, images.labels))
            for name in FROZEN:
                assert torch.equal(backbone(learner)[name], start[name]), name
            for name in TRAINED:
                assert not torch.equal(backbone(learner)[name], before[name]), name
            before = {name: value.clone() for name, value in backbone(learner).items()}
        assert (tried > 0) is ("space" in case[1])
        assert same(given.state_dict(), start)
        assert [module.training for module in given.modules()] == [module.training for module in net.modules()]
        assert backbone(learner)["stem.0.weight"].data_ptr() != given.state_dict()["stem.0.weight"].data_ptr()

    def test_frozen_but_in_training_mode_statistics_move_and_weights_do_not(self, arriving: list[ImageSet]) -> None:
        net = make_net().train()
        learner = learner_of(CASES["lucir"], net)
        learner.partial_fit(arriving[0].pixels, arriving[0].labels)
        moved = {name for name in STILL if not torch.equal(backbone(learner)[name], net.state_dict()[name])}
        assert moved == {"stem.1.running_mean", "stem.1.running_var", "stem.1.num_batches_tracked"}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_copies_teachers_trials_and_the_next_phase_share_the_frozen_part_and_nothing_else(
    arriving: list[ImageSet], cpu: Backend
) -> None:
    def places(model: Model) -> dict[str, int]:
        return {name: value.data_ptr() for name, value in model.backbone.state_dict().items()}

    learner = learner_of(CASES["lucir"], make_net())
    learner.partial_fit(arriving[0].pixels, arriving[0].labels)
    assert learner.memory_ is not None
    assert learner.model is not None
    model = learner.model
    learning = learner.fitting(arriving[1].pixels, arriving[1].labels)
    next(learning)
    phase = learner.phase_under_way
    assert phase is not None
    begun = LocalPhase.of(phase.context, learner.memory_.exemplars, phase.new)
    trainers = [Lane(cpu).trainer(begun, learner.action_, 1, ()) for _ in range(2)]
    models = [model, model.copy(), model.copy().copy(), *(trainer.model for trainer in trainers)]
    for one, other in combinations(models, 2):
        here, there = places(one), places(other)
        assert {name for name in here if here[name] == there[name]} == set(FROZEN)
        assert one.backbone.get_submodule("stem") is other.backbone.get_submodule("stem")
    teacher = trainers[0].teacher
    assert teacher is not None
    assert {name for name, place in places(teacher).items() if place == places(model)[name]} == set(FROZEN)
    assert not any(module.training for module in (teacher, teacher.head, *teacher.backbone.modules()))
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    before = {name: value.clone() for name, value in trainers[1].model.state_dict().items()}
    list(trainers[0].run())
    assert same(before, trainers[1].model.state_dict())
    learning.close()
    learner.partial_fit(arriving[1].pixels, arriving[1].labels)
    assert {name for name, place in places(learner.model).items() if place == places(model)[name]} == set(FROZEN)


class TestSaved:
    def test_loaded_into_one_that_is_not_frozen_it_still_is_and_learns_on_to_the_same_bytes(
        self, case: tuple[str, dict[str, Any]], arriving: list[ImageSet], tmp_path: Path
    ) -> None:
        learner, start = learner_of(case, make_net()), make_net().state_dict()
        learner.partial_fit(arriving[0].pixels, arriving[0].labels).save(tmp_path / "one")
        loaded = Learner.load(tmp_path / "one", device="cpu", net=Net())
        for each, name in ((learner, "whole"), (loaded, "loaded")):
            each.partial_fit(arriving[1].pixels, arriving[1].labels).save(tmp_path / name)
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()
        assert all(torch.equal(backbone(loaded)[name], start[name]) for name in FROZEN)


class FreezingInPlace(ICaRL):
    """From the second phase on the first layer is frozen, in the network itself."""

    name = "freezing"

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        backbone.get_submodule("stem").requires_grad_(False).eval()
        return backbone


def test_a_method_may_freeze_what_was_trained_before(
    arriving: list[ImageSet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(METHODS, "freezing", FreezingInPlace)
    net = make_net().requires_grad_(True).train()
    learner = Learner("freezing", net=net, **SETTINGS)
    learner.partial_fit(arriving[0].pixels, arriving[0].labels)
    first = {name: value.clone() for name, value in backbone(learner).items()}
    assert not any(torch.equal(first[name], net.state_dict()[name]) for name in STILL)
    learner.partial_fit(arriving[1].pixels, arriving[1].labels)
    assert all(torch.equal(backbone(learner)[name], first[name]) for name in STILL)
    assert not torch.equal(backbone(learner)["last.weight"], first["last.weight"])
    learner.save(tmp_path / "two")
    loaded = Learner.load(tmp_path / "two", device="cpu", net=net)
    for each, name in ((learner, "whole"), (loaded, "loaded")):
        list(each.fitting(*update(arriving[0]), known="update"))
        assert all(torch.equal(backbone(each)[name], first[name]) for name in STILL)
        each.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "loaded").read_bytes()


def update(images: ImageSet) -> tuple[Tensor, Tensor]:
    return images.pixels.flip(0), images.labels.flip(0)


@pytest.mark.gpu
def test_a_captured_step_on_a_gpu_leaves_it_alone(arriving: list[ImageSet]) -> None:
    backend, start = make_backend("cuda", "fp32", deterministic=True), make_net().state_dict()
    assert backend.capture
    changes = {**SETTINGS, "device": "cuda", "precision": "fp32", "deterministic": True}
    for settings in (changes, {**changes, **TRYING}):
        learner = Learner("lucir", net=make_net(), **settings)
        for images in arriving[:2]:
            learner.partial_fit(images.pixels, images.labels)
        found = backbone(learner)
        assert all(torch.equal(found[name].cpu(), start[name]) for name in FROZEN)
        assert not any(torch.equal(found[name].cpu(), start[name]) for name in TRAINED)
