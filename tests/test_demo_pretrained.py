"""What `make demo-pretrained` runs: a few images of Tiny-ImageNet-100, two recipes; one line if data are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from poise.runs import load_recipe, make_plan

DEMO = Path(__file__).parents[1] / "benchmarks" / "pretrained"


def copy_subset(data: Path | None, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "POISE_DATA"}
    environment |= {"POISE_DATA": str(data)} if data is not None else {}
    words = [sys.executable, str(DEMO / "subset.py"), str(out), "--train", "2", "--test", "1"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_missing_data_are_one_line(tmp_path: Path) -> None:
    for place, line in ((None, "POISE_DATA is not set"), (tmp_path, "has no train and val folders")):
        done = copy_subset(place, tmp_path / "out")
        assert done.returncode == 2
        assert line in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_the_recipes_lay_out_three_phases_of_four_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(26):
        for part, count in (("train", 3), ("val", 2)):
            folder = tmp_path / "tiny-imagenet-100" / part / f"n{number:02d}"
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (64, 64), (number, index, 0)).save(folder / f"{index}.JPEG")
    monkeypatch.chdir(tmp_path)
    assert copy_subset(tmp_path, Path("runs/demo-pretrained/images")).returncode == 0
    for name in ("frozen", "scratch"):
        plan = make_plan(name, load_recipe(str(DEMO / f"{name}.toml")))
        train, test = plan.images()
        assert [len(group) for group in plan.stream] == [4, 4, 4]
        assert plan.source.class_names[:3] == ("n00", "n02", "n04")
        assert (len(train), len(test)) == (24, 12)
