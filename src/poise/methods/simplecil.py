"""SimpleCIL (Zhou et al., IJCV 2024): a frozen network and the nearest class mean by cosine; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from poise.actions import Action
from poise.methods.base import Correction, Learned, register
from poise.methods.frozen import FrozenMethod
from poise.nets import CosineHead, Model

_SCALE = 10.0  # of the cosines in the logits: as steep as the probabilities of `ncm`


@register
class SimpleCIL(FrozenMethod):
    """The row of a class is the sum of the features of all of its images: it points where their mean points.

    The difference to the classifier `ncm` is that this one remembers the mean of the kept images.
    """

    name = "simplecil"
    head = "cosine"
    default_action = Action(lr=0.1, classifier="fc", old_rows="frozen")
    choices: Mapping[str, tuple[str, ...]] = {"lr": (), "old_rows": ("frozen",), "balance": ("none",)}

    @torch.no_grad()
    def conclude(self, model: Model, learned: Learned) -> None:
        """Set the rows of new classes; add new images of known classes to theirs."""
        features, labels = learned.features()
        members = nn.functional.one_hot(labels, sum(learned.growth)).to(features.dtype)
        sums, old = members.T @ features, learned.growth.old
        assert isinstance(model.head, CosineHead)
        model.head.old.add_(sums[:old])
        model.head.new.copy_(sums[old:])
        model.head.scale.fill_(_SCALE)

    @torch.no_grad()
    def correct(self, model: Model, correction: Correction) -> None:
        """Take these images out of the sums of their classes, and add them to those of their new ones."""
        assert isinstance(model.head, CosineHead)
        features, old, stay = correction.features(), len(model.head.old), correction.after >= 0
        change = features.new_zeros(model.head.classes, features.shape[1])
        change.index_add_(0, correction.before, -features)
        change.index_add_(0, correction.after[stay], features[stay])
        model.head.old.add_(change[:old])
        model.head.new.add_(change[old:])
