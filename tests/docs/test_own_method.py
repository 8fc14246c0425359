"""The method on docs/own-method.md whose network grows: short, saved, loaded and resumed to the same bytes."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from poise import Learner, actions, methods
from poise.testing import check_resuming

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"
SETTINGS: dict[str, Any] = {"epochs": 2, "batch": 32, "memory": 4, "device": "cpu", "policy": "fixed"}

Phase = tuple[NDArray[np.uint8], NDArray[np.int64]]


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The methods of the page, known for as long as the test; their sources by the name of their file."""
    monkeypatch.setattr(methods.base, "METHODS", dict(methods.METHODS))
    monkeypatch.setattr(actions, "AXES", dict(actions.AXES))
    found = re.findall(r"^```python\n(# (my_\w+)\.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for text, name in found:
        exec(compile(text, f"{name}.py", "exec"), {"__name__": name})
    return {name: text for text, name in found}


def phases() -> list[Phase]:
    """Three phases of digits: 2, 2 and 1 classes with 20 images each."""
    digits = load_digits()
    pixels, labels = (digits.images * 15).astype(np.uint8), digits.target
    picks = [np.concatenate([np.flatnonzero(labels == c)[:20] for c in group]) for group in ([0, 1], [2, 3], [4])]
    return [(pixels[chosen], labels[chosen]) for chosen in picks]


def test_it_is_short(page: dict[str, str]) -> None:
    assert len(page["my_expansion"].splitlines()) < 80


def test_it_grows_a_frozen_backbone_a_phase_and_drops_the_auxiliary_head() -> None:
    learner = Learner("my-expansion", **SETTINGS)
    first, second, third = phases()
    learner.partial_fit(*first)
    assert learner.model is not None
    before = {name: value.clone() for name, value in learner.model.backbone.state_dict().items()}
    width = learner.model.head.width
    learner.partial_fit(*second).partial_fit(*third)
    model = learner.model
    assert model.growth_history == ((2, 2), (4, 1))
    assert model.head.width == 3 * width
    assert not model.extras
    frozen = model.backbone.get_submodule("old.0").state_dict()
    assert all(torch.equal(frozen[name], value) for name, value in before.items())
    newest = model.backbone.get_submodule("new").state_dict()
    assert not any(torch.equal(newest[name], value) for name, value in before.items() if name.endswith("conv1.weight"))


def test_an_update_of_known_classes_adds_no_backbone() -> None:
    first, second, _ = phases()
    learner = Learner("my-expansion", **SETTINGS).partial_fit(*first).partial_fit(*second)
    learner.partial_fit(*first, known="update")
    assert learner.model is not None
    assert learner.model.growth_history == ((2, 2),)


def test_saved_and_loaded_it_predicts_and_learns_the_same(tmp_path: Path) -> None:
    first, second, third = phases()
    learner = Learner("my-expansion", **SETTINGS).partial_fit(*first).partial_fit(*second)
    learner.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(second[0]), learner.predict_proba(second[0]))
    np.testing.assert_array_equal(
        loaded.partial_fit(*third).predict_proba(third[0]), learner.partial_fit(*third).predict_proba(third[0])
    )


TRYING: dict[str, Any] = {
    "policy": "grid",
    "space": {"auxiliary": [0.5, 1]},
    "trials": {"validation": 2, "length": 0.5},
}


@pytest.mark.parametrize("changes", [{}, TRYING], ids=["fixed", "tuned"])
def test_stopped_in_a_phase_and_resumed_it_ends_with_the_same_bytes(changes: dict[str, Any]) -> None:
    first, second, third = phases()
    before = Learner("my-expansion", **{**SETTINGS, **changes}).partial_fit(*first).partial_fit(*second)
    check_resuming(lambda: copy.deepcopy(before), *third)
