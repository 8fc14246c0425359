"""Fewer images of each class: how many, and which."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise.data import ImageSet, class_sizes, keep_some
from poise.errors import UserError


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
