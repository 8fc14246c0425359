"""How fast a training step is: eager against captured, captured steps on several lanes, and on images of any size.

ResNet-32 (the method's variant), batch 128, teacher on, random images of CIFAR's size. Prints one JSON line.

    python benchmarks/step.py [--device cuda] [--seconds 4] [--lanes 1 2 4 8 16] [--precision bf16] [--method lucir]
        [--augmentation autoaugment+cutout]
    python benchmarks/step.py --net resnet18 --size 224 --lanes 1 --streamed --kernels rule none norms thin --profile

With `--augmentation`, everything is also measured with that. The phase is the first one after phase 0: AANets has two
branches there, and its teacher still one. With `--frozen N` it is a later one, in which DER has N frozen networks. For
methods with frozen networks the parts of a step are measured, too: the training of one network alone, and a forward
pass of a frozen one; `cost_to_parts` is the time of a step by the sum of theirs.

Images of more than 64 pixels are stored larger, in different sizes, as a pack has them (the short side of 256 for 224),
and a random resized crop of each is a part of the step. `--streamed` measures them from the host, too. `--kernels` says
which of poise's own kernels are used: by the rule of the networks, none, batch norms alone, or all but those of levels.
`--profile` says which kernels a captured step spends its time in, by kind and one by one, and `--replay` measures the
step alone, replayed without the trainer around it. `limit` is what the arithmetic of a step would allow,
by the peak of the device (`--peak`, in TFLOP/s; known for a few).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from poise.data import STRONGER, Augmentation, Feed, FlatStore, ImageSet, Preprocessing
from poise.methods import Growth, make_method
from poise.nets import Frozen, Model, build_backbone, build_head, feature_width, resnet, torch_generator
from poise.training import capture
from poise.training.context import PhaseContext
from poise.training.device import Backend, make_backend
from poise.training.events import Progress
from poise.training.optimiser import Schedule
from poise.training.trainer import Trainer

CLASSES = Growth(old=50, new=10)
PLAIN = Augmentation()
PREPROCESSING = Preprocessing((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023), PLAIN)
LARGE = 64  # pixels; larger images are cropped from stored ones of different sizes
PEAKS = {"H200": 989, "H100": 989, "A100": 312}  # bf16 TFLOP/s without sparsity, as NVIDIA states them
#: Kinds of kernels by words in their names, the first that fits; all the others are small operations.
KINDS = {
    "unit": ("unit_", "frozen_level", "pack_weights", "add_weights"),
    "thin weights": ("_convolve_weights", "_add_up"),
    "thin convolution": ("_convolve",),
    "norm": ("_sum_forward", "_apply_forward", "_sum_backward", "_apply_backward", "_merge", "batch_norm"),
    "cuDNN": ("cudnn", "cutlass", "xmma", "conv", "wgrad", "dgrad", "nchwToNhwc", "nhwcToNchw"),
    "matrix product": ("gemm", "gemv", "splitK"),
    "reduction": ("reduce", "softmax"),
    "indexing": ("index", "gather", "scatter", "Index"),
    "copy": ("Memcpy", "Memset", "copy"),
    "optimiser": ("multi_tensor", "foreach"),
}
#: By the word of `--kernels`: the widths of levels that are our own, the maps up to which convolutions of each width
#: are, and the largest norm.
KERNELS: dict[str, tuple[tuple[int, ...], dict[int, int], int]] = {
    "rule": (resnet.UNIT_WIDTHS, resnet.THIN, resnet.LARGEST_NORM),
    "none": ((), {}, 0),
    "norms": ((), {}, resnet.INDEX_LIMIT),
    "thin": ((), resnet.THIN, resnet.LARGEST_NORM),
}


def make_trainer(  # noqa: PLR0913 - what a step can be
    backend: Backend,
    images: int,
    batch: int,
    seed: int,
    method_name: str = "lucir",
    preprocessing: Preprocessing = PREPROCESSING,
    *,
    frozen: int = 1,
    net: str = "resnet32",
    size: int = 32,
    resident: bool | None = None,
) -> Trainer:
    """A trainer in the middle of a TFH run: 50 old and 10 new classes; without frozen networks, in its first phase."""
    method, growth = make_method(method_name), CLASSES if frozen else Growth(0, sum(CLASSES))
    generator = torch_generator(seed, "benchmark")
    with backend.active():
        backbone = build_backbone(net, method.variant, 3, seed)
        model = Model(backbone, build_head(method.head, feature_width(backbone, (3, size, size))))
        for _ in range(frozen - 1):
            model.expand(lambda backbone: method.expanded(backbone, growth), growth, (3, size, size))
        model.head.grow(growth.old, generator)
        schedule = Schedule(epochs=10_000, batch=batch)
        context = PhaseContext(
            model.placed(backend.device), method, growth, preprocessing, schedule, backend, seed, phase=1
        )
        arrived = large_images(images, size, generator) if size > LARGE else small_images(images, size, generator)
        some = arrived.select(torch.arange(min(images, 20 * sum(CLASSES))))  # enough to make rows of
        feed, student = Feed(arrived, backend.device, resident), context.grow_model(some)
        return Trainer(context, student, context.teacher(), method.default_action, feed)


def small_images(images: int, size: int, generator: torch.Generator) -> ImageSet:
    """Random images of one size."""
    pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, sum(CLASSES), (images,), generator=generator)
    return ImageSet(pixels, labels, torch.arange(images))


def large_images(images: int, size: int, generator: torch.Generator) -> ImageSet:
    """Random images as a pack has them: a short side of 8/7 of the size, the other one up to half longer."""
    short = size * 8 // 7
    sizes = torch.full((images, 2), short)
    longer = torch.randint(short, short * 3 // 2 + 1, (images,), generator=generator)
    sizes[torch.arange(images), torch.randint(0, 2, (images,), generator=generator)] = longer
    lengths = 3 * sizes.prod(dim=1)
    some = torch.randint(0, 256, (2**24 + 1,), dtype=torch.uint8, generator=generator)
    flat = some.repeat(int(lengths.sum()) // len(some) + 1)[: int(lengths.sum())]
    store = FlatStore(flat, lengths.cumsum(0) - lengths, sizes, (3, size, size))
    labels = torch.randint(0, sum(CLASSES), (images,), generator=generator)
    return ImageSet(store, labels, torch.arange(images))


@contextmanager
def using_kernels(word: str) -> Iterator[None]:
    """Choose which of our own kernels are used."""
    before = resnet.UNIT_WIDTHS, resnet.THIN, resnet.LARGEST_NORM
    resnet.UNIT_WIDTHS, resnet.THIN, resnet.LARGEST_NORM = KERNELS[word]
    capture._WARM.steps.clear()  # other kernels are to be warmed up
    try:
        yield
    finally:
        resnet.UNIT_WIDTHS, resnet.THIN, resnet.LARGEST_NORM = before


def images_per_second(trainers: list[Trainer], seconds: float) -> float:
    """Images that all trainers together train on in a second, after a first epoch each to warm up."""
    with trainers[0].context.backend.active():
        lanes = [trained_images(trainer) for trainer in trainers]
        for lane in lanes:
            warm = 0
            while warm < 40 * trainers[0].schedule.batch:
                warm += next(lane)
        _wait(trainers)
        images, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            images += sum(next(lane) for lane in lanes)
        _wait(trainers)
        return images / (time.perf_counter() - began)


def trained_images(trainer: Trainer) -> Iterator[int]:
    """Trains on the stream of its own lane, a stretch at a time; yields the number of images of each."""
    run, done = trainer.run(), trainer.done
    while True:
        with torch.cuda.stream(trainer.context.backend.lane):
            event = next(run)
        if isinstance(event, Progress):
            yield event.done - done
            done = event.done


def replays_per_second(trainer: Trainer, seconds: float) -> float:
    """Images per second of the captured step of whole batches alone, without what an epoch does besides."""
    backend, batch = trainer.context.backend, trainer.schedule.batch
    with backend.active(), torch.cuda.stream(backend.lane):
        next(trainer.run())
        runner = trainer._runners[""]
        assert isinstance(runner, capture.CapturedRunner)
        images, began = 0, 0.0
        while not began or time.perf_counter() - began < seconds:
            runner._position.zero_()
            runner._row.zero_()
            for _ in range(len(runner.feed) // batch):
                runner._graphs[batch].replay()
            backend.synchronise()
            images += len(runner.feed) // batch * batch if began else 0
            began = began or time.perf_counter()
        return images / (time.perf_counter() - began)


def step_flops(trainer: Trainer, size: int) -> float:
    """Floating-point operations of a step for an image: student forward and backward, and the teacher."""
    images = torch.zeros(2, 3, size, size)
    student, teacher = trainer.model.copy().to("cpu", torch.float32).train(), trainer.teacher
    with FlopCounterMode(display=False) as counter:
        student(images).logits.sum().backward()
    total = float(counter.get_total_flops())
    if teacher is not None:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            trainer.context.model.copy().to("cpu", torch.float32).eval()(images)
        total += counter.get_total_flops()
    return total / len(images)


def kernel_times(trainer: Trainer, steps: int = 64, most: int = 25) -> dict[str, Any]:
    """Where a captured step spends its time: milliseconds a step of each kernel, and its share."""
    with trainer.context.backend.active():
        images = trained_images(trainer)
        for _ in range(3):
            next(images)
        _wait([trainer])
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            done = 0.0
            while done < steps:
                done += next(images) / trainer.schedule.batch
            _wait([trainer])
    found = sorted(profiler.key_averages(), key=lambda each: -each.self_device_time_total)
    whole = sum(each.self_device_time_total for each in found)
    rows = [
        {
            "kernel": each.key[:110],
            "ms": round(each.self_device_time_total / 1000 / done, 4),
            "share": round(each.self_device_time_total / whole, 4),
            "calls": round(each.count / done, 2),
        }
        for each in found[:most]
    ]
    kinds = dict[str, list[float]]()
    for each in found:
        row = kinds.setdefault(_kind_of(each.key), [0.0, 0.0])
        row[0] += each.count / done
        row[1] += each.self_device_time_total / done
    by_kind = {name: [round(count, 1), round(us)] for name, (count, us) in kinds.items()}
    return {
        "steps": round(done),
        "ms_a_step": round(whole / 1000 / done, 3),
        "calls_and_us_a_step": by_kind,
        "kernels": rows,
    }


def _kind_of(kernel: str) -> str:
    return next((name for name, words in KINDS.items() if any(word in kernel for word in words)), "small operations")


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
        trainer.context.backend.synchronise()


def parse_words() -> argparse.Namespace:
    """The words of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--images", type=int, default=6250)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--method", default="lucir")
    parser.add_argument("--net", default="resnet32")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--frozen", type=int, default=1)
    parser.add_argument("--augmentation", choices=[name for name in STRONGER if name != "resized"])
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=["rule"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--peak", type=float, default=0.0)
    return parser.parse_args()


class Measurement:
    """What the words ask for, measured."""

    def __init__(self, words: argparse.Namespace) -> None:
        self.words = words
        self.backend = make_backend(words.device, words.precision, False)
        self.on_gpu = self.backend.device.type == "cuda"
        self.own = Augmentation(pad=0, resized=0.08) if words.size > LARGE else PLAIN
        self.found = dict[str, float]()

    def trainer(
        self,
        seed: int,
        augmentation: Augmentation | None = None,
        *,
        captured: bool,
        frozen: int | None = None,
        resident: bool | None = None,
    ) -> Trainer:
        """A trainer of that kind."""
        words = self.words
        preprocessing = replace(PREPROCESSING, augmentation=augmentation or self.own)
        stream = torch.cuda.Stream(self.backend.device) if self.on_gpu else None  # type: ignore[no-untyped-call]  # lanes share none
        return make_trainer(
            replace(self.backend, capture=captured, lane=stream),
            words.images,
            words.batch,
            seed,
            words.method,
            preprocessing,
            frozen=words.frozen if frozen is None else frozen,
            net=words.net,
            size=words.size,
            resident=resident,
        )

    def rates(self) -> dict[str, float]:
        """Images per second of every kind that was asked for."""
        augmentations = {"": self.own}
        if self.words.augmentation is not None:
            augmentations[f"_{self.words.augmentation}"] = self.own.stronger(self.words.augmentation)
        for kernels in self.words.kernels:
            with using_kernels(kernels):
                for name, augmentation in augmentations.items():
                    self._measure(f"{name}{'' if kernels == 'rule' else f'_kernels_{kernels}'}", augmentation)
        return self.found

    def _measure(self, word: str, augmentation: Augmentation) -> None:
        seconds = self.words.seconds
        eager = self.trainer(0, augmentation, captured=False, resident=True)
        self.found[f"eager{word}"] = images_per_second([eager], seconds)
        del eager
        for count in self.words.lanes if self.on_gpu else ():
            lanes = [self.trainer(seed, augmentation, captured=True) for seed in range(count)]
            self.found[f"lanes_{count}{word}"] = images_per_second(lanes, seconds)
            if self.words.replay and count == 1:
                self.found[f"replay{word}"] = replays_per_second(self.trainer(0, augmentation, captured=True), seconds)
            del lanes
            torch.cuda.empty_cache()
        if self.words.streamed:
            streamed = self.trainer(0, augmentation, captured=True, resident=False)
            self.found[f"streamed{word}"] = images_per_second([streamed], seconds)

    def parts(self) -> dict[str, float]:
        """What a step costs beside its parts, where there are frozen networks."""
        words, found = self.words, self.found
        nets = [module for module in self.trainer(0, captured=False).model.modules() if isinstance(module, Frozen)]
        if not nets:
            return {}
        alone = self.trainer(0, captured="lanes_1" in found, frozen=0)
        parts = {
            "frozen": float(len(nets)),
            "alone": images_per_second([alone], words.seconds),
            "frozen_forward": forward_images_per_second(self.backend, nets[0], words.batch, words.seconds),
        }
        whole = found.get("lanes_1") or found["eager"]
        parts["cost_to_parts"] = (1 / whole) / (1 / parts["alone"] + len(nets) / parts["frozen_forward"])
        return {name: round(value, 3) for name, value in parts.items()}

    def limit(self) -> dict[str, float]:
        """What the arithmetic of a step would allow."""
        flops = step_flops(self.trainer(0, captured=False), self.words.size)
        name = torch.cuda.get_device_name() if self.on_gpu else ""
        peak = self.words.peak or next((peak for word, peak in PEAKS.items() if word in name), 0)
        rate = {"limit": round(1e12 * peak / flops), "peak_tflops": peak} if peak else {}
        return {"gflops_an_image": round(flops / 1e9, 2), **rate}


def main() -> None:
    """Measure and print."""
    words = parse_words()
    job = Measurement(words)
    found = job.rates()
    hardware = torch.cuda.get_device_name() if job.on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(
        json.dumps(
            {
                "benchmark": "step",
                "hardware": hardware,
                "precision": job.backend.precision,
                "method": words.method,
                "net": words.net,
                "size": words.size,
                "batch": words.batch,
                "images_per_second": {name: round(rate) for name, rate in found.items()},
                "ratio_to_eager": {name: round(rate / next(iter(found.values())), 2) for name, rate in found.items()},
                **job.limit(),
                **job.parts(),
                **({"profile": kernel_times(job.trainer(0, captured=True))} if words.profile and job.on_gpu else {}),
            }
        )
    )


if __name__ == "__main__":
    main()
