"""What remains after a training: the exemplars of every class, by herding. Phases, trials and pseudo tasks use it."""

from __future__ import annotations

import torch

from poise.data import ImageSet, Memory
from poise.errors import Diverged
from poise.nets import Model
from poise.training.evaluate import Evaluator


def keep_exemplars(evaluator: Evaluator, model: Model, kept: ImageSet, new: ImageSet, quota: int) -> ImageSet:
    """At most `quota` images of every class: chosen anew by herding where it has new images, else the first ones.

    Candidates of a class with new images are those and its old exemplars. Raises `Diverged` where the features are not
    finite, though the weights are.
    """
    return keep_memory(evaluator, model, Memory.of(kept), new, quota).exemplars


def keep_memory(
    evaluator: Evaluator,
    model: Model,
    kept: Memory,
    new: ImageSet,
    quota: int,
    reserve: ImageSet | None = None,
    reserved: int = 0,
) -> Memory:
    """The same with a reserve: new images that are never trained on, at most `reserved` of every class's quota."""
    arrived = set(new.labels.tolist())
    candidates = ImageSet.joined([kept.exemplars.of_labels(arrived), new])
    if len(candidates):
        features = evaluator.extract(model, candidates.pixels).features
    else:  # the only new images, of known classes, are held out by a trial
        features = torch.empty(0, model.head.width)
    if not bool(torch.isfinite(features).all()):
        raise Diverged("the features of the trained model are not finite; lower the learning rate")
    if reserve is None:
        reserve = kept.reserve.select(torch.empty(0, dtype=torch.long))
    return kept.updated(candidates, features, reserve, quota, reserved)
