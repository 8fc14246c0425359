"""How fast a training step is: eager against captured, and captured steps on several lanes.

ResNet-32 (the method's variant), batch 128, teacher on, random images of CIFAR's size. Prints one JSON line.

    python benchmarks/step.py [--device cuda] [--seconds 4] [--lanes 1 2 4 8 16] [--precision bf16] [--method lucir]
        [--augmentation autoaugment+cutout]

With `--augmentation`, everything is also measured with that. The phase is the first one after phase 0: AANets has two
branches there, and its teacher still one. With `--frozen N` it is a later one, in which DER has N frozen networks. For
methods with frozen networks the parts of a step are measured, too: the training of one network alone, and a forward
pass of a frozen one; `cost_to_parts` is the time of a step by the sum of theirs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from poise.data import STRONGER, Augmentation, Feed, ImageSet, Preprocessing
from poise.methods import Growth, make_method
from poise.nets import Frozen, Model, build_backbone, build_head, torch_generator
from poise.training import Backend, Schedule, Situation, StepDone, Trainer, make_backend

CLASSES = Growth(old=50, new=10)
PLAIN = Augmentation()
PREPROCESSING = Preprocessing((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023), PLAIN)


def make_trainer(
    backend: Backend,
    images: int,
    batch: int,
    seed: int,
    method_name: str = "lucir",
    preprocessing: Preprocessing = PREPROCESSING,
    *,
    frozen: int = 1,
) -> Trainer:
    """A trainer in the middle of a TFH run: 50 old and 10 new classes; without frozen networks, in its first phase."""
    method, growth = make_method(method_name), CLASSES if frozen else Growth(0, sum(CLASSES))
    generator = torch_generator(seed, "benchmark")
    with backend.active():
        model = Model(build_backbone("resnet32", method.variant, 3, seed), build_head(method.head, 64))
        for _ in range(frozen - 1):
            model.expand(lambda backbone: method.expanded(backbone, growth), growth, (3, 32, 32))
        model.head.grow(growth.old, generator)
        schedule = Schedule(epochs=10_000, batch=batch)
        situation = Situation(
            model.placed(backend.device), method, growth, preprocessing, schedule, backend, seed, phase=1
        )
        pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, sum(CLASSES), (images,), generator=generator)
        arrived = ImageSet(pixels, labels, torch.arange(images))
        feed, student = Feed(arrived, backend.device), situation.grown(arrived)
        return Trainer(situation, student, situation.teacher(), method.default_action, feed)


def images_per_second(trainers: list[Trainer], seconds: float) -> float:
    """Images that all trainers together train on in a second, after a first epoch each to warm up."""
    lanes = [trainer.situation.backend.guarded(trainer.run()) for trainer in trainers]
    for trainer, lane in zip(trainers, lanes, strict=True):
        while trainer.epoch == 0 and trainer.step < min(40, len(trainer.bounds)):
            next(lane)
    _wait(trainers)
    images, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for lane in lanes:
            event = next(lane)
            images += event.images if isinstance(event, StepDone) else 0
    _wait(trainers)
    return images / (time.perf_counter() - began)


@torch.no_grad()
def forward_images_per_second(backend: Backend, net: nn.Module, batch: int, seconds: float) -> float:
    """Images that a frozen network makes features of in a second: captured on a GPU, as it is in a step."""
    with backend.active(), backend.autocast:
        images = torch.randn(batch, 3, 32, 32, device=backend.device).contiguous(memory_format=torch.channels_last)
        for _ in range(3):
            net(images)
        run: Callable[[], object] = partial(net, images)
        if backend.device.type == "cuda":
            backend.synchronise()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                net(images)
            run = graph.replay
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(32 if backend.device.type == "cuda" else 1):
                run()
                done += batch
            backend.synchronise()
        return done / (time.perf_counter() - began)


def _wait(trainers: list[Trainer]) -> None:
    for trainer in trainers:
        trainer.situation.backend.synchronise()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--images", type=int, default=6250)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--method", default="lucir")
    parser.add_argument("--frozen", type=int, default=1)
    parser.add_argument("--augmentation", choices=STRONGER)
    arguments = parser.parse_args()

    def trainer(
        seed: int, augmentation: Augmentation = PLAIN, *, capture: bool, frozen: int = arguments.frozen
    ) -> Trainer:
        backend = replace(make_backend(arguments.device, arguments.precision, False), capture=capture)
        preprocessing = replace(PREPROCESSING, augmentation=augmentation)
        sizes = arguments.images, arguments.batch
        return make_trainer(backend, *sizes, seed, arguments.method, preprocessing, frozen=frozen)

    backend, found = make_backend(arguments.device, arguments.precision, False), dict[str, float]()
    augmentations = {"": PLAIN}
    if arguments.augmentation is not None:
        augmentations[f"_{arguments.augmentation}"] = Augmentation().stronger(arguments.augmentation)
    for word, augmentation in augmentations.items():
        found[f"eager{word}"] = images_per_second([trainer(0, augmentation, capture=False)], arguments.seconds)
        for count in arguments.lanes if backend.device.type == "cuda" else ():
            lanes = [trainer(seed, augmentation, capture=True) for seed in range(count)]
            found[f"lanes_{count}{word}"] = images_per_second(lanes, arguments.seconds)
            del lanes
            torch.cuda.empty_cache()
    parts: dict[str, float] = {}
    nets = [module for module in trainer(0, capture=False).model.modules() if isinstance(module, Frozen)]
    if nets:
        whole = found.get("lanes_1", found["eager"])
        parts = {
            "alone": images_per_second([trainer(0, capture="lanes_1" in found, frozen=0)], arguments.seconds),
            "frozen_forward": forward_images_per_second(backend, nets[0], arguments.batch, arguments.seconds),
        }
        parts["cost_to_parts"] = (1 / whole) / (1 / parts["alone"] + len(nets) / parts["frozen_forward"])
    hardware = (
        torch.cuda.get_device_name() if backend.device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    )
    print(
        json.dumps(
            {
                "benchmark": "step",
                "hardware": hardware,
                "precision": backend.precision,
                "method": arguments.method,
                "batch": arguments.batch,
                "images_per_second": {name: round(rate) for name, rate in found.items()},
                "ratio_to_eager": {name: round(rate / found["eager"], 2) for name, rate in found.items()},
                **({"frozen": len(nets), **{name: round(value, 3) for name, value in parts.items()}} if nets else {}),
            }
        )
    )


if __name__ == "__main__":
    main()
