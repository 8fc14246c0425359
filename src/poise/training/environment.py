"""The local environment h_i: a training and a validation part, both made of training images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poise.data import ImageSet, Memory

VALIDATION = 10  # images per class


@dataclass(frozen=True)
class Environment:
    """What an action is tried on. The three parts have no image in common.

    Attributes:
        kept: exemplars of old classes to train on.
        new: new images to train on.
        valid: the validation part B, whose classes all count the same.
    """

    kept: ImageSet
    new: ImageSet
    valid: ImageSet


def local_environment(
    memory: Memory, new: ImageSet, reserve: ImageSet, generator: np.random.Generator, per_class: int = VALIDATION
) -> Environment | None:
    """One draw of the paper's local environment; None where there is nothing to validate on.

    Without a reserve, B has the same number of images of each class: `per_class`, but never more than half of
    what there is of any class that has at least two. With a reserve, B is the reserve (which no model
    was trained on) and `per_class` images of each new class, at most half of them, which this split does not train on.
    """
    if len(memory.reserve) + len(reserve):
        picks = _drawn(new.labels, per_class, generator)
        valid = ImageSet.joined([memory.reserve, reserve, new.select(picks)])
        return Environment(memory.exemplars, new.select(_others(len(new), picks)), valid) if len(valid) else None
    sizes = torch.cat([_sizes(memory.exemplars.labels), _sizes(new.labels)])
    halves = sizes[sizes > 1] // 2
    if len(halves) == 0:
        return None
    count = min(per_class, int(halves.min()))
    old_picks, new_picks = _drawn(memory.exemplars.labels, count, generator), _drawn(new.labels, count, generator)
    return Environment(
        memory.exemplars.select(_others(len(memory.exemplars), old_picks)),
        new.select(_others(len(new), new_picks)),
        ImageSet.joined([memory.exemplars.select(old_picks), new.select(new_picks)]),
    )


def _sizes(labels: Tensor) -> Tensor:
    return torch.bincount(labels)[torch.bincount(labels) > 0]


def _drawn(labels: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Indices of `count` random images of each label, at most half of its images."""
    picks = [torch.empty(0, dtype=torch.long)]
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten()
        chosen = generator.choice(len(members), size=min(count, len(members) // 2), replace=False)
        picks.append(members[torch.from_numpy(np.sort(chosen))])
    return torch.cat(picks)


def _others(count: int, picks: Tensor) -> Tensor:
    free = torch.ones(count, dtype=torch.bool)
    free[picks] = False
    return free.nonzero().flatten()
