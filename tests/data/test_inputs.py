"""Everything that a user may hand over as images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from poise.data import Decoder, PixelStore, open_images, to_pixels
from poise.errors import UserError

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (7, 3, 8, 8), dtype=np.uint8)
TRUTH = [3, 1, 4, 1, 5, 9, 2]


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders with images of several sizes."""
    for name, count in (("fox", 2), ("cat", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = RANDOM.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


class Listed(Dataset[Any]):
    """A map-style dataset of these items."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> Any:
        return self._items[place]


class Streamed(IterableDataset[Any]):
    """The same without random access."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


def refusal(images: Any, labels: Any = None, decoder: Decoder | None = None) -> str:
    with pytest.raises(UserError) as caught:
        open_images(images, labels, decoder or Decoder())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tensors() -> Tensor:
    return torch.from_numpy(BYTES)


def unlabelled(images: Any) -> Tensor:
    return open_images(images, labelled=False).store.all()


class TestArrays:
    @given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3]))
    def test_numpy_is_channels_last_and_torch_channels_first(
        self, count: int, high: int, wide: int, depth: int
    ) -> None:
        images = noise(count, high, wide, depth)
        pixels = to_pixels(images)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        np.testing.assert_array_equal(pixels.numpy(), images.transpose(0, 3, 1, 2))
        assert torch.equal(to_pixels(pixels), pixels)
        assert torch.equal(to_pixels(list(images)), pixels)
        assert torch.equal(to_pixels(list(pixels)), pixels)
        if depth == 1:
            assert torch.equal(to_pixels(images[..., 0] if wide != 3 else images), pixels)

    def test_a_read_only_array_is_fine_and_never_shared(self) -> None:
        images = noise(2, 4, 5)
        images.setflags(write=False)
        to_pixels(images).zero_()
        assert images.any()

    @pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
    def test_floats_from_0_to_1_are_the_bytes_that_they_were_made_of(self, kind: str) -> None:
        images = noise(2, 8, 8, 3)
        wanted = to_pixels(images)
        assert torch.equal(to_pixels(wanted.to(getattr(torch, kind)) / 255), wanted)
        assert torch.equal(to_pixels((images / 255).astype(kind)), wanted)

    def test_the_expected_size_is_checked(self) -> None:
        assert to_pixels(noise(2, 4, 5, 3), (4, 5)).shape == (2, 3, 4, 5)
        assert "are 4×5 pixels, expected 5×4" in refusal(noise(2, 4, 5, 3), decoder=Decoder((5, 4)))

    @pytest.mark.parametrize(
        ("images", "words"),
        [
            (noise(9, 9, 9, 3) / 1.0, "between 0 and 1, these go from 0 to 255; give uint8"),
            (torch.full((2, 3, 4, 5), torch.nan), "these go from nan to nan"),
            (noise(2, 4, 5, 3).astype(np.int64), "int64, expected uint8 from 0 to 255 (or floats from 0 to 1); use"),
            (torch.zeros(2, 3, 4, 5, dtype=torch.bool), "use images.to(torch.uint8) * 255"),
            (noise(2, 4, 5, 2), "[2, 4, 5, 2]"),
            (noise(2, 3, 8, 8), "images.transpose(0, 2, 3, 1)"),
            (torch.from_numpy(noise(2, 8, 8, 3)), "images.permute(0, 3, 1, 2)"),
            (noise(8, 8, 3), "images[None]"),
            (noise(8, 8), "[8, 8]"),
            (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "no images"),
            ([], "no images"),
            ([noise(4, 4, 3), noise(4, 4, 3), noise(4, 5, 3)], "images[0] (4, 4, 3) and images[2] (4, 5, 3)"),
            ([noise(4, 4, 3), "a.png"], "images[1] as str"),
            ([noise(4, 4, 3) / 255, noise(4, 4, 3) / 1.0], "images[1]: float images must lie between 0 and 1"),
            ("cat.png", "does not exist"),
            (None, "came as NoneType"),
            ({"a": 1}, "came as dict"),
            (torch.zeros(2, 3, 4, 5).to_sparse(), "sparse"),
            (torch.zeros(2, 3, 4, 5, device="meta"), "meta"),
        ],
    )
    def test_anything_else_is_refused_with_the_way_out(self, images: Any, words: str) -> None:
        assert words in refusal(images)


