"""Labels of classes, as users give and read them."""

from __future__ import annotations

from typing import Any

import numpy as np

Label = int | str


class ClassLabels(tuple[Label, ...]):
    """The labels of classes: a tuple that scikit-learn can use as an array.

    >>> ClassLabels(("cat", "dog")) == "dog"
    array([False,  True])
    """

    @property
    def shape(self) -> tuple[int]:
        """As an array has it."""
        return (len(self),)

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as tuples and arrays do it
        return np.asarray(tuple(self))[key] if isinstance(key, np.ndarray | list) else super().__getitem__(key)

    def tolist(self) -> list[Label]:
        """The labels as a list."""
        return list(self)

    def __eq__(self, other: object) -> Any:  # noqa: ANN401 - as arrays do it, where one label is compared with
        return np.array([label == other for label in self]) if isinstance(other, int | str) else super().__eq__(other)

    __hash__ = tuple.__hash__
