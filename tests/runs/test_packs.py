"""Runs on packs: started, resumed and planned without a look at the pixels that are not needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from poise.data.packing import Packing
from poise.data.packs import PackedStore
from poise.learner import Learner
from poise.modelfile import predict_files, score_folder
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan
from poise.runs.plan import describe_plan, reopen
from poise.runs.record import read_run

WORDS = ("data={}", "setting=tfs", "phases=2", "epochs=1", "batch=8", "net=small", "policy=fixed", "memory=2")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of four classes, images of different sizes."""
    root = tmp_path_factory.mktemp("packed")
    for part, count in (("train", 8), ("val", 3)):
        for place, name in enumerate("abcd"):
            (root / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                generator = np.random.default_rng([place, number, count])
                shape = (16 + number % 3, 16 + (number + 1) % 4, 3)
                pixels = (generator.integers(0, 100, shape) + 35 * place).astype(np.uint8)
                Image.fromarray(pixels).save(root / "images" / part / name / f"{number}.png")
    list(Packing(root / "images", root / "some.pack", size=16).run())
    return root / "some.pack"


def plan_of(path: Path) -> Plan:
    return make_plan("folder", load_recipe("folder", [word.format(path) for word in WORDS]))


def test_a_run_on_a_pack_resumes_to_the_same_bytes_and_measures_no_image_again(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Callable[[Path], tuple[dict[str, Any], bytes, bytes]],
) -> None:
    Run(plan_of(packed), RunFolder(tmp_path / "whole")).start()
    stopped = RunFolder(tmp_path / "stopped")
    list(islice(Run(plan_of(packed), stopped, checkpoint_seconds=0).starting(), 3))
    measured = Mock(side_effect=AssertionError("the images were measured again"))
    monkeypatch.setattr("poise.learner.phase.Preprocessing.measured", measured)
    for events in (2, 100):  # what a resumed phase keeps is kept the next time, too
        found = stopped.newest_checkpoint()
        assert found is not None
        assert found.meta.learner["phases"] == 0
        assert found.meta.learner["pending"] is not None
        stopped, plan = reopen(tmp_path / "stopped")
        list(islice(Run(plan, stopped, checkpoint_seconds=0).resuming(), events))
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "recipe.json").read_bytes())["recipe"]["data"] == str(packed)


def test_nothing_reads_a_pixel_before_the_first_phase_and_then_only_its_own(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = set[int]()
    original = PackedStore.picture

    def noting(store: PackedStore, index: int) -> object:
        if store._part == "train":
            read.add(index)
        return original(store, index)

    monkeypatch.setattr(PackedStore, "picture", noting)
    plan = plan_of(packed)
    job = Run(plan, RunFolder(tmp_path / "run"))
    job._prepare()
    assert not read
    going = job.starting()
    for _ in range(3):
        next(going)
    going.close()
    labels = plan.source.train().labels[sorted(read)]
    assert set(labels.tolist()) <= set(plan.stream[0])


@pytest.mark.parametrize("side", [9, 16])
def test_files_are_predicted_as_the_exam_saw_them(packed: Path, tmp_path: Path, side: int) -> None:
    recipe = load_recipe("folder", [*(word.format(packed) for word in WORDS), f"image_size={side}"])
    plan = make_plan("folder", recipe)
    result = Run(plan, RunFolder(tmp_path / "run")).start()
    learner = Learner.load(tmp_path / "run" / "model.safetensors", device="cpu")
    tests = packed.parent / "images" / "val"
    files = sorted(tests.glob("*/*.png"))
    chances = learner.predict_proba(plan.source.test().store)
    assert np.array_equal(learner.predict_proba(files), chances)
    for given in (tests, packed):
        assert score_folder(learner, given).accuracy == pytest.approx(result["last_accuracy"], abs=1e-3)
    ranked = [each.ranked[0][1] for each in predict_files(learner, files)]
    assert ranked == chances.max(axis=1).tolist()


def test_a_plan_says_where_the_images_live(packed: Path) -> None:
    assert " of images, which stay in the pack, " in describe_plan(plan_of(packed))


def test_a_pack_that_is_called_like_a_known_data_set_has_another_name_in_results(packed: Path, tmp_path: Path) -> None:
    other = shutil.copytree(packed, tmp_path / "digits.pack")
    result = Run(plan_of(other), RunFolder(tmp_path / "run")).start()
    assert result["data"] == read_run(tmp_path / "run").data == "digits (pack)"


def test_a_link_to_a_pack_is_resumed(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "link.pack").symlink_to(packed)
    list(islice(Run(plan_of(tmp_path / "link.pack"), RunFolder(tmp_path / "run"), checkpoint_seconds=0).starting(), 14))
    folder, plan = reopen(tmp_path / "run")
    assert Run(plan, folder).resume()["data"] == "some"
