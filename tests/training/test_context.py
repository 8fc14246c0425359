"""What a training starts from: the grown model, its teacher and its images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import nn

from poise import Learner
from poise.data import ImageSet
from poise.methods import METHODS, PREVIOUS, Growth, ICaRL, Method, Stage
from poise.training.context import PhaseContext
from poise.training.trainer import Trainer

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


class Staged(ICaRL):
    """Has this stage, and this one to balance its head."""

    def __init__(self, stage: Stage, balancing: Stage = ICaRL.balancing) -> None:
        super().__init__()
        self.stage, self.balancing = stage, balancing

    def stages(self, growth: Growth) -> tuple[Stage, ...]:
        return (self.stage,)


PLAIN = Stage(teacher=None)


@pytest.fixture
def context(make_trainer: Callable[..., Trainer]) -> Callable[..., PhaseContext]:
    def made(method: Method, growth: Growth = GROWTH) -> PhaseContext:
        return replace(make_trainer(ICaRL(), growth=growth).context, method=method)

    return made


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
        (Staged(PLAIN), Growth(2, 2), False),
        (Staged(PLAIN, replace(ICaRL.balancing, teacher=PREVIOUS)), Growth(2, 2), True),
        (Staged(replace(PLAIN, after=Stage("after"))), Growth(2, 2), True),
    ],
    ids=["ordinary", "update", "first phase", "no stage distils", "balancing distils", "what follows distils"],
)
def test_there_is_a_teacher_where_a_stage_distils_from_it(
    method: Method, growth: Growth, has: bool, context: Callable[..., PhaseContext]
) -> None:
    assert (context(method, growth).teacher() is not None) is has
