"""What a phase learns from: its situation and its images, or, in front of a frozen network, their features.

A network that is frozen altogether gives the same features in every epoch, trial and evaluation. So they are computed
once, when the phase begins, and stand for the images from then on: whatever trains, keeps or judges runs as ever, on a
model that has only its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from poise.data import FeatureViews, ImageSet, Memory, PixelStore, as_store, fits, resident
from poise.nets import Features, Model
from poise.training.situation import Situation


@dataclass(frozen=True)
class Material:
    """The situation of a phase and the images in it.

    Attributes:
        situation: what the phase starts from.
        kept: the memory.
        new: what arrived and may be trained on.
        reserve: what arrived and may not.
        unstored: what arrived and is only looked at while the model grows and when exemplars are chosen.
        pictures: all of the images, where features or copies on a device stand for them; origins are places in it.
        whole: the model with its backbone, where the one of the situation has none.
    """

    situation: Situation
    kept: Memory
    new: ImageSet
    reserve: ImageSet
    unstored: ImageSet
    pictures: ImageSet | None = None
    whole: Model | None = None

    def as_features(self) -> Material:
        """The same with features in the place of images."""
        model, pictures = self.situation.model.placed(self.situation.backend.device), ImageSet.joined(self._parts)
        views = FeatureViews.of(self.situation.preprocessing)
        sides, extract = [False, True] if views.augmentation.flip else [False], self.situation.evaluator.extract
        found = [extract(model, pictures, mirrored=side).features for side in sides]
        stored = torch.stack(found, dim=-1)[:, :, None].cpu()
        situation = replace(self.situation, model=model.without_backbone(), preprocessing=views)
        return replace(self._standing_for(pictures, as_store(stored)), situation=situation, whole=model)

    def on_device(self) -> Material:
        """The same with its images on the device, once for all trainings of the phase, where a file has them.

        Only where they fit; else every training streams its own. What is in memory, all of one size, is sent by each
        training as ever.
        """
        device = self.situation.backend.device
        if device.type == "cpu":
            return self
        pictures = ImageSet.joined(self._parts)
        as_ever = pictures.store.in_memory and pictures.store.is_even
        stays = as_ever or not fits(pictures.store.nbytes, device)
        if self.situation.backend.world.largest(stays):  # as on the rank with the least memory
            return self
        return self._standing_for(pictures, resident(pictures.store, device))

    @property
    def _parts(self) -> list[ImageSet]:
        return [self.kept.exemplars, self.kept.reserve, self.new, self.reserve, self.unstored]

    def _standing_for(self, pictures: ImageSet, store: PixelStore) -> Material:
        """The same with what is in a store in the place of all its images, in the order of its parts."""
        images = ImageSet(store, pictures.labels, torch.arange(len(pictures)))
        exemplars, reserved, new, reserve, unstored = _split(images, [len(part) for part in self._parts])
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


def features_suffice(situation: Situation, shape: tuple[int, int, int], *, still: bool) -> bool:
    """Whether the features of a phase's images, computed once, are all that is needed of them.

    So it is where nothing of the backbone changes (for good, or `still`: in this phase), the method makes no other
    backbone of it, and looks at no maps; and where its head is not trained on images that look different each time,
    by AutoAugment or Cutout.
    """
    model, method, growth = situation.model, situation.method, situation.growth
    if not model.is_frozen and not still:
        return False
    if situation.preprocessing.augmentation.name and any(stage.trains != "backbone" for stage in method.stages(growth)):
        return False
    expands = bool(growth.old and growth.new) and method.expanded(model.backbone, growth) is not model.backbone
    return not expands and not (method.uses_maps and _has_maps(model, shape))


@torch.no_grad()
def _has_maps(model: Model, shape: tuple[int, int, int]) -> bool:
    like = next(model.backbone.parameters(), torch.empty(0, dtype=torch.float32))
    model.eval()  # its statistics stay as they are
    found = model.backbone(torch.zeros(1, *shape, device=like.device, dtype=like.dtype))
    return isinstance(found, Features) and bool(found.maps)


def _split(images: ImageSet, sizes: Sequence[int]) -> list[ImageSet]:
    return [images.select(places) for places in torch.split(torch.arange(len(images)), list(sizes))]
