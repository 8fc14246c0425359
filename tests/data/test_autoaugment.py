"""AutoAugment's operations against Pillow's, its policy, Cutout, and what both are as part of an augmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits
from torch import Tensor

from poise import draws as addresses
from poise.data.augment import STRONGER, Augmentation, Draws, Preprocessing
from poise.data.autoaugment import (
    CIFAR_POLICY,
    LEVELS,
    OPERATIONS,
    SIGNED,
    Operation,
    apply,
    autoaugment,
    cut_out,
    draw_operations,
    operation_tensors,
    operations,
)
from poise.errors import UserError

CPU = torch.device("cpu")
GEOMETRIC = ("rotate", "shear_y", "translate_x", "translate_y")
MOST_UNEQUAL = 0.01  # share of the pixels that a geometric operation may have otherwise
BOTH = Augmentation(pad=4, autoaugment=True, cutout=0.5)


# Pillow ---------------------------------------------------------------------------------------------------------------


def over(first: float, last: float, level: int) -> float:
    return float(np.linspace(first, last, 10)[level])


def by_pillow(image: Image.Image, operation: Operation) -> Image.Image:
    """The operation, done by Pillow; pixels that come in are grey."""
    name, level, sign = operation
    fill = 128 if image.mode == "L" else (128, 128, 128)
    width, height = image.size
    if name == "rotate":
        turned = image.convert("RGBA").rotate(sign * over(0, 30, level))
        return Image.composite(turned, Image.new("RGBA", image.size, (128,) * 4), turned).convert(image.mode)
    if name in GEOMETRIC:
        shift = sign * over(0, 150 / 331, level)
        matrix = {
            "shear_y": (1, 0, 0, sign * over(0, 0.3, level), 1, 0),
            "translate_x": (1, 0, shift * width, 0, 1, 0),
            "translate_y": (1, 0, 0, 0, 1, shift * height),
        }[name]
        how = Image.Resampling.BICUBIC if name == "shear_y" else Image.Resampling.NEAREST
        return image.transform(image.size, Image.Transform.AFFINE, matrix, how, fillcolor=fill)
    enhancers = {
        "colour": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
        "brightness": ImageEnhance.Brightness,
    }
    if name in enhancers:
        return enhancers[name](image).enhance(1 + sign * over(0, 0.9, level))
    plain: dict[str, Callable[[], Image.Image]] = {
        "posterize": lambda: ImageOps.posterize(image, round(over(8, 4, level))),
        "solarize": lambda: ImageOps.solarize(image, over(256, 0, level)),  # type: ignore[arg-type]
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "invert": lambda: ImageOps.invert(image),
    }
    return plain[name]()


def to_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy())


def to_pixels(image: Image.Image) -> Tensor:
    found = torch.from_numpy(np.array(image))
    return found[None] if found.ndim == 2 else found.permute(2, 0, 1)


def directions(name: str) -> tuple[int, ...]:
    return (1, -1) if name in SIGNED else (1,)


def check_against_pillow(pixels: Tensor, name: str) -> None:
    """Every level in every direction: colours within 1 of 255, geometry equal but for a few pixels."""
    images = [to_image(each) for each in pixels]
    for level in range(LEVELS):
        for sign in directions(name):
            operation = Operation(name, level, sign)
            tensors = operation_tensors((operation,), (pixels.shape[2], pixels.shape[3]), CPU)
            found = apply(pixels, tensors, torch.ones(len(pixels), dtype=torch.long)).int()
            wanted = torch.stack([to_pixels(by_pillow(image, operation)) for image in images]).int()
            unlike = (found - wanted).abs()
            if name in GEOMETRIC:
                assert (unlike > 0).any(dim=1).float().mean() <= MOST_UNEQUAL, operation
            else:
                assert unlike.max() <= 1, operation


def pictures(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """RGB images like photos: waves, flat parts, noise, some too dark or too bright, a few of one colour or two."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((height, width)) / max(height, width)
    waves = rng.normal(size=(count, 3, 1, 1)) * np.sin(
        2 * np.pi * (rng.normal(size=(count, 1, 1, 1)) * 2 * x + rng.normal(size=(count, 1, 1, 1)) * 2 * y)
    )
    values = (
        128
        + 90 * waves
        + rng.normal(size=(count, 1, 1, 1)) * 60
        + rng.uniform(0, 20, (count, 1, 1, 1)) * rng.normal(size=(count, 3, height, width))
    )
    values[:: max(1, count // 5), :, : height // 2] = 255
    pixels = torch.from_numpy(values.clip(0, 255).astype(np.uint8))
    pixels[0], pixels[-1] = 77, 0
    pixels[-1, :, 0, 0] = 200  # nearly all alike: not equalized
    return pixels


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Grey images of 8×8 pixels."""
    return torch.from_numpy((load_digits().images[:20] * 255 / 16).astype(np.uint8))[:, None]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name: str, digits: Tensor) -> None:
    check_against_pillow(pictures(16, 32, 32), name)
    check_against_pillow(pictures(6, 21, 30), name)
    if name not in GEOMETRIC:  # of 64 pixels, one is more than a hundredth
        check_against_pillow(digits, name)


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives() -> None:
    pixels = pictures(200, 32, 32)
    chosen = torch.from_numpy(draw_operations(len(pixels), addresses.generator(0, "test")))
    there = autoaugment(pixels.cuda(), chosen.cuda()).cpu().int()
    unlike = (there - autoaugment(pixels, chosen).int()).abs() > 0
    assert unlike.any(dim=1).float().mean() <= MOST_UNEQUAL


def test_images_too_small_to_be_smoothed_are_still_augmented() -> None:
    for size in ((2, 2), (1, 5)):
        check_against_pillow(pictures(4, *size), "sharpness")
        check_against_pillow(pictures(4, *size), "contrast")


# The policy -----------------------------------------------------------------------------------------------------------


def test_the_policy_is_the_published_one() -> None:
    assert len(CIFAR_POLICY) == 25
    assert blake2b(repr(CIFAR_POLICY).encode(), digest_size=8).hexdigest() == "cf77ce254200545e"
    assert {name for pair in CIFAR_POLICY for name, _, _ in pair} == set(OPERATIONS)


def test_operations_are_drawn_as_often_as_the_policy_says() -> None:
    count = 100_000
    chosen = draw_operations(count, addresses.generator(3, "augment"))
    assert chosen.shape == (count, 2)
    for place in (0, 1):
        expected = dict.fromkeys(operations(place), 0.0)
        for pair in CIFAR_POLICY:
            name, probability, level = pair[place]
            for sign in directions(name):
                expected[Operation(name, level, sign)] += probability / 25 / len(directions(name))
        known = operations(place)
        shares = np.bincount(chosen[:, place], minlength=len(known) + 1) / count
        for number, operation in enumerate(known, start=1):
            assert shares[number] == pytest.approx(expected[operation], abs=0.003), operation
        assert shares[0] == pytest.approx(1 - sum(expected.values()), abs=0.006)


def test_the_two_operations_of_an_image_are_a_pair() -> None:
    chosen = draw_operations(5_000, addresses.generator(3, "augment"))
    pairs = {tuple((name, level) for name, _, level in pair) for pair in CIFAR_POLICY}
    for first, second in chosen[(chosen > 0).all(axis=1)]:
        one, other = operations(0)[first - 1], operations(1)[second - 1]
        assert ((one.name, one.level), (other.name, other.level)) in pairs


def test_without_an_operation_an_image_keeps_its_bytes() -> None:
    pixels = pictures(9, 16, 16)
    assert torch.equal(autoaugment(pixels, torch.zeros(9, 2, dtype=torch.long)), pixels)


def test_an_image_does_not_depend_on_those_beside_it() -> None:
    pixels = pictures(60, 16, 16)
    chosen = torch.from_numpy(draw_operations(60, addresses.generator(1, "augment")))
    whole = autoaugment(pixels, chosen)
    parts = [autoaugment(pixels[start:stop], chosen[start:stop]) for start, stop in pairwise((0, 1, 20, 60))]
    assert torch.equal(torch.cat(parts), whole)


# Cutout ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width", "share"), [(32, 32, 0.5), (8, 8, 0.5), (9, 14, 0.3), (4, 4, 1.0)])
def test_cutout_blackens_a_square_around_any_pixel(height: int, width: int, share: float) -> None:
    holes = torch.from_numpy(np.random.default_rng(0).random((300, 2), dtype=np.float32))
    holes[:2] = torch.tensor([[0.0, 0.0], [1 - 2**-24, 1 - 2**-24]])
    found = cut_out(torch.full((300, 3, height, width), 7.0), holes, share)
    side = round(share * min(height, width))
    for image, (down, across) in zip(found, holes.double().tolist(), strict=True):
        wanted = torch.full((height, width), 7.0)
        top, left = int(down * height) - side // 2, int(across * width) - side // 2
        wanted[max(0, top) : top + side, max(0, left) : left + side] = 0
        assert torch.equal(image, wanted.expand(3, -1, -1))


# As part of an augmentation -------------------------------------------------------------------------------------------


def slowly(chain: Preprocessing, pixels: Tensor, draws: Draws) -> NDArray[np.float64]:
    """One image at a time, by Pillow: crop, mirror, brightness, AutoAugment, Cutout, normalisation; in this order."""
    assert draws.operations is not None
    assert draws.holes is not None
    pad, (height, width), found = chain.augmentation.pad, pixels.shape[2:], []
    mean, std = (np.array(values)[:, None, None] for values in (chain.mean, chain.std))
    for number, image in enumerate(pixels):
        row, column = draws.offsets[number].tolist()
        cropped = torch.nn.functional.pad(image, (pad,) * 4)[:, row : row + height, column : column + width]
        picture = to_image(cropped.flip(-1) if draws.mirrored[number] else cropped)
        picture = ImageEnhance.Brightness(picture).enhance(float(draws.brightness[number]))
        for place, chosen in enumerate(draws.operations[number].tolist()):
            picture = by_pillow(picture, operations(place)[chosen - 1]) if chosen else picture
        values = to_pixels(picture).double().numpy() / 255
        side = round(chain.augmentation.cutout * min(height, width))
        top, left = (
            int(share * size) - side // 2 for share, size in zip(draws.holes[number], (height, width), strict=True)
        )
        values[:, max(0, top) : top + side, max(0, left) : left + side] = 0
        found.append((values - mean) / std)
    return np.stack(found)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_whole_chain_is_that_of_one_image_after_the_other(channels: int) -> None:
    augmentation = Augmentation(pad=4, brightness=63 / 255, autoaugment=True, cutout=0.5)
    chain = Preprocessing((0.5, 0.4, 0.3)[:channels], (0.2, 0.3, 0.25)[:channels], augmentation)
    pixels = pictures(200, 32, 32)[:, :channels].contiguous()
    draws = augmentation.draw(len(pixels), addresses.generator(5, "augment"))
    found, wanted = chain.training(pixels, draws), slowly(chain, pixels, draws)
    assert found.dtype == torch.float32
    unlike = np.abs(found.numpy() - wanted).max(axis=1) > 1e-4
    assert unlike.mean() < 0.001
    assert unlike.any(axis=(1, 2)).mean() < 0.05, "sheared images only"


def test_the_usual_choices_stay_the_same_and_others_exist_only_where_named() -> None:
    plain = Augmentation(brightness=0.25)
    for name in STRONGER:
        chosen = plain.stronger(name)
        usual = replace(plain, pad=chosen.pad).draw(50, addresses.generator(1, "epoch"))
        assert usual.operations is usual.holes is usual.boxes is None
        more = chosen.draw(50, addresses.generator(1, "epoch"), torch.full((50, 2), 32))
        found = {"autoaugment": more.operations, "cutout": more.holes, "resized": more.boxes}
        assert {kind for kind, values in found.items() if values is not None} == {*name.split("+")}
        for kind in ("offsets", "mirrored", "brightness"):
            assert torch.equal(getattr(more, kind), getattr(usual, kind)), kind
        assert chosen.name == name.removeprefix("resized")


def test_batches_are_slices_and_choices_move_between_devices() -> None:
    chain = Preprocessing((0.5,) * 3, (0.2,) * 3, BOTH)
    pixels = pictures(7, 16, 16)
    draws = BOTH.draw(7, np.random.default_rng(3))
    whole = chain.training(pixels, draws)
    parts = [chain.training(pixels[start : start + 3], draws.batch(start, start + 3)) for start in (0, 3, 6)]
    assert torch.equal(torch.cat(parts), whole)
    kept = BOTH.neutral(7)
    kept.load(draws)
    assert torch.equal(chain.training(pixels, kept), whole)


def test_nothing_on_the_device_is_read_back() -> None:
    """Tensors that have a shape and no values suffice, so the step can be captured."""
    chain = Preprocessing((0.5,) * 3, (0.2,) * 3, BOTH)
    draws = BOTH.draw(6, np.random.default_rng(0)).to("meta")
    found = chain.training(torch.empty(6, 3, 16, 16, dtype=torch.uint8, device="meta"), draws)
    assert found.shape == (6, 3, 16, 16)


def test_choices_that_change_nothing_leave_all_but_the_hole() -> None:
    augmentation = Augmentation(pad=2, autoaugment=True)
    chain = Preprocessing((0.5,) * 3, (0.2,) * 3, augmentation)
    pixels = pictures(4, 16, 16)
    assert torch.equal(chain.training(pixels, augmentation.neutral(4)), chain.plain(pixels))


def test_json_says_only_what_is_on() -> None:
    assert Augmentation(2, flip=False, brightness=0.25).as_json() == {"pad": 2, "flip": False, "brightness": 0.25}


def test_bad_values_are_refused() -> None:
    with pytest.raises(UserError, match=r"cutout=16 must lie between 0 \(off\) and 1.*0\.5 for 16 of 32 pixels"):
        Augmentation(cutout=16)
    for keys in ({"resized": 1.5, "pad": 0}, {"resized": 0.08, "pad": 4}):
        with pytest.raises(UserError, match="least share of the image's area, and go with pad=0"):
            Augmentation(**keys)  # type: ignore[arg-type]
    for side in (-0.1, True):
        with pytest.raises(UserError, match=f"augmentation cutout={side} must be a number"):
            Augmentation(cutout=side)
    with pytest.raises(UserError, match="autoaugment='cifar' must be true or false"):
        Augmentation(autoaugment="cifar")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="grey or RGB images, not for 4 channels"):
        Preprocessing((0.5,) * 4, (0.1,) * 4, BOTH)
