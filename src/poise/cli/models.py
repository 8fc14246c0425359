"""A practitioner's commands: teach a learner, ask it, see how good it is and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from poise.cli.words import Checkpoints, path_argument, say, show
from poise.errors import MOST, UserError
from poise.store import CHECKPOINT_SECONDS
from poise.words import json_line, one_line

Trained = Annotated[Path, path_argument("A learner's file, or model.safetensors of a run.", readable=False)]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
CHOSEN: Final = "chosen for the images"


def _new_option(meaning: str, default: str, least: int | None = None) -> Any:  # noqa: ANN401 - Typer's
    """An option that only a new learner takes; `default` says in words what holds if it is not given."""
    return typer.Option(help=f"For a new learner: {meaning}", min=least, show_default=default)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def learn(
    model: Annotated[Path, path_argument("The learner's file; made if it is not there.", readable=False)],
    folder: Annotated[Path, path_argument("A folder with one folder of images per class, or a pack.")],
    method: Annotated[str | None, _new_option("lucir, icarl, ranpac, …", "lucir")] = None,
    epochs: Annotated[int | None, _new_option("epochs of each phase.", CHOSEN, least=1)] = None,
    batch: Annotated[int | None, _new_option("images in a training step.", CHOSEN, least=2)] = None,
    memory: Annotated[str | None, _new_option("images kept per class, 0, or all.", "20, or the method's own")] = None,
    policy: Annotated[str | None, _new_option("online, fixed, …", "online")] = None,
    net: Annotated[str | None, _new_option("small, resnet32, resnet18, PACKAGE:NAME.", CHOSEN)] = None,
    image_size: Annotated[
        int | None, _new_option("the size in pixels that images from files or a pack are scaled to.", CHOSEN)
    ] = None,
    seed: Annotated[int | None, _new_option("seed of every random draw.", "0")] = None,
    device: Device = "auto",
    update: Annotated[bool, typer.Option("--update", help="Also train on new images of known classes.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be decoded.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard a phase that was interrupted.")] = False,
    checkpoint_every: Checkpoints = CHECKPOINT_SECONDS,
) -> None:
    """Learn the classes in a folder as one more phase, and save the learner.

    If it is interrupted, the learner is unchanged, and the same command resumes.
    """
    from poise.experiment import Lesson, ModelFile, ignore_signals

    given = {
        "method": method,
        "epochs": epochs,
        "batch": batch,
        "memory": _memory(memory),
        "policy": policy,
        "net": net,
        "image_size": image_size,
        "seed": seed,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    lesson = Lesson(folder, settings, update, device, restart, checkpoint_every, skip_bad)
    learner = ModelFile(model).teach(lesson, say, ignore_signals)
    show(f"{model}: {len(learner.classes_)} classes")


def _memory(word: str | None) -> int | str | None:
    if word is None or word == "all":
        return word
    if not word.isdecimal() or len(word) > len(str(MOST)) or int(word) > MOST:
        raise UserError(f"--memory {word} must be a whole number of images, from 0 to {MOST}, or 'all'")
    return int(word)


def predict(
    model: Trained,
    paths: Annotated[
        list[Path],
        path_argument("Image files, folders with images in and below them, packs (test part).", readable=False),
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
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Print the most probable class of each image, and how probable it is."""
    from poise.experiment import ModelFile, predict_paths, set_reject

    learner = ModelFile(model).load(device)
    if reject is not None:
        set_reject(learner, reject)
    named, failed, read = set(paths), list[UserError](), 0
    for prediction in predict_paths(learner, paths, top, reject=reject is not None):
        if as_json:
            show(json_line(prediction.as_json()))
        elif prediction.unread is None:
            show(prediction.as_text())
        if prediction.unread is None:
            read += 1
        elif prediction.path in named:
            failed.append(prediction.unread)
        else:
            say(f"not read: {prediction.unread}")
    for error in failed[:-1]:
        say(f"poise: {error}")
    if failed:
        raise failed[-1]
    if not read:
        raise UserError("none of these images could be read")


def info(model: Trained, as_json: Json = False) -> None:
    """Print what a learner's file holds: classes, phases, image size, network, kept images and how it learns."""
    from poise.experiment import ModelFile

    found = ModelFile(model).summarise()
    if as_json:
        show(json_line(found.as_json()))
        return
    for what, how in found.rows():
        show(f"{what + ':':<17}{how}")


def score(
    model: Trained,
    folder: Annotated[Path, path_argument("A folder with one folder of images per class, or a pack: its test part.")],
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Print how many images of each class are recognised. Use images that it was not trained on."""
    from poise.experiment import ModelFile, score_folder
    from poise.report import align_columns

    found = score_folder(ModelFile(model).load(device), folder)
    say(*(f"not read: {prediction.unread}" for prediction in found.unread))
    if found.part == "train":
        say(f"{folder} has no test part: these are the images that are trained on")
    if as_json:
        show(json_line(found.as_json()))
        return
    rows = [[name, str(count), str(right), f"{share:.2f}"] for name, count, right, share in found.rows()]
    show(align_columns(["class", "images", "recognised", "%"], rows))
    for name, count in found.unknown.items():
        show(f"class '{one_line(name)}' is unknown to this learner; its {count} images are not counted")
