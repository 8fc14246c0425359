"""Streams: which classes arrive together, in which phase, and with how many of their images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeGuard, overload

import numpy as np
import torch

from poise import draws
from poise.data.images import ImageSet
from poise.errors import UserError, suggestion

SETTINGS: Final = ("tfh", "tfs", "groups")

_SEED = 1993  # the images of a run depend on its stream, not on its seed

Group = tuple[int, ...]
PerClass = int | Sequence[int]


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
        if self.setting not in SETTINGS:
            raise UserError(f"unknown setting '{self.setting}'; {suggestion(self.setting, SETTINGS)}")
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

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

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
    if len(order) < 2:
        raise UserError(f"a stream needs at least 2 classes, there are {len(order)}; add a class")
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
    choices = f"use one of {', '.join(map(str, fitting))}"
    if phases is None:
        raise UserError(f"setting={setting} needs phases, and splits {count} classes into even ones; {choices}")
    if not _is_whole(phases) or phases < 1:
        raise UserError(
            f"{setting} splits {count} classes into even phases: phases={phases} is not a number of phases; {choices}"
        )
    if phases not in fitting:
        raise UserError(
            f"{setting} splits {count} classes into even phases: phases={phases} does not divide; {choices}"
        )
    return [count // phases] * phases


def _make_groups(
    order: Sequence[int], groups: Sequence[int] | Sequence[Sequence[int]] | None, phases: int | None
) -> tuple[Group, ...]:
    if not groups:
        raise UserError("setting=groups needs groups, a list of sizes such as [5, 3, 2] or of lists of class indices")
    if phases is not None and phases != len(groups):
        raise UserError(f"phases={phases}, but there are {len(groups)} groups; leave phases out with setting=groups")
    if _is_sizes(groups):
        return _cut(order, _check_sizes(groups, len(order)))
    return tuple(_check_group(group, order) for group in groups)


def _check_sizes(sizes: Sequence[int], count: int) -> Sequence[int]:
    for size in sizes:
        if size < 1:
            raise UserError(f"groups={list(sizes)} has a group of {size} classes; each needs at least 1")
    if sum(sizes) > count:
        raise UserError(f"groups={list(sizes)} add up to {sum(sizes)} classes, there are {count}; use at most {count}")
    return sizes


def _check_group(group: int | Sequence[int], order: Sequence[int]) -> Group:
    if isinstance(group, str) or not isinstance(group, Sequence) or not all(_is_whole(entry) for entry in group):
        raise UserError(f"groups must be all sizes or all lists of class indices; {group!r} does not fit in")
    known = set(order)
    for entry in group:
        if entry not in known:
            raise UserError(f"groups name class {entry}, which is not there; use classes {min(known)} to {max(known)}")
    return tuple(int(entry) for entry in group)


def _is_sizes(groups: Sequence[int] | Sequence[Sequence[int]]) -> TypeGuard[Sequence[int]]:
    return all(_is_whole(entry) for entry in groups)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _cut(order: Sequence[int], sizes: Sequence[int]) -> tuple[Group, ...]:
    """The first classes of the order, cut into pieces of these sizes."""
    return tuple(
        tuple(int(c) for c in order[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)
    )


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
    if isinstance(wanted, int):
        return dict.fromkeys(classes, _check_least(wanted, wanted))
    if len(wanted) != 2 or wanted[0] < wanted[1]:
        raise UserError(
            f"images_per_class={list(wanted)} must be a number, or two: of the largest and the smallest class"
        )
    most, least = wanted[0], _check_least(wanted[1], wanted)
    factors = np.linspace(0, 1, len(classes))
    sizes = [round(most * (least / most) ** float(factor)) for factor in factors]
    places = draws.generator(_SEED, "class sizes", *classes).permutation(len(classes))
    return {label: sizes[place] for label, place in zip(classes, places.tolist(), strict=True)}


def _check_least(least: int, wanted: PerClass) -> int:
    if least < 1:
        raise UserError(f"images_per_class={wanted} leaves a class without images; keep at least 1")
    return least


def keep_some(images: ImageSet, sizes: Mapping[int, int]) -> ImageSet:
    """At most so many images of each class, drawn at random, in their present order; other classes keep all.

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
