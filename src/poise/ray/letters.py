"""Letters: what the trials of a phase start from, packed once for all workers.

Images go as their places in the data set, where the workers can open the same one. If not, their pixels go as arrays,
which the object store hands out without copying. All else is small. Workers have one GPU each, whatever its number was.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise.data import ImageSet
from poise.data.sources import Source
from poise.errors import UserError
from poise.training import Backend
from poise.tuning import Trials


@dataclass(frozen=True)
class OpenData:
    """A data set that workers may be able to open: name, size of its images, fingerprint, and the images' shape."""

    data: str
    size: int | None
    fingerprint: str
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Letter:
    """A packed bench: its pickle, and the arrays that belong to it."""

    pickled: bytes
    arrays: list[NDArray[Any]]
    data: OpenData | None = None

    @property
    def nbytes(self) -> int:
        """How large it is."""
        return len(self.pickled) + sum(array.nbytes for array in self.arrays)


def write_letter(trials: Trials, pickler: type[pickle.Pickler], data: OpenData | None = None) -> Letter:
    """Pack what these trials start from. With `data`, images of it go as their places."""
    images: dict[int, int] = {}

    class Packing(pickler):  # type: ignore[misc, valid-type]
        """With our own way for images, devices and streams."""

        def persistent_id(self, value: object) -> object:
            if type(value) is not ImageSet:
                return None
            if id(value) in images:
                return "again", images[id(value)]
            images[id(value)] = len(images)
            labels, origins = value.labels.cpu().numpy(), value.origins.cpu().numpy()
            if data is not None and _is_of(data, value):
                return "places", labels, origins
            if not value.store.is_even:
                raise UserError("images of several sizes are not sent: put the data where every worker can open it")
            return "pixels", value.pixels.cpu().contiguous().numpy(), labels, origins

        def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - as pickle has it
            if isinstance(value, Backend):
                return replace(value, device=torch.device(value.device.type)).__reduce__()
            if isinstance(value, Tensor) and value.is_cuda:
                return _on_gpu, (value.detach().cpu(), isinstance(value, nn.Parameter), value.requires_grad)
            usual = getattr(super(), "reducer_override", None)
            return NotImplemented if usual is None else usual(value)

    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    Packing(file, protocol=5, buffer_callback=buffers.append).dump(trials)
    arrays = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
    return Letter(file.getvalue(), arrays, data)


def _is_of(data: OpenData, images: ImageSet) -> bool:
    """Whether the origins of these images are their places in the data; those of copies on a GPU are not."""
    on_host = images.store.lies_on(torch.device("cpu"))
    return on_host and images.shape == data.shape and bool((images.origins >= 0).all())


def open_letter(letter: Letter, opening: Callable[[str, int | None], Source]) -> Trials:
    """The bench again. Pixels are read where they lie; nothing writes into them."""
    images: list[ImageSet] = []
    data = letter.data
    train = None
    if data is not None:
        source = opening(data.data, data.size)
        if source.fingerprint != data.fingerprint:
            raise UserError(f"the data '{data.data}' there are not those here")
        train = source.train()

    class Unpacking(pickle.Unpickler):
        def persistent_load(self, word: Any) -> ImageSet:  # noqa: ANN401 - as pickle has it
            match word:
                case "again", number:
                    again: ImageSet = images[number]
                    return again
                case "places", labels, origins:
                    assert train is not None
                    images.append(_from_places(train, _copy_to_tensor(labels), _copy_to_tensor(origins)))
                case "pixels", pixels, labels, origins:
                    images.append(ImageSet(_as_it_lies(pixels), _copy_to_tensor(labels), _copy_to_tensor(origins)))
            return images[-1]

    found: Trials = Unpacking(io.BytesIO(letter.pickled), buffers=letter.arrays).load()
    return found


def _from_places(train: ImageSet, labels: Tensor, origins: Tensor) -> ImageSet:
    if not torch.equal(train.origins[origins], origins):
        raise UserError("the images there are in another order than here")
    return ImageSet(train.select(origins).store, labels, origins)


def _as_it_lies(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it cannot be written to, and nobody does
        return torch.from_numpy(array)


def _copy_to_tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.copy())


def _on_gpu(value: Tensor, is_parameter: bool, needs_grad: bool) -> Tensor:
    there = value.to("cuda")
    return nn.Parameter(there, requires_grad=needs_grad) if is_parameter else there.requires_grad_(needs_grad)
