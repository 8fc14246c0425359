"""The training step on a CPU against a plain PyTorch loop: a DataLoader with worker processes and PIL transforms.

ResNet-32 (LUCIR's variant), batch 128, teacher on, random images of CIFAR's size; both train the same network with
the same terms, in fp32; poise in bf16, too. Each side runs in a process of its own, for its peak of memory. Prints one
JSON line.

    python benchmarks/cpu.py [--seconds 20] [--threads 2] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from poise.methods import make_method
from poise.nets import Model, build_backbone, build_head, torch_generator
from poise.training.device import make_backend
from step import CLASSES, PREPROCESSING, images_per_second, make_trainer

IMAGES = 2_560


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """PIL images, padded, cropped and mirrored one by one, as most training scripts do it."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
        self.pictures = [Image.fromarray(image) for image in pixels]
        self.labels = generator.integers(0, sum(CLASSES), IMAGES).tolist()
        self.mean = torch.tensor(PREPROCESSING.mean)[:, None, None]
        self.std = torch.tensor(PREPROCESSING.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = ImageOps.expand(self.pictures[index], border=4, fill=0)
        left, top, mirrored = (int(torch.randint(0, high, ())) for high in (9, 9, 2))
        picture = picture.crop((left, top, left + 32, top + 32))
        picture = ImageOps.mirror(picture) if mirrored else picture
        values = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return (values - self.mean) / self.std, self.labels[index]


def plain(seconds: float, workers: int) -> float:
    """Images per second of the plain loop."""
    method = make_method("lucir")
    generator = torch_generator(0, "benchmark")
    model = Model(build_backbone("resnet32", method.variant, 3, 0), build_head(method.head, 64))
    model.head.grow(CLASSES.old, generator)
    teacher = model.teacher()
    model.head.grow(CLASSES.new, generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(Pictures(), batch_size=128, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    count, began = 0, 0.0
    while True:
        for images, labels in loader:
            with torch.no_grad():
                remembered = teacher(images)
            terms = method.terms(model(images), remembered, labels, CLASSES)
            loss = torch.stack([method.default_action.weight(name) * term for name, term in terms.items()]).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            count += len(images) if began else 0
            began = began or time.perf_counter()  # the first step warms up
            if time.perf_counter() - began > seconds:
                return count / (time.perf_counter() - began)


def poise(seconds: float, workers: int, precision: str = "fp32") -> float:
    """Images per second of poise's own step, without worker processes."""
    return images_per_second([make_trainer(make_backend("cpu", precision, False), IMAGES, 128, 0)], seconds)


def poise_bf16(seconds: float, workers: int) -> float:
    """The same with networks in bf16, which some processors have instructions for."""
    return poise(seconds, workers, "bf16")


def measure_side(side: Callable[[float, int], float], seconds: float, threads: int, workers: int) -> dict[str, float]:
    """One side in a process of its own: images per second, and the largest resident memory of it and of its workers."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        rate, own, children = pool.submit(_alone, side, seconds, threads, workers).result()
    return {
        "images_per_second": round(rate, 1),
        "peak_mb": round(own / 1024),
        "largest_worker_mb": round(children / 1024),
    }


def _alone(side: Callable[[float, int], float], seconds: float, threads: int, workers: int) -> tuple[float, int, int]:
    torch.set_num_threads(threads)
    rate = side(seconds, workers)
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return rate, usage[0], usage[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    sides = {
        side.__name__: measure_side(side, arguments.seconds, arguments.threads, arguments.workers)
        for side in (plain, poise, poise_bf16)
    }
    rates = {name: side["images_per_second"] for name, side in sides.items()}
    ratios = {"ratio": rates["poise"] / rates["plain"], "bf16_to_fp32": rates["poise_bf16"] / rates["poise"]}
    rounded = {name: round(value, 2) for name, value in ratios.items()}
    print(json.dumps({"benchmark": "cpu", "threads": arguments.threads, **sides, **rounded}))


if __name__ == "__main__":
    main()
