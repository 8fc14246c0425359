"""What remains after a training: exemplars of every class, by herding, and class means.

Phases, trials and pseudo tasks use it.
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize, pad

from poise.data import ImageSet, Memory
from poise.errors import Diverged
from poise.nets import Model
from poise.training.evaluate import ClassMeans, Evaluator
from poise.training.situation import Situation


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
    features = evaluator.extract(model, candidates).features
    if not bool(torch.isfinite(features).all()):
        raise Diverged("the features of the trained model are not finite; lower the learning rate")
    if reserve is None:
        reserve = kept.reserve.select(torch.empty(0, dtype=torch.long))
    return kept.updated(candidates, features, reserve, quota, reserved)


def measure_means(situation: Situation, model: Model, exemplars: ImageSet, new: ImageSet) -> ClassMeans:
    """The mean of every class: from its exemplars, under the present model.

    Where no exemplar is kept, a class that arrived is measured on all of its new images, and a class without new ones
    keeps the mean that was measured when its images were there. Where an old class has new images, its mean is that of
    both measurements, weighed by their images.
    """
    classes, source = sum(situation.growth), exemplars if len(exemplars) else new
    found = situation.evaluator.class_means(model, source, classes)
    counts = torch.bincount(source.labels, minlength=classes).tolist()
    if len(exemplars) or situation.means is None:
        return ClassMeans(found, tuple(counts))
    for row, (images, before) in enumerate(zip(situation.means.images, situation.means.vectors, strict=True)):
        kept = pad(before, (0, found.shape[1] - len(before)))  # where features were added, it had nothing of them
        found[row] = normalize(counts[row] * found[row] + images * kept, dim=0) if counts[row] else kept
        counts[row] += images
    return ClassMeans(found, tuple(counts))


def remember_means(situation: Situation, model: Model, exemplars: ImageSet, new: ImageSet) -> ClassMeans | None:
    """What the next phase must be told of class means: nothing where exemplars are kept, on which all are measured."""
    return None if len(exemplars) else measure_means(situation, model, exemplars, new)
