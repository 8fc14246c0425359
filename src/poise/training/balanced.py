"""Which images a balanced stage trains on: as many of each class as the smallest one has."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from poise.data import Feed, herd
from poise.nets import Model
from poise.training.evaluate import Evaluator


def herded_picks(feed: Feed, model: Model, evaluator: Evaluator) -> Tensor:
    """Those that herding chooses, by the features of this model."""
    ranks = herd(evaluator.extract(model, feed.images()).features, feed.labels, _smallest(feed.labels))
    return _at_least_two(torch.cat([ranks[label] for label in sorted(ranks)]))


def drawn_picks(feed: Feed, generator: np.random.Generator) -> Tensor:
    """Those that come first in a random order."""
    labels = feed.labels.cpu()
    order = torch.from_numpy(generator.permutation(len(labels)))
    count = _smallest(labels)
    picks = [order[labels[order] == label][:count] for label in torch.unique(labels)]
    return _at_least_two(torch.cat(picks).to(feed.labels.device))


def _smallest(labels: Tensor) -> int:
    return int(torch.unique(labels, return_counts=True)[1].min())


def _at_least_two(picks: Tensor) -> Tensor:
    """A batch of two, for a single value has no batch statistics."""
    return picks.repeat(2) if len(picks) == 1 else picks
