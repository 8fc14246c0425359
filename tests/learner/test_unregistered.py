"""A learner made with a method or a policy of one's own predicts where nobody registered it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from poise import Action, Learner, UserError
from poise.actions import AXES, Axis, register_axis
from poise.methods import METHODS, Growth, Lucir, Method
from poise.nets import Output
from poise.policies import POLICIES, Preset
from poise.policies.catalog import grid_policy

from .samples import digits, grown, refusal, state_bytes


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


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.MonkeyPatch]:
    """Register what is of one's own until the returned patch is undone."""

    def register(*, method: type[Method] | None = None, policy: str | None = None) -> pytest.MonkeyPatch:
        patch = pytest.MonkeyPatch()
        if method is not None:
            patch.setitem(METHODS, method.name, method)
        if policy is not None:
            patch.setitem(POLICIES, policy, Preset(grid_policy))
        return patch

    return register


IMAGES = digits(0, 1, 2, 3, first=40)[0]
GRID = {"lr": [0.1, 0.05]}


@pytest.mark.parametrize("own", ["method", "policy"])
def test_it_predicts_and_says_what_learning_needs(
    own: str, registered: Callable[..., pytest.MonkeyPatch], tmp_path: Path
) -> None:
    words = {"method": "own"} if own == "method" else {"policy": "mine", "space": GRID}
    patch = registered(method=Own, policy="mine")
    learned = grown(**words)
    learned.save(tmp_path / "model")
    expected, architecture = learned.predict_proba(IMAGES), learned.architecture
    on = Learner.load(tmp_path / "model").partial_fit(*digits(4, 5))
    patch.undo()

    loaded = Learner.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(IMAGES), expected)
    assert (loaded.architecture, loaded.knowledge.classes, loaded.action_) == (
        architecture,
        (0, 1, 2, 3),
        learned.action_,
    )
    name = "method 'own'" if own == "method" else "policy 'mine'"
    with pytest.raises(UserError) as refused:
        loaded.partial_fit(*digits(4, 5))
    assert refusal(refused) == (
        f"this learner learns with the {name}, which is not registered here; import the module that registers it first"
    )
    assert state_bytes(loaded, tmp_path) == (tmp_path / "model").read_bytes(), "it is saved as it was"
    loaded.save(tmp_path / "lean", memory=False)
    assert np.array_equal(Learner.load(tmp_path / "lean").predict_proba(IMAGES), expected)

    patch = registered(method=Own, policy="mine")
    again = Learner.load(tmp_path / "model").partial_fit(*digits(4, 5))
    assert state_bytes(again, tmp_path) == state_bytes(on, tmp_path)
    patch.undo()


def test_a_network_that_a_method_expanded_needs_its_code(
    registered: Callable[..., pytest.MonkeyPatch], tmp_path: Path
) -> None:
    patch = registered(method=Wrapping)
    learned = grown(method="wrapping")
    learned.save(tmp_path / "model", memory=False)
    before = Learner(method="wrapping", epochs=1, memory=4, policy="fixed").partial_fit(*digits(0, 1))
    before.save(tmp_path / "first")
    assert np.array_equal(Learner.load(tmp_path / "model").predict_proba(IMAGES), learned.predict_proba(IMAGES))
    patch.undo()
    with pytest.raises(UserError) as refused:
        Learner.load(tmp_path / "model")
    assert refusal(refused) == (
        "the network of this learner was expanded by the method 'wrapping', which is not registered here; "
        "import the module that registers it first"
    )
    first = Learner.load(tmp_path / "first")  # of which nothing was expanded yet
    assert np.array_equal(first.predict_proba(IMAGES), before.predict_proba(IMAGES))


def test_words_of_an_axis_of_ones_own_are_read_where_nobody_knows_it(
    registered: Callable[..., pytest.MonkeyPatch], tmp_path: Path
) -> None:
    class Choosy(Own):
        name = "choosy"
        default_action = Lucir.default_action

    patch = registered(method=Choosy)
    try:
        register_axis(Axis("mood", "calm", words=("calm", "wild")))
        Choosy.default_action = Action(**Lucir.default_action, mood="wild")
        learned = grown(method="choosy")
        learned.save(tmp_path / "model")
    finally:
        AXES.pop("mood", None)
        patch.undo()
    loaded = Learner.load(tmp_path / "model")
    assert loaded.action_["mood"] == "wild"
    assert np.array_equal(loaded.predict_proba(IMAGES), learned.predict_proba(IMAGES))
