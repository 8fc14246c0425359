"""What networks hand on: the values every loss term, classifier and map is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Features(NamedTuple):
    """What a backbone returns: the pooled vector [B, d] and the map at the end of each level."""

    vector: Tensor
    maps: tuple[Tensor, ...] = ()


class Output(NamedTuple):
    """What a model returns for a batch.

    `scores` are the head's values before its learned `scale` (cosines for a cosine head), `logits` those
    after it; a linear head has no scale, and one and the same for both. `extras` are the outputs of the model's
    extras by their names, while it is trained. `prior` is what a training adds to the logits of each class where they
    are compared with labels, `temperature` what they are divided by there, and `class_values` what the method computed
    for each class (see `Step`). `batch_labels` are the labels of the whole batch where this is a part of it, on one of
    several ranks; their terms are averaged, each weighed by its number of images.
    """

    features: Tensor
    maps: tuple[Tensor, ...]
    scores: Tensor
    logits: Tensor
    scale: Tensor | None = None
    extras: Mapping[str, Tensor] = NOTHING
    prior: Tensor | None = None
    temperature: float = 1.0
    class_values: Tensor | None = None
    batch_labels: Tensor | None = None

    @property
    def adjusted(self) -> Tensor:
        """The logits with their prior and temperature: what a term that compares them with labels looks at."""
        logits = self.logits if self.prior is None else self.logits + self.prior
        return logits if self.temperature == 1 else logits / self.temperature
