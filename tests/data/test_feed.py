from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise.data import DenseStore, Feed, ImageSet, batch_bounds, fits

MakeImages = Callable[..., ImageSet]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@given(st.integers(0, 2000), st.integers(2, 300))
def test_batches_cover_everything_once_and_no_tail_is_small(count: int, size: int) -> None:
    bounds = batch_bounds(count, size)
    assert [image for start, stop in bounds for image in range(start, stop)] == list(range(count))
    lengths = [stop - start for start, stop in bounds]
    assert all(length == size for length in lengths[:-1])
    if count >= size:
        assert max(2, size / 4) <= lengths[-1] < max(size + 2, size * 5 / 4)


@pytest.mark.gpu
def test_streamed_images_are_there_when_read_on_a_stream_of_ones_own(make_images: MakeImages) -> None:
    images = make_images(list(range(5)) * 400)
    feed = Feed(images, torch.device("cuda"), resident=False)
    order, bounds = torch.arange(2000), batch_bounds(2000, 16)
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        sums = [pixels.sum() for pixels, _ in feed.batches(order, bounds)]
        found = torch.stack(sums).cpu()
    assert torch.equal(found, torch.stack([images.pixels[start:stop].sum() for start, stop in bounds]))


@pytest.mark.gpu
def test_images_of_several_stores_on_a_device_keep_their_places(make_images: MakeImages) -> None:
    parts = [make_images([0, 1] * 3), make_images([2, 3] * 2, seed=1)]
    there = [ImageSet(DenseStore(part.pixels.cuda()), part.labels, part.origins) for part in parts]
    feed = Feed(ImageSet.joined([there[1], there[0]]).select(torch.tensor([9, 0, 5])), torch.device("cuda"))
    expected = torch.cat([parts[1].pixels, parts[0].pixels])[[9, 0, 5]]
    assert torch.equal(feed.gather(torch.arange(3, device="cuda")).cpu(), expected)


@pytest.mark.parametrize("resident", [True, False])
def test_a_feed_can_be_left_in_the_middle_and_read_again(resident: bool, make_images: MakeImages) -> None:
    feed = Feed(make_images([0, 1] * 10), torch.device("cpu"), resident=resident)
    bounds = batch_bounds(20, 2)
    reading = feed.batches(torch.arange(20), bounds)
    next(reading)
    del reading
    assert len(list(feed.batches(torch.arange(20), bounds))) == 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [True, False])
def test_what_is_loaded_into_a_copy_is_not_loaded_into_the_original(
    device: str, resident: bool, make_images: MakeImages
) -> None:
    one, other = (
        Feed(make_images(labels, seed=seed), torch.device(device), resident=resident)
        for labels, seed in (([0, 1] * 4, 1), ([1, 0] * 4, 2))
    )
    everything, bounds = torch.arange(8), [(0, 8)]
    before, wanted = (next(feed.batches(everything, bounds))[0].clone() for feed in (one, other))
    copied = one.copy()
    assert copied.kind == one.kind == other.kind
    copied.load(other)
    assert torch.equal(next(copied.batches(everything, bounds))[0], wanted)
    assert torch.equal(next(one.batches(everything, bounds))[0], before)
    assert not torch.equal(before, wanted)
    assert one.kind != Feed(one.images(), one.device, resident=not resident).kind


def test_a_copy_of_streamed_images_reads_none_of_them(make_images: MakeImages) -> None:
    feed = Feed(make_images([0, 1] * 4), torch.device("cpu"), resident=False)
    assert feed.copy().store is feed.store


def test_on_a_cpu_everything_is_resident(make_images: MakeImages) -> None:
    assert fits(2**60, torch.device("cpu"))
    assert Feed(make_images([0]), torch.device("cpu")).resident


def test_on_a_cpu_images_are_not_copied_where_the_copy_would_take_much_of_the_free_memory(
    make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_images(list(range(5)) * 9)
    some = ImageSet.joined([images.select(torch.arange(30).flip(0)), make_images([1, 2])])
    order, bounds = torch.randperm(len(some), generator=torch.Generator().manual_seed(0)), batch_bounds(len(some), 8)
    copied = Feed(some, torch.device("cpu"))
    assert copied.resident
    monkeypatch.setattr("poise.data.feed.LITTLE", 0)
    monkeypatch.setattr("poise.data.feed.free_memory", lambda: 4 * some.store.nbytes - 1)
    viewed = Feed(some, torch.device("cpu"))
    assert not viewed.resident
    assert viewed.store is some.store
    for one, other in zip(copied.batches(order, bounds), viewed.batches(order, bounds), strict=True):
        assert all(map(torch.equal, one, other))
    assert Feed(images, torch.device("cpu")).resident  # nothing to copy


@pytest.mark.gpu
def test_on_a_gpu_what_needs_more_than_half_of_the_free_memory_streams() -> None:
    free, _ = torch.cuda.mem_get_info()
    assert fits(free // 4, torch.device("cuda"))
    assert not fits(free, torch.device("cuda"))
