from __future__ import annotations

import pytest
import torch
from torch import Tensor

from poise.data.images import ImageSet
from poise.errors import UserError


def images(labels: list[int], side: int = 2) -> ImageSet:
    """Each image is filled with its position, so that it can be recognised."""
    count = len(labels)
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 3, side, side).contiguous()
    return ImageSet(pixels, torch.tensor(labels, dtype=torch.int64), torch.arange(count) + 100)


def seen(subset: ImageSet) -> list[int]:
    return [int(value) for value in subset.pixels[:, 0, 0, 0]]


def test_select_keeps_pixels_labels_and_origins_together() -> None:
    chosen = images([5, 6, 7]).select(torch.tensor([2, 0, 2]))
    assert seen(chosen) == [2, 0, 2]
    assert chosen.labels.tolist() == [7, 5, 7]
    assert chosen.origins.tolist() == [102, 100, 102]


def test_of_labels_keeps_the_source_order() -> None:
    chosen = images([5, 6, 7, 5, 6]).of_labels([6, 5])
    assert seen(chosen) == [0, 1, 3, 4]
    assert chosen.labels.tolist() == [5, 6, 5, 6]


@pytest.mark.parametrize(
    ("count", "places"),
    [(0, []), (1, [0, 1, 2]), (2, [0, 1, 2, 3, 4, 5]), (3, [0, 1, 2, 3, 4, 5, 6]), (9, [0, 1, 2, 3, 4, 5, 6])],
)
def test_the_first_of_each_label_stay_in_their_order(count: int, places: list[int]) -> None:
    assert seen(images([7, 5, 9, 5, 7, 9, 7]).first_of_each_label(count)) == places


def test_relabelled_gives_each_image_the_position_of_its_label() -> None:
    some = images([7, 2, 7, 4]).relabelled([4, 7, 2])
    assert some.labels.tolist() == [1, 2, 1, 0]
    assert seen(some) == [0, 1, 2, 3]
    assert some.origins.tolist() == [100, 101, 102, 103]


def test_joined_puts_one_set_after_the_other() -> None:
    joined = ImageSet.joined([images([5, 6]), images([7]), images([])])
    assert joined.labels.tolist() == [5, 6, 7]
    assert joined.origins.tolist() == [100, 101, 100]


@pytest.mark.parametrize("sets", [[], [images([1], side=2), images([1], side=3)]])
def test_joined_refuses_nothing_and_different_shapes(sets: list[ImageSet]) -> None:
    with pytest.raises(UserError, match="cannot join"):
        ImageSet.joined(sets)


def test_to_another_device_moves_all_three() -> None:
    moved = images([1, 2]).to("meta")
    assert {moved.pixels.device.type, moved.labels.device.type, moved.origins.device.type} == {"meta"}


PIXELS = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
LABELS = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("pixels", "labels", "origins", "words"),
    [
        (PIXELS.float(), LABELS, LABELS, "pixels must be uint8"),
        (PIXELS[0], LABELS, LABELS, r"not uint8 \[3, 4, 4\]"),
        (PIXELS, LABELS.int(), LABELS, "labels must be int64"),
        (PIXELS, LABELS[:1], LABELS, "2 images came with 1 labels"),
        (PIXELS, LABELS, LABELS[:1], "2 images came with 1 origins"),
        (PIXELS, LABELS.to("meta"), LABELS, "labels on meta"),
    ],
)
def test_what_does_not_fit_together_is_refused(pixels: Tensor, labels: Tensor, origins: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ImageSet(pixels, labels, origins)
