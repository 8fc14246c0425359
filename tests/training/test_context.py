"""What a training starts from: the grown model, its teacher and its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from poise import Learner
from poise.data import ImageSet
from poise.methods import METHODS, PREVIOUS, Growth, ICaRL, Method, Stage
from poise.training import LocalPhase, PhaseContext, Trainer

MakeImages = Callable[..., ImageSet]
GROWTH = Growth(old=2, new=2)


class Counting(ICaRL):
    """Remembers for which growths its network was expanded."""

    name = "counting"
    growths: list[Growth]

    def __init__(self, **options: float | str) -> None:
        super().__init__(**options)
        self.growths = []

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        self.growths.append(growth)
        return backbone


class Plain(ICaRL):
    """Distils nothing in its own stages."""

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (Stage(teacher=None),)


class PlainAtFirst(Plain):
    balancing = replace(ICaRL.balancing, teacher=PREVIOUS)


class After(Plain):
    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (Stage(teacher=None, after=Stage("after")),)


@pytest.fixture
def context(make_trainer: Callable[..., Trainer]) -> Callable[..., PhaseContext]:
    def made(method: Method, growth: Growth = GROWTH) -> PhaseContext:
        return replace(make_trainer(ICaRL(), growth=growth).context, method=method)

    return made


@pytest.mark.parametrize(
    ("growth", "expanded"), [(Growth(0, 2), False), (Growth(2, 2), True), (Growth(2, 0), False)], ids=str
)
def test_a_network_is_expanded_only_where_known_and_new_classes_meet(
    growth: Growth, expanded: bool, context: Callable[..., PhaseContext], make_images: MakeImages
) -> None:
    method = Counting()
    begun = context(method, growth)
    before = {name: value.clone() for name, value in begun.model.state_dict().items()}
    model = begun.grow_model(make_images([growth.old] * 3))
    assert method.growths == ([growth] if expanded else [])
    assert model.head.classes == sum(growth)
    assert all(torch.equal(value, before[name]) for name, value in begun.model.state_dict().items())


def test_a_phase_that_only_updates_known_classes_expands_nothing(
    make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "counting", Counting)
    learner = Learner("counting", policy="fixed", net="small", epochs=1, batch=8, memory=3, device="cpu")
    for classes in ([0, 1], [1], [2, 3], [0, 3], [0, 4]):
        images = make_images(classes * 6, seed=sum(classes))
        learner.partial_fit(images.pixels, images.labels, known="update")
    method = learner.settings.made_method
    assert isinstance(method, Counting)
    assert method.growths == [Growth(2, 2), Growth(4, 1)]


@pytest.mark.parametrize(
    ("method", "growth", "has"),
    [
        (ICaRL(), Growth(2, 2), True),
        (ICaRL(), Growth(2, 0), True),
        (ICaRL(), Growth(0, 2), False),
        (Plain(), Growth(2, 2), False),
        (PlainAtFirst(), Growth(2, 2), True),
        (After(), Growth(2, 2), True),
    ],
    ids=["ordinary", "update", "first phase", "no stage distils", "balancing distils", "what follows distils"],
)
def test_there_is_a_teacher_where_a_stage_distils_from_it(
    method: Method, growth: Growth, has: bool, context: Callable[..., PhaseContext]
) -> None:
    assert (context(method, growth).teacher() is not None) is has


def test_a_local_phase_has_all_that_a_training_needs(
    context: Callable[..., PhaseContext], make_images: MakeImages
) -> None:
    kept, new = make_images([0, 1] * 2), make_images([2, 3] * 3, seed=1, first=100)
    begun = LocalPhase.of(context(ICaRL()), kept, new)
    assert begun.model.head.classes == 4
    assert begun.teacher is not None
    assert begun.teacher.head.classes == 2
    assert not any(parameter.requires_grad for parameter in begun.teacher.parameters())
    assert begun.feed.labels.tolist() == [*kept.labels.tolist(), *new.labels.tolist()]
    assert torch.equal(begun.feed.images().pixels, torch.cat([kept.pixels, new.pixels]))


def test_a_single_image_is_fed_twice(context: Callable[..., PhaseContext], make_images: MakeImages) -> None:
    one = make_images([2])
    feed = context(ICaRL()).feed(one.select(torch.empty(0, dtype=torch.long)), one)
    assert torch.equal(feed.images().pixels, one.pixels.repeat(2, 1, 1, 1))
