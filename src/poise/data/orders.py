"""Class orders: in which order the classes of a data set arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from poise.errors import UserError, suggestion

# fmt: off
#: The three orders of 100 classes over which PODNet reports its means; the first one is also iCaRL's.
PODNET: Final[dict[str, tuple[int, ...]]] = {
    "podnet-1": (
        87, 0, 52, 58, 44, 91, 68, 97, 51, 15, 94, 92, 10, 72, 49, 78, 61, 14, 8, 86, 84, 96, 18, 24, 32,
        45, 88, 11, 4, 67, 69, 66, 77, 47, 79, 93, 29, 50, 57, 83, 17, 81, 41, 12, 37, 59, 25, 20, 80, 73,
        1, 28, 6, 46, 62, 82, 53, 9, 31, 75, 38, 63, 33, 74, 27, 22, 36, 3, 16, 21, 60, 19, 70, 90, 89,
        43, 5, 42, 65, 76, 40, 30, 23, 85, 2, 95, 56, 48, 71, 64, 98, 13, 99, 7, 34, 55, 54, 26, 35, 39,
    ),
    "podnet-2": (
        58, 30, 93, 69, 21, 77, 3, 78, 12, 71, 65, 40, 16, 49, 89, 46, 24, 66, 19, 41, 5, 29, 15, 73, 11,
        70, 90, 63, 67, 25, 59, 72, 80, 94, 54, 33, 18, 96, 2, 10, 43, 9, 57, 81, 76, 50, 32, 6, 37, 7,
        68, 91, 88, 95, 85, 4, 60, 36, 22, 27, 39, 42, 34, 51, 55, 28, 53, 48, 38, 17, 83, 86, 56, 35, 45,
        79, 99, 84, 97, 82, 98, 26, 47, 44, 62, 13, 31, 0, 75, 14, 52, 74, 8, 20, 1, 92, 87, 23, 64, 61,
    ),
    "podnet-3": (
        71, 54, 45, 32, 4, 8, 48, 66, 1, 91, 28, 82, 29, 22, 80, 27, 86, 23, 37, 47, 55, 9, 14, 68, 25,
        96, 36, 90, 58, 21, 57, 81, 12, 26, 16, 89, 79, 49, 31, 38, 46, 20, 92, 88, 40, 39, 98, 94, 19, 95,
        72, 24, 64, 18, 60, 50, 63, 61, 83, 76, 69, 35, 0, 52, 7, 65, 42, 73, 74, 30, 41, 3, 6, 53, 13,
        56, 70, 77, 34, 97, 75, 2, 17, 93, 33, 84, 99, 51, 62, 87, 5, 15, 10, 78, 67, 44, 59, 85, 43, 11,
    ),
}
# fmt: on


def class_order(order: str | int | Sequence[int], count: int) -> tuple[int, ...]:
    """The class indices 0..count-1 in the order in which they arrive.

    Args:
        order: a seed as number or text (1993 is the order of the literature: numpy's legacy permutation),
            `sorted`, `podnet-1`, `podnet-2`, `podnet-3` (100 classes only), or the classes themselves.
        count: how many classes there are.

    >>> class_order(1993, 100)[:5]
    (68, 56, 78, 8, 23)
    >>> class_order("sorted", 3)
    (0, 1, 2)
    """
    if isinstance(order, str):
        return _order_by_name(order, count)
    if isinstance(order, int | np.integer):
        return _order_by_seed(order, count)
    return _check_order(order, count)


def _order_by_name(order: str, count: int) -> tuple[int, ...]:
    if order == "sorted":
        return tuple(range(count))
    if order.isascii() and order.isdigit():
        return _order_by_seed(int(order), count)
    if order not in PODNET:
        raise UserError(
            f"unknown class order '{order}'; {suggestion(order, ['sorted', *PODNET])} (or a seed, or a list)"
        )
    if count != len(PODNET[order]):
        raise UserError(f"order {order} is for 100 classes, there are {count}; use a seed, 'sorted' or a list")
    return PODNET[order]


def _order_by_seed(seed: int | np.integer, count: int) -> tuple[int, ...]:
    if isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise UserError(f"order={seed} cannot be a seed; use a whole number from 0 to {2**32 - 1}")
    return tuple(np.random.RandomState(int(seed)).permutation(count).tolist())


def _check_order(order: Sequence[int], count: int) -> tuple[int, ...]:
    listed = list(order)
    if any(isinstance(entry, bool) or not isinstance(entry, int | np.integer) for entry in listed):
        raise UserError(f"order must list class indices, whole numbers from 0 to {count - 1}")
    classes = tuple(int(entry) for entry in listed)
    amounts = Counter(classes)
    problems = {
        "missing": sorted(set(range(count)) - set(classes)),
        "twice": sorted(entry for entry, amount in amounts.items() if amount > 1),
        "out of range": sorted(set(classes) - set(range(count))),
    }
    if any(problems.values()):
        found = "; ".join(f"{what}: {_shorten(entries)}" for what, entries in problems.items() if entries)
        raise UserError(f"order must list each class from 0 to {count - 1} once; {found}")
    return classes


def _shorten(entries: Sequence[int], most: int = 10) -> str:
    text = ", ".join(str(entry) for entry in entries[:most])
    return text if len(entries) <= most else f"{text} and {len(entries) - most} more"
