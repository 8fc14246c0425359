"""What brings its labels along, or holds paths in a table: folders of class folders, datasets, loaders, columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from poise.data.collecting import Collecting
from poise.data.images import ImageSet
from poise.data.inputs import (
    Picture,
    Size,
    decode_store,
    empty_store,
    fit_picture,
    given_paths,
    median_side,
    suitable_square,
    to_pixels,
)
from poise.data.packed_images import PackedPart
from poise.data.packfile import ENDING
from poise.data.packs import Pack
from poise.data.sources.layout import image_files, labelled_files
from poise.data.stores import PixelStore, as_store
from poise.errors import UserError
from poise.files import expand_user

log = logging.getLogger(__name__)

LOADER_HINT: Final = "give (image, label) pairs"
AT_ONCE: Final = 32  # items of a dataset that are turned into bytes together


class Wanted(NamedTuple):
    """How images are wanted.

    Attributes:
        size: height and width; None: chosen for them.
        channels: 3, or 1 for grey ones.
        short_side: of pictures and packed images, to how many pixels it is scaled before a square is cut out of the
            centre. None: of pictures to the side of the square; packed images of a `size` that is given are not scaled,
            which is how learners of an older poise saw them.
    """

    size: Size | None = None
    channels: int = 3
    short_side: int | None = None


class Read(NamedTuple):
    """A store of the images, and the labels that came with them, if any did."""

    store: PixelStore
    labels: Any = None

    @property
    def pixels(self) -> Tensor:
        """The images as uint8 [N, C, H, W]: for few of them."""
        return self.store.all()


def read_labelled(
    images: Any,  # noqa: ANN401 - checked here
    labels: Any = None,  # noqa: ANN401 - checked by whoever needs them
    wanted: Wanted = Wanted(),  # noqa: B008 - a frozen value
    *,
    held_out: bool = False,
) -> Read:
    """Images in any accepted form, and their labels: those that are given, else those that the images bring along.

    Besides everything that `to_pixels` takes: a folder of class folders, a pack, a torch `Dataset` or `DataLoader` of
    (image, label), a list of such pairs, and a column of paths or of images. Of a pack it is the training part or, with
    `held_out`, the test part where there is one.
    """
    if isinstance(images, str | Path) and expand_user(images).is_dir():
        if labels is not None:
            raise UserError(f"in {images} the names of the class folders are the labels; leave labels out")
        files, names = labelled_files(expand_user(images))
        return Read(decode_store(files, *wanted), names)
    pack = _pack_of(images)
    if pack is not None:
        if labels is not None:
            raise UserError(f"in {pack.path} the names of the classes are the labels; leave labels out")
        return _read_pack(pack, wanted, held_out=held_out)
    if labels is not None:
        _refuse_unordered(images, "image has which label")
    found = _read(images, wanted)
    return found if labels is None else Read(found.store, labels)


def read_unlabelled(
    images: Any,  # noqa: ANN401 - checked here
    wanted: Wanted = Wanted(),  # noqa: B008 - a frozen value
    *,
    held_out: bool = False,
) -> PixelStore:
    """The images alone, in any accepted form; of a folder, all image files in it and below it, sorted by path.

    Of a pack they are those of the training part or, with `held_out`, of the test part where there is one.
    """
    if isinstance(images, str | Path) and expand_user(images).is_dir():
        return decode_store(image_files(expand_user(images)), *wanted)
    pack = _pack_of(images)
    if pack is not None:
        return _read_pack(pack, wanted, held_out=held_out).store
    _refuse_unordered(images, "prediction is whose")
    return _read(images, wanted).store


def _refuse_unordered(images: Any, unknown: str) -> None:  # noqa: ANN401 - whatever a user gives
    """Refuse a loader whose order nobody knows, or that leaves images out."""
    if not isinstance(images, DataLoader):
        return
    drawn = images.sampler if images.batch_sampler is None else getattr(images.batch_sampler, "sampler", None)
    if not isinstance(images.dataset, IterableDataset) and not isinstance(drawn, SequentialSampler):
        raise UserError(f"this DataLoader shuffles, so nobody knows which {unknown}; make it shuffle=False")
    if left_out := _describe_left_out(images):
        raise UserError(f"this DataLoader leaves out {left_out}; make it drop_last=False")


def _describe_left_out(loader: DataLoader[Any]) -> str:
    """What `drop_last` leaves out, in words; empty where it is nothing."""
    if not (loader.drop_last or getattr(loader.batch_sampler, "drop_last", False)):
        return ""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not hasattr(loader.dataset, "__len__") or not size:
        return "a last batch that is not full"
    count = len(loader.dataset) % size
    return f"{count} of {len(loader.dataset)} images" if count else ""


def _read(images: Any, wanted: Wanted) -> Read:  # noqa: ANN401 - checked here
    if isinstance(images, ImageSet | PixelStore):
        return Read(images if isinstance(images, PixelStore) else images.store)
    if isinstance(images, DataLoader):
        if left_out := _describe_left_out(images):
            log.warning("this DataLoader leaves out %s (drop_last=True)", left_out)
        return _read_loader(images, wanted)
    if isinstance(images, IterableDataset):
        return _read_items(images, wanted)
    if isinstance(images, Dataset):
        return _read_dataset(images, wanted)
    if isinstance(images, Iterator):
        raise UserError(
            f"images came as a {type(images).__name__}, which can be read only once; pass a list, such as list(images)"
        )
    if hasattr(images, "to_numpy") and not isinstance(images, np.ndarray | Tensor):
        images = _read_column(images)
    if isinstance(images, Sequence) and len(images) and all(map(_is_pair, images)):
        return _read_items(images, wanted, len(images))
    paths = given_paths(images)
    return Read(decode_store(paths, *wanted) if paths else as_store(to_pixels(images, *wanted)))


def _pack_of(images: Any) -> Pack | None:  # noqa: ANN401 - whatever a user gives
    """The pack that this is, or that this is the path of."""
    if isinstance(images, str | Path) and expand_user(images).suffix == ENDING:
        return Pack.open(expand_user(images))
    return images if isinstance(images, Pack) else None


def _read_pack(pack: Pack, wanted: Wanted, *, held_out: bool) -> Read:
    """One part of a pack; the names of its classes are the labels."""
    seen = PackedPart.of(pack, *wanted, held_out=held_out)
    return Read(seen.read(), seen.labels())


# Datasets and loaders -------------------------------------------------------------------------------------------------


def _read_dataset(dataset: Any, wanted: Wanted) -> Read:  # noqa: ANN401 - torch's has no length
    """Every item once; pictures are scaled as they come, so that large ones never lie in memory together."""
    if not hasattr(dataset, "__len__"):
        raise UserError(f"{type(dataset).__name__} has no length; give a dataset with __len__ and __getitem__")
    if not len(dataset) or not isinstance(_split_item(dataset[0])[0], Image.Image):
        return _read_items((dataset[place] for place in range(len(dataset))), wanted, len(dataset))
    size = wanted.size or suitable_square(median_side(_Pictures(dataset)))
    store = empty_store((len(dataset), wanted.channels, *size))
    labels: list[Any] = []
    for place in range(len(dataset)):
        picture, label = _split_item(dataset[place])
        fitted = fit_picture(picture, size, wanted.channels, wanted.short_side, place)
        store.pixels[place] = torch.from_numpy(fitted).permute(2, 0, 1)
        labels.append(label)
    return Read(store, _all_or_none(labels))


class _Pictures(Sequence[Any]):
    """The images of a dataset, one at a time."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - torch's has no length
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401 - whatever the dataset gives
        return _split_item(self._dataset[int(place)])[0]


