"""The budget: how many images may be stored, during a phase and between phases.

**plain.** Between phases q images of each class (or a total that all classes share); during a phase also every image
that arrives. With q = 0 no image is kept (exemplar-free).

**all.** Every image is kept: an oracle, for a class-incremental learner cannot keep them.

**rmm** (the first level of RMM's memory allocation, under a causal rule). In phase i, when m_i images arrive and n_old
classes are known, a plain learner holds q · n_old exemplars and m_i new images:

    B_i = q · n_old + m_i

is the budget of the phase here too, split differently: ρ is the share of the room for new images that is given to
exemplars. ρ_t is chosen in phase t, together with the exemplars, and holds until the next choice:

- *After phase t* every class keeps ⌊(q · n_seen + ⌊ρ_t · m_t⌋) / n_seen⌋ exemplars: the next increment is not known,
  so it is assumed to be as large as what came last. After phase 0 that is phase 0 itself, usually much more than comes
  next: with half of CIFAR-100 and ρ = 0.8, 420 images of each class are held until phase 1 arrives. A policy
  chooses ρ from phase 1 on.
- *When phase t + 1 arrives*, before anything of it is stored, every class is cut to
  ⌊(q · n_old + ⌊ρ_t · m_{t+1}⌋) / n_old⌋ exemplars. Of the new images, a random B − (remaining exemplars) are
  stored, at most all of them and at least one of each class; the others are discarded. An image is discarded only in
  favour of an existing exemplar: room that exemplars do not fill goes to new images.

So at most B_i images are held in phase i and after it. With ρ = 0 it is the plain rule. `after_phase_0 = "plain"` keeps
q images of every class after phase 0, which leaves its classes at q for ever: as if ρ_0 were 0.

**rmm with knows_increment** is the rule of RMM's released code, for comparison: exemplars are stored for the size of
the *next* increment, new images are discarded by the ρ of the current phase whatever is stored, nothing is cut on
arrival, and discarded images are still used to imprint new rows and to choose exemplars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from poise.data.images import ImageSet, all_but
from poise.data.memory import Memory
from poise.errors import UserError
from poise.settings import ALL_IMAGES, MemoryKeys

UNLIMITED: Final = 2**40  # images of each class: more than there are
ALLOCATION: Final = 0.5  # unless given


class Stored(NamedTuple):
    """The images held when a phase begins. Only RMM's released rule still uses the discarded (`unstored`) ones."""

    memory: Memory
    new: ImageSet
    unstored: ImageSet


