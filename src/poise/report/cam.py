"""Activation maps by Grad-CAM (Selvaraju et al., ICCV 2017): where a model looks when it decides for a class.

With A the last convolutional maps [channels, h, w] and s the score of a class:

    α_c = mean over positions of ∂s / ∂A_c        map = ReLU(Σ_c α_c A_c)

What is differentiated is the score that the prediction is made with. Where FC counts, s is the logit of the class
(σ cos(f, w) for a cosine head); where NCM counts, it is the cosine between the features and the class's mean,
which is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise.data import to_pixels
from poise.errors import UserError
from poise.learner import Images, Learner
from poise.nets import Model
from poise.report.drawing import BAD, GOOD, Figure, Row, panels
from poise.training.evaluate import Extracted, both_classifiers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

BATCH = 64
CELL = 1.35  # inches
HEAT = "inferno"


def grad_cam(model: Model, images: Tensor, rows: Tensor, means: Tensor | None = None) -> Tensor:
    """The map [n, h, w] of each normalised image for the class in its row; at least 0, in no particular unit.

    Args:
        model: in eval mode, so that no image of a batch changes another one's map.
        images: float [n, C, H, W].
        rows: int64 [n], the class to explain.
        means: unit class means [classes, d]: explain cosines to them (NCM) instead of logits (FC).
    """
    assert not model.training, "batch statistics would mix the images"
    with torch.enable_grad():
        # A gradient is wanted for the maps, also where no parameter of the model asks for one.
        scores, maps = _scores_and_maps(model, images.detach().requires_grad_(), means)
        chosen = scores.gather(1, rows.view(-1, 1)).sum()
        (slopes,) = torch.autograd.grad(chosen, maps, allow_unused=True)
    if slopes is None:
        raise UserError("the last convolution of this net does not lead to its features; Grad-CAM cannot explain it")
    weights = slopes.mean(dim=(2, 3), keepdim=True)
    return torch.relu((weights * maps).sum(dim=1)).detach()


def _scores_and_maps(model: Model, images: Tensor, means: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scores of both classifiers are functions of the last maps, which a net of one's own may not hand out."""
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        for module in model.backbone.modules()
        if isinstance(module, nn.Conv2d)
    ]
    try:
        output = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not output.maps and not seen:
        raise UserError("this net has no convolution (nn.Conv2d); Grad-CAM needs the maps of one")
    found = Extracted(output.features, output.logits)
    scores = found.logits if means is None else both_classifiers(found, means)["ncm"]
    return scores, output.maps[-1] if output.maps else seen[-1]


@dataclass(frozen=True, eq=False)
class Look:
    """What a learner made of an image.

    Attributes:
        pixels: the image as the network saw it, uint8 [H, W, C].
        heat: the map for the predicted class [h, w], scaled to a maximum of 1; all 0 if nothing speaks for the class.
        predicted: the class.
        chance: its probability.
        classifier: which one predicted, and was explained: `fc` or `ncm`.
    """

    pixels: NDArray[np.uint8]
    heat: NDArray[np.float32]
    predicted: str
    chance: float
    classifier: str


def look(learner: Learner, images: Images) -> list[Look]:
    """What the learner predicts for each image, and where it looks for that."""
    if learner.shape_ is None:
        raise UserError("this learner has learned nothing yet; call partial_fit first")
    pixels = to_pixels(images, learner.shape_[1:], learner.shape_[0])
    chances = learner.predict_proba(pixels)
    rows = chances.argmax(axis=1)
    heats = _heats(learner, pixels, torch.from_numpy(rows))
    shown: NDArray[np.uint8] = pixels.permute(0, 2, 3, 1).cpu().numpy()
    return [
        Look(image, heat, str(learner.classes_[row]), float(chance[row]), learner.classifier_)
        for image, heat, row, chance in zip(shown, heats, rows, chances, strict=True)
    ]


