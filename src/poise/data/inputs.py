"""What a user hands over as images: arrays, tensors, pictures, paths, folders, datasets, loaders, columns, packs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from poise.data.decode import Decoder, Picture, Size
from poise.data.images import ImageSet
from poise.data.packs import TRAIN, Pack
from poise.data.sources.layout import image_files, labelled_files, names_pack
from poise.data.stores import PixelStore, as_store
from poise.errors import UserError
from poise.store import expand_user

_ACCEPTED: Final = "pass an array or tensor, or a list of paths or PIL images, all of one kind"
_AT_ONCE: Final = 32  # items of a dataset that are turned into bytes together


class Images(NamedTuple):
    """A store of images, and the labels that came with them, if any did."""

    store: PixelStore
    labels: Any = None


def open_images(
    images: Any,  # noqa: ANN401 - checked here
    labels: Any = None,  # noqa: ANN401 - checked by whoever needs them
    decoder: Decoder = Decoder(),  # noqa: B008 - a frozen value
    *,
    labelled: bool = True,
    held_out: bool = False,
) -> Images:
    """Images in any accepted form as a store, and their labels: as given, else as the images bring them along.

    Args:
        images: numpy [N, H, W, C] or [N, H, W], torch [N, C, H, W] or [N, H, W], or a list of single images of one of
            these kinds, uint8 or floats from 0 to 1; a list or a column of paths or PIL images; the path of a folder; a
            torch `Dataset` or `DataLoader` of images or of (image, label), or a list of such pairs; a pack or its path.
        labels: one for each image; not for a folder of class folders or a pack.
        decoder: how pictures are decoded; arrays and tensors must already have its size.
        labelled: whether a folder is one of class folders; if not, all image files in it and below it are taken.
        held_out: of a pack, take the test part where there is one.
    """
    path = expand_user(images) if isinstance(images, str | Path) else None
    if isinstance(images, Pack) or (path is not None and names_pack(path)):
        _refuse_labels(labels, images)
        pack = images if isinstance(images, Pack) else Pack.open(expand_user(images))
        part = pack.exam_part if held_out else TRAIN
        return Images(pack.read(part, decoder), pack.names(part))
    if path is not None and path.is_dir():
        _refuse_labels(labels, images)
        files, names = labelled_files(path) if labelled else (image_files(path), None)
        return Images(as_store(decoder.decode_all(files)), names)
    if path is not None:
        found = "is a single file; pass a list of paths" if path.exists() else "does not exist; check the path"
        raise UserError(f"images='{images}' {found}")
    if isinstance(images, DataLoader) and (labels is not None or not labelled):
        _refuse_unordered(images)
    store, own = _read(images, decoder)
    return Images(store, own if labels is None else labels)


def to_pixels(images: Any, size: Size | None = None) -> Tensor:  # noqa: ANN401 - checked by open_images
    """Images in any form that `open_images` accepts as uint8 [N, C, H, W]."""
    return open_images(images, decoder=Decoder(size), labelled=False).store.all()


def _refuse_labels(labels: Any, images: Any) -> None:  # noqa: ANN401 - whatever a user gives
    if labels is not None:
        raise UserError(
            f"in {getattr(images, 'path', images)} the names of the classes are the labels; leave labels out"
        )


def _refuse_unordered(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose order nobody knows, or that leaves images out."""
    drawn = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    if not isinstance(loader.dataset, IterableDataset) and not isinstance(drawn, SequentialSampler):
        raise UserError("this DataLoader shuffles, so nobody knows which image is which; make it shuffle=False")
    if loader.drop_last or getattr(loader.batch_sampler, "drop_last", False):
        raise UserError("this DataLoader leaves out a last batch that is not full; make it drop_last=False")


