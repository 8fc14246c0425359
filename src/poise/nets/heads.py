"""Heads: the layer that turns features into one score per class, and grows with the classes.

A head keeps the rows of old classes apart from those of the newest ones, so that the old rows can be frozen
while the new ones are trained; both are joined when the next classes arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from poise.nets.base import FULL


class Head(nn.Module):
    """Rows of old classes, rows of new classes, how they grow, and what the logits are.

    `scale` is σ, of a head whose logits are scaled.
    """

    scale: nn.Parameter | None

    #: What has an entry for each class: the names of old entries and of new ones.
    parts: ClassVar[tuple[tuple[str, str], ...]] = (("old", "new"),)
    #: Whether new rows are drawn from N(0, 1/d), and not from U(−1/√d, 1/√d).
    normal: ClassVar[bool] = False
    #: The names of what is never written into, only replaced, so that copies of a model need none of their own.
    shared: ClassVar[tuple[str, ...]] = ()

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.old = nn.Parameter(torch.empty(0, *self.shape, dtype=FULL))
        self.new = nn.Parameter(torch.empty(0, *self.shape, dtype=FULL))
        self.register_parameter("scale", None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a class's row."""
        return (self.width,)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.old) + len(self.new)

    def rows(self) -> Tensor:
        """All rows, in the order in which the classes arrived."""
        return torch.cat([self.old, self.new])

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Turn all current rows into old ones and add `count` new rows."""
        self.old = nn.Parameter(self.rows().detach().clone())
        self.new = nn.Parameter(self.first_rows(count, generator).to(self.old.device))

    def keep(self, rows: Tensor) -> None:
        """Keep the classes of these rows, given in ascending order, and no others; old ones stay old."""
        count = len(self.old)
        kept = rows[rows < count], rows[rows >= count] - count
        for names in self.parts:
            for name, places in zip(names, kept, strict=True):
                values: Tensor = getattr(self, name)
                setattr(self, name, nn.Parameter(values.detach()[places.to(values.device)]))

    def widen(self, width: int) -> None:
        """Accept features with more values: rows are 0 there, so that the scores do not change."""
        more = width - self.width
        if more < 0:
            raise ValueError(f"features had {self.width} values and now have {width}; a network that grows keeps them")
        if more:
            self.width = width
            self.old = nn.Parameter(nn.functional.pad(self.old.detach(), (0, more)))
            self.new = nn.Parameter(nn.functional.pad(self.new.detach(), (0, more)))

    def first_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """New rows, drawn at random (see `normal`)."""
        shape = (count, *self.shape)
        if self.normal:
            return torch.empty(shape, dtype=FULL).normal_(0, 1 / math.sqrt(self.width), generator=generator)
        return _uniform(shape, self.width, generator)

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved values, for any number of classes."""
        for name, values in state.items():
            setattr(self, name, values.clone() if name in self._buffers else nn.Parameter(values.clone()))

    def drop_unused(self) -> None:
        """Drop, in place, what no prediction needs and only another phase would."""

    def old_values(self) -> list[nn.Parameter]:
        """The rows of old classes, with their biases where there are any."""
        return [getattr(self, old) for old, _ in self.parts]

    def freeze_old(self, frozen: bool) -> None:
        """Freeze the rows of old classes, with their biases where there are any, or let them be trained."""
        for old, _ in self.parts:
            getattr(self, old).requires_grad_(not frozen)

    def align(self) -> None:
        """Give new rows the mean length of old ones (Zhao et al. 2020); only for heads in which length matters."""
        raise NotImplementedError

    def scores(self, features: Tensor) -> Tensor:
        """One value per class before any learned scale."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores before the learned scale and logits after it, in full precision."""
        with torch.autocast(features.device.type, enabled=False):
            scores = self.scores(features.float())
            return scores, scores if self.scale is None else self.scale * scores


class ScaledHead(Head):
    """A head of directions, whose lengths do not matter: logits = σ · scores, with one learned σ that starts at 1."""

    scale: nn.Parameter

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones((), dtype=FULL))

    @torch.no_grad()
    def imprint(self, rows: Tensor) -> None:
        """Set the new rows to these, times the mean length of old rows."""
        self.new.copy_(rows * self.old.norm(dim=-1).mean())


