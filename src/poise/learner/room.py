"""Whether a training step has room in memory: on a CPU the system ends a process that takes more than there is.

On a GPU too large a step is refused by the device itself, in one line.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from poise.errors import UserError
from poise.learner.arrival import Arrival
from poise.learner.networks import Shape, build_model
from poise.learner.phase import Surroundings, is_given
from poise.learner.settings import Settings
from poise.ram import free_memory

#: Bytes that a network of poise's own may need for each byte of the images of a step: below, nothing is looked into.
MOST_FOR_A_BYTE: Final = 4096


def refuse_too_large(settings: Settings, arrival: Arrival, around: Surroundings, kept: int) -> None:
    """Refuse images of which one training step takes more memory than is free, by what it takes at least.

    They are trained on with so many kept ones. A network that poise did not make is not looked into, nor one of which
    nothing is trained.
    """
    if around.backend.device.type != "cpu" or is_given(settings, around) or _stays(settings, arrival.phase):
        return
    images = arrival.images
    world = around.backend.world
    batch = max(1, min(settings.schedule.batch, len(images) + kept) // (1 if world is None else world.size))
    free = free_memory()
    if batch * math.prod(images.shape) * MOST_FOR_A_BYTE < free:
        return
    needed = batch * held_for_an_image(settings, images.shape) * around.backend.dtype.itemsize // 4
    if needed > free:
        size = f"{images.shape[1]}×{images.shape[2]}"
        raise UserError(
            f"a training step of {batch} images of {size} pixels takes {needed / 1e9:.3g} GB of memory at least, and "
            f"{free / 1e9:.3g} GB are free; use a smaller image_size, or a smaller batch"
        )


def _stays(settings: Settings, phase: int) -> bool:
    """Whether nothing of the backbone learns in this phase, so that nothing is held for the way back through it."""
    slow = phase > 0 and not settings.default_action.backbone_rate
    return slow or settings.made_method.freezes(phase, given=False)


def held_for_an_image(settings: Settings, shape: Shape) -> int:
    """How many bytes a network holds for the way back, for each image of a step: counted without computing any."""
    backbone = build_model(settings, shape).backbone.to("meta").train()
    found: dict[Any, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            found[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        backbone(torch.empty(2, *shape, device="meta", dtype=torch.float32))
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values()) // 2
