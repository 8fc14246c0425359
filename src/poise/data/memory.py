"""The memory: which old images are kept, and within what budget. It works on features and knows no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poise.data.herding import herd
from poise.data.images import ImageSet
from poise.errors import UserError, check_whole


@dataclass(frozen=True)
class Budget:
    """How much may be kept: so many images per class, or so many in total.

    `reserve` images of each class are inside that budget, chosen at random and never trained on: they
    are there to judge, not to learn from.
    """

    per_class: int | None = 20
    total: int | None = None
    reserve: int = 0

    def __post_init__(self) -> None:
        if (self.per_class is None) == (self.total is None):
            raise UserError("memory is either per_class or total, not both and not neither")
        check_whole("memory.per_class" if self.total is None else "memory.total", self.per_class or self.total or 0, 1)
        check_whole("memory.reserve", self.reserve, 0)
        if self.per_class is not None and self.reserve >= self.per_class:
            raise UserError(f"memory.reserve={self.reserve} must be below memory.per_class")

    def quota(self, classes: int) -> int:
        """How many images, reserve included, each of `classes` classes may keep."""
        quota = self.per_class if self.per_class is not None else (self.total or 0) // classes
        if quota <= self.reserve:
            raise UserError(
                f"memory.total={self.total} leaves {quota} images for each of {classes} classes"
                f"{f', not more than the reserve of {self.reserve}' if self.reserve else ''}; "
                f"use at least {classes * (self.reserve + 1)}"
            )
        return quota


def allocated(quota: int, old: int, new: int, share: float | None) -> tuple[int, int]:
    """Images of each old and of each new class, where `share` of all of them goes to the new ones.

    `quota` is what each class may keep if all are treated alike, as they are without a share. Together they never hold
    more than quota · (old + new), and every class keeps at least one.

    >>> allocated(20, 50, 10, 0.5), allocated(20, 50, 10, None)
    ((12, 60), (20, 20))
    """
    if share is None or not old or not new:
        return quota, quota
    total = quota * (old + new)
    fresh = min(max(1, int(share * total) // new), (total - old) // new)
    return (total - fresh * new) // old, fresh


@dataclass(frozen=True)
class Memory:
    """The kept images: `exemplars` are trained on (each class in the order of herding), `reserve` is not.

    Labels are the rows of the head: the order in which classes arrived.
    """

    exemplars: ImageSet
    reserve: ImageSet

    @staticmethod
    def empty(shape: tuple[int, int, int]) -> Memory:
        """A memory without images, for images of this shape."""
        nothing = torch.empty(0, dtype=torch.long)
        none = ImageSet(torch.empty(0, *shape, dtype=torch.uint8), nothing, nothing)
        return Memory(none, none)

    def __len__(self) -> int:
        """Every stored image counts, the reserve too."""
        return len(self.exemplars) + len(self.reserve)

    def updated(
        self, candidates: ImageSet, features: Tensor, reserve: ImageSet, quota: int | Sequence[int], reserved: int
    ) -> Memory:
        """The memory after a phase.

        Classes in `candidates` are herded anew from their `features`; a class that was there before and is
        not among the candidates keeps its first images. No class keeps more than `quota` images (one number for all, or
        one for each label), of which at most `reserved` are reserve.
        """
        refreshed = set(torch.unique(candidates.labels).tolist())
        reserves = ImageSet.joined([_without(self.reserve, set(torch.unique(reserve.labels).tolist())), reserve])
        reserves = _first(reserves, dict.fromkeys(torch.unique(reserves.labels).tolist(), reserved))
        room = {
            label: (quota if isinstance(quota, int) else quota[label]) - int((reserves.labels == label).sum())
            for label in set(torch.unique(self.exemplars.labels).tolist()) | refreshed
        }
        chosen: list[ImageSet] = [_first(_without(self.exemplars, refreshed), room)]
        if refreshed:
            longest = quota if isinstance(quota, int) else max(quota)
            ranks = herd(features, candidates.labels.to(features.device), longest)
            chosen += [
                candidates.select(ranks[label][: room[label]].to(candidates.labels.device)) for label in sorted(ranks)
            ]
        exemplars = ImageSet.joined(chosen)
        return Memory(exemplars.select(torch.argsort(exemplars.labels, stable=True)), reserves)


def draw_reserve(labels: Tensor, per_class: int, generator: np.random.Generator) -> Tensor:
    """Indices of a random reserve: `per_class` images of each label, never more than half of a class."""
    picks = []
    for label in torch.unique(labels).tolist():
        members = torch.nonzero(labels == label).flatten().cpu().numpy()
        count = min(per_class, len(members) // 2)
        picks.append(np.sort(generator.choice(members, size=count, replace=False)))
    return torch.from_numpy(np.concatenate(picks).astype(np.int64)) if picks else torch.empty(0, dtype=torch.long)


def _without(images: ImageSet, labels: set[int]) -> ImageSet:
    gone = torch.tensor(sorted(labels), dtype=torch.long, device=images.labels.device)
    return images.select(torch.nonzero(~torch.isin(images.labels, gone)).flatten())


def _first(images: ImageSet, counts: dict[int, int]) -> ImageSet:
    picks = [(images.labels == label).nonzero().flatten()[: max(count, 0)] for label, count in sorted(counts.items())]
    return images.select(torch.cat([*picks, torch.empty(0, dtype=torch.long)]))