class CosineHead(ScaledHead):
    """scores = ⟨f/|f|, w/|w|⟩; no bias."""

    def scores(self, features: Tensor) -> Tensor:
        """Cosines between features and rows."""
        return nn.functional.normalize(features) @ nn.functional.normalize(self.rows()).T


class ProxyHead(ScaledHead):
    """PODNet's local similarity classifier: ten proxies w_k stand for each class.

    With s_k = −|f/|f| − w_k/|w_k||² = 2 cos_k − 2, a class's score is Σ_k softmax_k(s_k) · s_k. The learned scale is
    PODNet's η.
    """

    PROXIES = 10
    normal = True

    @property
    def shape(self) -> tuple[int, ...]:
        """The proxies of a class."""
        return (self.PROXIES, self.width)

    def scores(self, features: Tensor) -> Tensor:
        """Similarities to the proxies of each class, weighed towards the nearest ones."""
        proxies = nn.functional.normalize(self.rows().flatten(0, 1))
        cosines = nn.functional.normalize(features) @ proxies.T
        near = 2 * cosines.view(features.shape[0], self.classes, self.PROXIES) - 2
        return (near.softmax(dim=2) * near).sum(dim=2)


class UnbiasedHead(Head):
    """logits = W f."""

    @torch.no_grad()
    def align(self) -> None:
        """w_new ← w_new · mean |w_old| / mean |w_new|; biases, where there are any, do not change."""
        if len(self.old) and len(self.new):
            self.new.mul_(self.old.norm(dim=1).mean() / self.new.norm(dim=1).mean().clamp(min=1e-12))

    def scores(self, features: Tensor) -> Tensor:
        """The linear map."""
        return nn.functional.linear(features, self.rows())


class RenewedHead(UnbiasedHead):
    """A linear map without bias that is made anew in every phase, with rows for old classes too (DER)."""

    normal = True

    @torch.no_grad()
    def grow(self, count: int, generator: torch.Generator) -> None:
        """Rows for all classes, drawn from N(0, 1/d); nothing is taken over."""
        super().grow(count, generator)
        self.old.copy_(self.first_rows(len(self.old), generator))

    @torch.no_grad()
    def renew(self, generator: torch.Generator) -> None:
        """Draw all rows again, in place, from U(−1/√d, 1/√d)."""
        for rows in (self.old, self.new):
            rows.copy_(_uniform(tuple(rows.shape), self.width, generator))


class LinearHead(UnbiasedHead):
    """logits = W f + b."""

    parts = (*Head.parts, ("old_bias", "new_bias"))

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.old_bias = nn.Parameter(torch.empty(0, dtype=FULL))
        self.new_bias = nn.Parameter(torch.empty(0, dtype=FULL))

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add rows and biases."""
        super().grow(count, generator)
        self.old_bias = nn.Parameter(torch.cat([self.old_bias, self.new_bias]).detach().clone())
        self.new_bias = nn.Parameter(self.first_biases(count, generator).to(self.old.device))

    def first_biases(self, count: int, generator: torch.Generator) -> Tensor:
        """New biases, drawn from U(−1/√d, 1/√d)."""
        return _uniform((count,), self.width, generator)

    def scores(self, features: Tensor) -> Tensor:
        """The linear map."""
        return nn.functional.linear(features, self.rows(), torch.cat([self.old_bias, self.new_bias]))


class BoostedHead(LinearHead):
    """FOSTER's: a linear map that goes on from the one of the last phase, over more features."""

    def first_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """New rows, drawn from U(−√(3/d), √(3/d))."""
        return math.sqrt(3) * super().first_rows(count, generator)

    def first_biases(self, count: int, generator: torch.Generator) -> Tensor:
        """New biases: 0."""
        return torch.zeros(count, dtype=FULL)

    @torch.no_grad()
    def boost(self, known: int, generator: torch.Generator) -> None:
        """Draw the values of old rows beyond the features known before."""
        drawn = self.first_rows(len(self.old), generator).to(self.old.device)
        self.old[:, known:] = drawn[:, known:]


#: Every head by its name; a method registers its own.
HEADS: dict[str, type[Head]] = {
    "boosted": BoostedHead,
    "cosine": CosineHead,
    "linear": LinearHead,
    "proxies": ProxyHead,
    "renewed": RenewedHead,
}


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape, dtype=FULL).uniform_(-bound, bound, generator=generator)
