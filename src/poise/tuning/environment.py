"""Environments: a training and a validation part, both made of training images."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from poise.data import ImageSet, Memory
from poise.data.images import all_but
from poise.settings import TrialSettings

VALIDATION = TrialSettings().validation  # images per class


@dataclass(frozen=True)
class Environment:
    """What an action is tried on. The three parts have no image in common.

    Attributes:
        kept: exemplars of old classes to train on.
        new: new images to train on.
        valid: the validation part B, in which all classes have the same weight.
        later: new images of the second pseudo phase of a look-ahead.
        rows: in a look-ahead the new classes are reordered: for each label here, the row of the real head.
    """

    kept: ImageSet
    new: ImageSet
    valid: ImageSet
    later: ImageSet | None = None
    rows: tuple[int, ...] | None = None

    @cached_property
    def digest(self) -> str:
        """A short id of this split, from the images that it validates on."""
        total = hashlib.blake2b(digest_size=8)
        for part in self.valid.store.identity():
            total.update(part)
        return total.hexdigest()


def local_environment(
    memory: Memory,
    new: ImageSet,
    reserve: ImageSet,
    generator: np.random.Generator,
    per_class: int = VALIDATION,
    *,
    even: bool = True,
) -> Environment | None:
    """One draw of the paper's local environment; None if there is nothing to validate on.

    Without a reserve, B has `per_class` images of each class, but never more than half of those that it has; if `even`,
    as in the paper, never more than half of those that any class of at least two images has. With a reserve, B is the
    reserve (which no model was trained on) and `per_class` images of each new class and of each class without a
    reserve, at most half of them, which this split does not train on. Without any image of an old class B would only
    reward forgetting, and without any of a new one only stability: then there is no environment.
    """
    pool = ImageSet.joined([memory.exemplars, new])
    reserved = ImageSet.joined([memory.reserve, reserve])
    sizes = torch.bincount(pool.labels)
    judged = set((sizes > 1).nonzero().flatten().tolist())
    if len(reserved):
        judged &= set(new.labels.tolist()) | (set(pool.labels.tolist()) - set(reserved.labels.tolist()))
    elif judged and even:
        per_class = min(per_class, int(sizes[sizes > 1].min()) // 2)
    picks = _draw(pool.labels, judged, per_class, generator)
    valid = ImageSet.joined([reserved, pool.select(picks)])
    old = set(memory.exemplars.labels.tolist())
    arrived, judged = set(new.labels.tolist()) - old, set(valid.labels.tolist())
    if not judged or (old and not old & judged) or (arrived and not arrived & judged):
        return None
    rest = all_but(len(pool), picks)
    kept = len(memory.exemplars)
    return Environment(pool.select(rest[rest < kept]), pool.select(rest[rest >= kept]), valid)


def look_ahead(
    memory: Memory,
    new: ImageSet,
    reserve: ImageSet,
    old: int,
    generator: np.random.Generator,
    per_class: int = VALIDATION,
) -> Environment | None:
    """Two pseudo phases made of the new classes; None if there are fewer than two new classes.

    The first half of them (in a random order) arrives, is trained on and cut to its memory; then the other half. B is
    `per_class` images of each new class, at most half of them, and every reserve: only images that no model has
    seen, of classes whose forgetting can be observed. They are told from each other alone: an old class without a
    reserve cannot be guessed right here, so a guess of it is not counted as an error either.
    """
    arrived = sorted(label for label in set(new.labels.tolist()) if label >= old)
    sizes = torch.bincount(new.labels)
    if len(arrived) < 2 or int(sizes[arrived].min()) < 2:
        return None
    order = [arrived[place] for place in generator.permutation(len(arrived)).tolist()]
    first = set(order[: len(order) // 2]) | {label for label in set(new.labels.tolist()) if label < old}
    rows = (*range(old), *order)
    picks = _draw(new.labels, set(arrived), per_class, generator)
    rest = new.select(all_but(len(new), picks))
    return Environment(
        kept=memory.exemplars,
        new=rest.of_labels(first).relabelled(rows),
        valid=ImageSet.joined([memory.reserve, reserve, new.select(picks)]).relabelled(rows),
        later=rest.of_labels(set(arrived) - first).relabelled(rows),
        rows=rows,
    )


def _draw(labels: Tensor, judged: set[int], count: int, generator: np.random.Generator) -> Tensor:
    """Indices of `count` random images of each of these labels, at most half of its images."""
    picks = [torch.empty(0, dtype=torch.long)]
    for label in sorted(judged):
        members = (labels == label).nonzero().flatten()
        chosen = generator.choice(len(members), size=min(count, len(members) // 2), replace=False)
        picks.append(members[torch.from_numpy(np.sort(chosen))])
    return torch.cat(picks)
