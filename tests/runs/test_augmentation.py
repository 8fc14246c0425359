"""A recipe that names AutoAugment and Cutout: what is written, resumed, started from, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from poise.data import STRONGER, Augmentation
from poise.data.sources import DigitsSource
from poise.errors import UserError
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen
from poise.runs.journal import read_journal

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


def test_it_is_written_and_resumed_anywhere_with_its_trials(plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    words = (STRONG, "policy=online", "space={lr=[0.1,0.05]}", "groups=[2,2]", "images_per_class=30", "batch=16")
    whole = Run(plan(*words), RunFolder(tmp_path / "whole")).start()
    assert whole["augmentation"] == "autoaugment+cutout"
    assert (
        json.loads((tmp_path / "whole" / "recipe.json").read_bytes())["recipe"]["augmentation"] == whole["augmentation"]
    )
    folder = RunFolder(tmp_path / "stopped")
    going = Run(plan(*words), folder, checkpoint_seconds=0).starting()
    while not any(event["event"] == "trial" for event in read_journal(folder.journal.path)):
        next(going)
    going.close()
    Run(reopen(folder.path)[1], folder).resume()
    assert outcome(folder.path) == outcome(tmp_path / "whole")


def test_it_changes_the_training_and_a_plain_run_says_nothing_of_it(
    reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path
) -> None:
    Run(plan(STRONG), RunFolder(tmp_path / "strong")).start()
    assert outcome(tmp_path / "strong")[1:] != outcome(reference)[1:]
    assert "augmentation" not in outcome(reference)[0]


def test_phase_0_is_shared_only_with_the_same_augmentation(reference: Path, plan: Plans, tmp_path: Path) -> None:
    strong = RunFolder(tmp_path / "strong")
    Run(plan(STRONG), strong).start()
    again = Run(plan(STRONG, f"start={strong.path}"), RunFolder(tmp_path / "again")).start()
    assert again["curve"][0]["accuracy"] == json.loads(strong.result.read_bytes())["curve"][0]["accuracy"]
    with pytest.raises(UserError, match="has other augmentation; start from a run"):
        Run(plan(STRONG, f"start={reference}"), RunFolder(tmp_path / "other")).start()
    with pytest.raises(UserError, match="has other augmentation"):
        Run(plan(f"start={strong.path}"), RunFolder(tmp_path / "another")).start()


def test_resized_crops_of_any_data_are_written_and_labelled(plan: Plans, tmp_path: Path) -> None:
    whole = Run(plan("augmentation=resized", "groups=[2,1]"), RunFolder(tmp_path / "whole")).start()
    assert whole["augmentation"] == "resized"


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown augmentation 'autoaugmnt'; did you mean 'autoaugment'\?"):
        load_recipe("digits/lucir", ["augmentation=autoaugmnt"])
