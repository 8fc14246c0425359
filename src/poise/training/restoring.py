"""What a training is restored from, checked against what it trains: another program may have written it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from poise.methods import MODEL
from poise.nets import Model
from poise.schema import check


def load_values(model: Model, values: Mapping[str, Tensor]) -> None:
    """Take over what a training may have changed; other names, types and shapes are refused."""
    own = model.changing()
    for name, value in values.items():
        if name in own:
            check_alike(f"student {name}", own[name], value)
    model.load_changing(values)


def load_kept(tensors: Mapping[str, Tensor], place: str, kept: Iterable[tuple[str, str, Tensor]]) -> None:
    """What an optimiser keeps, by kind and name: all of it, or nothing as at the beginning."""
    own = {f"{kind}{place}.{name}": value for kind, name, value in kept}
    if not any(name in tensors for name in own):
        return
    for name, value in own.items():
        check(name in tensors, f"tensor {name}", "there, like the others of its kind", "missing")
        check_alike(name, value, tensors[name])
        value.copy_(tensors[name])


def check_alike(name: str, own: Tensor, found: Tensor) -> None:
    """Refuse a tensor of another type or shape."""
    fits = own.dtype == found.dtype and own.shape == found.shape
    check(fits, f"tensor {name}", f"{own.dtype} {list(own.shape)}", f"{found.dtype} {list(found.shape)}")


def checked_picks(tensors: Mapping[str, Tensor], images: int, device: torch.device) -> Tensor | None:
    """The chosen images of a balanced stage, if there are any; those that are not there are refused."""
    picks = tensors.get("picks")
    if picks is None:
        return None
    fits = picks.dtype == torch.int64 and picks.ndim == 1 and len(picks) > 0
    fits = fits and 0 <= int(picks.min()) <= int(picks.max()) < images
    check(fits, "tensor picks", f"places among {images} images", list(picks.shape))
    return picks.to(device)


def check_stage(stage: int, stages: int, students: Sequence[str]) -> None:
    """Refuse a stage that there is not, and a training without the phase's own model."""
    check(0 <= stage <= stages, "pending.position.stage", f"one of {stages}", stage)
    check(MODEL in students, "pending.position.students", f"{MODEL} among them", students)


def check_place(
    place: tuple[int, int], epochs: int, steps: int, record: Sequence[Tensor], names: Sequence[str]
) -> None:
    """Refuse an epoch or a step that a stage does not have, and a record of other steps."""
    epoch, step = place
    check(0 <= epoch <= epochs, "pending.position.epoch", f"one of {epochs}", epoch)
    check(0 <= step <= steps, "pending.position.step", f"one of {steps}", step)
    named = len(set(names)) == len(names) and ("loss" in names or not step)
    check(named, "pending.position.names", "different names, loss among them", list(names))
    shapes, wanted = [list(part.shape) for part in record], [[step, len(names)]] if step else []
    check(shapes == wanted, "tensor record", f"{wanted}", shapes)
