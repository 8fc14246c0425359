"""Ranks that would not compute the same are refused before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from poise.errors import UserError
from poise.runs import Plan, open_ranks
from poise.runs.machine import source_digest
from poise.training.ranks import World


class TwoRanks(World):
    """Rank 0 of two, of which the other differs in what it is said to."""

    def __init__(self, **other: str) -> None:
        super().__init__(0, 2, 0, 2, HashStore())
        self._other = other

    def all_gather(self, value: Any) -> list[Any]:
        return [value, {**value, **self._other}]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("source_of_poise", source_digest()[:12]),
        ("version_of_torch", torch.__version__),
        ("number_of_threads", str(torch.get_num_threads())),
    ],
)
def test_a_rank_with_another_version_is_refused_with_its_number(name: str, own: str, plan: Callable[..., Plan]) -> None:
    with pytest.raises(UserError) as caught:
        open_ranks(TwoRanks(**{name: "abc"}), plan())
    expected = f"rank 1 has another {name.replace('_', ' ')} than rank 0 (abc, not {own}); give all ranks the same"
    assert str(caught.value) == expected


def test_a_rank_with_other_data_is_refused(plan: Callable[..., Plan]) -> None:
    with pytest.raises(UserError, match=r"^rank 1 has another data set than rank 0 \(abc, not [0-9a-f]+\)"):
        open_ranks(TwoRanks(data_set="abc"), plan())
