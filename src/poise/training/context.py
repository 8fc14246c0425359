"""What a phase trains from: its context (the last model, the new classes, how to train) and its images. Trials, too.

A network that is frozen altogether gives the same features in every epoch, trial and evaluation. So they are computed
once, when the phase begins, and stand for the images from then on (`PhaseData.as_features`): whatever trains, keeps or
judges runs as ever, on a model that has only its head.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import normalize, pad

from poise.actions import Action
from poise.data import (
    FeatureViews,
    Feed,
    ImageSet,
    Memory,
    PixelStore,
    Preprocessing,
    as_store,
    fits,
    resident,
)
from poise.errors import Diverged
from poise.methods import PREVIOUS, Growth, GrowthInputs, Method
from poise.nets import Features, Model, own_draws, torch_generator
from poise.training.device import Backend
from poise.training.evaluate import ClassMeans, Evaluator
from poise.training.optimiser import Schedule

#: Weights can be finite and so large that features, or what a method computes of them, are not.
TOO_LARGE = "the features of the trained model are not finite, or too large; lower the learning rate"


@dataclass(frozen=True)
class PhaseContext:
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
    _expanded: list[Model] = field(default_factory=list, init=False, repr=False, compare=False)

    def trains_old_rows(self, action: Action) -> bool:
        """Whether the head's rows of old classes are trained with this action."""
        return self.updates or action.old_rows == "trained"

    @property
    def evaluator(self) -> Evaluator:
        """How models are looked at here."""
        return Evaluator(self.preprocessing, self.backend)

    def grow_model(self, new: ImageSet) -> Model:
        """A copy of the model with rows for the new classes, imprinted from these images and no others."""
        inputs, expands = self.growth_inputs(new, "head"), self.growth.old and self.growth.new and self.method.expands
        model = (self._expand_once(new.shape) if expands else self.model).copy()
        with own_draws(torch_generator(self.seed, "layers", self.phase, "head")):
            self.method.grow(model, inputs)
        return model.placed(self.backend.device)

    def _expand_once(self, shape: tuple[int, int, int]) -> Model:
        """The model on the network of this phase. Made once: what the method freezes in it is shared by all copies."""
        if not self._expanded:
            model = self.model.copy()
            with own_draws(torch_generator(self.seed, "layers", self.phase, "network")):
                model.expand(lambda before: self.method.expanded(before, self.growth), self.growth, shape)
            self._expanded.append(model.placed(self.backend.device))
        return self._expanded[0]

    def growth_inputs(self, new: ImageSet, purpose: str, *address: int | str) -> GrowthInputs:
        """The inputs of `Method.grow`: counts, a source of initial values, and features of the new images."""
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
        if all(self.backend.world.all_gather(feed.resident)) or not feed.resident:
            return feed
        return Feed(images, self.backend.device, resident=False, fresh=fresh)  # as on the rank with the least memory


@dataclass(frozen=True)
class LocalPhase:
    """One training inside a trial: what it starts from and what it trains on.

    `follows` says that it starts from a model that another training of the trial left, and nobody else has.
    `balance_length` is the share of its length in the phase that a balanced fine-tuning has at least.
    """

    context: PhaseContext
    kept: ImageSet
    new: ImageSet
    model: Model  # grown, its new rows imprinted from these new images
    teacher: Model | None
    feed: Feed
    follows: bool = False
    balance_length: float = 0.0

    @staticmethod
    def of(context: PhaseContext, kept: ImageSet, new: ImageSet, balance_length: float = 0.0) -> LocalPhase:
        """The training of these images from there."""
        model, teacher, feed = context.grow_model(new), context.teacher(), context.feed(kept, new)
        return LocalPhase(context, kept, new, model, teacher, feed, balance_length=balance_length)

    def followed_by(self, context: PhaseContext, kept: ImageSet, new: ImageSet) -> LocalPhase:
        """The training of these images after this one, from the model that it left."""
        return replace(LocalPhase.of(context, kept, new, self.balance_length), follows=True)


