"""The studies run, and count what they say."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

from poise.recipes import RECIPES
from poise.runs import describe_sweep, load_recipe, make_plan, open_outlined, read_sweep

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "paper" / "studies"


def test_bias_says_where_the_errors_go() -> None:
    exam = {
        "classes": [7, 8, 9],
        "images": [10, 10, 20],
        "confusion": [[7, 7, 6], [7, 8, 1], [7, 9, 3], [8, 8, 8], [8, 9, 2], [9, 9, 15], [9, 7, 5]],
    }
    found = runpy.run_path(str(STUDIES / "bias.py"))["shares"](exam, 2)
    assert found == pytest.approx([70, 75, 50, 50, 25, 5, 25])


def test_the_leak_is_worth_something_to_a_grid_search_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["leak.py", "--runs", "3"])
    runpy.run_path(str(STUDIES / "leak.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("LUCIR's own action 64.55, the best one 65.65")
    assert lines[1].endswith("with the leak 65.65")


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("imagenet")])
def test_every_recipe_for_imagenet_passes_a_dry_run_without_images(name: str) -> None:
    plan = make_plan(name, load_recipe(name), open_outlined)
    assert len(plan.images_per_phase(train := plan.training_images())) == 6
    assert len(train.labels) > (1_200_000 if name.startswith("imagenet/") else 100_000)


@pytest.mark.cifar100
@pytest.mark.parametrize("path", sorted((ROOT / "paper" / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_every_sweep_passes_a_dry_run(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the data sets only CIFAR-100 is there, which no image must be decoded of."""
    (tmp_path / "cifar-100-python").symlink_to(Path(os.environ["POISE_DATA"]) / "cifar-100-python")
    monkeypatch.setenv("POISE_DATA", str(tmp_path))
    monkeypatch.chdir(ROOT)  # cells start from `paper/starts/…`, or from each other in `runs/…`
    outline = describe_sweep(read_sweep(path, outlined=True), Path("runs"))
    assert not outline.refused
