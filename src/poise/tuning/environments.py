"""Environments h_i: a training and a validation part of the phase's training images, drawn anew for each round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import ImageSet, Memory
from poise.data.images import all_but
from poise.methods import Growth
from poise.settings import TrialSettings
from poise.training.context import LocalPhase, PhaseContext


@dataclass(frozen=True)
class TrialInputs:
    """Everything that the trials of a phase depend on.

    Attributes:
        memory: the kept images, exemplars and reserve.
        new: what arrived and may be trained on.
        reserve: what arrived and may not.
        quota: images of each class that may be kept to train on after the phase, by the plain rule.
        rho: the memory's allocation, where the action does not say it.
        first_rho: the same after the first phase.
        stored_share: the share of the images that arrived that was stored; the others are gone.
        classes: the labels of the rows of the head.
        planned: the epochs that the policy takes a phase to have; this one may have more or fewer.
    """

    context: PhaseContext
    memory: Memory
    new: ImageSet
    reserve: ImageSet
    quota: int
    settings: TrialSettings = field(default_factory=TrialSettings)
    rho: float = 0.0
    first_rho: float = 0.0
    stored_share: float = 1.0
    classes: tuple[Any, ...] = ()
    arrived: int = field(kw_only=True)
    planned: int = field(kw_only=True)

    def allocation(self, action: Action) -> float:
        """The ρ that the memory is stored with after a phase trained with this action."""
        return self.rho if action.allocation is None else action.allocation

    def pseudo_quota(self, action: Action) -> float:
        """The quota in a look-ahead.

        Where actions differ in their ρ it is as much smaller as the images that can arrive, so that ρ weighs exemplars
        against new images in the proportion of real phases; else all images that are there are put to use.
        """
        if action.allocation is None or self.stored_share == 1:
            return self.quota
        return max(1.0, self.quota * self.stored_share)


# One draw -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """The images that an action is tried on. The three parts have no image in common.

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
    def record(self) -> dict[str, Any]:
        """What is written down of it: its kind, a short id of the images that it validates on, and its sizes."""
        digest = hashlib.blake2b(digest_size=8)
        for part in self.valid.store.identity():
            digest.update(part)
        return {
            "environment": "local" if self.later is None else "lookahead",
            "digest": digest.hexdigest(),
            "trained": len(self.kept) + len(self.new) + len(self.later or ()),
            "validated": len(self.valid),
        }

    @cached_property
    def judged(self) -> tuple[list[int], list[int]]:
        """The classes in B, as rows of the real head in the order of their labels here, and the images of each."""
        labels, counts = torch.unique(self.valid.labels, return_counts=True)
        return [self.rows[label] if self.rows else label for label in labels.tolist()], counts.tolist()

    def begin(self, inputs: TrialInputs) -> LocalPhase:
        """What every trial on it begins with; in a look-ahead the first half of the new classes stands for all."""
        context, old = inputs.context, inputs.context.growth.old
        if self.later is not None:
            arrived = {label for label in self.new.labels.tolist() if label >= old}
            context = replace(context, growth=Growth(old, len(arrived), context.growth))
        return LocalPhase.of(context, self.kept, self.new, inputs.settings.balance_length or 0.0)


def draw_local(inputs: TrialInputs, number: int) -> Environment | None:
    """This round's draw of the paper's local environment; None if there is nothing to validate on.

    Without a reserve, B has `validation` images of each class, but never more than half of those that it has; if
    `even`, as in the paper, never more than half of those that any class of at least two images has. With a reserve, B
    is the reserve (which no model was trained on) and `validation` images of each new class and of each class without a
    reserve, at most half of them, which this split does not train on. Without any image of an old class B would only
    reward forgetting, and without any of a new one only stability: then there is no environment.
    """
    memory, new, context = inputs.memory, inputs.new, inputs.context
    if context.growth.old and not len(memory):
        return None
    pool = ImageSet.joined([memory.exemplars, new])
    reserved = ImageSet.joined([memory.reserve, inputs.reserve])
    sizes, per_class = torch.bincount(pool.labels), inputs.settings.validation
    judged = set((sizes > 1).nonzero().flatten().tolist())
    if len(reserved):
        judged &= set(new.labels.tolist()) | (set(pool.labels.tolist()) - set(reserved.labels.tolist()))
    elif judged and inputs.settings.even:
        per_class = min(per_class, int(sizes[sizes > 1].min()) // 2)
    generator = draws.generator(context.seed, "environment", context.phase, number)
    picks = draw_held_out(pool.labels, sorted(judged), lambda size: min(per_class, size // 2), generator)
    valid = ImageSet.joined([reserved, pool.select(picks)])
    old = set(memory.exemplars.labels.tolist())
    arrived, judged = set(new.labels.tolist()) - old, set(valid.labels.tolist())
    if not judged or (old and not old & judged) or (arrived and not arrived & judged):
        return None
    rest = all_but(len(pool), picks)
    kept = len(memory.exemplars)
    return Environment(pool.select(rest[rest < kept]), pool.select(rest[rest >= kept]), valid)


def draw_ahead(inputs: TrialInputs, number: int) -> Environment | None:
    """This round's draw of two pseudo phases made of the new classes; None if there are fewer than two of them.

    The first half of them (in a random order) arrives, is trained on and cut to its memory; then the other half. B is
    `validation` images of each new class, at most half of them, and every reserve: only images that no model has
    seen, of classes whose forgetting can be observed. They are told from each other alone: an old class without a
    reserve cannot be guessed right here, so a guess of it is not counted as an error either.
    """
    memory, new, context = inputs.memory, inputs.new, inputs.context
    old, labels = context.growth.old, set(new.labels.tolist())
    arrived = sorted(label for label in labels if label >= old)
    if len(arrived) < 2 or int(torch.bincount(new.labels)[arrived].min()) < 2:
        return None
    generator = draws.generator(context.seed, "look-ahead", context.phase, number)
    order = [arrived[place] for place in generator.permutation(len(arrived)).tolist()]
    first = {*order[: len(order) // 2], *(label for label in labels if label < old)}
    rows = (*range(old), *order)
    most = inputs.settings.validation
    picks = draw_held_out(new.labels, arrived, lambda size: min(most, size // 2), generator)
    rest = new.select(all_but(len(new), picks))
    return Environment(
        kept=memory.exemplars,
        new=rest.of_labels(first).relabelled(rows),
        valid=ImageSet.joined([memory.reserve, inputs.reserve, new.select(picks)]).relabelled(rows),
        later=rest.of_labels(set(arrived) - first).relabelled(rows),
        rows=rows,
    )


def draw_held_out(
    labels: Tensor, judged: Iterable[int], count: Callable[[int], int], generator: np.random.Generator
) -> Tensor:
    """Draw indices of random images of each of these labels; `count` gives their number from a class's size."""
    picks = [torch.empty(0, dtype=torch.long)]
    for label in judged:
        members = (labels == label).nonzero().flatten()
        chosen = generator.choice(len(members), size=count(len(members)), replace=False)
        picks.append(members[torch.from_numpy(np.sort(chosen))])
    return torch.cat(picks)


def draw_environments(inputs: TrialInputs, number: int) -> list[Environment]:
    """This round's draw of each environment; where no look-ahead is possible, of the local one alone."""
    wanted = inputs.settings.environment
    found = [draw_ahead(inputs, number)] if wanted != "local" else []
    if wanted != "lookahead" or found == [None]:
        found.insert(0, draw_local(inputs, number))
    return [environment for environment in found if environment is not None]
