"""A practitioner's commands: teach a learner, ask it, see how good it is and what it holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from poise.cli.words import Checkpoints, path_argument, path_option, say, show
from poise.errors import MOST, UserError
from poise.store import CHECKPOINT_SECONDS
from poise.words import counted, json_line, one_line

if TYPE_CHECKING:
    from poise.modelfile import FolderScore, Prediction

Trained = Annotated[Path, path_argument("A learner's file, or model.safetensors of a run.", readable=False)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
CHOSEN: Final = "chosen for the images"
STREAM: Final = Path("-")  # in the place of a path: paths come on standard input


def _new_option(meaning: str, default: str, least: int | None = None) -> Any:  # noqa: ANN401 - Typer's
    """An option that only a new learner takes; `default` says in words what holds if it is not given."""
    return typer.Option(help=f"For a new learner: {meaning}", min=least, show_default=default)


Classifier = Annotated[
    str | None,
    typer.Option("--classifier", help="fc (the head) or ncm (the nearest class mean).", show_default="the learner's"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def learn(
    model: Annotated[Path, path_argument("The learner's file; made if it is not there.", readable=False)],
    folder: Annotated[Path, path_argument("A folder with one folder of images per class, or a pack.")],
    method: Annotated[str | None, _new_option("lucir, icarl, ranpac, …", CHOSEN)] = None,
    epochs: Annotated[int | None, _new_option("epochs of each phase.", CHOSEN, least=1)] = None,
    batch: Annotated[int | None, _new_option("images in a training step.", CHOSEN, least=2)] = None,
    memory: Annotated[str | None, _new_option("images kept per class, 0, or all.", "20, or the method's own")] = None,
    policy: Annotated[str | None, _new_option("online, fixed, …", CHOSEN)] = None,
    net: Annotated[str | None, _new_option("small, resnet32, resnet18, PACKAGE:NAME.", CHOSEN)] = None,
    classifier: Annotated[str | None, _new_option("what predicts: fc or ncm.", CHOSEN)] = None,
    image_size: Annotated[
        int | None, _new_option("the size in pixels that images from files or a pack are scaled to.", CHOSEN)
    ] = None,
    seed: Annotated[int | None, _new_option("seed of every random draw.", "0")] = None,
    device: Device = "auto",
    update: Annotated[bool, typer.Option("--update", help="Also train on new images of known classes.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be decoded.")] = False,
    test: Annotated[
        Path | None, path_option("--test", "Class folders or a pack: print how many of these images are recognised.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard a phase that was interrupted.")] = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Learn the classes in a folder as one more phase, and save the learner.

    If it is interrupted, the learner is unchanged, and the same command resumes.
    """
    from poise.modelfile import Lesson, ModelFile, class_names, score_folder
    from poise.runs import ignore_signals

    given = {
        "method": method,
        "epochs": epochs,
        "batch": batch,
        "memory": _memory(memory),
        "policy": policy,
        "net": net,
        "classifier": classifier,
        "image_size": image_size,
        "seed": seed,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    lesson = Lesson(folder, settings, update, device, restart, checkpoint_every, skip_bad)
    if test is not None:
        class_names(test)  # which refuses what is no such folder, before anything is learned
    learner = ModelFile(model).teach(lesson, say, ignore_signals)
    show(f"{model}: {counted(len(learner.classes_), 'class')}")
    if test is not None:
        _show_score(score_folder(learner, test), test)


def _memory(word: str | None) -> int | str | None:
    if word is None or word == "all":
        return word
    if not word.isdecimal() or len(word) > len(str(MOST)):  # what is too large is refused like other numbers
        raise UserError(f"--memory {word} must be a whole number of images, from 0 to {MOST}, or 'all'")
    return int(word)


def predict(
    model: Trained,
    paths: Annotated[
        list[Path],
        path_argument(
            "Image files, folders with images in and below them, packs (test part); - reads paths from standard input, "
            "one per line, and predicts them as they come.",
            readable=False,
        ),
    ],
    top: Annotated[int, typer.Option("--top", help="How many classes are printed for each image.", min=1)] = 1,
    reject: Annotated[
        str | None,
        typer.Option(
            "--reject",
            metavar="SHARE|saved",
            help="Print - for images that fit no known class; about this SHARE of the others is rejected, too. "
            "'saved' is the threshold that the learner was saved with.",
        ),
    ] = None,
    null: Annotated[
        bool, typer.Option("-0", "--null", help="With -: each path ends with a NUL, as from 'find -print0'.")
    ] = False,
    classifier: Classifier = None,
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Print the most probable class of each image, and how probable it is."""
    from poise.modelfile import ModelFile, predict_paths, read_paths, set_reject

    named, streamed = [path for path in paths if path != STREAM], STREAM in paths
    if null and not streamed:
        raise UserError("-0 is for paths on standard input; add - in the place of a path, or leave -0 out")
    learner = ModelFile(model).load(device, classifier)
    if reject is not None:
        set_reject(learner, reject)
    chosen = partial(predict_paths, learner, top=top, reject=reject is not None)
    read, failed = _print_each(chosen(named), named, as_json=as_json)
    came, missed = 0, 0
    for some in read_paths(sys.stdin.buffer, b"\0" if null else b"\n") if streamed else ():  # type: ignore[arg-type]
        more, faults = _print_each(chosen(some, streamed=True), some, as_json=as_json)
        say(*(f"not read: {fault}" for fault in faults))
        read, came, missed = read + more, came + len(some), missed + len(faults)
    if missed:
        failed.append(UserError(f"{missed} of {came} paths on standard input could not be read"))
    for error in failed[:-1]:
        say(f"poise: {error}")
    if failed:
        raise failed[-1]
    if not read and (named or came):
        raise UserError("none of these images could be read")


def _print_each(
    predictions: Iterable[Prediction], named: Sequence[Path], *, as_json: bool
) -> tuple[int, list[UserError]]:
    """Print predictions; how many images were read, and what is wrong with those of them that a user named."""
    read, failed, asked = 0, list[UserError](), set(named)
    for prediction in predictions:
        if as_json:
            show(json_line(prediction.as_json()))
        elif prediction.unread is None:
            show(prediction.as_text())
        if prediction.unread is None:
            read += 1
        elif prediction.path in asked:
            failed.append(prediction.unread)
        else:
            say(f"not read: {prediction.unread}")
    return read, failed


def info(model: Trained, as_json: Json = False) -> None:
    """Print what a learner's file holds: classes, phases, image size, network, kept images and how it learns."""
    from poise.modelfile import ModelFile

    found = ModelFile(model).summarise()
    if as_json:
        show(json_line(found.as_json()))
        return
    for what, how in found.rows():
        show(f"{what + ':':<17}{how}")


def score(
    model: Trained,
    folder: Annotated[Path, path_argument("A folder with one folder of images per class, or a pack: its test part.")],
    classifier: Classifier = None,
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Print how many images of each class are recognised. Use images that it was not trained on."""
    from poise.modelfile import ModelFile, score_folder

    found = score_folder(ModelFile(model).load(device, classifier), folder)
    if as_json:
        show(json_line(found.as_json()))
    _show_score(found, folder, table=not as_json)


def _show_score(found: FolderScore, folder: Path, *, table: bool = True) -> None:
    from poise.report import align_columns

    say(*(f"not read: {prediction.unread}" for prediction in found.unread))
    if found.part == "train":
        say(f"{folder} has no test part: these are the images that are trained on")
    if not table:
        return
    rows = [[name, str(count), str(right), f"{share:.2f}"] for name, count, right, share in found.rows()]
    show(align_columns(["class", "images", "recognised", "%"], rows))
    for name, count in found.unknown.items():
        show(f"class '{one_line(name)}' is unknown to this learner; its {count} images are not counted")


def export(
    model: Trained,
    out: Annotated[Path, path_argument("FILE.onnx (ONNX, an extra) or FILE.pt2 (torch.export).", readable=False)],
) -> None:
    """Write what predicts to a file for other programs: normalisation inside, class names beside, no kept image."""
    from poise.modelfile import ModelFile

    ModelFile(model).load("cpu").export(out)
    show(str(out))


def remove(
    model: Trained, classes: Annotated[list[str], typer.Argument(help="The classes that it is to forget.")]
) -> None:
    """Take classes out of a learner: they are not predicted any more, and their kept images are deleted."""
    from poise.modelfile import ModelFile

    learner = ModelFile(model).remove(classes)
    show(f"{model}: {counted(len(learner.classes_), 'class')}")
