"""What defaults are chosen by is never what they are shown with, and the tables say what the runs say."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = load_script("own_images")
choosing = load_script("own_images_choosing")
DATA = [
    "digits",
    pytest.param("cifar", marks=pytest.mark.cifar100),
    pytest.param("tiny", marks=pytest.mark.tinyimagenet),
]


def contents(images: Any) -> set[bytes]:
    return {str(each).encode() if isinstance(each, Path) else np.asarray(each).tobytes() for each in images}


@pytest.mark.parametrize("data", DATA)
def test_no_task_for_choosing_has_an_image_that_defaults_are_shown_with(data: str) -> None:
    folder = Path(os.environ.get("POISE_DATA", "."))
    shown = set().union(*map(contents, suite.READERS[data](folder, True).exam))
    tasks = [task for task in choosing.CHOOSING.values() if task.data.startswith(data)]
    for name in {task.data for task in tasks}:
        found = suite.READERS[name](folder, False)
        for images in (*found.training, *found.exam):
            twice = contents(images) & shown  # a few images of CIFAR-100 are in two classes
            assert len(twice) <= 0.01 * len(images), name


def test_draws_are_addressed_by_task_and_seed() -> None:
    (one, _), (again, _), (other, _) = (suite.draw(choosing.CHOOSING["more text"], seed, Path()) for seed in (0, 0, 1))
    for (images, labels), (same, same_labels) in zip(one, again, strict=True):
        assert np.array_equal(images, same)
        assert labels == same_labels
    assert not np.array_equal(one[0][0], other[0][0])


def test_words_are_compared_with_the_loop_of_the_same_seed() -> None:
    def row(task: str, seed: int, words: Any, fc: float, ncm: float) -> dict[str, Any]:
        return {"task": task, "seed": seed, "learner": words, "accuracy_fc": fc, "accuracy_ncm": ncm}

    rows = [row("few", 0, "loop", 40, 40), row("few", 1, "loop", 50, 50), row("tail", 0, "loop", 10, 10)]
    words = {"policy": "fixed"}
    rows += [row("few", 0, words, 41, 42), row("few", 1, words, 53, 54), row("tail", 0, words, 9, 14)]
    rows += [row("tail", 7, words, 99, 99)]  # without a loop there is nothing to compare it with
    *_, line = choosing.table(rows).splitlines()
    assert line == '| `{"policy": "fixed"}` | +2.0 / +3.0 | -1.0 / +4.0 | +0.5 / +3.5 |'
