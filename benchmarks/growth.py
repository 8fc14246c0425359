"""How a phase's time grows with the number of phases before it. Prints one JSON line.

    python benchmarks/growth.py [--phases 500] [--images 10] [--memory 4] [--epochs 1] [--method lucir] [--threads 1]

A stream of single classes, each with a few random grey images of 8×8 pixels around a picture of its own: the network
is small, so what is measured is what the learner itself does. A phase trains on the memory and the new images, so its
time may grow with the memory and with nothing else. Processor seconds are measured, which other jobs on the machine
disturb less. A line and a parabola are fitted to them over the images in memory; `bend` is how much of the last phase
the parabola's square term makes up: about 0 where the growth is linear, and near 1 where it is quadratic.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from poise import Augmentation, Learner, __version__

MOST_BEND = 0.25  # more of it is no longer called linear
WINDOW = 5  # phases whose median is a figure


def images_of(label: int, count: int) -> NDArray[np.uint8]:
    """Images of a class: one picture, with noise."""
    generator = np.random.default_rng(label)
    picture = generator.integers(0, 200, (8, 8))
    return (picture + generator.integers(0, 56, (count, 8, 8))).astype(np.uint8)


def phase_seconds(learner: Learner, phases: int, images: int) -> tuple[list[float], list[int]]:
    """Processor seconds of each phase, and how many images were kept before it."""
    seconds, kept = [], []
    for label in range(phases):
        arrived = images_of(label, images)
        kept.append(len(learner.memory_ or ()))
        began = time.process_time()
        learner.partial_fit(arrived, [label] * images)
        seconds.append(time.process_time() - began)
    return seconds, kept


def growth(seconds: list[float], kept: list[int]) -> dict[str, Any]:
    """What the seconds say: single phases, a line over the memory, and how far they bend away from it."""
    spent, memory = np.array(seconds[1:]), np.array(kept[1:], dtype=np.float64)  # the first phase prepares much
    slope, start = np.polyfit(memory, spent, 1)
    square = np.polyfit(memory, spent, 2)[0]
    last = slope * memory[-1] + start
    bend = float(abs(square) * (memory[-1] - memory[0]) ** 2 / last)
    marks = {10, len(seconds) // 4, len(seconds) // 2, 3 * len(seconds) // 4, len(seconds)}
    return {
        "phase_seconds": {
            mark: round(float(np.median(seconds[max(1, mark - WINDOW) : mark])), 4) for mark in sorted(marks)
        },
        "seconds_at_first": round(float(start), 4),
        "seconds_per_1000_kept_images": round(float(slope) * 1000, 4),
        "correlation": round(float(np.corrcoef(memory, spent)[0, 1]), 4),
        "bend": round(bend, 3),
        "linear": bend <= MOST_BEND,
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("phases", 500), ("images", 10), ("memory", 4), ("epochs", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--method", default="lucir")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable(logging.WARNING)
    learner = Learner(
        given.method,
        net="small",
        policy="fixed",
        epochs=given.epochs,
        batch=128,
        memory=given.memory,
        augmentation=Augmentation(pad=1, flip=False),
        device="cpu",
    )
    seconds, kept = phase_seconds(learner, given.phases, given.images)
    asked = {name: getattr(given, name) for name in ("method", "phases", "images", "memory", "epochs", "threads")}
    total = {"total_seconds": round(sum(seconds), 1), "kept_images": len(learner.memory_ or ())}
    print(json.dumps({"poise": __version__, **asked, **growth(seconds, kept), **total}))


if __name__ == "__main__":
    main()
