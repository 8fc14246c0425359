from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from poise.data.inputs import to_pixels
from poise.data.labelled import Wanted, read_labelled, read_unlabelled
from poise.errors import UserError

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (7, 3, 8, 8), dtype=np.uint8)
TRUTH = [3, 1, 4, 1, 5, 9, 2]


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


def refusal(images: Any, labels: Any = None) -> str:
    with pytest.raises(UserError) as caught:
        read_labelled(images, labels)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tensors() -> Tensor:
    return torch.from_numpy(BYTES)


class TestFolders:
    def test_labels_are_the_names_of_the_class_folders(self, folder: Path) -> None:
        found = read_labelled(folder)
        assert found.labels == ["cat", "cat", "cat", "fox", "fox"]
        assert torch.equal(found.pixels, to_pixels(sorted(folder.glob("*/*.png"))))
        assert torch.equal(
            read_labelled(str(folder), wanted=Wanted((16, 16))).pixels, to_pixels(sorted(folder.glob("*/*")), (16, 16))
        )

    def test_without_labels_any_folder_of_images_will_do(self, folder: Path) -> None:
        assert torch.equal(read_unlabelled(folder).all(), read_labelled(folder).pixels)
        assert torch.equal(read_unlabelled(folder / "fox").all(), to_pixels(sorted((folder / "fox").glob("*"))))

    def test_what_is_no_such_folder_is_refused(self, folder: Path) -> None:
        assert "leave labels out" in refusal(folder, ["cat"] * 5)
        assert "no class folder" in refusal(folder / "fox")
        assert "is a single path; pass a list of paths" in refusal(folder / "fox" / "0.png")
        (folder / "empty").mkdir()
        with pytest.raises(UserError, match="no image"):
            read_unlabelled(folder / "empty")


