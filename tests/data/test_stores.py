from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poise.data import Crops, DenseStore, Feed, FlatStore, ImageSet, PixelStore, batch_bounds
from poise.data.crops import resize_box
from poise.data.stores import View, resident

SHAPE = (3, 8, 8)


def flat(count: int = 5) -> FlatStore:
    """Images of different sizes, none smaller than 8×8."""
    generator = np.random.default_rng(0)
    sizes = torch.from_numpy(generator.integers(8, 14, (count, 2)))
    sizes[torch.arange(count), torch.from_numpy(generator.integers(0, 2, count))] = 8
    lengths = sizes.prod(dim=1) * 3
    values = torch.from_numpy(generator.integers(0, 256, int(lengths.sum()), dtype=np.uint8))
    return FlatStore(values, lengths.cumsum(0) - lengths, sizes, SHAPE)


def dense(count: int = 4) -> DenseStore:
    return DenseStore(torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, *SHAPE), dtype=np.uint8)))


def join_stores(stores: list[PixelStore]) -> PixelStore:
    """The images of several stores, one store after the other."""
    return View.of([(store, torch.arange(len(store))) for store in stores])


def whole(store: PixelStore, index: int) -> torch.Tensor:
    """One image as it is stored."""
    found = store.loaded(torch.tensor([index]))
    return found.pixels[0] if isinstance(found, DenseStore) else torch.from_numpy(found.picture(0))


