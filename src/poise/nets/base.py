"""What all networks share: number format, first values, copies, and what they hand on."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from poise import draws

#: The format of all weights and statistics, whatever `torch.get_default_dtype` says.
FULL: Final = torch.float32

N = TypeVar("N", bound=nn.Module)
NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Features(NamedTuple):
    """The output of a backbone: the pooled vector [B, d] and the map at the end of each level."""

    vector: Tensor
    maps: tuple[Tensor, ...] = ()


class Output(NamedTuple):
    """The output of a model for a batch.

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


class Backbone(nn.Module):
    """One of poise's own networks: its features have `width` values, and it draws no random numbers."""

    #: The shares in which branches are fused, if it has any: trained by a stage of their own, within [0, 1].
    fusion: Sequence[nn.Parameter] = ()

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def fold(self) -> None:
        """Fold, in place, every batch norm into the convolution before it; it cannot be trained any more."""


def torch_generator(seed: int, purpose: str, *address: int | str) -> torch.Generator:
    """A CPU generator for the initial values at this address."""
    return torch.Generator().manual_seed(draws.key(seed, purpose, *address) % 2**63)


@contextmanager
def own_draws(generator: torch.Generator) -> Iterator[None]:
    """Let whatever reads torch's global generator on the host draw from this one instead."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(generator.get_state())
        yield


def make_layer(kind: type[N], *sizes: Any, **options: Any) -> N:  # noqa: ANN401 - whatever the layer takes
    """A layer in float32, whose first values are to be overwritten; torch's global generator does not move."""
    with torch.random.fork_rng(devices=[]):
        return kind(*sizes, **options, dtype=FULL)


def copy_network(net: N, shared: Iterable[object] = ()) -> N:
    """A deep copy; the modules and parameters that are `shared` are in it as they are.

    Every trial begins with one. Half of the time of a plain `copy.deepcopy` goes to the dozen of empty dictionaries in
    which every layer would keep its hooks. Theirs are made here, and handed to it as copied already.
    """
    empty = {
        id(value): type(value)()
        for module in net.modules()
        for value in vars(module).values()
        if type(value) in (dict, OrderedDict, set) and not value
    }
    return copy.deepcopy(net, {**empty, **{id(part): part for part in shared}})
