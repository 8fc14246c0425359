"""Activation maps by Grad-CAM (Selvaraju et al., ICCV 2017): where a model looks when it decides for a class.

With A the last convolutional maps [channels, h, w] and s the score of a class:

    α_c = mean over positions of ∂s / ∂A_c        map = ReLU(Σ_c α_c A_c)

What is differentiated is the score that the prediction is made with. Where FC counts, s is the logit of the class
(σ cos(f, w) for a cosine head); where NCM counts, it is the cosine between the features and the class's mean,
which is a constant. Without images from the user, the examiner shows some of the exam images. The models are final and
nothing is chosen by what is seen here; the figure says which images they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poise.data import Decoder, Stream, open_images
from poise.data.sources.layout import image_files, is_pack
from poise.errors import UserError, not_learned
from poise.learner import Images, Learner
from poise.nets import Model
from poise.report.draw import BAD, GOOD, GREY, Figure, Panel
from poise.report.study import Study
from poise.runs.examiner import Examiner
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan, refuse_other_exam, reopen
from poise.runs.record import RunRecord, load_result, reason_for, run_of_result
from poise.training.evaluate import Extracted, both_classifiers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

log = logging.getLogger(__name__)

BATCH: Final = 64
SIZE: Final = (1.35, 1.55)  # inches of a picture with its words
PIXELS: Final = 128  # minimum width of a picture
HEAT, OPACITY = "inferno", 0.6
IMAGES_PER_CLASS: Final = 2
MOST_IMAGES: Final = 24  # rows that a figure can show legibly
MOST_RUNS: Final = 8  # columns of a report's figure

HOW = (
    "Grad-CAM of the last convolutional maps for the predicted class, brighter where more speaks for it. "
    "The score that is differentiated is the one that predicts: the logit where FC counts, the cosine to the "
    "class mean where NCM does. The percentage is the probability that the model gives to its prediction"
)
RIGHT = "a tick means that the prediction is right, a cross that it is not"


# From a model to maps -------------------------------------------------------------------------------------------------


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
    """A learner's prediction for an image, and the map of where it looks."""

    pixels: NDArray[np.uint8]  # the image as the network saw it [H, W, C]
    heat: NDArray[np.float32]  # the map for the predicted class [h, w], scaled to a maximum of 1, or all 0
    predicted: str
    chance: float
    classifier: str  # the classifier that predicted and is explained: `fc` or `ncm`


def look(learner: Learner, images: Images) -> list[Look]:
    """Predict each image and compute the map of where the learner looks."""
    if learner.shape_ is None:
        raise not_learned()
    decoder = Decoder(learner.shape_[1:], learner.shape_[0], learner.knowledge.short_side)
    pixels = open_images(images, decoder=decoder, labelled=False).store.all()
    chances = learner.predict_proba(pixels)
    rows = chances.argmax(axis=1)
    model, preprocessing, device = learner.model, learner.preprocessing_, learner.backend.device
    assert model is not None, "a learner that predicts has a model"
    assert preprocessing is not None, "a learner that predicts knows its images"
    means, found = learner.means_ if learner.classifier_ == "ncm" else None, []
    with learner.backend.active():
        for start in range(0, len(pixels), BATCH):
            part = slice(start, start + BATCH)
            prepared, wanted = preprocessing.plain(pixels[part].to(device)), torch.from_numpy(rows[part]).to(device)
            found.append(grad_cam(model, prepared, wanted, means).float().cpu())
    maps = torch.cat(found)
    highest = maps.amax(dim=(1, 2), keepdim=True)
    heats: NDArray[np.float32] = torch.where(highest > 0, maps / highest.clamp(min=1e-30), maps).numpy()
    shown: NDArray[np.uint8] = pixels.permute(0, 2, 3, 1).cpu().numpy()
    return [
        Look(image, heat, str(learner.classes_[row]), float(chance[row]), learner.classifier_)
        for image, heat, row, chance in zip(shown, heats, rows, chances, strict=True)
    ]


@dataclass(frozen=True)
class Subject:
    """An image shown to several learners."""

    name: str  # where it comes from
    truth: str | None  # its class; None if unknown
    phases: tuple[int | None, ...] = ()  # in which phase its class arrived, for each learner; None: not known


