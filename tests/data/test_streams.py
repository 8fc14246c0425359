"""Streams: the order of classes, which of them arrive together, and with how many of their images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise.data import ImageSet, class_sizes, keep_some
from poise.data.streams import PODNET, class_order, make_stream
from poise.errors import UserError

HUNDRED = class_order(1993, 100)


def test_a_stream_is_an_immutable_sequence() -> None:
    stream = make_stream("tfs", order=[3, 1, 0, 2], phases=2)
    assert len(stream) == 2
    assert list(stream) == [(3, 1), (0, 2)]
    assert stream[0] == (3, 1)
    assert stream[-1] == (0, 2)
    assert stream[:1] == ((3, 1),)
    assert (0, 2) in stream
    assert stream == make_stream("tfs", order=[3, 1, 0, 2], phases=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stream.setting = "tfh"  # type: ignore[misc]
    with pytest.raises(IndexError):
        stream[2]


def test_group_sizes_may_be_uneven_and_leave_classes_out() -> None:
    assert make_stream("groups", order=HUNDRED, groups=[2, 2]).groups == ((68, 56), (78, 8))
    assert make_stream("groups", order=[4, 3, 2, 1, 0], groups=[1, 3, 1]).groups == ((4,), (3, 2, 1), (0,))


def test_groups_of_class_indices_are_taken_as_they_are() -> None:
    assert make_stream("groups", order=HUNDRED, groups=[[5, 1], [99]]).groups == ((5, 1), (99,))
    assert make_stream("groups", order=HUNDRED, groups=[[5, 1], [99]], phases=2).classes == (5, 1, 99)


@given(st.integers(2, 60).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(1, n))))
def test_even_settings_divide_all_classes_or_say_what_would(case: tuple[list[int], int]) -> None:
    order, phases = case
    for setting, even in (("tfh", len(order) // 2), ("tfs", len(order))):
        if even % phases or (setting == "tfh" and len(order) % 2):
            with pytest.raises(UserError, match="use"):
                make_stream(setting, order=order, phases=phases)
        else:
            stream = make_stream(setting, order=order, phases=phases)
            assert stream.classes == tuple(order)
            assert len(stream) == phases + (setting == "tfh")
            assert [len(group) for group in stream][-phases:] == [even // phases] * phases


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"setting": "tfh", "phases": 7},
            "tfh splits 50 classes .* phases=7 does not divide; use one of 1, 2, 5, 10, 25, 50",
        ),
        *(({"setting": "tfs", "phases": phases}, f"phases={phases} does not") for phases in (0, -5, 2.5, True, None)),
        ({"setting": "tsf", "phases": 5}, "did you mean"),
        ({"setting": "tfs", "groups": [2, 2]}, "use setting=groups"),
        ({"setting": "groups"}, "needs groups"),
        ({"setting": "groups", "groups": []}, "needs groups"),
        ({"setting": "groups", "groups": [2, -1]}, "at least 1 in each group"),
        ({"setting": "groups", "groups": [60, 50]}, "add up to 110 classes, there are 100"),
        ({"setting": "groups", "groups": [1]}, "1 class in all"),
        ({"setting": "groups", "groups": [[1, 2], []]}, "group 1 of the stream has no class"),
        ({"setting": "groups", "groups": [[1, 2], [2]]}, "class 2 is in the stream more than once"),
        ({"setting": "groups", "groups": [[1, 100]]}, "class 100, which is not there; use classes 0 to 99"),
        ({"setting": "groups", "groups": [[1, 2], 3]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": ["ab", "cd"]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": [2.0, 2.0]}, "all sizes or all lists"),
        ({"setting": "groups", "groups": [2, 2], "phases": 5}, "phases=5, but there are 2 groups"),
        ({"setting": "tfh", "phases": 1, "order": range(7)}, "even number of classes, there are 7"),
        ({"setting": "tfs", "phases": 1, "order": [0]}, "1 class in all"),
    ],
)
def test_what_does_not_add_up_is_refused_in_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        make_stream(**{"order": HUNDRED, **arguments})
    assert "\n" not in str(caught.value)


# The order of classes -------------------------------------------------------------------------------------------------


def test_the_order_of_the_literature() -> None:
    order = class_order("1993", 100)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert order[-4:] == (29, 49, 57, 33)
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
    assert all(sorted(order) == list(range(100)) for order in PODNET.values())
    assert [order[:3] + order[-3:] for order in PODNET.values()][1:] == [
        (58, 30, 93, 23, 64, 61),
        (71, 54, 45, 85, 43, 11),
    ]


@given(st.permutations(range(7)))
def test_a_list_is_taken_as_it_is(order: list[int]) -> None:
    assert class_order(order, 7) == tuple(order)
    assert class_order(np.array(order), 7) == tuple(order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "count", "words"),
    [
        ("podnet-2", 10, "for 100 classes, there are 10"),
        ("podnet2", 100, "did you mean 'podnet-2'"),
        ("zzz", 100, "known: podnet-1, podnet-2, podnet-3, sorted"),
        (-1, 10, "order=-1 cannot be a seed"),
        (2**32, 10, "cannot be a seed"),
        (True, 10, "cannot be a seed"),
        ([0, 1, 1, 2], 3, "class 1 is there 2 times"),
        ([0, 1, 2, 5], 3, "class 5 is there 1 time"),
        ([], 20, "class 0 is there 0 times"),
        (["a", "b"], 2, "whole numbers from 0 to 1"),
    ],
)
def test_bad_orders_are_refused(order: str | int | Sequence[int], count: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        class_order(order, count)
    assert "\n" not in str(caught.value)


# Fewer images of each class -------------------------------------------------------------------------------------------


@given(
    st.permutations(range(8)),
    st.integers(1, 8),
    st.integers(1, 30).flatmap(lambda least: st.tuples(st.integers(least, 200), st.just(least))),
)
def test_a_long_tail_falls_from_the_largest_to_the_smallest_class(
    order: list[int], count: int, ends: tuple[int, int]
) -> None:
    classes = order[:count]
    sizes = class_sizes(ends, classes)
    assert list(sizes) == classes
    falling = sorted(sizes.values(), reverse=True)
    assert falling[0] == ends[0]
    if count > 1:
        assert falling[-1] == ends[1]
    factors = [(size + 0.5) / max(after - 0.5, 0.5) for size, after in pairwise(falling)]
    assert all(factor >= (ends[0] / ends[1]) ** (1 / (count - 1)) - 1e-9 for factor in factors)
    assert class_sizes(list(ends), classes) == sizes


def test_which_class_is_the_largest_is_drawn_from_the_order_of_the_classes() -> None:
    largest = set()
    for start in range(10):
        classes = [*range(start, 10), *range(start)]
        sizes = class_sizes((100, 10), classes)
        largest.add(classes.index(max(sizes, key=lambda label: sizes[label])))
    assert len(largest) > 3


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        (0, "images_per_class=0 leaves a class without images; keep at least 1"),
        ([10, 0], "images_per_class=\\[10, 0\\] leaves a class without images"),
        ([5, 10], "of the largest and the smallest class"),
        ([5], "must be a number, or two"),
        ([9, 5, 2], "must be a number, or two"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(wanted: int | list[int], line: str) -> None:
    with pytest.raises(UserError, match=line):
        class_sizes(wanted, [0, 1])


def test_images_are_kept_by_class_in_their_order_and_larger_sizes_keep_more_of_them(
    make_images: Callable[..., ImageSet],
) -> None:
    images = make_images([0, 1, 2] * 20)
    some, more = keep_some(images, {0: 3, 2: 50}), keep_some(images, {0: 7})
    assert torch.bincount(some.labels).tolist() == [3, 20, 20]
    assert torch.bincount(more.labels).tolist() == [7, 20, 20]
    for kept in (some, more):
        assert kept.origins.tolist() == sorted(kept.origins.tolist())
        assert torch.equal(kept.pixels, images.pixels[kept.origins])
        assert torch.equal(kept.labels, images.labels[kept.origins])
    assert {*some.of_labels([0]).origins.tolist()} < {*more.of_labels([0]).origins.tolist()}
    assert some.of_labels([0]).origins.tolist() != [0, 3, 6]  # at random, not the first ones
