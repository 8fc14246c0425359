"""Image files that somebody prepared: bombs, other formats under the name of an image, and what is no file at all."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poise.data import decode_each, decoding
from poise.data.decoding import MOST_PIXELS, SMALL, PixelBudget
from poise.data.inputs import to_pixels
from poise.errors import UserError


def black_png(path: Path, width: int, height: int) -> Path:
    """A black RGBA image, written row by row: a few kilobytes, however large it is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    row = bytes(1 + 4 * width)
    packed = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        to_pixels([path], (8, 8))
    (alone,) = decode_each([path], (8, 8))
    assert str(alone) == str(caught.value)
    assert "\n" not in str(alone)
    return str(alone)


# Bombs ----------------------------------------------------------------------------------------------------------------


DECODE = """
import re, sys
from pathlib import Path
from poise.data import decoding, inputs
def peak():  # of this program: resource.getrusage counts what was there before it, too
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1000
def grow(files):
    before = peak()
    pixels = inputs.decode_all(files, (32, 32))
    assert len(pixels) == len(files) and not pixels.any()
    return peak() - before
files = sorted(Path(sys.argv[1]).iterdir())
decoding.BUDGET = decoding.PixelBudget(12_000_000)
grow(files[-1:])
print(grow(files))
decoding.BUDGET = decoding.PixelBudget(10**12)
print(grow(files))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a program is told in another way elsewhere")
def test_twelve_bombs_take_the_memory_of_a_few(tmp_path: Path) -> None:
    bomb = black_png(tmp_path / "0.png", 4000, 3000)
    assert bomb.stat().st_size < 300_000
    for number in range(1, 12):
        os.link(bomb, tmp_path / f"{number}.png")
    words = [sys.executable, "-c", DECODE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    alone, together = map(int, done.stdout.split())
    assert alone < 100, "one at a time: 96 MB each, and the first one was counted before"
    assert together > 150, "without a budget this test would see it"


def test_a_budget_is_kept_over_all_threads_and_everybody_gets_a_turn() -> None:
    budget, lock = PixelBudget(10 * SMALL), threading.Lock()
    held: list[int] = []
    most: list[int] = []

    def decode(pixels: int) -> None:
        for _ in range(50):
            with budget.holding(pixels):
                with lock:
                    held.append(pixels)
                    most.append(sum(held))
                with lock:
                    held.remove(pixels)

    sizes = [2 * SMALL, 3 * SMALL, 7 * SMALL, 10 * SMALL, 25 * SMALL]  # the last one never fits beside another
    threads = [threading.Thread(target=decode, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert set(most) & {25 * SMALL}
    assert max(each for each in most if each != 25 * SMALL) <= 10 * SMALL


def test_a_failed_decoding_gives_its_pixels_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = black_png(tmp_path / "whole.png", 1500, 1000)
    torn = tmp_path / "torn.png"
    torn.write_bytes(whole.read_bytes()[:-200])
    monkeypatch.setattr(decoding, "BUDGET", PixelBudget(2 * SMALL))
    assert all("cannot be decoded" in str(found) for found in decode_each([torn] * 10, (8, 8)))
    assert to_pixels([whole], (8, 8)).shape == (1, 3, 8, 8)


def test_an_image_with_too_many_pixels_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = black_png(tmp_path / "wide.png", 2_000_000, 90)
    assert MOST_PIXELS < 2_000_000 * 90
    assert "wide.png cannot be decoded" in refusal(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as a program around us may have it
    assert "wide.png cannot be decoded (it has 2000000×90 pixels, more than 179 million)" in refusal(path)


def test_a_large_photo_is_decoded_as_before(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8).repeat(40, 0).repeat(40, 1)
    for name in ("plain.jpg", "progressive.jpg", "photo.png"):
        Image.fromarray(pixels).save(tmp_path / name, progressive=name.startswith("progressive"))
        with Image.open(tmp_path / name) as image:
            theirs = to_pixels([image.convert("RGB")], (32, 32))
        ours = to_pixels([tmp_path / name], (32, 32))
        assert (ours.int() - theirs.int()).abs().float().mean() < 3


def test_an_image_of_the_users_own_stays_as_it_is() -> None:
    image = Image.new("L", (6, 4), 7)
    image.getexif()[0x0112] = 6  # to be turned by a quarter
    assert to_pixels([image], (6, 4)).shape == (1, 3, 6, 4)
    assert image.size == (6, 4)
    assert image.getexif()[0x0112] == 6


# Formats --------------------------------------------------------------------------------------------------------------


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
OPEN = """
import sys
from pathlib import Path
from PIL import Image
from poise.data import decode_each
image, started = sys.argv[1], Path(sys.argv[2])
print(decode_each([image], (8, 8))[0])
print(started.exists())
try:
    Image.open(image).load()
except Exception:
    print(started.exists())
"""


def test_a_file_of_any_name_starts_no_program(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    program.chmod(0o755)
    image = tmp_path / "cat.png"
    image.write_bytes(EPS)
    around = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-c", OPEN, str(image), str(started)]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=True)
    line, ours, pillows = done.stdout.splitlines()
    assert "cat.png cannot be decoded (it is no JPEG, PNG, GIF" in line
    assert ours == "False"
    assert pillows == "True", "Pillow alone would have started it: if not, this test says nothing"


@pytest.mark.parametrize("ending", ["bmp", "gif", "jpg", "pgm", "png", "ppm", "tif", "webp"])
def test_every_format_is_known_by_its_contents(ending: str, tmp_path: Path) -> None:
    Image.new("L", (8, 8), 200).save(tmp_path / f"image.{ending}")
    (tmp_path / f"image.{ending}").rename(tmp_path / "image.dat")
    assert to_pixels([tmp_path / "image.dat"], (8, 8)).float().mean() == pytest.approx(200, abs=2)


# No files -------------------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "link.png").symlink_to("nowhere.png")
    (tmp_path / "endless.png").touch()
    os.truncate(tmp_path / "endless.png", 1 << 40)
    assert f"image {tmp_path}/fifo.png is a FIFO" in refusal(tmp_path / "fifo.png")
    assert f"image {tmp_path}/device.png is a device" in refusal(tmp_path / "device.png")
    assert f"image {tmp_path}/link.png is a broken link" in refusal(tmp_path / "link.png")
    assert f"image {tmp_path}/endless.png is larger than the 1 GiB" in refusal(tmp_path / "endless.png")


def test_a_name_that_is_no_utf_8_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.png")
    Image.new("RGB", (8, 8), (9, 9, 9)).save(path)
    assert to_pixels([path], (8, 8)).flatten().tolist() == [9] * 192
    assert to_pixels([str(path)], (8, 8)).flatten().tolist() == [9] * 192
