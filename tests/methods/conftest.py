"""What the tests of single methods share: three phases of two classes, and learners of short trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor, nn

from poise import Learner
from poise.data import ImageSet
from poise.methods import DER, FOSTER, Growth, ICaRL, Lucir, Method, PODNet
from poise.nets import Output

from .watching import Watched

SETTINGS: dict[str, Any] = {"policy": "fixed", "net": "small", "epochs": 2, "batch": 8, "memory": 3, "device": "cpu"}


@pytest.fixture
def arriving(make_images: Callable[..., ImageSet]) -> list[ImageSet]:
    return [make_images(classes * 6, seed=number) for number, classes in enumerate(([0, 1], [2, 3], [4, 5]))]


def learned(learner: Learner, *phases: ImageSet) -> Learner:
    for images in phases:
        learner.partial_fit(images.pixels, images.labels)
    return learner


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched()

    def watch(kind: type[Method]) -> None:
        terms = kind.terms

        def labelled(
            self: Method, student: Output, teacher: Output | None, labels: Tensor, growth: Growth
        ) -> dict[str, Tensor]:
            found.labelled(labels)
            return terms(self, student, teacher, labels, growth)

        monkeypatch.setattr(kind, "terms", labelled)

    for kind in (DER, FOSTER, ICaRL, Lucir, PODNet):
        watch(kind)
    hook = nn.modules.module.register_module_forward_pre_hook(found.forward)
    yield found
    hook.remove()