def cam_figure(subjects: Sequence[Subject], looks: Mapping[str, Sequence[Look]], caption: str) -> Figure:
    """A row for each image, a column for each learner; a tick where the prediction is right."""
    data = [
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
    size = SIZE[0] * (1 + len(looks)) + 0.8, SIZE[1] * len(subjects) + 0.3
    panel = Panel(partial(_paint_maps, subjects=subjects, looks=looks), size)
    return Figure("activation-maps", "Activation maps", caption, [panel], data)


def _paint_maps(drawing: Drawing, subjects: Sequence[Subject], looks: Mapping[str, Sequence[Look]]) -> None:
    grid = drawing.subplots(len(subjects), 1 + len(looks), squeeze=False)
    for axes, title in zip(grid[0], ("image", *looks), strict=True):
        axes.set_title(title.replace(", ", "\n"), fontsize=8, loc="center")
    for row, subject in enumerate(subjects):
        seen = [each[row] for each in looks.values()]
        for column, axes in enumerate(grid[row]):
            axes.imshow(_picture(seen[max(0, column - 1)], heated=column > 0))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        name = subject.name if subject.truth is None else subject.truth
        phases = sorted({phase for phase in subject.phases if phase is not None})
        words = f"{name}\nphase {'/'.join(map(str, phases))}" if phases else name
        grid[row][0].set_ylabel(words, rotation=0, ha="right", va="center", labelpad=6)
        for axes, one in zip(grid[row][1:], seen, strict=True):
            words = f"{one.predicted}  {one.chance:.0%}"
            right = None if subject.truth is None else one.predicted == subject.truth
            mark = {None: "", True: "✓ ", False: "✗ "}[right]
            axes.set_xlabel(mark + words, fontsize=8, color={None: GREY, True: GOOD, False: BAD}[right])


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


# From run folders and files to figures --------------------------------------------------------------------------------


def activation_maps(paths: Sequence[Path], images: Sequence[Path] = ()) -> Figure:
    """The maps of run folders (or learners' files) on these images, or on exam images if none are given.

    With images, paths that are not models are images too: a shell puts the rest of `--images photos/*.png` there.
    """
    if not images:
        for path in filter(_is_learner, paths):
            raise UserError(f"{path} is a learner's file, which has no exam images; give images of your own (--images)")
        return _exam_maps([_Opened.at(path) for path in paths])
    models = [path for path in paths if RunFolder(path).exists or path.suffix == ".safetensors" or _is_learner(path)]
    pictures = [*images, *(path for path in paths if path not in models)]
    if not models:
        raise UserError(f"{paths[0]} is not a run folder; give one that is finished, or a learner's file")
    return _image_maps(models, pictures)


def _is_learner(path: Path) -> bool:
    """Whether a file begins as those of learners do, whatever it is called: 8 bytes, then JSON."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def report_maps(study: Study) -> list[Figure]:
    """The maps of a report's finished runs on exam images: one or more figures for each data set and exam.

    Of runs that differ only by their seed, the one with the lowest seed is shown. A run whose model cannot be read is
    left out, with a warning, and the next seed takes its place.
    """
    groups: dict[tuple[str, str], list[list[Path]]] = {}
    for row in study.rows:
        for stream in row.by_stream:
            runs = [run for run in row.finished(stream).values() if RunFolder(run.path).model.exists()]
            if runs:
                groups.setdefault((row.where, runs[0].fingerprint), []).append([run.path for run in runs])
    found: list[Figure] = []
    for (where, _), alike in groups.items():
        shown = (each for each in map(_first_readable, alike) if each is not None)
        while some := list(islice(shown, MOST_RUNS)):
            figure = _exam_maps(some)
            name = f"activation-maps-{some[0].run.exam_name}-{len(found) + 1}"
            found.append(replace(figure, name=name, title=f"{figure.title} ({where})"))
    return found


@dataclass(frozen=True)
class _Opened:
    """A finished run with what its maps are drawn of."""

    path: Path
    run: RunRecord
    plan: Plan
    learner: Learner

    @classmethod
    def at(cls, path: Path) -> _Opened:
        run, (folder, plan) = _read_finished_run(path), reopen(path)
        return cls(path, run, plan, Learner.load(folder.model))


def _first_readable(paths: Iterable[Path]) -> _Opened | None:
    """The first run that can be opened; that another cannot is said, and stops nothing else."""
    for path in paths:
        try:
            return _Opened.at(path)
        except Exception as error:
            log.warning("no activation maps of %s: it %s", path, reason_for(path, error))
    return None


def _exam_maps(opened: Sequence[_Opened]) -> Figure:
    """The maps of finished runs on the same exam images, of classes from the first, middle and last phase.

    The phases are those of the first run. Each phase is represented by its first class that all runs know, and that
    class by its first exam images.
    """
    paths, plans = [each.path for each in opened], [each.plan for each in opened]
    for path, plan in zip(paths, plans, strict=True):
        if (plan.source.fingerprint, plan.recipe.exam) != (plans[0].source.fingerprint, plans[0].recipe.exam):
            raise UserError(f"{path} and {paths[0]} have different data or exams; give --images, or one at a time")
    _, exam = plans[0].images()
    examiner = Examiner(exam, plans[0].stream)
    for path in paths:
        refuse_other_exam(RunFolder(path), examiner)
    classes = pick_classes([plan.stream for plan in plans])
    images = examiner.samples(classes, IMAGES_PER_CLASS)
    names = plans[0].source.class_names
    came = [{label: phase for phase, group in enumerate(plan.stream) for label in group} for plan in plans]
    subjects = [
        Subject(f"exam image {origin}", names[label], tuple(each.get(label) for each in came))
        for label, origin in zip(images.labels.tolist(), images.origins.tolist(), strict=True)
    ]
    labels = _labels(paths, [each.run for each in opened])
    looks = {label: look(each.learner, images.pixels) for label, each in zip(labels, opened, strict=True)}
    part = "test images" if plans[0].recipe.exam == "test" else "images of the development exam"
    caption = (
        f"{HOW}; {RIGHT}. The first {part} of the first class of the first, middle and last phase, which no model was "
        f"trained on and no one selected."
    )
    return cam_figure(subjects, looks, caption)


def _image_maps(paths: Sequence[Path], images: Sequence[Path]) -> Figure:
    """The maps of the final models of runs, or of saved learners, on a user's images.

    An image in a folder named like a class is assumed to show that class.
    """
    for path in filter(is_pack, images):
        raise UserError(
            f"{path} is a pack, and maps are drawn of at most {MOST_IMAGES} images; give image files of them"
        )
    files = [file for path in images for file in image_files(path)]
    if len(files) > MOST_IMAGES:
        raise UserError(f"{len(files)} images are too many for one figure; give at most {MOST_IMAGES}")
    runs = [None if path.is_file() else _read_finished_run(path) for path in paths]
    learners = {
        label: Learner.load(path if path.is_file() else RunFolder(path).model)
        for label, path in zip(_labels(paths, runs), paths, strict=True)
    }
    known = {str(label) for learner in learners.values() for label in learner.classes_}
    truths = [file.absolute().parent.name for file in files]
    subjects = [
        Subject(file.name, truth if truth in known else None) for file, truth in zip(files, truths, strict=True)
    ]
    looks = {label: look(learner, files) for label, learner in learners.items()}
    judged = f"; {RIGHT}" if any(subject.truth for subject in subjects) else ""
    return cam_figure(subjects, looks, f"{HOW}{judged}.")


def pick_classes(streams: Sequence[Stream]) -> list[int]:
    """A class of the first, the middle and the last phase of the first stream: the first that all streams have."""
    common = set.intersection(*(set(stream.classes) for stream in streams))
    last = len(streams[0]) - 1
    groups = [streams[0][phase] for phase in sorted({0, math.ceil(last / 2), last})]
    found = [next((label for label in group if label in common), None) for group in groups]
    if not any(label is not None for label in found):
        raise UserError("these runs have no class in common; give them one by one, or your own --images")
    return [label for label in found if label is not None]


def _labels(paths: Sequence[Path], runs: Sequence[RunRecord | None]) -> list[str]:
    """A label for each run or saved learner: with seeds, then folders, then numbers where labels would be equal."""
    found = [
        path.stem if run is None else f"{run.method}, {run.setting} {run.stream}, {run.policy_label}"
        for path, run in zip(paths, runs, strict=True)
    ]
    places = [path.parent if run is None else path for path, run in zip(paths, runs, strict=True)]
    for words in (
        ["" if run is None else f"seed {run.seed}" for run in runs],
        [place.resolve().name for place in places],
        [str(number) for number, _ in enumerate(paths, 1)],
    ):
        pairs = zip(found, words, strict=True)
        found = [f"{label}, {word}" if word and found.count(label) > 1 else label for label, word in pairs]
    return found


def _read_finished_run(path: Path) -> RunRecord:
    run = run_of_result(load_result(path), path)
    if not RunFolder(path).model.exists():
        raise UserError(f"{path} has no model.safetensors; give the folder of a finished run")
    return run
