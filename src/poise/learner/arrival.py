"""What arrived: new images and their labels, checked before anything is trained; and the reserve held out of them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poise import draws
from poise.actions import Action
from poise.data import Budget, ImageSet, Memory, draw_reserve, to_pixels
from poise.errors import UserError
from poise.learner.settings import Settings
from poise.learner.state import Knowledge, Label
from poise.methods import Growth

log = logging.getLogger(__name__)

Labels = Sequence[Label] | NDArray[Any] | Tensor
Images = NDArray[np.uint8] | Tensor | Sequence[str | Path]


@dataclass(frozen=True)
class Arrival:
    """New images, checked.

    Attributes:
        phase: the number of the phase they start.
        images: all that arrived, labelled by rows of the head; once the phase begins, those that are stored.
        count: how many arrived.
        classes: the labels of all rows after this phase.
        growth: how many classes were known, and how many are new.
        digest: of images and labels, so that a saved phase is resumed with the same ones.
        next_images: how many come next, for a memory that is to know it.
        action: if the caller decided it.
    """

    phase: int
    images: ImageSet
    count: int
    classes: tuple[Label, ...]
    growth: Growth
    digest: str
    next_images: int | None = None
    action: Action | None = None


def receive(
    images: Images,
    labels: Labels,
    settings: Settings,
    knowledge: Knowledge,
    *,
    known: str = "refuse",
    origins: Tensor | None = None,
) -> Arrival:
    """What arrives, checked: a mistake is found here, before anything is trained."""
    if known not in ("refuse", "update"):
        raise UserError(f"known='{known}' must be 'refuse' or 'update'")
    settings.refuse_unregistered()
    if knowledge.phases and knowledge.memory is None:
        raise UserError("this learner was saved without its memory: it can predict but not learn further")
    pixels, plain = pixels_for(images, settings, knowledge).cpu(), plain_labels(labels)
    if len(pixels) != len(plain):
        raise UserError(f"{len(pixels)} images and {len(plain)} labels; give one label per image")
    classes = _all_classes(plain, knowledge.classes, known)
    settings.memory.quota(len(classes))
    rows = {label: row for row, label in enumerate(classes)}
    where = torch.full((len(plain),), -1, dtype=torch.long) if origins is None else origins.cpu()
    arrived = ImageSet(pixels, torch.tensor([rows[label] for label in plain]), where)
    digest = hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16)
    digest.update(json.dumps([list(classes), arrived.labels.tolist()]).encode())
    growth = Growth(len(knowledge.classes), len(classes) - len(knowledge.classes))
    return Arrival(knowledge.phases, arrived, len(arrived), classes, growth, digest.hexdigest())


def _all_classes(plain: Sequence[Label], before: tuple[Label, ...], known: str) -> tuple[Label, ...]:
    """The classes after this phase, those that were known first."""
    if len({type(label) for label in (*plain, *before)}) > 1:
        raise UserError("labels are partly numbers and partly strings; use one kind, the same in every phase")
    arrived = sorted(set(plain))
    repeated = [label for label in arrived if label in before]
    if repeated and known == "refuse":
        raise UserError(
            f"class {repeated[0]!r} is known already; pass known='update' to train on new images of known classes"
        )
    return (*before, *(label for label in arrived if label not in before))


def check_foresight(budget: Budget, next_images: int | None) -> int | None:
    """What was said of the next phase, refused where the memory must not know it."""
    if budget.knows_increment == (next_images is not None):
        return next_images
    if next_images is None:
        raise UserError("memory.knows_increment must be told how many images come next: pass next_images=…")
    raise UserError("only a memory with knows_increment may be told what comes next; leave next_images out")


def pixels_for(images: Images, settings: Settings, knowledge: Knowledge) -> Tensor:
    """The images as this learner takes them; another size or number of channels is refused."""
    shape = knowledge.shape
    size = shape[1:] if shape else None
    if size is None and settings.image_size is not None:
        size = (settings.image_size, settings.image_size)
    pixels = to_pixels(images, size, channels=shape[0] if shape else 3)
    if shape is not None and pixels.shape[1:] != shape:
        raise UserError(f"images of shape {tuple(pixels.shape[1:])}, but this learner was trained on {shape}")
    return pixels


def plain_labels(labels: Labels) -> list[Label]:
    """One whole number or string for each image."""
    values = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else labels
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"labels came as {type(labels).__name__}; give a list or array with one label per image")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for value in plain:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UserError(f"label {value!r} is neither a whole number nor a string")
    return plain


def hold_out(arrival: Arrival, stored: ImageSet, settings: Settings, memory: Memory) -> tuple[ImageSet, ImageSet]:
    """The stored new images that may be trained on, and a random reserve of each new class that may not."""
    generator = draws.generator(settings.seed, "reserve", arrival.phase)
    fresh = (stored.labels >= arrival.growth.old).nonzero().flatten()
    picks = fresh[draw_reserve(stored.labels[fresh], settings.memory.reserve, generator)]
    trainable = torch.ones(len(stored), dtype=torch.bool)
    trainable[picks] = False
    trainable[_in_reserve(stored, arrival.growth.old, memory)] = False
    if not trainable.any():
        raise UserError("every one of these images is in the reserve already, which is never trained on")
    return stored.select(trainable.nonzero().flatten()), stored.select(picks)


def _in_reserve(images: ImageSet, old: int, memory: Memory) -> list[int]:
    """Which images of known classes are copies of reserve images: those must not be trained on."""
    if len(memory.reserve) == 0:
        return []
    stored = {image.tobytes() for image in memory.reserve.pixels.cpu().numpy()}
    known = (images.labels < old).nonzero().flatten().tolist()
    found = [index for index in known if images.pixels[index].numpy().tobytes() in stored]
    if found:
        log.warning("%d images are in the reserve already and are not trained on", len(found))
    return found
