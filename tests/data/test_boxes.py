from __future__ import annotations

import numpy as np
import pytest
import torch

from poise import draws as addresses
from poise.data import Augmentation
from poise.data.boxes import RATIOS, draw_boxes
from poise.errors import UserError


def boxes_of(
    height: int, width: int, count: int = 5000, least: float = 0.08
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return draw_boxes(np.tile([[height, width]], (count, 1)), least, addresses.generator(0, "boxes", height, width))


@pytest.mark.parametrize("size", [(256, 341), (341, 256), (256, 256), (64, 64), (8, 8)], ids=str)
def test_they_lie_inside_of_the_image_in_whole_pixels(size: tuple[int, int]) -> None:
    height, width = size
    boxes = boxes_of(height, width)
    left, top, wide, high = boxes.T
    assert boxes.dtype == np.float32
    assert (boxes == np.rint(boxes)).all()
    assert left.min() == top.min() == 0
    assert (left + wide).max() == width
    assert (top + high).max() == height
    assert min(wide.min(), high.min()) >= 1


def test_areas_and_ratios_are_spread_as_they_are_drawn() -> None:
    _, _, wide, high = boxes_of(300, 300, 20_000).astype(np.float64).T
    shares, ratios = wide * high / 90_000, wide / high
    assert (shares.min() > 0.07, shares.max() <= 1) == (True, True)
    assert ratios.min() > RATIOS[0] - 0.02
    assert ratios.max() < RATIOS[1] + 0.03
    small = shares < 0.5  # all of these fit into the image, so none is drawn again
    assert np.histogram(shares[small], bins=4, range=(0.08, 0.5))[0].std() < 0.05 * small.sum() / 4
    assert abs(np.log(ratios[small]).mean()) < 0.01


def test_where_nothing_fits_it_is_the_largest_centre_of_such_a_ratio() -> None:
    boxes = boxes_of(20, 400, 50, least=0.9)  # 90 % of so long an image is no box of these ratios
    assert np.unique(boxes, axis=0).tolist() == [[186.0, 0.0, 27.0, 20.0]]
    assert np.unique(boxes_of(400, 20, 50, least=0.9), axis=0).tolist() == [[0.0, 186.0, 20.0, 27.0]]


def test_the_same_address_gives_the_same_and_other_images_their_own() -> None:
    sizes = torch.tensor([[256, 300 + 10 * number] for number in range(70)])
    augmentation = Augmentation(pad=0, resized=0.08)
    first, again = (augmentation.draw(70, addresses.generator(3, "epoch", 1), sizes) for _ in range(2))
    assert first.boxes is not None
    assert again.boxes is not None
    assert torch.equal(first.boxes, again.boxes)
    assert len(torch.unique(first.boxes, dim=0)) > 60
    assert torch.equal(first.mirrored, again.mirrored)


def test_other_draws_are_those_without_boxes() -> None:
    plain = Augmentation(pad=0, brightness=0.2).draw(9, addresses.generator(3, "epoch", 1))
    boxed = Augmentation(pad=0, brightness=0.2, resized=0.08).draw(
        9, addresses.generator(3, "epoch", 1), torch.full((9, 2), 32)
    )
    assert torch.equal(plain.mirrored, boxed.mirrored)
    assert torch.equal(plain.brightness, boxed.brightness)


@pytest.mark.parametrize(
    ("keys", "words"),
    [({"resized": 1.5, "pad": 0}, "between 0 .off. and 1"), ({"resized": 0.08, "pad": 4}, "go with pad=0")],
)
def test_settings_without_meaning_are_refused(keys: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Augmentation(**keys)  # type: ignore[arg-type]


def test_sizes_are_needed() -> None:
    with pytest.raises(UserError, match="need the height and width of each"):
        Augmentation(pad=0, resized=0.08).draw(3, np.random.default_rng(0))
