from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.data.streams import class_order
from poise.errors import UserError

ORDER_1993_START = (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
ORDER_1993_END = (29, 49, 57, 33)


def test_the_order_of_the_literature() -> None:
    order = class_order("1993", 100)
    assert order[:10] == ORDER_1993_START
    assert order[-4:] == ORDER_1993_END
    assert class_order(1993, 100) == order


@pytest.mark.parametrize("count", [2, 10, 100, 1000])
@pytest.mark.parametrize("seed", [0, 1993])
def test_a_seed_is_numpys_legacy_shuffle_and_leaves_the_global_generator_alone(seed: int, count: int) -> None:
    before = np.random.get_state()  # noqa: NPY002
    order = class_order(seed, count)
    assert np.random.get_state()[1].tolist() == before[1].tolist()  # type: ignore[index]  # noqa: NPY002
    try:
        np.random.seed(seed)  # noqa: NPY002
        expected = np.arange(count)
        np.random.shuffle(expected)  # noqa: NPY002
    finally:
        np.random.set_state(before)  # noqa: NPY002
    assert order == tuple(expected.tolist())


def test_the_first_podnet_order_follows_from_its_recorded_origin() -> None:
    """Seed 1993, a shuffle of 500 indices for each of the 100 classes, then a shuffle of the classes."""
    legacy = np.random.RandomState(1993)
    for _ in range(100):
        legacy.shuffle(np.arange(500))
    expected = np.arange(100)
    legacy.shuffle(expected)
    assert class_order("podnet-1", 100) == tuple(expected.tolist())


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("podnet-1", (87, 0, 52), (26, 35, 39)),
        ("podnet-2", (58, 30, 93), (23, 64, 61)),
        ("podnet-3", (71, 54, 45), (85, 43, 11)),
    ],
)
def test_podnet_orders_are_permutations(name: str, start: tuple[int, ...], end: tuple[int, ...]) -> None:
    order = class_order(name, 100)
    assert sorted(order) == list(range(100))
    assert (order[:3], order[-3:]) == (start, end)


def test_sorted() -> None:
    assert class_order("sorted", 4) == (0, 1, 2, 3)


@given(st.permutations(range(7)))
def test_a_list_is_taken_as_it_is(order: list[int]) -> None:
    assert class_order(order, 7) == tuple(order)
    assert class_order(np.array(order), 7) == tuple(order)  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_any_seed_gives_a_permutation_of_plain_ints(seed: int, count: int) -> None:
    order = class_order(seed, count)
    assert sorted(order) == list(range(count))
    assert all(type(entry) is int for entry in order)


@pytest.mark.parametrize(
    ("order", "count", "words"),
    [
        ("podnet-2", 10, "for 100 classes, there are 10"),
        ("podnet2", 100, "did you mean 'podnet-2'"),
        ("zzz", 100, "known: podnet-1, podnet-2, podnet-3, sorted"),
        (-1, 10, "order=-1 cannot be a seed"),
        (2**32, 10, "cannot be a seed"),
        (True, 10, "cannot be a seed"),
        ([0, 1, 1], 3, "missing: 2; twice: 1"),
        ([0, 1, 5], 3, "missing: 2; out of range: 5"),
        ([], 20, "missing: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more"),
        (["a", "b"], 2, "whole numbers from 0 to 1"),
    ],
)
def test_bad_orders_are_refused(order: str | int | Sequence[int], count: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        class_order(order, count)
    assert "\n" not in str(caught.value)
