"""Activation maps of the final models of runs, side by side.

Without images from the user, the examiner shows some of the exam images. The models are final and nothing is chosen
by what is seen here; the figure says which images they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from poise import store
from poise.data import Stream
from poise.data.sources.layout import image_files, is_pack
from poise.errors import UserError
from poise.learner import Learner
from poise.report import Figure, RunRecord, Subject, cam_figure, load_result, look, reason_for, run_of_result
from poise.runs.examiner import Examiner
from poise.runs.folder import RunFolder
from poise.runs.plan import Plan, refuse_other_exam, reopen

log = logging.getLogger(__name__)

IMAGES_PER_CLASS = 2
MOST_IMAGES = 24  # rows that a figure can show legibly
MOST_RUNS = 8  # columns of a report's figure

HOW = (
    "Grad-CAM of the last convolutional maps for the predicted class, brighter where more speaks for it. "
    "The score that is differentiated is the one that predicts: the logit where FC counts, the cosine to the "
    "class mean where NCM does. The percentage is the probability that the model gives to its prediction"
)
RIGHT = "a tick means that the prediction is right, a cross that it is not"


def activation_maps(paths: Sequence[Path], images: Sequence[Path] = ()) -> Figure:
    """The maps of run folders (or learners' files) on these images, or on exam images if none are given.

    With images, paths that are not models are images too: a shell puts the rest of `--images photos/*.png` there.
    """
    if not images:
        for path in filter(_is_learner, paths):
            raise UserError(f"{path} is a learner's file, which has no exam images; give images of your own (--images)")
        return exam_maps(paths)
    models = [path for path in paths if RunFolder(path).exists or path.suffix == ".safetensors" or _is_learner(path)]
    pictures = [*images, *(path for path in paths if path not in models)]
    if not models:
        raise UserError(f"{paths[0]} is not a run folder; give one that is finished, or a learner's file")
    return image_maps(models, pictures)


def _is_learner(path: Path) -> bool:
    """Whether a file begins as those of learners do, whatever it is called: 8 bytes, then JSON."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def report_maps(paths: Sequence[Path]) -> list[Figure]:
    """The maps of a report's finished runs on exam images: one or more figures for each data set and exam.

    Of runs that differ only by their seed, the one with the lowest seed is shown. A run whose model cannot be read is
    left out, with a warning, and the next seed takes its place.
    """
    groups: dict[tuple[str, str, str], dict[tuple[str, str, str], list[tuple[int, Path]]]] = {}
    for path in paths:
        with _warn_if_unreadable(path):
            run, saved = _read_finished_run(path), store.read_json(RunFolder(path).recipe)
            runs = groups.setdefault((run.data, run.exam, str(saved["fingerprint"])), {})
            chosen = replace(run, recipe=saved["recipe"]).configuration()
            runs.setdefault((run.setting, _describe(run), chosen), []).append((run.seed, path))
    found: list[Figure] = []
    for (data, exam, _), runs in sorted(groups.items()):
        opened = (_first_readable(path for _, path in sorted(alike)) for _, alike in sorted(runs.items()))
        shown = (each for each in opened if each is not None)
        while some := list(islice(shown, MOST_RUNS)):
            name = "-".join(["activation-maps", data, *([exam] if exam != "test" else []), str(len(found) + 1)])
            figure = _exam_maps(some)
            found.append(replace(figure, name=name, title=f"{figure.title} ({data})"))
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


@contextmanager
def _warn_if_unreadable(path: Path) -> Iterator[None]:
    """Around what opens a run: that it cannot be opened is said, and stops nothing else."""
    try:
        yield
    except Exception as error:
        log.warning("no activation maps of %s: it %s", path, reason_for(path, error))


def _first_readable(paths: Iterable[Path]) -> _Opened | None:
    for path in paths:
        with _warn_if_unreadable(path):
            return _Opened.at(path)
    return None


def exam_maps(paths: Sequence[Path]) -> Figure:
    """The maps of finished runs on the same exam images, of classes from the first, middle and last phase.

    The phases are those of the first run. Each phase is represented by its first class that all runs know, and that
    class by its first exam images.
    """
    return _exam_maps([_Opened.at(path) for path in paths])


def _exam_maps(opened: Sequence[_Opened]) -> Figure:
    paths, plans = [each.path for each in opened], [each.plan for each in opened]
    _refuse_other_data(paths, plans)
    _, exam = plans[0].images()
    examiner = Examiner(exam, plans[0].stream)
    for path in paths:
        refuse_other_exam(RunFolder(path), examiner)
    classes = pick_classes([plan.stream for plan in plans])
    images = examiner.samples(classes, IMAGES_PER_CLASS)
    names = plans[0].source.class_names
    subjects = [
        Subject(f"exam image {origin}", names[label], tuple(_phase_of(label, plan.stream) for plan in plans))
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


def image_maps(paths: Sequence[Path], images: Sequence[Path]) -> Figure:
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


def _refuse_other_data(paths: Sequence[Path], plans: Sequence[Plan]) -> None:
    first = plans[0]
    for path, plan in zip(paths, plans, strict=True):
        if (plan.source.fingerprint, plan.recipe.exam) != (first.source.fingerprint, first.recipe.exam):
            raise UserError(f"{path} and {paths[0]} have different data or exams; give --images, or one at a time")


def _phase_of(label: int, stream: Stream) -> int | None:
    return next((phase for phase, group in enumerate(stream) if label in group), None)


def _labels(paths: Sequence[Path], runs: Sequence[RunRecord | None]) -> list[str]:
    """A label for each run or saved learner: with seeds, then folders, then numbers where labels would be equal."""
    plain = [path.stem if run is None else _describe(run) for path, run in zip(paths, runs, strict=True)]
    seeded = _add_to_equal(plain, ["" if run is None else f"seed {run.seed}" for run in runs])
    places = [path.parent if run is None else path for path, run in zip(paths, runs, strict=True)]
    named = _add_to_equal(seeded, [place.resolve().name for place in places])
    return _add_to_equal(named, [str(named[: index + 1].count(label)) for index, label in enumerate(named)])


def _add_to_equal(labels: Sequence[str], words: Sequence[str]) -> list[str]:
    """The labels, those that are not the only one of their kind with these words."""
    pairs = zip(labels, words, strict=True)
    return [f"{label}, {word}" if word and labels.count(label) > 1 else label for label, word in pairs]


def _read_finished_run(path: Path) -> RunRecord:
    run = run_of_result(load_result(path), path)
    if not RunFolder(path).model.exists():
        raise UserError(f"{path} has no model.safetensors; give the folder of a finished run")
    return run


def _describe(run: RunRecord) -> str:
    return f"{run.method}, {run.setting} {run.stream}, {run.policy_label}"
