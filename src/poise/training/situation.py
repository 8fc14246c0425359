"""The situation of a training: the last model, the new classes, and how to train on them. Trials start there too."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from poise.actions import Action
from poise.data import Feed, ImageSet, Preprocessing
from poise.methods import PREVIOUS, Growth, GrowthInputs, Method
from poise.nets import Model, own_draws, torch_generator
from poise.training.backend import Backend
from poise.training.evaluate import ClassMeans, Evaluator
from poise.training.schedule import Schedule

T = TypeVar("T")


@dataclass(frozen=True)
class Situation:
    """New classes have arrived and nothing was trained on yet.

    `model` is the one that the last phase left to start from, or one that has learned nothing if this is the first.
    `updates` says that the phase brings images of known classes only: then their rows are trained whatever the action
    says, for it has no others.
    `means` are the class means that the last phase left: all that is known of old classes where no image is kept.
    """

    model: Model
    method: Method
    growth: Growth
    preprocessing: Preprocessing
    schedule: Schedule
    backend: Backend
    seed: int
    phase: int
    updates: bool = False
    means: ClassMeans | None = None
    _made: Model | None = field(default=None, init=False, repr=False, compare=False)

    def trains_old_rows(self, action: Action) -> bool:
        """Whether the head's rows of old classes are trained with this action."""
        return self.updates or action.old_rows == "trained"

    @property
    def evaluator(self) -> Evaluator:
        """How models are looked at here."""
        return Evaluator(self.preprocessing, self.backend)

    def grow_model(self, new: ImageSet) -> Model:
        """A copy of the model with rows for the new classes, imprinted from these images and no others."""
        model = self._expand_once(new.shape).copy() if self.growth.old and self.growth.new else self.model.copy()
        with self._own_draws("head"):
            self.method.grow(model, self.growth_inputs(new, "head"))
        return model.placed(self.backend.device)

    def _expand_once(self, shape: tuple[int, int, int]) -> Model:
        """The model on the network of this phase. Made once: what the method freezes in it is shared by all copies."""
        if self._made is None:
            model = self.model.copy()
            with self._own_draws("network"):
                model.expand(lambda before: self.method.expanded(before, self.growth), self.growth, shape)
            object.__setattr__(self, "_made", model.placed(self.backend.device))
        assert self._made is not None
        return self._made

    def _own_draws(self, purpose: str) -> AbstractContextManager[None]:
        """Where layers that a method adds draw their first values from."""
        return own_draws(torch_generator(self.seed, "layers", self.phase, purpose))

    def growth_inputs(self, new: ImageSet, purpose: str, *address: int | str) -> GrowthInputs:
        """What a method may use to grow a model: counts, a source of initial values, and features of the new images."""
        fresh = new.select((new.labels >= self.growth.old).nonzero().flatten())

        def features() -> tuple[torch.Tensor, torch.Tensor]:
            found = self.evaluator.extract(self.model, fresh).features
            return found, fresh.labels.to(self.backend.device) - self.growth.old

        return GrowthInputs(self.growth, torch_generator(self.seed, purpose, self.phase, *address), features)

    def teacher(self) -> Model | None:
        """The last phase's model, frozen; None in the first phase, and where no stage distils from it."""
        stages = (*self.method.stages(self.growth), self.method.balancing)
        distils = any(each.teacher == PREVIOUS for stage in stages for each in (stage, stage.after) if each)
        return self.model.teacher(self.backend.dtype) if self.growth.old and distils else None

    def feed(self, kept: ImageSet, new: ImageSet) -> Feed:
        """All images of a training, where they are trained on."""
        images = ImageSet.joined([kept, new])
        if len(images) == 1:  # a batch of two, for a single value has no batch statistics
            images = images.select(torch.zeros(2, dtype=torch.long))
        fresh = len(kept), len(kept) + len(new)
        feed = Feed(images, self.backend.device, fresh=fresh)
        if feed.resident == (not self.backend.world.largest(not feed.resident)):
            return feed
        return Feed(images, self.backend.device, resident=False, fresh=fresh)  # as on the rank with the least memory


@dataclass(frozen=True)
class LocalPhase:
    """One training inside a trial: what it starts from and what it trains on.

    `follows` says that it starts from a model that another training of the trial left, and nobody else has.
    `balance_length` is the share of its length in the phase that a balanced fine-tuning has at least.
    """

    situation: Situation
    kept: ImageSet
    new: ImageSet
    model: Model  # grown, its new rows imprinted from these new images
    teacher: Model | None
    feed: Feed
    follows: bool = False
    balance_length: float = 0.0
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(situation: Situation, kept: ImageSet, new: ImageSet, balance_length: float = 0.0) -> LocalPhase:
        """The training of these images from there."""
        model, teacher, feed = situation.grow_model(new), situation.teacher(), situation.feed(kept, new)
        return LocalPhase(situation, kept, new, model, teacher, feed, balance_length=balance_length)

    def followed_by(self, situation: Situation, kept: ImageSet, new: ImageSet, *images: Hashable) -> LocalPhase:
        """The training of these images after this one; all that follow with the same `images` share what is made once.

        That is, where the network is frozen: whatever action was trained with, its features are the same.
        """
        made: dict[Hashable, Any] = self.once(situation.model, ("following", *images), dict)
        return replace(LocalPhase.of(situation, kept, new, self.balance_length), follows=True, _made=made)

    def once(self, model: Model, key: Hashable, make: Callable[[], T]) -> T:
        """What comes of looking at these images with a model of this phase.

        It is made only once where the network is frozen, since no training changes it there.
        """
        if not model.is_frozen:
            return make()
        if key not in self._made:
            self._made[key] = make()
            if self.situation.backend.device.type == "cuda":  # other lanes use it, too
                torch.cuda.current_stream(self.situation.backend.device).synchronize()
        found: T = self._made[key]
        return found
