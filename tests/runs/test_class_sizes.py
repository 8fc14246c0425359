"""Runs on fewer images of each class: the exam keeps all, and everything else follows from the recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from poise.errors import UserError
from poise.runs import Plan, Run, RunFolder, reopen

TAIL = "images_per_class=[40,5]"


@pytest.mark.parametrize("exam", ["test", "dev"])
def test_the_exam_keeps_all_images(plan: Callable[..., Plan], exam: str) -> None:
    (train, tested), (whole, everything) = plan(TAIL, f"exam={exam}").images(), plan(f"exam={exam}").images()
    assert torch.equal(tested.origins, everything.origins)
    classes = plan().stream.classes
    counts = sorted(len(train.of_labels([label])) for label in classes)
    assert (counts[0], counts[-1]) == (5, 40)
    assert {*train.origins.tolist()} < {*whole.origins.tolist()}
    assert not {*train.origins.tolist()} & ({*tested.origins.tolist()} if exam == "dev" else set())


def test_the_images_depend_on_the_stream_and_not_on_the_seed(plan: Callable[..., Plan]) -> None:
    first, other = plan(TAIL).images()[0], plan(TAIL, "seed=5", "policy=online").images()[0]
    assert torch.equal(first.origins, other.origins)
    assert plan(TAIL, "order=5").sizes != plan(TAIL).sizes


def test_a_long_tailed_run_is_resumed_with_the_same_images(
    plan: Callable[..., Plan], outcome: Callable[[Path], tuple[dict[str, Any], bytes, bytes]], tmp_path: Path
) -> None:
    whole = Run(plan(TAIL), RunFolder(tmp_path / "whole")).start()
    assert whole["images_per_class"] == [40, 5]
    Run(plan(TAIL), RunFolder(tmp_path / "stopped"), until=1).start()
    folder, again = reopen(tmp_path / "stopped")
    Run(again, folder).resume()
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_phase_0_of_other_images_is_refused(plan: Callable[..., Plan], reference: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has other data"):
        Run(plan(TAIL, f"start={reference}"), RunFolder(tmp_path / "tail")).start()
    Run(plan(TAIL), RunFolder(tmp_path / "start"), until=1).start()
    result = Run(plan(TAIL, "action.lr=0.05", f"start={tmp_path / 'start'}"), RunFolder(tmp_path / "same")).start()
    assert len(result["curve"]) == 3


def test_a_wrong_number_is_refused_before_anything_is_trained(plan: Callable[..., Plan]) -> None:
    with pytest.raises(UserError, match="largest and the smallest class"):
        plan("images_per_class=[5,40]")
    with pytest.raises(UserError, match="at least 1"):
        plan("images_per_class=0")
