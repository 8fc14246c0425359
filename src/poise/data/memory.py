"""The memory: which old images are kept. It works on features and knows nothing of networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poise.data.herding import herd
from poise.data.images import ImageSet


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

    @staticmethod
    def of(exemplars: ImageSet) -> Memory:
        """A memory of these exemplars, without a reserve."""
        return Memory(exemplars, exemplars.select(torch.empty(0, dtype=torch.long)))

    def __len__(self) -> int:
        """The number of stored images, including the reserve."""
        return len(self.exemplars) + len(self.reserve)

    def of_classes(self, rows: Sequence[int]) -> Memory:
        """The images of the classes of these rows, given in ascending order, which become the rows 0, 1, …."""
        return Memory(*(part.of_labels(rows).relabelled(rows) for part in (self.exemplars, self.reserve)))

    def compacted(self) -> Memory:
        """A memory that holds only these images, not those that they were chosen from."""
        return Memory(self.exemplars.compacted(), self.reserve.compacted())

    def cut(self, quota: int) -> Memory:
        """The memory with at most `quota` images of each class: its reserve, and its first exemplars."""
        room = {
            label: quota - int((self.reserve.labels == label).sum())
            for label in torch.unique(self.exemplars.labels).tolist()
        }
        exemplars = _first(self.exemplars, room)
        return self if len(exemplars) == len(self.exemplars) else Memory(exemplars, self.reserve)

    def updated(self, candidates: ImageSet, features: Tensor, reserve: ImageSet, quota: int, reserved: int) -> Memory:
        """The memory after a phase.

        Classes in `candidates` are herded anew from their `features`; a class that was there before and is
        not among the candidates keeps its first images. No class keeps more than `quota` images, and at most
        `reserved` of them are reserve.
        """
        refreshed = set(torch.unique(candidates.labels).tolist())
        reserves = ImageSet.joined([_without(self.reserve, set(torch.unique(reserve.labels).tolist())), reserve])
        reserves = _first(reserves, dict.fromkeys(torch.unique(reserves.labels).tolist(), reserved))
        room = {
            label: quota - int((reserves.labels == label).sum())
            for label in set(torch.unique(self.exemplars.labels).tolist()) | refreshed
        }
        chosen: list[ImageSet] = [_first(_without(self.exemplars, refreshed), room)]
        if refreshed:
            ranks = herd(features, candidates.labels.to(features.device), quota)
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