class TestFolders:
    def test_labels_are_the_names_of_the_class_folders(self, folder: Path) -> None:
        store, labels = open_images(folder)
        assert labels == ["cat", "cat", "cat", "fox", "fox"]
        assert torch.equal(store.all(), to_pixels(sorted(folder.glob("*/*.png"))))
        small = open_images(str(folder), decoder=Decoder((16, 16))).store
        assert torch.equal(small.all(), to_pixels(sorted(folder.glob("*/*")), (16, 16)))

    def test_without_labels_any_folder_of_images_will_do(self, folder: Path) -> None:
        assert torch.equal(unlabelled(folder), open_images(folder).store.all())
        assert torch.equal(unlabelled(folder / "fox"), to_pixels(sorted((folder / "fox").glob("*"))))

    def test_what_is_no_such_folder_is_refused(self, folder: Path) -> None:
        assert "leave labels out" in refusal(folder, ["cat"] * 5)
        assert "no class folder" in refusal(folder / "fox")
        assert "is a single file; pass a list of paths" in refusal(folder / "fox" / "0.png")
        (folder / "empty").mkdir()
        with pytest.raises(UserError, match="no image"):
            unlabelled(folder / "empty")

    def test_a_tilde_in_a_path_is_the_home_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder))
        paths = [f"~/cat/{number}.png" for number in range(3)]
        for images in (paths, "~/cat", [(path, 0) for path in paths]):
            assert torch.equal(unlabelled(images), to_pixels(sorted((folder / "cat").glob("*"))))