def _read(images: Any, decoder: Decoder) -> Images:  # noqa: ANN401 - checked here
    if isinstance(images, ImageSet | PixelStore):
        return Images(images if isinstance(images, PixelStore) else images.store)
    if isinstance(images, DataLoader):
        batched = images.batch_sampler is not None or isinstance(images.dataset, IterableDataset)
        return _read_batches(map(_split_batch, images), decoder) if batched else _read_items(images, decoder)
    if isinstance(images, IterableDataset):
        return _read_items(images, decoder)
    if isinstance(images, Dataset):
        if not hasattr(images, "__len__"):
            raise UserError(f"{type(images).__name__} has no length; give a dataset with __len__ and __getitem__")
        count, item = len(images), images.__getitem__
        if decoder.size is None and count and isinstance(_split_item(item(0))[0], Image.Image):
            # Pictures are scaled as they come, so that large ones never lie in memory together.
            decoder = decoder.sized_for(count, lambda place: _split_item(item(place))[0])
        return _read_items(map(item, range(count)), decoder)
    if isinstance(images, Iterator):
        raise UserError(
            f"images came as a {type(images).__name__}, which can be read only once; pass a list, such as list(images)"
        )
    if hasattr(images, "to_numpy"):
        images = _read_column(images)
    if isinstance(images, np.ndarray) and images.dtype.kind in "OU":
        images = images.tolist()
    if isinstance(images, Sequence) and len(images) and all(map(_is_pair, images)):
        return _read_items(images, decoder)
    return Images(as_store(_pixels_of(images, decoder)))


def _pixels_of(images: Any, decoder: Decoder, first: int = 0) -> Tensor:  # noqa: ANN401 - checked here
    """Arrays, tensors, or a list of single images as uint8 [N, C, H, W]; `first` is the place of the list's first."""
    if not isinstance(images, Sequence):
        return _array_pixels(images, decoder.size)
    if not len(images):
        raise UserError("there are no images; give at least one")
    if all(isinstance(entry, str | Path) for entry in images):
        images = [expand_user(entry) for entry in images]
    if isinstance(images[0], Picture):
        return decoder.decode_all(images, first)
    kind = next((kind for kind in (np.ndarray, Tensor) if isinstance(images[0], kind)), None)
    for place, entry in enumerate(images, first):
        if kind is None or not isinstance(entry, kind):
            raise UserError(f"images came as a list, and images[{place}] as {type(entry).__name__}; {_ACCEPTED}")
        if tuple(entry.shape) != tuple(images[0].shape):
            shapes = f"images[{first}] {tuple(images[0].shape)} and images[{place}] {tuple(entry.shape)}"
            raise UserError(f"images have different shapes, {shapes}; make them all one size")
        try:
            _array_pixels(entry[None], decoder.size)
        except UserError as error:
            raise UserError(f"images[{place}]: {error}") from None
    return torch.cat([_array_pixels(entry[None], decoder.size) for entry in images])


# Arrays and tensors ---------------------------------------------------------------------------------------------------


def _array_pixels(images: Any, size: Size | None) -> Tensor:  # noqa: ANN401 - checked here
    """An array [N, H, W, C] or [N, H, W], or a tensor [N, C, H, W] or [N, H, W], as uint8 [N, C, H, W]."""
    if isinstance(images, np.ndarray):
        pixels = _from_numpy(images)
    elif isinstance(images, Tensor):
        pixels = _from_torch(images)
    else:
        raise UserError(f"images came as {type(images).__name__}; {_ACCEPTED}")
    if not pixels.numel():
        raise UserError(f"there are no images, the shape is {list(pixels.shape)}; give at least one")
    height, width = pixels.shape[2:]
    if size is not None and (height, width) != tuple(size):
        raise UserError(f"images are {height}×{width} pixels, expected {size[0]}×{size[1]}; resize them first")
    return pixels


