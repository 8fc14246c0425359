"""Streams: in which order classes arrive, which of them together, and with how many of their images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeGuard, overload

import numpy as np
import torch

from poise import draws
from poise.data.images import ImageSet
from poise.errors import UserError, suggestion
from poise.words import counted

SETTINGS: Final = ("tfh", "tfs", "groups")

_SEED = 1993  # the images of a run depend on its stream, not on its seed

Group = tuple[int, ...]
PerClass = int | Sequence[int]


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


@dataclass(frozen=True)
class Stream(Sequence[Group]):
    """An immutable sequence of phases, each the group of class indices that arrive in it.

    >>> stream = make_stream("tfh", order=[3, 1, 0, 2], phases=2)
    >>> list(stream)
    [(3, 1), (0,), (2,)]
    """

    setting: str
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        for number, group in enumerate(self.groups):
            if not group:
                raise UserError(f"group {number} of the stream has no class; give each phase at least one")
        if len(self.classes) < 2:
            raise UserError(f"the stream has {len(self.classes)} class in all; at least 2 are needed")
        again = sorted({entry for entry in self.classes if self.classes.count(entry) > 1})
        if again:
            raise UserError(f"class {again[0]} is in the stream more than once; groups must not share a class")

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Group, ...]: ...
    def __getitem__(self, index: int | slice) -> Group | tuple[Group, ...]:
        return self.groups[index]

    @property
    def classes(self) -> tuple[int, ...]:
        """All classes of the stream in the order in which they arrive."""
        return tuple(entry for group in self.groups for entry in group)


def make_stream(
    setting: str,
    *,
    order: Sequence[int],
    phases: int | None = None,
    groups: Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Stream:
    """Divide the classes into phases.

    Args:
        setting: `tfh` (half of the classes first, then `phases` even phases), `tfs` (`phases` even phases in
            all) or `groups`.
        order: the classes in the order in which they arrive, as `class_order` gives it.
        phases: how many even phases, for `tfh` and `tfs`.
        groups: for `groups`: the sizes of the groups, even or not, which take classes from the start of the order
            and need not use all of them; or the groups themselves as lists of class indices.
    """
    if setting not in SETTINGS:
        raise UserError(f"unknown setting '{setting}'; {suggestion(setting, SETTINGS)}")
    if setting == "groups":
        return Stream(setting, _make_groups(order, groups, phases))
    if groups is not None:
        raise UserError(f"setting={setting} makes its own groups; use setting=groups or leave groups out")
    count = len(order)
    if setting == "tfs":
        return Stream(setting, _cut(order, _even_sizes(setting, count, phases)))
    if count % 2:
        raise UserError(f"tfh needs an even number of classes, there are {count}; use setting=tfs or setting=groups")
    return Stream(setting, _cut(order, [count // 2, *_even_sizes(setting, count // 2, phases)]))


def _even_sizes(setting: str, count: int, phases: int | None) -> list[int]:
    """Sizes of `phases` even groups of `count` classes."""
    fitting = [number for number in range(1, count + 1) if count % number == 0]
    if phases is None or not _are_whole([phases]) or phases not in fitting:
        choices = f"phases={phases} does not divide; use one of {', '.join(map(str, fitting))}"
        raise UserError(f"{setting} splits {count} classes into even phases: {choices}")
    return [count // phases] * phases


def _make_groups(
    order: Sequence[int], groups: Sequence[int] | Sequence[Sequence[int]] | None, phases: int | None
) -> tuple[Group, ...]:
    if not groups:
        raise UserError("setting=groups needs groups, a list of sizes such as [5, 3, 2] or of lists of class indices")
    if phases is not None and phases != len(groups):
        raise UserError(f"phases={phases}, but there are {len(groups)} groups; leave phases out with setting=groups")
    if not _are_whole(groups):
        return tuple(_check_group(group, order) for group in groups)
    if min(groups) < 1 or sum(groups) > len(order):
        added = f"groups={list(groups)} add up to {sum(groups)} classes, there are {len(order)}"
        raise UserError(f"{added}; use at most those, and at least 1 in each group")
    return _cut(order, groups)


def _check_group(group: int | Sequence[int], order: Sequence[int]) -> Group:
    if isinstance(group, str) or not isinstance(group, Sequence) or not _are_whole(group):
        raise UserError(f"groups must be all sizes or all lists of class indices; {group!r} does not fit in")
    known = set(order)
    for entry in group:
        if entry not in known:
            raise UserError(f"groups name class {entry}, which is not there; use classes {min(known)} to {max(known)}")
    return tuple(int(entry) for entry in group)


def _are_whole(values: Sequence[object]) -> TypeGuard[Sequence[int]]:
    return all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values)


def _cut(order: Sequence[int], sizes: Sequence[int]) -> tuple[Group, ...]:
    """The first classes of the order, cut into pieces of these sizes."""
    return tuple(
        tuple(int(c) for c in order[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)
    )


# The order of classes -------------------------------------------------------------------------------------------------


def class_order(order: str | int | Sequence[int], count: int) -> Group:
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
    if isinstance(order, str) and order == "sorted":
        return tuple(range(count))
    if isinstance(order, str) and not (order.isascii() and order.isdigit()):
        if order not in PODNET:
            known = suggestion(order, ["sorted", *PODNET])
            raise UserError(f"unknown class order '{order}'; {known} (or a seed, or a list)")
        if count != len(PODNET[order]):
            raise UserError(f"order {order} is for 100 classes, there are {count}; use a seed, 'sorted' or a list")
        return PODNET[order]
    if isinstance(order, str | int | np.integer):
        seed = int(order)
        if isinstance(order, bool) or not 0 <= seed < 2**32:
            raise UserError(f"order={order} cannot be a seed; use a whole number from 0 to {2**32 - 1}")
        return tuple(np.random.RandomState(seed).permutation(count).tolist())
    return _check_order(list(order), count)


def _check_order(order: Sequence[int], count: int) -> Group:
    if not _are_whole(order):
        raise UserError(f"order must list class indices, whole numbers from 0 to {count - 1}")
    amounts = Counter(map(int, order))
    wrong = sorted(entry for entry in {*amounts, *range(count)} if amounts[entry] != 1 or not 0 <= entry < count)
    if wrong:
        found = f"class {wrong[0]} is there {counted(amounts[wrong[0]], 'time')}"
        raise UserError(f"order must list each class from 0 to {count - 1} once; {found}")
    return tuple(map(int, order))


# Fewer images than a data set has -------------------------------------------------------------------------------------


def class_sizes(wanted: PerClass, classes: Sequence[int]) -> dict[int, int]:
    """At most how many images each class keeps.

    Args:
        wanted: a number for every class; or the numbers of the largest and of the smallest class, between which sizes
            fall by equal factors (long-tailed). Which class has which size is drawn, and depends on `classes` alone.
        classes: those of the stream, in the order in which they arrive.

    >>> class_sizes(20, [3, 1])
    {3: 20, 1: 20}
    >>> sorted(class_sizes([80, 10], [3, 1, 0, 2]).values())
    [10, 20, 40, 80]
    """
    given = (wanted, wanted) if isinstance(wanted, int) else wanted
    if len(given) != 2 or given[0] < given[1]:
        raise UserError(f"images_per_class={wanted} must be a number, or two: of the largest and the smallest class")
    most, least = given
    if least < 1:
        raise UserError(f"images_per_class={wanted} leaves a class without images; keep at least 1")
    factors = np.linspace(0, 1, len(classes))
    sizes = [round(most * (least / most) ** float(factor)) for factor in factors]
    places = draws.generator(_SEED, "class sizes", *classes).permutation(len(classes))
    return {label: sizes[place] for label, place in zip(classes, places.tolist(), strict=True)}


def keep_some(images: ImageSet, sizes: Mapping[int, int]) -> ImageSet:
    """Keep at most a number of images of each class, drawn at random, in their present order; other classes keep all.

    The draw depends only on the class and on how many images it has: a smaller size keeps a part of what a larger one
    keeps.
    """
    if not sizes:
        return images
    kept = torch.ones(len(images), dtype=torch.bool)
    for label, size in sizes.items():
        members = (images.labels == label).nonzero().flatten()
        dropped = draws.generator(_SEED, "images of a class", label).permutation(len(members))[size:]
        kept[members[torch.from_numpy(dropped)]] = False
    return images.select(kept.nonzero().flatten())
