"""A learner made with a method or a policy of one's own predicts where nobody registered it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from poise import Action, Learner
from poise.actions import AXES, Axis
from poise.methods import METHODS, Growth, Lucir, Method
from poise.nets import Output
from poise.policies import POLICIES, Preset
from poise.policies.catalog import grid_policy

from .samples import digits, grown, learner, refused, state_bytes


class Own(Lucir):
    """LUCIR under another name, with a setting of its own."""

    name = "own"
    default_action = Lucir.default_action


class Wrapped(nn.Module):
    """Another network with the same features."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.inner(images).vector
        return features


class Wrapping(Method):
    """One that expands the network."""

    name = "wrapping"
    default_action = METHODS["lwf"].default_action

    def expanded(self, backbone: nn.Module, growth: Growth) -> nn.Module:
        return Wrapped(backbone)

    def terms(self, student: Output, teacher: Output | None, labels: Tensor, growth: Growth) -> dict[str, Tensor]:
        return {"ce": nn.functional.cross_entropy(student.logits, labels)}


@contextmanager
def registered(*, axis: Axis | None = None) -> Iterator[None]:
    """In here the methods above are known, a policy `mine`, and perhaps an axis."""
    with pytest.MonkeyPatch.context() as patch:
        for method in (Own, Wrapping):
            patch.setitem(METHODS, method.name, method)
        patch.setitem(POLICIES, "mine", Preset(grid_policy))
        if axis is not None:
            patch.setitem(AXES, axis.name, axis)
            patch.setattr(Own, "default_action", Action(**Lucir.default_action, mood="wild"))
        yield


IMAGES = digits(0, 1, 2, 3, first=40)[0]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"method": "own"}, "method 'own'"),
        ({"policy": "mine", "space": {"lr": [0.1, 0.05]}}, "policy 'mine'"),
    ],
    ids=["method", "policy"],
)
def test_it_predicts_and_says_what_learning_needs(words: dict[str, Any], name: str, tmp_path: Path) -> None:
    with registered():
        learned = grown(**words)
        learned.save(tmp_path / "model")
        expected, architecture = learned.predict_proba(IMAGES), learned.architecture
        on = state_bytes(Learner.load(tmp_path / "model").partial_fit(*digits(4, 5)), tmp_path)
    loaded = Learner.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(IMAGES), expected)
    assert (loaded.architecture, loaded.action_) == (architecture, learned.action_)
    with refused(f"the {name}, which is not registered here; import the module that registers it first"):
        loaded.partial_fit(*digits(4, 5))
    assert state_bytes(loaded, tmp_path) == (tmp_path / "model").read_bytes(), "it is saved as it was"
    loaded.save(tmp_path / "lean", memory=False)
    assert np.array_equal(Learner.load(tmp_path / "lean").predict_proba(IMAGES), expected)
    with registered():
        assert state_bytes(loaded.partial_fit(*digits(4, 5)), tmp_path) == on


def test_a_network_that_a_method_expanded_needs_its_code(tmp_path: Path) -> None:
    with registered():
        before = learner(method="wrapping").partial_fit(*digits(0, 1))
        before.save(tmp_path / "first")
        expected = before.predict_proba(IMAGES)
        before.partial_fit(*digits(2, 3)).save(tmp_path / "model", memory=False)
        assert np.array_equal(Learner.load(tmp_path / "model").predict_proba(IMAGES), before.predict_proba(IMAGES))
    with refused("the network of this learner was expanded by the method 'wrapping', which is not registered here; "):
        Learner.load(tmp_path / "model")
    assert np.array_equal(Learner.load(tmp_path / "first").predict_proba(IMAGES), expected), "not expanded yet"


def test_words_of_an_axis_of_ones_own_are_read_where_nobody_knows_it(tmp_path: Path) -> None:
    with registered(axis=Axis("mood", "calm", words=("calm", "wild"))):
        learned = grown(method="own")
        learned.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model")
    assert loaded.action_["mood"] == "wild"
    assert np.array_equal(loaded.predict_proba(IMAGES), learned.predict_proba(IMAGES))
