"""Runs on packs: started, resumed and planned without a look at the pixels that are not needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from poise.data.packing import Packing
from poise.data.packs import PackedStore
from poise.experiment import Plan, Run, RunFolder, load_recipe, make_plan
from poise.experiment.dryrun import describe_plan
from poise.experiment.plan import reopen

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


def test_a_run_on_a_pack_resumes_to_the_same_bytes(
    packed: Path, tmp_path: Path, outcome: Callable[[Path], tuple[dict[str, Any], bytes, bytes]]
) -> None:
    Run(plan_of(packed), RunFolder(tmp_path / "whole")).start()
    going = Run(plan_of(packed), RunFolder(tmp_path / "stopped"), checkpoint_seconds=0).starting()
    for _ in range(14):
        next(going)
    going.close()
    folder, plan = reopen(tmp_path / "stopped")
    Run(plan, folder).resume()
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "recipe.json").read_bytes())["recipe"]["data"] == str(packed)


def test_what_was_measured_of_the_images_is_not_measured_again_on_resume(
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
        assert found.meta["learner"]["phases"] == 0
        assert found.meta["learner"]["pending"] is not None
        stopped, plan = reopen(tmp_path / "stopped")
        list(islice(Run(plan, stopped, checkpoint_seconds=0).resuming(), events))
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_nothing_reads_a_pixel_before_the_first_phase_and_then_only_its_own(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = set[int]()
    original = PackedStore._check

    def noting(store: PackedStore, indices: torch.Tensor) -> None:
        if store._part == "train":
            read.update(indices.tolist())
        original(store, indices)

    monkeypatch.setattr(PackedStore, "_check", noting)
    plan = plan_of(packed)
    job = Run(plan, RunFolder(tmp_path / "run"))
    prepared = job._prepare()
    assert not read
    going = job._from_the_beginning(*prepared)
    with job._open_folder():
        for _ in range(3):
            next(going)
        going.close()
    labels = plan.source.train().labels[sorted(read)]
    assert set(labels.tolist()) <= set(plan.stream[0])


def test_a_plan_says_where_the_images_live(packed: Path) -> None:
    assert "in the largest phase, streamed from the pack (" in describe_plan(plan_of(packed))