def _heats(learner: Learner, pixels: Tensor, rows: Tensor) -> NDArray[np.float32]:
    model, preprocessing, device = learner.model, learner.preprocessing, learner.backend.device
    assert model is not None, "a learner that predicts has a model"
    assert preprocessing is not None, "a learner that predicts knows its images"
    means = learner.means_ if learner.classifier_ == "ncm" else None
    found = []
    with learner.backend.active():
        for start in range(0, len(pixels), BATCH):
            part = slice(start, start + BATCH)
            images = preprocessing.plain(pixels[part].to(device))
            found.append(grad_cam(model, images, rows[part].to(device), means).float().cpu())
    heats = torch.cat(found)
    highest = heats.amax(dim=(1, 2), keepdim=True)
    scaled: NDArray[np.float32] = torch.where(highest > 0, heats / highest.clamp(min=1e-30), heats).numpy()
    return scaled


@dataclass(frozen=True)
class Subject:
    """An image that several learners are shown.

    Attributes:
        name: where it comes from.
        truth: its class, None if nobody knows.
        phases: in which phase its class arrived, for each learner; None where that is not known.
    """

    name: str
    truth: str | None
    phases: tuple[int | None, ...] = ()


def cam_figure(subjects: Sequence[Subject], looks: Mapping[str, Sequence[Look]], caption: str) -> Figure:
    """A row for each image, a column for each learner by its label; a tick where the prediction is right."""
    data: list[Row] = [
        {
            "image": subject.name,
            "class": subject.truth,
            "run": run,
            "phase": subject.phases[column] if subject.phases else None,
            "predicted": seen[row].predicted,
            "probability": round(seen[row].chance, 4),
            "right": None if subject.truth is None else int(seen[row].predicted == subject.truth),
            "classifier": seen[row].classifier,
        }
        for row, subject in enumerate(subjects)
        for column, (run, seen) in enumerate(looks.items())
    ]
    return Figure("activation-maps", "Activation maps", caption, data, partial(_drawn, subjects, looks))


def _drawn(subjects: Sequence[Subject], looks: Mapping[str, Sequence[Look]]) -> Drawing:
    drawing, grid = panels(len(subjects), 1 + len(looks), CELL, CELL + 0.15)
    for line in grid:
        for axes in line:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
    for row, (subject, line) in enumerate(zip(subjects, grid, strict=True)):
        _show(line[0], next(iter(looks.values()))[row])
        line[0].set_ylabel(_subject_label(subject), rotation=0, ha="right", va="center", labelpad=6)
        for axes, seen in zip(line[1:], looks.values(), strict=True):
            _show(axes, seen[row], heat=True)
            _verdict(axes, seen[row], subject.truth)
    for axes, name in zip(grid[0], ("image", *looks), strict=True):
        axes.set_title(name.replace(", ", "\n"), fontsize=8, y=1)
    return drawing


def _show(axes: Axes, seen: Look, heat: bool = False) -> None:
    height, width, channels = seen.pixels.shape
    picture = seen.pixels if channels == 3 else np.repeat(seen.pixels, 3, axis=2)
    frame = (0, width, height, 0)
    axes.imshow(picture, extent=frame, interpolation="nearest" if width < 24 else "antialiased")
    if heat:
        smooth = "nearest" if seen.heat.size == 1 else "bicubic"
        axes.imshow(seen.heat, extent=frame, cmap=HEAT, vmin=0, vmax=1, alpha=0.6, interpolation=smooth)


def _verdict(axes: Axes, seen: Look, truth: str | None) -> None:
    if truth is None:
        axes.set_xlabel(f"{seen.predicted}  {seen.chance:.0%}", fontsize=8)
    else:
        right = seen.predicted == truth
        mark, colour = ("✓", GOOD) if right else ("✗", BAD)
        axes.set_xlabel(f"{mark} {seen.predicted}  {seen.chance:.0%}", fontsize=8, color=colour)


def _subject_label(subject: Subject) -> str:
    name = subject.name if subject.truth is None else subject.truth
    phases = sorted({phase for phase in subject.phases if phase is not None})
    return f"{name}\nphase {'/'.join(map(str, phases))}" if phases else name
