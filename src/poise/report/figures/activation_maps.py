"""Activation maps by Grad-CAM (Selvaraju et al., ICCV 2017): where a model looks when it decides for a class.

With A the last convolutional maps [channels, h, w] and s the score of a class:

    α_c = mean over positions of ∂s / ∂A_c        map = ReLU(Σ_c α_c A_c)

What is differentiated is the score that the prediction is made with. Where FC counts, s is the logit of the class
(σ cos(f, w) for a cosine head); where NCM counts, it is the cosine between the features and the class's mean,
which is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise.data import Decoder, open_images
from poise.errors import UserError, not_learned
from poise.learner import Images, Learner
from poise.nets import Model
from poise.report.figures.description import BAD, GOOD, Figure, Panel, Rows, Scale
from poise.training.evaluate import Extracted, both_classifiers

BATCH = 64
SIZE = (1.35, 1.5)  # size of a panel in inches
PIXELS = 128  # minimum width of a picture
HEAT, OPACITY = "inferno", 0.6


def grad_cam(model: Model, images: Tensor, rows: Tensor, means: Tensor | None = None) -> Tensor:
    """The map [n, h, w] of each normalised image for its class in `rows`; non-negative, without a unit.

    Args:
        model: in eval mode, so that no image of a batch changes another one's map.
        images: float [n, C, H, W].
        rows: int64 [n], the class to explain.
        means: unit class means [classes, d]: explain cosines to them (NCM) instead of logits (FC).
    """
    assert not model.training, "batch statistics would mix the images"
    with torch.enable_grad():
        # The maps need a gradient even if no parameter of the model does.
        scores, maps = _scores_and_maps(model, images.detach().requires_grad_(), means)
        chosen = scores.gather(1, rows.view(-1, 1)).sum()
        (slopes,) = torch.autograd.grad(chosen, maps, allow_unused=True)
    if slopes is None:
        raise UserError("the last convolution of this net does not lead to its features; Grad-CAM cannot explain it")
    weights = slopes.mean(dim=(2, 3), keepdim=True)
    return torch.relu((weights * maps).sum(dim=1)).detach()


def _scores_and_maps(model: Model, images: Tensor, means: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores, and the maps they depend on; a hook catches the maps, as a user's own net may not return them."""
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
    """What a learner predicts for an image, and where it looks."""

    pixels: NDArray[np.uint8]  # the image as the network saw it [H, W, C]
    heat: NDArray[np.float32]  # the map for the predicted class [h, w], scaled to a maximum of 1, or all 0
    predicted: str
    chance: float
    classifier: str  # the classifier that predicted and is explained: `fc` or `ncm`


def look(learner: Learner, images: Images) -> list[Look]:
    """What the learner predicts for each image, and where it looks for that."""
    if learner.shape_ is None:
        raise not_learned()
    decoder = Decoder(learner.shape_[1:], learner.shape_[0], learner.knowledge.short_side)
    pixels = open_images(images, decoder=decoder, labelled=False).store.all()
    chances = learner.predict_proba(pixels)
    rows = chances.argmax(axis=1)
    heats = _heats(learner, pixels, torch.from_numpy(rows))
    shown: NDArray[np.uint8] = pixels.permute(0, 2, 3, 1).cpu().numpy()
    return [
        Look(image, heat, str(learner.classes_[row]), float(chance[row]), learner.classifier_)
        for image, heat, row, chance in zip(shown, heats, rows, chances, strict=True)
    ]


def _heats(learner: Learner, pixels: Tensor, rows: Tensor) -> NDArray[np.float32]:
    model, preprocessing, device = learner.model, learner.preprocessing_, learner.backend.device
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
    """An image shown to several learners."""

    name: str  # where it comes from
    truth: str | None  # its class; None if unknown
    phases: tuple[int | None, ...] = ()  # in which phase its class arrived, for each learner; None: not known


def cam_figure(subjects: Sequence[Subject], looks: Mapping[str, Sequence[Look]], caption: str) -> Figure:
    """A row for each image, a column for each learner; a tick where the prediction is right."""
    data: Rows = [
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
    panels: list[Panel] = []
    for row, subject in enumerate(subjects):
        titles = [name.replace(", ", "\n") if row == 0 else "" for name in ("image", *looks)]
        seen = [each[row] for each in looks.values()]
        panels.append(Panel(titles[0], Scale(), Scale(_describe(subject)), SIZE, picture=_picture(seen[0])))
        panels += [
            Panel(title, _judge(one, subject.truth), Scale(), SIZE, picture=_picture(one, heated=True))
            for title, one in zip(titles[1:], seen, strict=True)
        ]
    return Figure("activation-maps", "Activation maps", caption, panels, data, 1 + len(looks))


def _picture(seen: Look, heated: bool = False) -> NDArray[np.uint8]:
    """The image, enlarged to be visible, with its map over it if there is one."""
    from matplotlib import colormaps
    from PIL import Image
    from scipy.ndimage import zoom  # scikit-learn brings scipy along

    height, width, channels = seen.pixels.shape
    times = max(1, math.ceil(PIXELS / width))
    pixels = seen.pixels if channels == 3 else np.repeat(seen.pixels, 3, axis=2)
    resample = Image.Resampling.NEAREST if width < 24 else Image.Resampling.BICUBIC
    picture = np.asarray(Image.fromarray(pixels).resize((times * width, times * height), resample))
    if not heated:
        return picture
    scale = [large / small for large, small in zip(picture.shape, seen.heat.shape, strict=False)]
    heat = zoom(seen.heat, scale, mode="reflect", prefilter=False, grid_mode=True)  # by smooth cubic splines
    colours = colormaps[HEAT](heat)[..., :3] * 255
    return np.asarray(np.round((1 - OPACITY) * picture + OPACITY * colours), dtype=np.uint8)


def _judge(seen: Look, truth: str | None) -> Scale:
    """The words below a map: what was predicted, and whether that is right."""
    words = f"{seen.predicted}  {seen.chance:.0%}"
    if truth is None:
        return Scale(words)
    return Scale(f"✓ {words}", colour=GOOD) if seen.predicted == truth else Scale(f"✗ {words}", colour=BAD)


def _describe(subject: Subject) -> str:
    name = subject.name if subject.truth is None else subject.truth
    phases = sorted({phase for phase in subject.phases if phase is not None})
    return f"{name}\nphase {'/'.join(map(str, phases))}" if phases else name
