"""Heads: the layer that turns features into one score per class, and grows with the classes.

A head keeps the rows of old classes apart from those of the newest ones, so that the old can be frozen
while the new are trained; they are joined when the next classes arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """Rows of old classes, rows of new classes, and how they grow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.old = nn.Parameter(torch.empty(0, width))
        self.new = nn.Parameter(torch.empty(0, width))

    @property
    def classes(self) -> int:
        """How many classes the head tells apart."""
        return len(self.old) + len(self.new)

    def rows(self) -> Tensor:
        """All rows, in the order in which the classes arrived."""
        return torch.cat([self.old, self.new])

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Make the present rows old ones and add `count` new rows, drawn from U(−1/√d, 1/√d)."""
        self.old = nn.Parameter(self.rows().detach().clone())
        self.new = nn.Parameter(_uniform((count, self.width), self.width, generator).to(self.old.device))

    def adopt(self, state: Mapping[str, Tensor]) -> None:
        """Take over saved values, whatever number of classes they are for."""
        for name, values in state.items():
            setattr(self, name, nn.Parameter(values.clone()))

    def freeze_old(self, frozen: bool) -> None:
        """Let the old rows be trained or not."""
        self.old.requires_grad_(not frozen)

    def align(self) -> None:
        """Make new rows as long as old ones are (Zhao et al. 2020); only for heads in which length counts."""
        raise NotImplementedError

    def scores(self, features: Tensor) -> Tensor:
        """One value per class before any learned scale."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores before the learned scale and logits after it, in full precision."""
        with torch.autocast(features.device.type, enabled=False):
            scores = self.scores(features.float())
            return scores, self.scaled(scores)

    def scaled(self, scores: Tensor) -> Tensor:
        """Logits from scores; a head without a scale returns them as they are."""
        return scores


class CosineHead(Head):
    """logits = σ · ⟨f/|f|, w/|w|⟩ with one learned scalar σ that starts at 1; no bias."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones(()))

    def scores(self, features: Tensor) -> Tensor:
        """Cosines between features and rows."""
        return nn.functional.normalize(features) @ nn.functional.normalize(self.rows()).T

    def scaled(self, scores: Tensor) -> Tensor:
        """Cosines times σ."""
        return self.scale * scores

    @torch.no_grad()
    def imprint(self, means: Tensor) -> None:
        """Set the new rows to the (normalised) class means, as long as an old row is on average."""
        length = self.old.norm(dim=1).mean()
        self.new.copy_(nn.functional.normalize(means) * length)


class LinearHead(Head):
    """logits = W f + b."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.old_bias = nn.Parameter(torch.empty(0))
        self.new_bias = nn.Parameter(torch.empty(0))

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add rows and biases, both drawn from U(−1/√d, 1/√d)."""
        super().grow(count, generator)
        self.old_bias = nn.Parameter(torch.cat([self.old_bias, self.new_bias]).detach().clone())
        self.new_bias = nn.Parameter(_uniform((count,), self.width, generator).to(self.old.device))

    def freeze_old(self, frozen: bool) -> None:
        """Let the old rows and their biases be trained or not."""
        super().freeze_old(frozen)
        self.old_bias.requires_grad_(not frozen)

    @torch.no_grad()
    def align(self) -> None:
        """w_new ← w_new · mean |w_old| / mean |w_new|; biases stay as they are."""
        if len(self.old) and len(self.new):
            self.new.mul_(self.old.norm(dim=1).mean() / self.new.norm(dim=1).mean().clamp(min=1e-12))

    def scores(self, features: Tensor) -> Tensor:
        """The linear map."""
        return nn.functional.linear(features, self.rows(), torch.cat([self.old_bias, self.new_bias]))


HEADS: dict[str, type[Head]] = {"cosine": CosineHead, "linear": LinearHead}


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