def _read_items(items: Iterable[Any], wanted: Wanted, expected: int = 0) -> Read:
    """Single images and their labels, a few at a time."""
    pairs = map(_split_item, items)
    batches = iter(lambda: tuple(zip(*islice(pairs, AT_ONCE), strict=True)), ())
    return _read_batches(batches, wanted, expected)


def _read_loader(loader: DataLoader[Any], wanted: Wanted) -> Read:
    """All batches; or items, where it has no batches."""
    listed = not isinstance(loader.dataset, IterableDataset)
    own = loader.batch_sampler is not None and loader.batch_size is None  # which may draw any number of them
    expected = len(loader.sampler) if listed and not own and isinstance(loader.sampler, Sized) else 0
    if listed and loader.batch_sampler is None:
        return _read_items(loader, wanted, expected)
    return _read_batches(map(_split_batch, loader), wanted, expected)


def _read_batches(batches: Iterable[Any], wanted: Wanted, expected: int) -> Read:
    """Batches of images and labels. Arrays become bytes batch by batch, and so do pictures where their size is known;
    if not, it is chosen when all of them are there.
    """
    collecting, pictures, labels = Collecting(expected), list[Any](), list[Any]()
    for images, theirs in batches:
        open_size = wanted.size is None and not isinstance(images, Tensor)
        if open_size and all(isinstance(image, Picture) for image in images):
            pictures += images
        else:
            collecting.add(to_pixels(images, *wanted, first=len(collecting)))
        if pictures and len(collecting):
            raise UserError("some images came as arrays or tensors, others as paths or PIL images; give one kind")
        labels += theirs
    store = decode_store(given_paths(pictures) or pictures, *wanted) if pictures else collecting.store()
    return Read(store, _all_or_none(labels))


