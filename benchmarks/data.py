"""Packs: how fast they are made and read, and how much memory a run on one takes.

    python benchmarks/data.py                       # on generated photos
    python benchmarks/data.py --folder FOLDER       # on the files of a data set: train/CLASS/*, val/CLASS/*

1. Pack rate: images per second and core of `poise data pack`.
2. Feed rate: random resized crops (scale 0.08 to 1, 224 pixels) from the pack, resident and streamed, against a plain
   loop over a DataLoader that opens the same files with Pillow, on as many cores, in the same run.
3. Bounded memory: a sparse pack of four times the free memory; one phase of at least 1 GB of images is learned. Peak of
   anonymous memory above what the process had before the data was opened; seconds of the clock and of the processor
   until the data is open, until the phase begins (its mean and standard deviation are measured), and when resumed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from poise.data import Augmentation, Crops, Feed, ImageSet, batch_bounds
from poise.data.packing import Packing
from poise.data.packs import DIGEST, FORMAT, TEST, TRAIN, Block, Pack, write_end
from poise.data.sources import PackSource
from poise.data.sources.layout import INDEX
from poise.data.stores import free_memory

SIZE, CROP, BATCH = 256, 224, 64
#: A network that takes next to no time and memory, so that what is measured is the data.
NET = """
from torch import nn

def pooled():
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 64))
"""


def make_photos(folder: Path, count: int) -> Path:
    """JPEG files of about ImageNet's size, 500×375 pixels, in four classes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        part, name = "train" if number % 8 else "val", f"class{number // 8 % 4}"
        place = folder / part / name
        place.mkdir(parents=True, exist_ok=True)
        small = generator.integers(0, 256, (47, 63, 3), dtype=np.uint8)
        Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=90)
    return folder


# 1. Making one --------------------------------------------------------------------------------------------------------


def pack_rate(folder: Path, out: Path, jobs: int, square: bool) -> dict[str, Any]:
    """Images per second and core, without the seconds that the processes take to start."""
    began, first, done = 0.0, 0, 0
    for step in Packing(folder, out, size=SIZE, square=square, jobs=jobs, skip_bad=True).run():
        done = step.images
        if not began:
            began, first = time.monotonic(), done
    rate = (done - first) / max(time.monotonic() - began, 1e-9)
    return {"images": done, "processes": jobs, "images_per_second": round(rate), "per_process": round(rate / jobs, 1)}


# 2. Reading one -------------------------------------------------------------------------------------------------------


def draw_crops(sizes: Tensor, seed: int) -> Crops:
    """Random resized crops of images of these heights and widths, as a training draws them."""
    crops = Augmentation(pad=0, resized=0.08).draw(len(sizes), np.random.default_rng(seed), sizes).crops((CROP, CROP))
    assert crops is not None
    return crops


class Files(Dataset[tuple[Tensor, int]]):
    """What everybody writes: open, convert, crop and scale, mirror."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        with Image.open(self._paths[place]) as image:
            rgb = image.convert("RGB")
        crops = draw_crops(torch.tensor([[rgb.height, rgb.width]]), place)
        left, top, width, height = crops.boxes[0].tolist()
        box = (left, top, left + width, top + height)
        scaled = rgb.resize((CROP, CROP), Image.Resampling.BILINEAR, box=box)
        if crops.mirrored[0]:
            scaled = scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(scaled)).permute(2, 0, 1), place


def rate_of(batches: Iterable[Any], seconds: float) -> float:
    """Images per second, from the second batch on."""
    images, began = 0, 0.0
    for pixels, _ in batches:
        if not began:
            began = time.monotonic()
            continue
        images += len(pixels)
        if time.monotonic() - began > seconds:
            break
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # what was only launched is not counted as done
    return images / max(time.monotonic() - began, 1e-9)


def epochs_of(feed: Feed, sizes: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches in random orders with random crops, without end."""
    epoch = 0
    while True:
        epoch += 1
        order = torch.from_numpy(np.random.default_rng(epoch).permutation(len(feed)))
        yield from feed.batches(order, batch_bounds(len(feed), BATCH), draw_crops(sizes[order], epoch))


def feed_rates(folder: Path, path: Path, seconds: float, cores: int) -> dict[str, Any]:
    """Images per second of the feed, in both ways, and of the plain loop."""
    images, device = PackSource(path).train(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Any] = {"device": str(device), "images": len(images)}
    paths = sorted((folder / "train").glob("*/*"))
    loader = DataLoader(Files(paths), batch_size=BATCH, shuffle=True, num_workers=cores)
    for name, resident in (("streamed", False), ("resident", True)):
        held = ImageSet(images.store.loaded(torch.arange(len(images))), images.labels, images.origins)
        feed = Feed(held if resident and device.type == "cpu" else images, device, resident=resident)
        found[name] = round(rate_of(epochs_of(feed, images.store.sizes), seconds))
        feed = Feed(held if resident and device.type == "cpu" else images, device, resident=resident)
        order = torch.arange(len(images)).repeat(50)
        plain = feed.batches(order, batch_bounds(len(order), BATCH))
        found[f"{name}_whole"] = round(rate_of(plain, seconds))
    found["dataloader"] = round(rate_of((batch for _ in range(1000) for batch in loader), seconds))
    found["streamed_to_dataloader"] = round(found["streamed"] / max(found["dataloader"], 1), 1)
    found["resident_to_dataloader"] = round(found["resident"] / max(found["dataloader"], 1), 1)
    return found