class Budget(MemoryKeys):
    """How much may be kept, per class or in total, and by which rule.

    `reserve` images of each class belong to that budget. They are chosen at random and never trained on: they
    serve to judge, not to learn.

    What its keys mean is said above and, of each, by `poise recipes --keys` (`memory.…`).
    """

    if TYPE_CHECKING:  # by position too

        def __init__(self, *first: Any, **values: Any) -> None: ...  # noqa: ANN401

    def quota(self, classes: int) -> int:
        """q: how many images, including the reserve, each of `classes` classes may keep by the plain rule."""
        if self.rule == ALL_IMAGES or self.per_class == 0:
            return UNLIMITED if self.rule == ALL_IMAGES else 0
        quota = self.per_class if self.per_class is not None else (self.total or 0) // classes
        if quota <= self.reserve:
            raise UserError(
                f"memory.total={self.total} leaves {quota} images for each of {classes} classes"
                f"{f', not more than the reserve of {self.reserve}' if self.reserve else ''}; "
                f"use at least {classes * (self.reserve + 1)}"
            )
        return quota

    def of_phase(self, old: int, images: int, kept: int = 0) -> int:
        """B: how many images may be held in a phase in which `images` arrive and `old` classes are known.

        Where all are kept: those that are, and the new ones.
        """
        return (kept if self.rule == ALL_IMAGES else self.quota(old) * old if old else 0) + images

    def rho(self, phase: int, chosen: float | None = None) -> float:
        """ρ of this phase: the one that its action chose, else the memory's own; 0 where the plain rule holds."""
        if phase == 0 and self.after_phase_0 == "plain":
            return 0.0
        if chosen is not None or self.rule != "rmm":
            return chosen or 0.0
        shares = ALLOCATION if self.allocation is None else self.allocation
        return shares[min(phase, len(shares) - 1)] if isinstance(shares, tuple) else shares

    def storing_phase_0(self) -> Budget:
        """The part of the budget that the memory after phase 0 depends on; equal in runs that share a phase 0."""
        if self.knows_increment or self.rule != "rmm":
            return self
        if self.rho(0) == 0:
            return self.replace(rule="plain", allocation=None, after_phase_0=None)
        return self.replace(allocation=self.rho(0))

    # What is stored ---------------------------------------------------------------------------------------------

    def arriving(
        self, memory: Memory, new: ImageSet, phase: int, old: int, rho: float, generator: np.random.Generator
    ) -> Stored:
        """Cut memory and new images to the budget; `rho` is the ρ with which the memory was stored."""
        nothing = new.select(torch.empty(0, dtype=torch.long))
        if self.rule != "rmm" or not old:
            return Stored(memory, new, nothing)
        if not self.knows_increment:
            return Stored(*on_arrival(memory, new, self.quota(old), old, rho, generator), nothing)
        picks = sample(new.labels, int((1 - self.rho(phase)) * len(new)), generator)
        return Stored(memory, new.select(picks), new.select(all_but(len(new), picks)))

    def after(self, classes: int, images: int, rho: float, next_images: int | None = None) -> int:
        """How many images, reserve included, each class may keep after a phase in which `images` arrived."""
        expected = next_images if self.knows_increment and next_images is not None else images
        return per_class(self.quota(classes), classes, expected, rho)

    def images_per_phase(self, phases: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """About how many exemplars and new images each phase holds; `phases` gives the images of each new class."""
        found, kept = list[tuple[int, int]](), list[int]()
        for phase, sizes in enumerate(phases):
            old, stored = len(kept), sum(sizes)
            images, classes = stored, old + len(sizes)
            if old and self.knows_increment:
                stored = int((1 - self.rho(phase)) * images)
            elif old:
                most = per_class(self.quota(old), old, images, self.rho(phase - 1), arriving=len(sizes))
                kept = [min(count, most) for count in kept]
                stored = min(images, self.quota(old) * old + images - sum(kept))
            found.append((sum(kept), stored))
            expected = sum(phases[phase + 1]) if self.knows_increment and phase + 1 < len(phases) else images
            most = per_class(self.quota(classes), classes, expected, self.rho(phase))
            kept = [min(count, most) for count in (*kept, *(size * stored // max(images, 1) for size in sizes))]
        return found


def per_class(quota: float, classes: int, images: int, rho: float, arriving: int = 0) -> int:
    """⌊(q · n + ⌊ρ · m⌋) / n⌋. Of the m images at least one of each of the `arriving` classes must be stored, too.

    >>> [per_class(20, 50, 5000, 0.8), per_class(20, 60, 5000, 0.8), per_class(20, 100, 5000, 0.6)]
    [100, 86, 50]
    """
    return (_share(classes, quota) + min(_share(images, rho), images - arriving)) // classes


def _share(count: int, share: float) -> int:
    """⌊share · count⌋ without rounding errors: 0.7 of 10 is 7."""
    return math.floor(round(share * count, 6))


def on_arrival(
    memory: Memory, new: ImageSet, quota: float, old: int, rho: float, generator: np.random.Generator
) -> tuple[Memory, ImageSet]:
    """The causal rule when images arrive: exemplars are cut, then new images fill the room that is left.

    Together they are at most quota · old + the images that arrive.
    """
    arrived = len(new)
    memory = memory.cut(per_class(quota, old, arrived, rho, arriving=len(torch.unique(new.labels))))
    count = min(arrived, _share(old, quota) + arrived - len(memory))
    return memory, new if count == arrived else new.select(sample(new.labels, count, generator))


def sample(labels: Tensor, count: int, generator: np.random.Generator) -> Tensor:
    """Indices of `count` random images over all classes together, but at least one of each class.

    With the same draws, a smaller sample is part of a larger one.
    """
    found = labels.cpu().numpy()
    order = generator.permutation(len(found))
    firsts = np.sort(np.unique(found[order], return_index=True)[1])
    ranked = np.concatenate([order[firsts], np.delete(order, firsts)])
    return torch.from_numpy(np.sort(ranked[: max(count, len(firsts))]).astype(np.int64))
