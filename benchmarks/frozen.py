"""How fast trials are in front of a frozen network, whose features are computed once per phase. Prints one JSON line.

    python benchmarks/frozen.py [--method icarl] [--classes 10] [--images 50] [--width 512] [--epochs 10]
        [--per-split 5] [--environment both] [--threads 1]

Two phases of random images: as many old classes, of which 20 images each are kept, as new ones. In the second phase
trials are run for some seconds, each as long as the default policy's (a tenth of the phase's epochs, at least one), on
both sides of the seam: on features, and with the network run in every step. With `per-split`, a new split is drawn
after so many trials (`online` tries five κ of RanPAC on one); without it, all are run on the same one. Of RanPAC every
trial has another κ. The network is a ResNet-18 with `width` features and random weights: what it knows does not change
the time.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor, nn

import poise.learner.phase as phases
from poise import Learner
from poise.actions import Action
from poise.nets import Features, build_backbone
from poise.policies import Trial
from poise.training.context import PhaseContext, features_suffice
from poise.tuning.trials import Attempt

SIZE = 32


class Frozen(nn.Module):
    """A ResNet-18 and a layer that gives it as many features as asked for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = build_backbone("resnet18", "ordinary", 3, 0)
        self.last = nn.Linear(self.body.width, width)

    def forward(self, images: Tensor) -> Tensor:
        """The features of images."""
        found: Features = self.body(images)
        vector: Tensor = self.last(found.vector)
        return vector


def images_of(labels: range, count: int) -> tuple[Tensor, Tensor]:
    """Random images of these classes."""
    rows = torch.tensor(labels).repeat_interleave(count)
    generator = torch.Generator().manual_seed(labels.start)
    return torch.randint(0, 256, (len(rows), 3, SIZE, SIZE), dtype=torch.uint8, generator=generator), rows


def _never(context: PhaseContext, shape: tuple[int, int, int], *, still: bool = False) -> bool:
    return False


def another(action: Action, number: int) -> Action:
    """The action with a κ that no trial before it had, where it has one; that of the first is chosen by images."""
    if "ridge" not in action or not number:
        return action
    return action.replace(ridge=10 ** (2 + 6 * (number * 0.6180339887 % 1)))


def measure(given: argparse.Namespace, *, cached: bool) -> dict[str, Any]:
    """Trials per minute, and how long it took to begin the phase: on features, or with the network in every step."""
    setattr(phases, "features_suffice", features_suffice if cached else _never)  # noqa: B010 - not what it is for
    net = Frozen(given.width).requires_grad_(False).eval()
    trying = {"environment": given.environment}
    learner = Learner(
        given.method, net=net, policy="fixed", epochs=given.epochs, batch=given.batch, device="cpu", trials=trying
    )
    learner.partial_fit(*images_of(range(given.classes), given.images))
    began = time.perf_counter()
    learning = learner.fitting(*images_of(range(given.classes, 2 * given.classes), given.images))
    next(learning)
    begun, phase = time.perf_counter() - began, learner.phase_under_way
    assert phase is not None
    trials, action = phase.task.trials, learner.settings.default_action
    short, done, began, busy = trials.inputs.settings.short(given.epochs), 0, time.perf_counter(), time.process_time()
    while not done or time.perf_counter() - began < given.seconds:
        number = done // given.per_split if given.per_split else 0
        attempt = Attempt(Trial(done, arm=done, epochs=short, round=number), another(action, done), "fc")
        trials.run_all([attempt])[0]
        done += 1
    return {
        "seconds_to_begin": round(begun, 2),
        "trials": done,
        "trials_per_minute": round(60 * done / (time.perf_counter() - began)),
        "trials_per_cpu_minute": round(60 * done / (time.process_time() - busy)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="icarl")
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--per-split", type=int, default=0)
    parser.add_argument("--environment", default="local")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = {"features": measure(given, cached=True), "network": measure(given, cached=False)}
    print(json.dumps({"benchmark": "frozen", **vars(given), **found}))


if __name__ == "__main__":
    main()
