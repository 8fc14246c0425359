"""Fewer training images than a data set has: as many of each class, or long-tailed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from poise import draws
from poise.data.images import ImageSet
from poise.errors import UserError

_SEED = 1993  # the images of a run depend on its stream, not on its seed

PerClass = int | Sequence[int]


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
