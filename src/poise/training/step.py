"""One training step: the reference, run eagerly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poise.actions import Action
from poise.data import Draws, Preprocessing
from poise.methods import Growth, Method
from poise.nets import Model
from poise.training.backend import Backend


@dataclass
class EagerStep:
    """Crop, flip, normalise; student and teacher; named terms; their weighted sum; backward; SGD."""

    model: Model
    teacher: Model | None
    method: Method
    action: Action
    growth: Growth
    preprocessing: Preprocessing
    optimiser: torch.optim.SGD
    backend: Backend

    def __call__(self, pixels: Tensor, labels: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Train on one batch of uint8 images; returns `loss` and every term, still on the device."""
        images = self.preprocessing.training(pixels, draws).contiguous(memory_format=torch.channels_last)
        with self.backend.autocast:
            student = self.model(images)
            with torch.no_grad():
                teacher = self.teacher(images) if self.teacher is not None else None
        terms = self.method.terms(student, teacher, labels, self.growth)
        loss = torch.stack([self.action.weight(name) * term for name, term in terms.items()]).sum()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}
