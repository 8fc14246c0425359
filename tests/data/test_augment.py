from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from poise import draws as addresses
from poise.data.augment import Augmentation, Draws, Preprocessing
from poise.errors import UserError


def random_pixels(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return torch.from_numpy(values)


def preprocessing(channels: int, augmentation: Augmentation) -> Preprocessing:
    return Preprocessing((0.3, 0.4, 0.5)[:channels], (0.1, 0.2, 0.3)[:channels], augmentation)


def slow_reference(chain: Preprocessing, pixels: Tensor, draws: Draws) -> npt.NDArray[np.float64]:
    """One image at a time: pad with black, cut, mirror, brighten, normalise."""
    pad = chain.augmentation.pad
    height, width = pixels.shape[2:]
    mean, std = (np.array(values)[:, None, None] for values in (chain.mean, chain.std))
    results = []
    for image, (row, column), mirrored, factor in zip(
        pixels.numpy(), draws.offsets.tolist(), draws.mirrored.tolist(), draws.brightness.tolist(), strict=True
    ):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
        crop = padded[:, row : row + height, column : column + width]
        if mirrored:
            crop = crop[:, :, ::-1]
        value = crop / 255.0
        if chain.augmentation.brightness:
            value = np.clip(value * factor, 0, 1)
        results.append((value - mean) / std)
    return np.stack(results)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(0, 10),
    flip=st.booleans(),
    brightness=st.sampled_from([0.0, 0.25, 1.0]),
    seed=st.integers(0, 1000),
)
def test_training_agrees_with_the_slow_reference(
    count: int, channels: int, height: int, width: int, pad: int, flip: bool, brightness: float, seed: int
) -> None:
    chain = preprocessing(channels, Augmentation(pad, flip, brightness))
    pixels = random_pixels(count, channels, height, width, seed)
    draws = chain.augmentation.draw(count, np.random.default_rng(seed))
    result = chain.training(pixels, draws)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), slow_reference(chain, pixels, draws), rtol=1e-5, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("brightness", [0.0, 0.4])
@pytest.mark.parametrize(("channels", "height", "width", "pad"), [(3, 32, 32, 4), (1, 8, 8, 0), (3, 17, 31, 5)])
def test_a_gpu_agrees_with_the_slow_reference(
    channels: int, height: int, width: int, pad: int, brightness: float
) -> None:
    chain = preprocessing(channels, Augmentation(pad, brightness=brightness))
    pixels = random_pixels(9, channels, height, width)
    draws = chain.augmentation.draw(9, np.random.default_rng(0))
    result = chain.training(pixels.cuda(), draws.to(torch.device("cuda")))
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.cpu().numpy(), slow_reference(chain, pixels, draws), rtol=1e-5, atol=2e-5)


@pytest.mark.gpu
def test_grey_images_are_repeated_on_a_gpu_too() -> None:
    grey = random_pixels(4, 1, 6, 6).cuda()
    chain = Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), Augmentation(pad=1))
    draws = chain.augmentation.draw(4, np.random.default_rng(0)).to(torch.device("cuda"))
    assert torch.equal(chain.training(grey, draws), chain.training(grey.expand(-1, 3, -1, -1), draws))


def test_numbers_of_numpy_are_the_plain_ones() -> None:
    given: dict[str, Any] = {"pad": np.int64(2), "brightness": np.float32(0.25), "cutout": np.float64(0.5)}
    found, plain = Augmentation(**given), Augmentation(pad=2, brightness=0.25, cutout=0.5)
    assert found == plain
    assert json.dumps(found.as_json()) == json.dumps(plain.as_json())


def test_channels_last_pixels_give_the_same_values() -> None:
    chain = preprocessing(3, Augmentation(pad=2))
    pixels = random_pixels(4, 3, 8, 8)
    draws = chain.augmentation.draw(4, np.random.default_rng(1))
    other = chain.training(pixels.contiguous(memory_format=torch.channels_last), draws)
    assert torch.equal(chain.training(pixels, draws), other)