def _from_numpy(images: npt.NDArray[Any]) -> Tensor:
    if images.dtype.kind == "f" and images.size:
        images = _to_bytes(torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))).numpy()
    _refuse_other_dtype(images.dtype, "images.astype('uint8')")
    if images.ndim == 3 and images.shape[-1] == 3:
        raise UserError(
            f"{list(images.shape)} looks like one colour image; use images[None] (images[..., None] if grey)"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        hint = "; use images.transpose(0, 2, 3, 1)" if images.ndim == 4 and images.shape[1] in (1, 3) else ""
        raise UserError(f"numpy images must be [N, H, W] or [N, H, W, 1 or 3], not {list(images.shape)}{hint}")
    # Always a copy: what the user does to the array later must not change what was learnt from.
    return torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C"))


def _from_torch(images: Tensor) -> Tensor:
    if images.is_nested or images.is_quantized or images.layout is not torch.strided or images.is_meta:
        raise UserError("images came as a nested, quantised, sparse or meta tensor; give a plain one on the CPU")
    if images.is_floating_point() and images.numel():
        images = _to_bytes(images.detach().float())
    _refuse_other_dtype(images.dtype, "images.to(torch.uint8)")
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        hint = "; use images.permute(0, 3, 1, 2)" if images.ndim == 4 and images.shape[-1] in (1, 3) else ""
        raise UserError(f"torch images must be [N, H, W] or [N, 1 or 3, H, W], not {list(images.shape)}{hint}")
    return images.detach().contiguous()


def _to_bytes(images: Tensor) -> Tensor:
    """Floats from 0 to 1, as most libraries make them of images, as the bytes that they were made of."""
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"float images must lie between 0 and 1, these go from {low:g} to {high:g}; "
            "give uint8 from 0 to 255, and nothing normalised: poise does that itself"
        )
    return (images * 255).round().to(torch.uint8)


def _refuse_other_dtype(dtype: object, cast: str) -> None:
    found = str(dtype).removeprefix("torch.")
    if found != "uint8":
        advice = f"use {cast} * 255" if found == "bool" else f"use {cast} if they go from 0 to 255, else scale them"
        raise UserError(f"images are {found}, expected uint8 from 0 to 255 (or floats from 0 to 1); {advice}")


# Datasets, loaders and columns ----------------------------------------------------------------------------------------


def _read_items(items: Iterable[Any], decoder: Decoder) -> Images:
    """Single images and their labels, a few at a time."""
    pairs = map(_split_item, items)
    return _read_batches(iter(lambda: tuple(zip(*islice(pairs, _AT_ONCE), strict=True)), ()), decoder)


def _read_batches(batches: Iterable[Any], decoder: Decoder) -> Images:
    """Batches of images and labels, decoded batch by batch; pictures without a size when all of them are there."""
    parts: list[Tensor] = []
    pictures: list[Any] = []
    labels: list[Any] = []
    for images, theirs in batches:
        if (
            decoder.size is None
            and not isinstance(images, Tensor)
            and all(isinstance(image, Picture) for image in images)
        ):
            pictures += images
        else:
            parts.append(_pixels_of(images, decoder, first=len(labels)))
        if parts and (pictures or parts[0].shape[1:] != parts[-1].shape[1:]):
            raise UserError(f"images have different shapes or kinds, images[{len(labels)}] is the first; give one kind")
        labels += theirs
    if not parts and not pictures:
        raise UserError("there are no images; give at least one")
    pixels = _pixels_of(pictures, decoder) if pictures else torch.cat(parts)
    return Images(as_store(pixels), None if any(label is None for label in labels) else labels)


def _split_batch(batch: Any) -> tuple[Any, Sequence[Any]]:  # noqa: ANN401 - whatever a loader gives
    """The images and labels of a batch; each label is None where there are none."""
    images, labels = _split_item(batch)
    labels = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else labels
    single = not isinstance(labels, Sequence | None) or isinstance(labels, str)
    if single or isinstance(images, str) or not hasattr(images, "__len__"):
        raise UserError("this DataLoader gives single images instead of batches; give it a batch_size")
    if labels is not None and len(labels) != len(images):
        raise UserError(f"a batch has {len(images)} images and {len(labels)} labels; give (image, label) pairs")
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
        raise UserError(f"an item of the dataset is {found}; give (image, label) pairs")
    return item, None


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
