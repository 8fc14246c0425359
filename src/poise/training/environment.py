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
    what there is of any class that has at least two. With a reserve, B is the reserve (which no model was trained on)
    and `per_class` images of each new class and of each class without a reserve, at most half of them, which this split
    does not train on. Without any image of an old class, B would only reward forgetting: then there is no environment.
    """
    pool = ImageSet.joined([memory.exemplars, new])
    reserved = ImageSet.joined([memory.reserve, reserve])
    sizes = torch.bincount(pool.labels)
    judged = set((sizes > 1).nonzero().flatten().tolist())
    if len(reserved):
        judged &= set(new.labels.tolist()) | (set(pool.labels.tolist()) - set(reserved.labels.tolist()))
    elif judged:
        per_class = min(per_class, int(sizes[sizes > 1].min()) // 2)
    picks = _drawn(pool.labels, judged, per_class, generator)
    valid = ImageSet.joined([reserved, pool.select(picks)])
    old = set(memory.exemplars.labels.tolist())
    if len(valid) == 0 or (old and not old & set(valid.labels.tolist())):
        return None
    rest = _others(len(pool), picks)
    kept = len(memory.exemplars)
    return Environment(pool.select(rest[rest < kept]), pool.select(rest[rest >= kept]), valid)


def _drawn(labels: Tensor, judged: set[int], count: int, generator: np.random.Generator) -> Tensor:
    """Indices of `count` random images of each of these labels, at most half of its images."""
    picks = [torch.empty(0, dtype=torch.long)]
    for label in sorted(judged):
        members = (labels == label).nonzero().flatten()
        chosen = generator.choice(len(members), size=min(count, len(members) // 2), replace=False)
        picks.append(members[torch.from_numpy(np.sort(chosen))])
    return torch.cat(picks)


def _others(count: int, picks: Tensor) -> Tensor:
    free = torch.ones(count, dtype=torch.bool)
    free[picks] = False
    return free.nonzero().flatten()