class TestDatasets:
    @pytest.mark.parametrize("kind", [Listed, Streamed, list, tuple])
    def test_pairs_of_image_and_label(self, kind: Any) -> None:
        for images in (tensors(), tensors() / 255, BYTES.transpose(0, 2, 3, 1)):
            found = read_labelled(kind(list(zip(images, TRUTH, strict=True))))
            assert torch.equal(found.pixels, tensors())
            assert found.labels == TRUTH

    def test_pictures_of_any_size_are_scaled_like_files(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        named = [(Image.open(file), file.parent.name) for file in files]
        found = read_labelled(Listed(named))
        assert torch.equal(found.pixels, to_pixels(files))
        assert found.labels == ["cat", "cat", "cat", "fox", "fox"]
        assert torch.equal(read_labelled(Listed(named), wanted=Wanted((9, 9), 1)).pixels, to_pixels(files, (9, 9), 1))
        assert torch.equal(read_labelled([(file, 1) for file in files]).pixels, found.pixels)

    def test_pictures_that_would_take_much_memory_are_put_into_a_file(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = sorted(folder.glob("*/*.png"))
        pictures = Listed([(Image.open(file), file.parent.name) for file in files])
        assert read_labelled(pictures).store.in_memory
        monkeypatch.setattr("poise.data.inputs.free_memory", lambda: 1000)
        for images in (pictures, files):
            found = read_labelled(images, None if images is pictures else [0] * len(files))
            assert not found.store.in_memory
            monkeypatch.setattr("poise.data.suitable.free_memory", lambda: 1 << 30)
            assert torch.equal(found.pixels, to_pixels(files))

    def test_pictures_for_which_no_file_can_be_made_stay_in_memory_where_they_fit(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = sorted(folder.glob("*/*.png"))
        needed = 5 * 3 * 64 * 64
        monkeypatch.setattr("poise.data.inputs.free_memory", lambda: needed)
        monkeypatch.setattr("poise.data.suitable.free_memory", lambda: needed)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (needed - 1, before[1]))  # files may not be so long
        try:
            found = read_labelled(files, [0] * 5, Wanted((64, 64)))
            monkeypatch.setattr("poise.data.inputs.free_memory", lambda: needed - 1)
            with pytest.raises(UserError, match="more than there is of memory, and than is free on the disk"):
                read_labelled(files, [0] * 5, Wanted((64, 64)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert found.store.in_memory
        assert torch.equal(found.pixels, to_pixels(files, (64, 64)))

    def test_labels_that_are_given_count(self) -> None:
        pairs = Listed(list(zip(tensors(), TRUTH, strict=True)))
        assert read_labelled(pairs, list("abcdefg")).labels == list("abcdefg")

    def test_images_alone_have_no_labels(self) -> None:
        for alone in (Listed(list(tensors())), TensorDataset(tensors())):
            assert read_labelled(alone).labels is None
            assert torch.equal(read_unlabelled(alone).all(), tensors())

    def test_other_items_are_refused(self) -> None:
        assert "a dict of image, label; give (image, label) pairs" in refusal(Listed([{"image": 1, "label": 2}]))
        assert "is 3 parts; give (image, label) pairs" in refusal(TensorDataset(tensors(), tensors(), tensors()))
        assert "no images" in refusal(Listed([]))
        mixed = [(Image.new("RGB", (9, 9)), 0), (tensors()[0], 1)]
        assert "came as Tensor among PIL images" in refusal(Listed(mixed))
        assert "has no length" in refusal(Dataset())


class TestLoaders:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_all_batches_in_their_order(self, workers: int) -> None:
        loader = DataLoader(TensorDataset(tensors() / 255, torch.tensor(TRUTH)), batch_size=3, num_workers=workers)
        found = read_labelled(loader)
        assert torch.equal(found.pixels, tensors())
        assert [int(label) for label in found.labels] == TRUTH
        assert torch.equal(read_unlabelled(loader).all(), tensors())

    def test_a_few_are_drawn_of_a_dataset_that_would_fit_nowhere(self) -> None:
        class Endless(Dataset[Any]):
            def __len__(self) -> int:
                return 10**15

            def __getitem__(self, place: int) -> Any:
                return tensors()[place], TRUTH[place]

        found = read_labelled(DataLoader(Endless(), batch_sampler=[[0, 2], [1]]))
        assert torch.equal(found.pixels, tensors()[[0, 2, 1]])
        assert found.labels == [TRUTH[0], TRUTH[2], TRUTH[1]]

    def test_one_without_batches_gives_items(self) -> None:
        found = read_labelled(DataLoader(TensorDataset(tensors(), torch.tensor(TRUTH)), batch_size=None))
        assert torch.equal(found.pixels, tensors())
        assert found.labels == TRUTH

    def test_pictures_are_scaled_batch_by_batch_where_their_size_is_known(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        loader = DataLoader(Listed([(str(file), 0) for file in files]), batch_size=2)
        assert torch.equal(read_labelled(loader, wanted=Wanted((16, 16))).pixels, to_pixels(files, (16, 16)))
        assert torch.equal(read_labelled(loader).pixels, to_pixels(files))

    def test_pictures_and_names_from_a_collation_of_ones_own(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        items = Listed([(Image.open(file), file.parent.name) for file in files])
        loader = DataLoader(items, batch_size=2, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
        found = read_labelled(loader)
        assert torch.equal(found.pixels, to_pixels(files))
        assert found.labels == [file.parent.name for file in files]

    def test_a_shuffled_one_brings_its_labels_and_cannot_be_predicted(self) -> None:
        pairs = TensorDataset(tensors(), torch.tensor(TRUTH))
        loader = DataLoader(pairs, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1))
        found = read_labelled(loader)
        labels = {image.numpy().tobytes(): label for image, label in zip(tensors(), TRUTH, strict=True)}
        assert [labels[image.numpy().tobytes()] for image in found.pixels] == [int(label) for label in found.labels]
        with pytest.raises(UserError, match="make it shuffle=False"):
            read_unlabelled(loader)

    def test_one_that_drops_its_last_batch_cannot_be_predicted_and_says_what_it_leaves_out(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        pairs = TensorDataset(tensors(), torch.tensor(TRUTH))
        dropping = DataLoader(pairs, batch_size=4, drop_last=True)
        drawn = BatchSampler(SequentialSampler(range(7)), batch_size=4, drop_last=True)
        for loader in (dropping, DataLoader(pairs, batch_sampler=drawn)):
            with pytest.raises(UserError, match="leaves out 3 of 7 images; make it drop_last=False"):
                read_unlabelled(loader)
            assert "leaves out 3 of 7 images" in refusal(loader, TRUTH)
            caplog.clear()
            assert len(read_labelled(loader).store) == 4
            assert "this DataLoader leaves out 3 of 7 images (drop_last=True)" in caplog.text
        streamed = DataLoader(Streamed(list(tensors())), batch_size=4, drop_last=True)
        with pytest.raises(UserError, match="leaves out a last batch that is not full"):
            read_unlabelled(streamed)
        whole = DataLoader(pairs, batch_size=7, drop_last=True)
        assert torch.equal(read_unlabelled(whole).all(), tensors())

    def test_a_bad_image_is_named_by_its_place_among_all(self) -> None:
        good, bad = Image.new("RGB", (8, 8)), Image.new("F", (8, 8))
        assert "mode F at index 40 cannot be decoded" in refusal(Listed([(good, 0)] * 40 + [(bad, 0)]))
        array = np.full((8, 8, 3), 0.5)
        assert "images[40]: float images must lie" in refusal(Listed([(array, 0)] * 40 + [(array * 9, 0)]))

    def test_batches_that_do_not_fit_are_refused(self) -> None:
        uneven = DataLoader(Listed([(torch.zeros(3, 8, 8 + place), 0) for place in range(2)]), batch_size=1)
        assert "different shapes, images[0] (3, 8, 8) and images[1] (3, 8, 9)" in refusal(uneven)
        assert "there are no images" in refusal(DataLoader(Streamed([])))
        assert "single images instead of batches" in refusal(DataLoader(Streamed([(tensors()[0], 3)]), batch_size=None))
        picture = Image.new("RGB", (8, 8))
        alternating = Listed([(picture, 0), (tensors()[0], 1)])
        loader = DataLoader(alternating, batch_size=1, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
        assert "others as paths or PIL images; give one kind" in refusal(loader)
        normalised = DataLoader(TensorDataset(torch.randn(4, 3, 8, 8), torch.zeros(4)))
        assert "nothing normalised: poise does that itself" in refusal(normalised)


class Column:
    """A column as pandas and polars make them."""

    def __init__(self, values: list[Any], kind: Any = object) -> None:
        self._values, self._kind = values, kind

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return np.array(self._values, dtype=self._kind)


class Table(Column):
    columns = ("path", "label")


class TestColumns:
    def test_paths_in_a_column(self, folder: Path) -> None:
        files = sorted(folder.glob("*/*.png"))
        for paths in (files, [str(file) for file in files]):
            assert torch.equal(read_labelled(Column(paths), [1] * 5).pixels, to_pixels(files))
        assert torch.equal(read_unlabelled(Column([str(file) for file in files], "U")).all(), to_pixels(files))

    def test_a_tilde_in_a_path_is_the_home_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(folder))
        paths = [f"~/cat/{number}.png" for number in range(3)]
        for images in (paths, Column(paths), [(path, 0) for path in paths]):
            assert torch.equal(read_unlabelled(images).all(), to_pixels(sorted((folder / "cat").glob("*"))))

    def test_a_real_table_of_pandas(self, folder: Path) -> None:
        pandas = pytest.importorskip("pandas")
        files = sorted(folder.glob("*/*.png"))
        table = pandas.DataFrame({"path": [str(file) for file in files], "label": list("ccabb")})
        found = read_labelled(table["path"], table["label"])
        assert torch.equal(found.pixels, to_pixels(files))
        assert "pass its column of paths" in refusal(table)
        assert "row 0 of the column has nan and no path" in refusal(table["path"].where(table["label"] != "c", None))
        missing = table["path"].where(table["label"] != "a").astype("string")
        assert "row 2 of the column has <NA> and no path" in refusal(missing)

    def test_what_has_no_paths_is_refused(self) -> None:
        assert "pass its column of paths, such as table['path']" in refusal(Table([["a.png", 1]]))
        assert "a column of float64" in refusal(Column([1.0, 2.0], np.float64))
        for missing in (None, float("nan")):
            assert f"row 1 of the column has {missing} and no path" in refusal(Column(["a.png", missing]))


def test_what_can_be_read_only_once_is_refused() -> None:
    for images in ((image for image in BYTES), map(str, BYTES), zip(BYTES, TRUTH, strict=True)):
        assert "pass a list, such as list(images)" in refusal(images, TRUTH)