class TestDatasets:
    @pytest.mark.parametrize("kind", [Listed, Streamed, list, tuple])
    def test_pairs_of_image_and_label(self, kind: Any) -> None:
        for images in (tensors(), tensors() / 255, BYTES.transpose(0, 2, 3, 1)):
            store, labels = open_images(kind(list(zip(images, TRUTH, strict=True))))
            assert torch.equal(store.all(), tensors())
            assert labels == TRUTH

    def test_pictures_of_any_size_are_scaled_like_files(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        named = [(Image.open(file), file.parent.name) for file in files]
        store, labels = open_images(Listed(named))
        assert torch.equal(store.all(), to_pixels(files))
        assert labels == ["cat", "cat", "cat", "fox", "fox"]
        grey = Decoder((9, 9), 1)
        assert torch.equal(open_images(Listed(named), decoder=grey).store.all(), grey.decode_all(files))
        assert torch.equal(open_images([(file, 1) for file in files]).store.all(), store.all())

    def test_labels_that_are_given_count(self) -> None:
        pairs = Listed(list(zip(tensors(), TRUTH, strict=True)))
        assert open_images(pairs, list("abcdefg")).labels == list("abcdefg")

    def test_images_alone_have_no_labels(self) -> None:
        for alone in (Listed(list(tensors())), TensorDataset(tensors())):
            assert open_images(alone).labels is None
            assert torch.equal(unlabelled(alone), tensors())

    def test_other_items_are_refused(self) -> None:
        assert "a dict of image, label; give (image, label) pairs" in refusal(Listed([{"image": 1, "label": 2}]))
        assert "is 3 parts; give (image, label) pairs" in refusal(TensorDataset(tensors(), tensors(), tensors()))
        assert "no images" in refusal(Listed([]))
        mixed = [(Image.new("RGB", (9, 9)), 0), (tensors()[0], 1)]
        assert "came as Tensor among PIL images" in refusal(Listed(mixed))
        assert "has no length" in refusal(Dataset())

    def test_a_bad_image_is_named_by_its_place_among_all(self) -> None:
        good, bad = Image.new("RGB", (8, 8)), Image.new("F", (8, 8))
        assert "mode F at index 40 cannot be decoded" in refusal(Listed([(good, 0)] * 40 + [(bad, 0)]))
        array = np.full((8, 8, 3), 0.5)
        assert "images[40]: float images must lie" in refusal(Listed([(array, 0)] * 40 + [(array * 9, 0)]))


class TestLoaders:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_all_batches_in_their_order(self, workers: int) -> None:
        loader = DataLoader(TensorDataset(tensors() / 255, torch.tensor(TRUTH)), batch_size=3, num_workers=workers)
        store, labels = open_images(loader)
        assert torch.equal(store.all(), tensors())
        assert [int(label) for label in labels] == TRUTH
        assert torch.equal(unlabelled(loader), tensors())
        single = DataLoader(TensorDataset(tensors(), torch.tensor(TRUTH)), batch_size=None)
        assert torch.equal(open_images(single).store.all(), tensors())

    def test_pictures_and_names_from_a_collation_of_ones_own(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        items = Listed([(Image.open(file), file.parent.name) for file in files])
        loader = DataLoader(items, batch_size=2, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
        store, labels = open_images(loader)
        assert torch.equal(store.all(), to_pixels(files))
        assert labels == [file.parent.name for file in files]

    def test_one_that_shuffles_or_drops_brings_its_labels_and_cannot_be_predicted(self) -> None:
        pairs = TensorDataset(tensors(), torch.tensor(TRUTH))
        loader = DataLoader(pairs, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1))
        store, found = open_images(loader)
        labels = {image.numpy().tobytes(): label for image, label in zip(tensors(), TRUTH, strict=True)}
        assert [labels[image.numpy().tobytes()] for image in store.all()] == [int(label) for label in found]
        drawn = BatchSampler(SequentialSampler(range(7)), batch_size=4, drop_last=True)
        dropping = DataLoader(pairs, batch_size=4, drop_last=True)
        for other, words in (
            (loader, "shuffle"),
            (dropping, "drop_last"),
            (DataLoader(pairs, batch_sampler=drawn), "drop_"),
        ):
            with pytest.raises(UserError, match=f"make it {words}.*=False"):
                unlabelled(other)
            assert words in refusal(other, TRUTH)

    def test_batches_that_do_not_fit_are_refused(self) -> None:
        uneven = DataLoader(Listed([(torch.zeros(3, 8, 8 + place), 0) for place in range(2)]), batch_size=1)
        assert "different shapes or kinds, images[1]" in refusal(uneven)
        assert "there are no images" in refusal(DataLoader(Streamed([])))
        assert "single images instead of batches" in refusal(DataLoader(Streamed([(tensors()[0], 3)]), batch_size=None))
        picture = Image.new("RGB", (8, 8))
        alternating = Listed([(picture, 0), (tensors()[0], 1)])
        loader = DataLoader(alternating, batch_size=1, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
        assert "give one kind" in refusal(loader)


class Column:
    """A column as pandas and polars make them."""

    def __init__(self, values: list[Any], kind: Any = object) -> None:
        self._values, self._kind = values, kind

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return np.array(self._values, dtype=self._kind)


class Table(Column):
    columns = ("path", "label")


def test_paths_in_a_column(folder: Path) -> None:
    files = sorted(folder.glob("*/*.png"))
    for paths in (Column(files), Column([str(file) for file in files]), np.array([str(file) for file in files])):
        assert torch.equal(unlabelled(paths), to_pixels(files))


def test_what_has_no_paths_is_refused() -> None:
    assert "pass its column of paths, such as table['path']" in refusal(Table([["a.png", 1]]))
    assert "a column of float64" in refusal(Column([1.0, 2.0], np.float64))
    for missing in (None, float("nan")):
        assert f"row 1 of the column has {missing} and no path" in refusal(Column(["a.png", missing]))


def test_what_can_be_read_only_once_is_refused() -> None:
    for images in ((image for image in BYTES), map(str, BYTES), zip(BYTES, TRUTH, strict=True)):
        assert "pass a list, such as list(images)" in refusal(images, TRUTH)


def test_a_store_is_taken_as_it_is() -> None:
    store = open_images(tensors()).store
    assert isinstance(store, PixelStore)
    assert open_images(store, TRUTH) == (store, TRUTH)