def _split_batch(batch: Any) -> tuple[Any, Sequence[Any]]:  # noqa: ANN401 - whatever a loader gives
    """The images and labels of a batch; each label is None where there are none."""
    images, labels = _split_item(batch)
    labels = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else labels
    single = not isinstance(labels, Sequence | None) or isinstance(labels, str)
    if single or isinstance(images, str) or not hasattr(images, "__len__"):
        raise UserError("this DataLoader gives single images instead of batches; give it a batch_size")
    if labels is not None and len(labels) != len(images):
        raise UserError(f"a batch has {len(images)} images and {len(labels)} labels; {LOADER_HINT}")
    return images, [None] * len(images) if labels is None else labels


def _is_pair(item: object) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def _split_item(item: Any) -> tuple[Any, Any]:  # noqa: ANN401 - checked here
    """Image and label of an item, or images and labels of a batch; the label is None where there is none."""
    if _is_pair(item):
        return item[0], item[1]
    if isinstance(item, tuple | list) and len(item) == 1:  # a TensorDataset without labels
        return item[0], None
    if isinstance(item, dict | tuple | list):
        found = f"a dict of {', '.join(map(str, item))}" if isinstance(item, dict) else f"{len(item)} parts"
        raise UserError(f"an item of the dataset is {found}; {LOADER_HINT}")
    return item, None


def _all_or_none(labels: list[Any]) -> list[Any] | None:
    return None if any(label is None for label in labels) else labels


# Tables ---------------------------------------------------------------------------------------------------------------


def _read_column(column: Any) -> list[Any]:  # noqa: ANN401 - a table's, by its conventions
    """The values of a column: paths, or images; a whole table and missing values are refused."""
    if hasattr(column, "columns"):
        raise UserError("images came as a table; pass its column of paths, such as table['path']")
    values = column.to_numpy()
    if values.ndim != 1 or values.dtype.kind not in "OUT":
        raise UserError(f"images came as a column of {values.dtype}; pass the column that has the paths")
    listed = list(values.tolist())
    for row, value in enumerate(listed):
        if not isinstance(value, str | Path | Image.Image | np.ndarray | Tensor):
            raise UserError(f"row {row} of the column has {value!r} and no path; drop such rows, or fill them in")
    return listed
