"""Arrays and tensors that a user hands over, as uint8 pixels [N, C, H, W]; all else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from poise.errors import UserError

_KINDS: Final[tuple[Any, ...]] = (np.ndarray, Tensor, Image.Image, str | Path)
_ACCEPTED: Final = "pass an array or tensor, or a list of paths or PIL images"


def array_pixels(images: Any, size: tuple[int, int] | None) -> Tensor:  # noqa: ANN401 - checked here
    """An array [N, H, W, C] or [N, H, W], or a tensor [N, C, H, W] or [N, H, W], as uint8 [N, C, H, W].

    Its values are uint8, or floats from 0 to 1; where a height and a width are given, it must already have them.
    """
    if isinstance(images, np.ndarray):
        return _of_size(_from_numpy(images), size)
    if isinstance(images, Tensor):
        check_dense(images, "images")
        return _of_size(_from_torch(images), size)
    raise UserError(f"images came as {type(images).__name__}; {_ACCEPTED}")


def list_pixels(images: Sequence[Any], size: tuple[int, int] | None = None, first: int = 0) -> Tensor:
    """Single images in a list, arrays or tensors, as uint8 [N, C, H, W]; a bad one is named by its place.

    `first` is the place of the first of them, where others came before.
    """
    stacked = _stack(images, first)
    try:
        return array_pixels(stacked, size)
    except UserError:
        for place, entry in enumerate(images, first):
            try:
                array_pixels(entry[None], size)
            except UserError as error:
                raise UserError(f"images[{place}]: {error}") from None
        raise


def _stack(images: Sequence[Any], first: int) -> npt.NDArray[Any] | Tensor:
    if not len(images):
        raise UserError("there are no images; give at least one")
    kind = next((kind for kind in _KINDS if isinstance(images[0], kind)), type(images[0]))
    odd = next((place for place, entry in enumerate(images) if not isinstance(entry, kind)), None)
    if odd is not None or kind not in _KINDS[:2]:
        found = ", ".join(sorted({type(entry).__name__ for entry in images}))
        where = f" (images[{first + odd}] is the first {type(images[odd]).__name__})" if odd is not None else ""
        raise UserError(f"images came as a list of {found}{where}; {_ACCEPTED}, all of one kind")
    for place, entry in enumerate(images if kind is Tensor else (), first):
        check_dense(entry, f"images[{place}]")
    for place, entry in enumerate(images, first):
        if tuple(entry.shape) != tuple(images[0].shape):
            raise other_shape(tuple(images[0].shape), tuple(entry.shape), first, place)
        if entry.dtype != images[0].dtype and not (_is_float(entry) and _is_float(images[0])):
            kinds = f"images[{first}] is {images[0].dtype} and images[{place}] {entry.dtype}"
            raise UserError(f"images have values of different kinds ({kinds}); convert them all to uint8")
    return np.stack(images) if kind is np.ndarray else torch.stack(list(images))


def _is_float(image: npt.NDArray[Any] | Tensor) -> bool:
    return image.is_floating_point() if isinstance(image, Tensor) else image.dtype.kind == "f"


def other_shape(one: tuple[int, ...], other: tuple[int, ...], first: int, place: int) -> UserError:
    """The refusal of an image of another shape than the first one has."""
    return UserError(
        f"images have different shapes, images[{first}] {one} and images[{place}] {other}; make them all one size"
    )


def check_dense(values: Tensor, name: str) -> None:
    """Refuse a tensor that does not simply hold its values in a row, and so most of what torch can do."""
    if values.is_nested:
        raise UserError(f"{name} came as a nested tensor; give a list of tensors, all of one shape")
    if values.is_quantized:
        raise UserError(f"{name} came as a quantised tensor; use {name}.dequantize()")
    if values.layout is not torch.strided:
        kind = str(values.layout).removeprefix("torch.")
        raise UserError(f"{name} came as a tensor of the layout {kind}; use {name}.to_dense()")
    if values.is_meta:
        raise UserError(f"{name} came as a tensor on the device 'meta', which has no values; make it on the CPU")


def _from_numpy(images: npt.NDArray[Any]) -> Tensor:
    if images.dtype.kind == "f" and images.size:
        images = _to_bytes(torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))).numpy()
    if images.dtype != np.uint8:
        ends = (images.min().item(), images.max().item()) if images.size and images.dtype.kind in "iu" else None
        raise _not_uint8(str(images.dtype), ends, "images", "images.astype('uint8')")
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
    return _not_empty(torch.from_numpy(np.array(images.transpose(0, 3, 1, 2), order="C")))


def _from_torch(images: Tensor) -> Tensor:
    if images.is_floating_point() and images.numel():
        images = _to_bytes(images.detach().float())
    if images.dtype != torch.uint8:
        whole = images.numel() and images.dtype != torch.bool and not images.is_complex()
        ends = (int(images.long().min()), int(images.long().max())) if whole else None
        raise _not_uint8(str(images.dtype).removeprefix("torch."), ends, "images.float()", "images.to(torch.uint8)")
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        hint = "; use images.permute(0, 3, 1, 2)" if images.ndim == 4 and images.shape[-1] in (1, 3) else ""
        raise UserError(f"torch images must be [N, H, W] or [N, 1 or 3, H, W], not {list(images.shape)}{hint}")
    return _not_empty(images.detach().contiguous())


def _to_bytes(images: Tensor) -> Tensor:
    """Floats from 0 to 1, as most libraries make them of images, as the bytes that they were made of."""
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"float images must lie between 0 and 1, these go from {low:g} to {high:g}; "
            "give uint8 from 0 to 255, and nothing normalised: poise does that itself"
        )
    return (images * 255).round().to(torch.uint8)


def _not_uint8(found: str, ends: tuple[int, int] | None, number: str, cast: str) -> UserError:
    """The refusal of images of another kind, with what makes the same pictures of them.

    Args:
        found: their kind.
        ends: their smallest and largest value, where they are whole numbers.
        number: what is written to get numbers that can be divided.
        cast: what is written to get uint8.
    """
    if found == "bool":
        advice = f"use {cast} * 255"
    elif ends is None:
        advice = "convert them"
    elif ends[0] >= 0 and ends[1] <= 255:
        advice = f"use {cast}"
    elif found == "uint16":
        advice = f"use {number} / 65535, or divide by the value that is white in them"
    else:
        advice = f"these go from {ends[0]} to {ends[1]}: scale them, so that 0 is black and 1 is white"
    return UserError(f"images are {found}, expected uint8 from 0 to 255 (or floats from 0 to 1); {advice}")


def _not_empty(pixels: Tensor) -> Tensor:
    if pixels.numel() == 0:
        raise UserError(f"there are no images, the shape is {list(pixels.shape)}; give at least one")
    return pixels


def _of_size(pixels: Tensor, size: tuple[int, int] | None) -> Tensor:
    height, width = pixels.shape[2:]
    if size is not None and (height, width) != tuple(size):
        raise UserError(f"images are {height}×{width} pixels, expected {size[0]}×{size[1]}; resize them first")
    return pixels
