"""The command that makes a pack of a folder."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poise.cli.words import out_option, path_argument, say, show
from poise.errors import Interrupted
from poise.words import duration, one_line

if TYPE_CHECKING:
    from poise.data.packing import Packed

LINE_SECONDS: Final = 10.0  # between two lines where there is no terminal
BAR_SECONDS: Final = 0.1
RECENT_SECONDS: Final = 30.0  # over which the rate is measured
LEAST_SECONDS: Final = 1.0  # over which it means something
AGAIN: Final = "interrupted; the same command goes on with the class that it was at"


def data_pack(
    folder: Annotated[Path, path_argument("With one folder of images per class; or train/ and val/ (or test/).")],
    out: Annotated[Path, out_option("The pack, FILE.pack.")],
    size: Annotated[int, typer.Option("--size", help="Short side of the packed images in pixels.")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Crop to squares (default: keep the aspect).")] = False,
    classes: Annotated[
        str,
        typer.Option(
            "--classes",
            metavar="LIST",
            help="Only these: a file, one per line; A,B,C; imagenet-subset-lucir.",
            show_default="all",
        ),
    ] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be decoded.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes that decode.", min=1, max=1024, show_default="one per core"),
    ] = None,
) -> None:
    """Decode a folder of images once, into one file that runs start from within seconds.

    If it is interrupted, the same command resumes with the class that it had reached.
    """
    from poise.data.packing import Packing, read_classes
    from poise.data.packs import Pack

    jobs = jobs or os.cpu_count() or 1
    packing = Packing(folder, out, size, square, read_classes(classes, folder), skip_bad, jobs)
    with _ended_by_signals() as heard, closing(packing.run()) as steps:
        _watch(_until_signal(steps, heard))
    pack = Pack.open(out)
    left_out = f", {pack.skipped} files left out" if pack.skipped else ""
    show(
        f"{out}: {len(pack.images.sizes):,} images of {len(pack.class_names)} classes, "
        f"{out.stat().st_size / 1e9:.3g} GB{left_out}; use it with data={out}"
    )


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP end it in one line, with the exit code of the signal. What was heard is handed over.

    A command that was started to survive the end of its terminal (`nohup`) does.
    """
    heard: list[int] = []

    def leave(signum: int, frame: FrameType | None) -> None:
        heard.append(signum)
        if len(heard) == 1:  # after that it is leaving
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    unheard = signal.SIG_IGN, None  # None: a handler of somebody else's, which could not be put back
    before = {number: signal.signal(number, leave) for number in numbers if signal.getsignal(number) not in unheard}
    try:
        yield heard
    except KeyboardInterrupt:
        raise Interrupted(AGAIN, 128 + (heard[0] if heard else signal.SIGINT)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _until_signal(steps: Iterable[Packed], heard: list[int]) -> Iterator[Packed]:
    """The same steps, up to a signal; where Python was closing something when it came, it went unnoticed."""
    for step in steps:
        if heard:
            raise KeyboardInterrupt
        yield step


def _watch(steps: Iterable[Packed]) -> None:
    """Show how far a pack has come: a bar in a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        _tell(steps, LINE_SECONDS, say)
        return
    with Progress(BarColumn(16), TextColumn("{task.description}", markup=False), console=console) as bar:
        task = bar.add_task("packing")

        def update(line: str) -> None:
            bar.update(task, description=line)

        def update_bar() -> Iterable[Packed]:
            for step in steps:
                bar.update(task, completed=step.images, total=step.total)
                yield step

        _tell(update_bar(), BAR_SECONDS, update)


def _tell(steps: Iterable[Packed], seconds: float, tell: Callable[[str], None]) -> None:
    began, told = time.monotonic(), -seconds
    recent: deque[tuple[float, int]] = deque()  # when how many images were packed
    step = None
    for step in steps:
        now = time.monotonic()
        if not recent and step.resumed:
            say(f"{step.resumed:,} images were packed before; going on")
        if now - told >= seconds and step.images < step.total:
            told = now
            recent.append((now, step.images))
            while now - recent[0][0] > RECENT_SECONDS:
                recent.popleft()
            tell(progress_line(step, now - recent[0][0], step.images - recent[0][1]))
    if step is not None:
        tell(progress_line(step, time.monotonic() - began, step.images - step.resumed))


def progress_line(step: Packed, elapsed: float, packed: int) -> str:
    """How far, how fast, how long yet, and what is at work; by the images that were `packed` in so many seconds."""
    known = bool(packed) and elapsed >= LEAST_SECONDS
    rate = f" {packed / elapsed:,.0f} images/s," if known else ""
    left = f" {duration((step.total - step.images) * elapsed / packed)} left," if known else ""
    ending = left if step.images < step.total else f" in {duration(elapsed)},"
    return f"packed {step.images:,} of {step.total:,} images,{rate}{ending} {one_line(step.name)}"
