"""Options that got another default: what was begun before goes on as it was, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from poise import Learner
from poise.data import ImageSet
from poise.learner import LearnerState
from poise.recipes import FORMER_OPTIONS
from poise.report import read_run
from poise.runfolder import saved_recipe
from poise.runs import Plan, Run, RunFolder, reopen

Plans = Callable[..., Plan]
WORDS = ("groups=[2,1]", "epochs=1", "images_per_class=20", "device=cpu")


def without_options(path: Path) -> None:
    """As an older poise wrote it."""
    saved = json.loads(path.read_text())
    place = saved["recipe"] if isinstance(saved.get("recipe"), dict) else saved
    del place["options"]
    saved.pop("digest", None)
    path.write_text(json.dumps(saved))


def test_it_is_written_into_every_run_and_result(plan: Plans, tmp_path: Path) -> None:
    result = Run(plan(*WORDS, name="digits/aanets"), RunFolder(tmp_path / "run")).start()
    assert result["options"] == {"eta": "restarted"}
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["recipe"]["options"] == {"eta": "restarted"}


def test_a_run_of_an_older_poise_means_the_former_one(plan: Plans, tmp_path: Path) -> None:
    Run(plan(*WORDS, name="digits/aanets"), RunFolder(tmp_path / "run")).start()
    for name in ("recipe.json", "result.json"):
        without_options(tmp_path / "run" / name)
    _, again = reopen(tmp_path / "run")
    assert again.settings.options == FORMER_OPTIONS["aanets"] == {"eta": "kept"}
    assert read_run(tmp_path / "run").recipe["options"] == {"eta": "kept"}
    assert read_run(tmp_path / "run" / "result.json").recipe["options"] == {"eta": "kept"}


@pytest.mark.parametrize(("method", "written"), [("aanets", {"eta": "restarted"}), ("podnet", {})])
def test_a_learner_says_it_too(method: str, written: dict[str, str], make_images: Callable[..., ImageSet]) -> None:
    learner = Learner(method, policy="fixed", net="small", epochs=1, batch=8, device="cpu")
    assert learner.settings.options == written
    images = make_images([0, 1] * 6)
    learner.partial_fit(images.pixels, images.labels)
    tensors, meta = learner.state().tensors(images=True)
    meta["settings"]["options"] = {}
    restored = LearnerState.from_tensors(tensors, meta)
    assert restored.settings.options == FORMER_OPTIONS.get(method, {})


def test_another_method_of_the_same_recipe_has_no_such_option(plan: Plans) -> None:
    assert plan(*WORDS, "method=podnet", name="digits/rmm").recipe.options == {}
    assert plan(*WORDS, "options.alpha=0.7", name="digits/aanets").recipe.options == {"eta": "restarted", "alpha": 0.7}


@pytest.mark.parametrize("method", [None, 3, ["aanets"], "lucir"])
def test_whatever_a_file_calls_a_method_is_read_without_an_error(method: object) -> None:
    assert saved_recipe({"method": method, "options": None}) == {"method": method, "options": None}
