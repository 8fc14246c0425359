"""The kept states after phase 0: plain runs start from them as before, and RMM's memory only by the plain rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from poise import UserError
from poise.methods import METHODS
from poise.runs import load_recipe
from poise.runs.plan import read_start

STARTS = sorted((Path(__file__).parents[2] / "paper" / "starts").iterdir())
AANETS = [path for path in STARTS if "aanets" in path.name]


def nothing(origins: Tensor) -> Tensor:
    return torch.zeros(len(origins), 3, 32, 32, dtype=torch.uint8)


def test_a_phase_0_of_a_method_of_ones_own_names_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in STARTS if "lucir" in path.name)
    recipe = load_recipe("cifar100/icarl", words(path))
    monkeypatch.delitem(METHODS, "lucir")
    with pytest.raises(UserError, match=r"the method 'lucir' of your own, .*'python FILE\.py' in place of 'poise'$"):
        read_start(path, recipe.settings, {}, nothing)


def words(path: Path) -> list[str]:
    return ["setting=tfs"] if "-tfs-" in path.name else []


@pytest.mark.parametrize("path", STARTS, ids=lambda path: path.name)
def test_plain_runs_start_from_what_was_kept(path: Path) -> None:
    recipe = load_recipe(f"cifar100/{path.name.split('-')[1]}", [*words(path), "policy=online"])
    state = read_start(path, recipe.settings, {}, nothing)
    assert state.knowledge.memory is not None
    assert len(state.knowledge.memory) == 20 * len(state.knowledge.classes)


@pytest.mark.parametrize("path", AANETS, ids=lambda path: path.name)
def test_rmm_cannot_start_from_them_unless_by_the_plain_rule(path: Path) -> None:
    rmm = load_recipe("cifar100/rmm", words(path))
    with pytest.raises(
        UserError, match=r"kept other images after phase 0 \(memory=20\) than .*rule=rmm.*after_phase_0=plain$"
    ) as told:
        read_start(path, rmm.settings, {}, nothing)
    assert "\n" not in str(told.value)
    plain = load_recipe("cifar100/rmm", [*words(path), "memory.after_phase_0=plain"])
    assert read_start(path, plain.settings, {}, nothing).knowledge.rho == 0