def scaled(image: torch.Tensor, crops: Crops, row: int) -> torch.Tensor:
    """The part of an image that the crops say, by Pillow."""
    found = torch.from_numpy(resize_box(image.numpy(), tuple(crops.boxes[row].tolist()), crops.size))
    return found.flip(-1) if crops.mirrored[row] else found


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether bytes are the same but for rounding."""
    return int((one.int() - other.int()).abs().max()) <= 1


def crops_for(store: PixelStore, indices: list[int]) -> Crops:
    generator = np.random.default_rng(0)
    boxes = []
    for height, width in store.sizes[indices].tolist():
        w, h = generator.uniform(2, width), generator.uniform(2, height)
        boxes.append([generator.uniform(0, width - w), generator.uniform(0, height - h), w, h])
    mirrored = torch.from_numpy(generator.integers(0, 2, len(indices)).astype(bool))
    return Crops(torch.tensor(boxes, dtype=torch.float32), mirrored, (6, 5))


@pytest.mark.parametrize("store", [dense(), flat()], ids=["dense", "flat"])
def test_crops_are_cut_out_of_the_whole_image_scaled_and_mirrored(store: PixelStore) -> None:
    indices = [3, 0, 3, 1]
    crops = crops_for(store, indices)
    found = store.gather(torch.tensor(indices), crops)
    assert found.shape == (4, 3, 6, 5)
    for row, index in enumerate(indices):
        image = scaled(whole(store, index), crops, row)
        assert close(found[row], image)


def test_without_crops_the_centre_of_larger_images_is_cut_out() -> None:
    store = flat()
    for index in range(5):
        image = whole(store, index)
        top, left = (image.shape[1] - 8) // 2, (image.shape[2] - 8) // 2
        assert torch.equal(store.gather(torch.tensor([index]))[0], image[:, top : top + 8, left : left + 8])


def test_what_a_captured_step_reads_is_the_same() -> None:
    store, picks = flat(), torch.tensor([4, 0, 0, 2])
    assert torch.equal(store._gather_centres(picks), store.gather(picks))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12), st.data())
def test_views_of_joined_and_selected_stores_show_the_images_that_copies_would(
    chosen: list[tuple[bool, int]], data: st.DataObject
) -> None:
    both = (dense(), flat())
    view = join_stores([both[other].select(torch.tensor([index])) for other, index in chosen])
    expected = torch.stack([both[other].gather(torch.tensor([index]))[0] for other, index in chosen])
    assert torch.equal(view.all(), expected)
    assert view.sizes.tolist() == [both[other].sizes[index].tolist() for other, index in chosen]
    picks = torch.tensor(data.draw(st.lists(st.integers(0, len(chosen) - 1), max_size=6)), dtype=torch.int64)
    assert torch.equal(view.select(picks).all(), expected[picks])
    assert torch.equal(view.select(picks).compacted().all(), expected[picks])
    assert torch.equal(resident(view, torch.device("cpu")).all(), expected)
    crops = crops_for(view, [*range(len(chosen))])
    cropped = view.gather(torch.arange(len(chosen)), crops)
    for place, (other, index) in enumerate(chosen):
        image = whole(both[other], index)
        assert torch.equal(whole(view, place), image)
        assert close(cropped[place], scaled(image, crops, place))


def test_a_view_of_all_is_the_store_and_a_view_of_views_names_each_store_once() -> None:
    store = dense()
    assert store.select(torch.arange(4)) is store
    view = join_stores(
        [store.select(torch.tensor([1])), flat().select(torch.tensor([0])), store.select(torch.tensor([2]))]
    )
    assert isinstance(view, View)
    assert len(view.bases) == 2
    assert view.select(torch.tensor([0, 2])).bases == (store,)  # type: ignore[attr-defined]


def test_selecting_and_joining_reads_no_pixel() -> None:
    class Unread(DenseStore):
        def gather(self, indices: torch.Tensor, crops: Crops | None = None) -> torch.Tensor:
            raise AssertionError("a pixel was read")

    labels = torch.arange(4)
    images = ImageSet(Unread(dense().pixels), labels, labels)
    some = ImageSet.joined([images.of_labels([1, 2]), images.select(torch.tensor([3, 0]))]).relabelled([0, 1, 2, 3])
    assert some.first_of_each_label(1).labels.tolist() == [1, 2, 3, 0]
    with pytest.raises(AssertionError, match="was read"):
        some.pixels  # noqa: B018


def test_what_is_kept_does_not_hold_the_rest_in_memory() -> None:
    images = dense(100)
    kept = images.select(torch.tensor([7, 3])).compacted()
    assert kept.nbytes == 2 * 3 * 8 * 8
    assert isinstance(kept, DenseStore)
    assert kept.pixels.untyped_storage().nbytes() == kept.nbytes


def test_the_identity_is_that_of_the_pixels_however_they_are_stored() -> None:
    store = dense()
    view = join_stores([store.select(torch.tensor([0, 1])), DenseStore(store.pixels[2:].clone())])
    assert b"".join(view.identity()) == b"".join(store.identity()) == store.pixels.numpy().tobytes()


def test_a_view_can_be_sent_elsewhere() -> None:
    view = join_stores([dense(), flat()]).select(torch.tensor([5, 0]))
    assert torch.equal(pickle.loads(pickle.dumps(view)).all(), view.all())


def test_a_feed_of_images_of_different_sizes_is_loaded_by_index() -> None:
    store, labels = flat(6), torch.arange(6)
    images = ImageSet(store, labels, labels)
    one, other = (Feed(images.select(torch.tensor(picks)), torch.device("cpu")) for picks in ([0, 1], [4, 3]))
    assert one.store is other.store
    copied = one.copy()
    copied.load(other)
    assert torch.equal(copied.gather(torch.arange(2)), other.gather(torch.arange(2)))
    assert torch.equal(one.gather(torch.arange(2)), store.gather(torch.tensor([0, 1])))
    assert copied.labels.tolist() == [4, 3]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [dense, flat])
def test_a_copy_on_a_device_shows_the_same_images_and_is_sent_elsewhere_as_what_the_host_has(
    make: Callable[..., PixelStore], device: str
) -> None:
    store = make(6)
    there, picks = resident(store, torch.device(device)), torch.tensor([5, 0, 2])
    assert torch.equal(there.gather(picks).cpu(), store.gather(picks))
    crops = crops_for(store, picks.tolist())
    assert close(there.gather(picks, crops.to(device)).cpu(), store.gather(picks, crops))
    assert b"".join(there.select(picks).identity()) == b"".join(store.select(picks).identity())
    sent = pickle.loads(pickle.dumps(there.select(picks)))
    assert sent.device.type == "cpu"
    assert torch.equal(sent.all(), store.gather(picks))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [dense, flat])
@pytest.mark.parametrize("here", [True, False])
def test_images_come_in_the_same_batches_from_everywhere(
    device: str, make: Callable[..., PixelStore], here: bool
) -> None:
    store, labels = make(9), torch.arange(9)
    feed = Feed(ImageSet(store, labels, labels), torch.device(device), resident=here)
    order, bounds = torch.tensor([8, 1, 3, 0, 7, 2, 6, 5, 4]), batch_bounds(9, 4)
    for crops in (None, crops_for(store, order.tolist())):
        pixels, found = zip(*feed.batches(order, bounds, crops), strict=True)
        assert {each.device.type for each in (*pixels, *found)} == {device}
        assert [len(each) for each in found] == [stop - start for start, stop in bounds]
        assert torch.equal(torch.cat(found).cpu(), order)
        assert close(torch.cat(pixels).cpu(), store.gather(order, crops))
