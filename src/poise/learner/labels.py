"""Labels of classes, as users give and read them."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from poise.errors import UserError, shown

Label = int | str

_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1


def plain_label(value: Any) -> Label:  # noqa: ANN401 - checked here
    """A label as Python's own `int` or `str`; of a member of an `Enum` its value.

    Only such labels are the same after they were saved, and as numpy arrays show them.

    >>> plain_label(np.int64(3)), plain_label(np.str_("cat"))
    (3, 'cat')
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, str):
        if value.endswith("\0"):
            raise UserError(f"label {shown(value)} ends in a NUL character, which numpy takes away; leave it out")
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not _SMALLEST <= value <= _LARGEST:
            raise UserError(
                f"label {shown(value)} does not fit into 64 bits with a sign; use smaller numbers, or strings"
            )
        return int.__index__(value)
    several = isinstance(value, np.ndarray | Tensor | list | tuple)
    hint = "; of one-hot labels, give the number of the class: labels.argmax(1)" if several else ""
    found = f"of shape {list(value.shape)}" if isinstance(value, np.ndarray | Tensor) else shown(value)
    raise UserError(f"label {found} is neither a whole number nor a string{hint}")


class ClassLabels(tuple[Label, ...]):
    """The labels of classes: a tuple that scikit-learn can use as an array.

    Compared with one label it gives a mask, as an array does; compared with several it is equal or not, as a tuple.

    >>> labels = ClassLabels(("cat", "dog"))
    >>> labels == "dog", labels != "dog", labels == ("cat", "dog")
    (array([False,  True]), array([ True, False]), True)
    """

    @property
    def shape(self) -> tuple[int]:
        """As an array has it."""
        return (len(self),)

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self)

    @property
    def ndim(self) -> int:
        """As an array has it: 1."""
        return 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array that `numpy.asarray` makes of them."""
        return self._array.dtype

    def astype(self, dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - as numpy takes it
        """An array of them, of another kind."""
        return self._array.astype(dtype)

    def take(self, indices: Any) -> NDArray[Any]:  # noqa: ANN401 - as numpy takes it
        """Those at these places, as an array."""
        return np.asarray(self._array.take(indices))

    @property
    def _array(self) -> NDArray[Any]:
        return np.asarray(tuple(self))

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as tuples and arrays do it
        return self._array[key] if isinstance(key, np.ndarray | list) else super().__getitem__(key)

    def tolist(self) -> list[Label]:
        """The labels as a list."""
        return list(self)

    def __eq__(self, other: object) -> Any:  # noqa: ANN401 - as arrays do it, where one label is compared with
        return np.array([label == other for label in self]) if isinstance(other, int | str) else super().__eq__(other)

    def __ne__(self, other: object) -> Any:  # noqa: ANN401 - the opposite, a mask or one answer
        equal = self == other
        return ~equal if isinstance(equal, np.ndarray) else not equal

    __hash__ = tuple.__hash__