@dataclass(frozen=True)
class PhaseData:
    """The context of a phase and the images in it.

    Attributes:
        new: what arrived and may be trained on.
        reserve: what arrived and may not.
        unstored: new images over the budget, never trained on: the model grows and exemplars are chosen with them.
        pictures: all of the images, where features or copies on a device stand for them; origins are places in it.
        whole: the model with its backbone, where the one of the context has none.
    """

    context: PhaseContext
    kept: Memory
    new: ImageSet
    reserve: ImageSet
    unstored: ImageSet
    pictures: ImageSet | None = None
    whole: Model | None = None

    def as_features(self, known: torch.Tensor | None = None) -> PhaseData:
        """These data with features in the place of images; those of the memory are computed unless they are `known`."""
        model, pictures = self.context.model.placed(self.context.backend.device), ImageSet.joined(self._parts)
        views = FeatureViews.of(self.context.preprocessing)
        sides, extract = [False, True] if views.augmentation.flip else [False], self.context.evaluator.extract
        unknown = pictures if known is None else ImageSet.joined(self._parts[2:])
        found = [extract(model, unknown, mirrored=side).features for side in sides]
        stored = torch.stack(found, dim=-1)[:, :, None].cpu()
        stored = stored if known is None else torch.cat([known, stored])
        context = replace(self.context, model=model.without_backbone(), preprocessing=views)
        return replace(self._standing_for(pictures, as_store(stored)), context=context, whole=model)

    def on_device(self) -> PhaseData:
        """These data with their images on the device, once for all trainings of the phase, where a file has them.

        Only where they fit; else every training streams its own. What is in memory, all of one size, is sent by each
        training as ever.
        """
        device = self.context.backend.device
        if device.type == "cpu":
            return self
        pictures = ImageSet.joined(self._parts)
        store = pictures.store
        stays = (store.in_memory and store.is_even) or not fits(store.nbytes, device)
        if any(self.context.backend.world.all_gather(stays)):  # as on the rank with the least memory
            return self
        return self._standing_for(pictures, resident(store, device))

    @property
    def _parts(self) -> list[ImageSet]:
        return [self.kept.exemplars, self.kept.reserve, self.new, self.reserve, self.unstored]

    def _standing_for(self, pictures: ImageSet, store: PixelStore) -> PhaseData:
        """These data with what is in a store in the place of all their images, in the order of their parts."""
        images = ImageSet(store, pictures.labels, torch.arange(len(pictures)))
        stretches = torch.split(torch.arange(len(pictures)), [len(part) for part in self._parts])
        exemplars, reserved, new, reserve, unstored = (images.select(places) for places in stretches)
        return replace(
            self, kept=Memory(exemplars, reserved), new=new, reserve=reserve, unstored=unstored, pictures=pictures
        )

    def complete(self, model: Model) -> Model:
        """A model of this phase as one that takes images."""
        return model if self.whole is None else model.with_backbone_of(self.whole)

    def images(self, memory: Memory) -> Memory:
        """A memory of this phase as one of images."""
        if self.pictures is None:
            return memory
        return Memory(*(self.pictures.select(part.origins) for part in (memory.exemplars, memory.reserve)))

    @property
    def arrived(self) -> ImageSet:
        """The images that the model grows with, and that exemplars are chosen from."""
        return ImageSet.joined([self.new, self.unstored])


def features_suffice(context: PhaseContext, shape: tuple[int, int, int], *, still: bool) -> bool:
    """Whether the features of a phase's images, computed once, are all that is needed of them.

    So it is where nothing of the backbone changes (for good, or `still`: in this phase), the method makes no other
    backbone of it, and looks at no maps; and where its head is not trained on images that look different each time,
    by AutoAugment or Cutout.
    """
    model, method, growth = context.model, context.method, context.growth
    if not model.is_frozen and not still:
        return False
    if context.preprocessing.augmentation.name and any(stage.trains != "backbone" for stage in method.stages(growth)):
        return False
    expands = bool(growth.old and growth.new) and method.expanded(model.backbone, growth) is not model.backbone
    return not expands and not (method.uses_maps and _has_maps(model, shape))


@torch.no_grad()
def _has_maps(model: Model, shape: tuple[int, int, int]) -> bool:
    like = next(model.backbone.parameters(), torch.empty(0, dtype=torch.float32))
    model.eval()  # its statistics stay as they are
    found = model.backbone(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    return isinstance(found, Features) and bool(found.maps)


# What remains after a training ----------------------------------------------------------------------------------------


def keep_memory(
    evaluator: Evaluator,
    model: Model,
    kept: Memory,
    new: ImageSet,
    quota: int,
    reserve: ImageSet | None = None,
    reserved: int = 0,
) -> Memory:
    """The memory after a training: at most `quota` images of every class, `reserved` of them in the reserve.

    Exemplars of a class with new images are chosen anew by herding, from those and its old exemplars; of other classes
    they are the first ones. The reserve are new images that are never trained on. Raises `Diverged` where the features
    are not finite, though the weights are.
    """
    arrived = set(new.labels.tolist())
    candidates = ImageSet.joined([kept.exemplars.of_labels(arrived), new])
    features = evaluator.extract(model, candidates).features
    if not bool(torch.isfinite(features).all()):
        raise Diverged(TOO_LARGE)
    if reserve is None:
        reserve = kept.reserve.select(torch.empty(0, dtype=torch.long))
    return kept.updated(candidates, features, reserve, quota, reserved)


def measure_means(context: PhaseContext, model: Model, exemplars: ImageSet, new: ImageSet) -> ClassMeans:
    """The mean of every class: from its exemplars, under the present model.

    Where no exemplar is kept, a class that arrived is measured on all of its new images, and a class without new ones
    keeps the mean that was measured when its images were there. Where an old class has new images, its mean is that of
    both measurements, weighed by their images.
    """
    classes, source = sum(context.growth), exemplars if len(exemplars) else new
    found = context.evaluator.class_means(model, source, classes)
    counts = torch.bincount(source.labels, minlength=classes).tolist()
    if len(exemplars) or context.means is None:
        return ClassMeans(found, tuple(counts))
    for row, (images, before) in enumerate(zip(context.means.images, context.means.vectors, strict=True)):
        kept = pad(before, (0, found.shape[1] - len(before)))  # where features were added, it had nothing of them
        found[row] = normalize(counts[row] * found[row] + images * kept, dim=0) if counts[row] else kept
        counts[row] += images
    return ClassMeans(found, tuple(counts))