# 3. Bounded -----------------------------------------------------------------------------------------------------------


def make_sparse(path: Path, nbytes: int, per_class: int) -> Pack:
    """A pack of so many bytes of black images, of which the file system stores nothing."""
    length, blocks = 3 * SIZE * SIZE, list[Block]()
    path.mkdir()
    for part, each in ((TRAIN, per_class), (TEST, 2)):
        black = np.zeros(each * length, np.uint8)
        for number in range(max(4, nbytes // (length * per_class))):
            begun = Block.begun(part, f"c{number:06d}", "")
            block = begun.extended([(SIZE, SIZE)] * each, [bytes(DIGEST)] * each, 0)
            blocks.append(dataclasses.replace(block, digest=block.digest_of(black)))
            with (path / block.file).open("wb") as file:
                file.truncate(len(black))
    write_end(path / INDEX, {"format": FORMAT, "size": SIZE, "square": True, "channels": 3}, blocks)
    return Pack.open(path)


def anonymous_memory() -> int:
    """Bytes of anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


class Peak:
    """The most anonymous memory while it is watched, above what there was before."""

    def __enter__(self) -> Peak:
        self._before, self.most, self._done = anonymous_memory(), 0, threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.most = max(self.most, anonymous_memory() - self._before)

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._watcher.join()


def learn_phase(path: Path, classes: int, folder: Path) -> tuple[int, dict[str, float]]:
    """Learn one phase of a sparse pack, stopped and resumed after its first steps; what it took."""
    from poise.runs import Run, RunFolder, load_recipe, make_plan
    from poise.runs.plan import reopen

    groups = f"groups=[{classes},{classes}]"
    net = folder.parent / "pooled.py"
    net.write_text(NET)
    words = [f"data={path}", "setting=groups", groups, "epochs=1", f"batch={BATCH}", "policy=fixed", "memory=2"]
    words += [f"net={net}:pooled"]
    torch.set_num_threads(1)
    torch.nn.Linear(1, 1)  # which imports much of torch
    seconds = dict[str, float]()

    def note(name: str) -> None:
        seconds[name] = time.monotonic() - began[0]
        seconds[f"{name}_processor"] = time.process_time() - began[1]

    with Peak() as peak:
        began = time.monotonic(), time.process_time()
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", words))
        plan.images()
        note("open")
        going = Run(plan, RunFolder(folder), checkpoint_seconds=0).starting()
        next(going)
        note("start")
        list(islice(going, 3))
        going.close()
        began = time.monotonic(), time.process_time()
        kept, plan = reopen(folder)
        going = Run(plan, kept).resuming()
        next(going)
        note("resume")
        while len(plan.stream) and not kept.phase_0.exists():
            next(going)
        going.close()
        note("phase")
    return peak.most, seconds


def measure_bounded(folder: Path, times: float, gigabytes: float) -> dict[str, Any]:
    """Memory and seconds of a phase of a pack that is larger than the memory."""
    free, per_class = free_memory(), 650
    pack = make_sparse(folder / "sparse.pack", int(times * free), per_class)
    each = per_class * 3 * SIZE * SIZE
    classes = -(-int(gigabytes * 1e9) // each)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as worker:
        most, seconds = worker.submit(learn_phase, pack.path, classes, folder / "run").result()
    phase = classes * each
    return {
        "pack_gb": round(pack.path.stat().st_size / 1e9, 1),
        "free_gb": round(free / 1e9, 1),
        "phase_gb": round(phase / 1e9, 2),
        "peak_anonymous_gb": round(most / 1e9, 3),
        "peak_to_phase": round(most / phase, 3),
        "below_1.5": most < 1.5 * phase,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="images; generated if not given")
    parser.add_argument("--images", type=int, default=800, help="how many are generated")
    parser.add_argument("--seconds", type=float, default=5.0, help="for which each feed is timed")
    parser.add_argument("--times", type=float, default=4.0, help="size of the sparse pack, in free memories")
    parser.add_argument("--phase", type=float, default=1.0, help="GB of images in its phase")
    parser.add_argument("--square", action="store_true", help="pack squares")
    parser.add_argument("--parts", nargs="+", default=["pack", "feed", "bounded"])
    arguments = parser.parse_args()
    cores, found = os.cpu_count() or 1, dict[str, Any]()
    with tempfile.TemporaryDirectory(dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None) as place:
        root = Path(place)
        if {"pack", "feed"} & set(arguments.parts):
            folder = arguments.folder or make_photos(root / "photos", arguments.images)
            found["pack"] = pack_rate(folder, root / "images.pack", cores, arguments.square)
        if "feed" in arguments.parts:
            found["feed"] = feed_rates(folder, root / "images.pack", arguments.seconds, cores)
        if "bounded" in arguments.parts:
            found["bounded"] = measure_bounded(root, arguments.times, arguments.phase)
    print(json.dumps({"cores": cores, "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