def test_a_gradient_can_pass_after_a_first_use_in_inference_mode() -> None:
    chain = Preprocessing((0.123,), (0.456,), Augmentation())  # used nowhere else, so that nothing is kept of it yet
    with torch.inference_mode():
        chain.plain(torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    pixels = torch.zeros(1, 1, 2, 2, requires_grad=True)
    chain.plain(pixels).sum().backward()  # type: ignore[no-untyped-call]
    assert pixels.grad is not None


def test_draws_are_evenly_spread() -> None:
    draws = Augmentation(pad=4, flip=True, brightness=0.25).draw(20_000, addresses.generator(1, "crop", 0))
    assert (draws.offsets.double().mean(0) - 4).abs().max() < 0.1
    for column in draws.offsets.T:
        assert column.bincount().min() > 20_000 / 9 * 0.9
        assert len(column.bincount()) == 9
    assert abs(float(draws.mirrored.double().mean()) - 0.5) < 0.02
    assert 0.75 <= float(draws.brightness.min()) < 0.76
    assert 1.24 < float(draws.brightness.max()) <= 1.25
    assert not Augmentation(flip=False).draw(50, addresses.generator(1, "crop", 0)).mirrored.any()


def test_the_global_generators_are_left_alone() -> None:
    before = (np.random.get_state()[1].tolist(), torch.random.get_rng_state())  # type: ignore[index]  # noqa: NPY002
    augmentation = Augmentation(brightness=0.2)
    draws = augmentation.draw(4, addresses.generator(1, "x"))
    preprocessing(3, augmentation).training(random_pixels(4, 3, 8, 8), draws)
    assert np.random.get_state()[1].tolist() == before[0]  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), before[1])


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 40), channels=st.sampled_from([1, 3]), seed=st.integers(0, 100))
def test_measured_is_mean_and_std_of_each_channel(count: int, channels: int, seed: int) -> None:
    pixels = random_pixels(count, channels, 5, 3, seed)
    chain = Preprocessing.measured(pixels, Augmentation(pad=1))
    values = pixels.numpy() / 255.0
    np.testing.assert_allclose(chain.mean, values.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(chain.std, values.std(axis=(0, 2, 3)), rtol=1e-9)
    assert chain.augmentation == Augmentation(pad=1)


def test_measured_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = random_pixels(10, 3, 6, 6)
    whole = Preprocessing.measured(pixels, Augmentation())
    monkeypatch.setattr("poise.data.augment._CHUNK", 250)
    assert Preprocessing.measured(pixels, Augmentation()) == whole


def test_a_channel_that_never_changes_gets_the_smallest_std() -> None:
    chain = Preprocessing.measured(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8), Augmentation())
    assert chain.mean == pytest.approx((0.2,))
    assert chain.std == (1e-3,)


def test_bad_values_are_refused() -> None:
    for mean, std, augmentation in (
        (0.5, (0.1,), Augmentation()),
        (("a",), (0.1,), Augmentation()),
        ((0.5,), (1.0,), 3),
    ):
        with pytest.raises(UserError, match="must be"):
            Preprocessing(mean, std, augmentation)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="pad=-1"):
        Augmentation(pad=-1)
    with pytest.raises(UserError, match=r"brightness=1\.5"):
        Augmentation(brightness=1.5)
    with pytest.raises(UserError, match="one number for each channel"):
        Preprocessing((0.1, 0.2), (0.1,), Augmentation())
    with pytest.raises(UserError, match="above 0"):
        Preprocessing((0.1,), (0.0,), Augmentation())
    with pytest.raises(UserError, match="no images to measure"):
        Preprocessing.measured(torch.zeros(0, 3, 4, 4, dtype=torch.uint8), Augmentation())


def test_images_that_do_not_fit_are_refused() -> None:
    chain = preprocessing(3, Augmentation())
    with pytest.raises(UserError, match=r"\[N, 3, H, W\], not \[2, 2, 4, 4\]"):
        chain.plain(random_pixels(2, 2, 4, 4))
    with pytest.raises(UserError, match="2 images came with 1 draws"):
        chain.training(random_pixels(2, 3, 4, 4), chain.augmentation.draw(1, np.random.default_rng(0)))


def test_grey_images_are_repeated_where_there_are_constants_of_colours() -> None:
    grey = random_pixels(4, 1, 6, 6)
    chain = Preprocessing((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), Augmentation(pad=1))
    draws = chain.augmentation.draw(4, np.random.default_rng(0))
    colours = grey.expand(-1, 3, -1, -1).contiguous()
    assert torch.equal(chain.plain(grey), chain.plain(colours))
    assert torch.equal(chain.training(grey, draws), chain.training(colours, draws))
