"""A recipe that names AutoAugment and Cutout: what is written, resumed, started from, and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from poise.data import STRONGER, Augmentation
from poise.data.sources import DigitsSource
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
STRONG = "augmentation=autoaugment+cutout"


@pytest.mark.parametrize("word", STRONGER)
def test_it_is_added_to_what_the_data_have(word: str, plan: Plans) -> None:
    learner = plan(f"augmentation={word}", name="digits/podnet").new_learner()
    assert learner.preprocessing_ is not None
    assert DigitsSource.preprocessing is not None
    wanted = DigitsSource.augmentation.stronger(word)
    jitter = learner.preprocessing_.augmentation.brightness
    assert jitter == pytest.approx(63 / 255), "that of the method"
    assert learner.preprocessing_.augmentation == Augmentation(
        wanted.pad, wanted.flip, jitter, wanted.autoaugment, wanted.cutout, wanted.resized
    )
    assert (learner.preprocessing_.mean, learner.preprocessing_.std) == (
        DigitsSource.preprocessing.mean,
        DigitsSource.preprocessing.std,
    )


def test_images_of_ones_own_are_augmented_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (16, 16), (40 * number, 100, 7)).save(tmp_path / name / f"{number}.png")
    recipe = load_recipe("folder", [f"data={tmp_path}", "groups=[1,1]", STRONG])
    planned = make_plan("folder", recipe)
    assert planned.augmentation == Augmentation(pad=4, autoaugment=True, cutout=0.5), "named, so it is not judged"


def test_it_changes_the_training_and_a_plain_run_says_nothing_of_it(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    Run(plan(STRONG), RunFolder(tmp_path / "strong")).start()
    assert outcome(tmp_path / "strong")[1:] != outcome(reference)[1:]
    assert "augmentation" not in outcome(reference)[0]
