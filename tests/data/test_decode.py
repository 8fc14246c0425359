"""Image files: what is seen of them, and which are refused."""

from __future__ import annotations

import os
import struct
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from poise.data import Decoder, to_pixels
from poise.data.decode import map_ahead, median_side, suitable_size
from poise.errors import BadImages, UnreadFile, UserError

Array = np.ndarray[Any, np.dtype[np.uint8]]


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def saved(path: Path, pixels: Array, **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def pixels_of(path: Path, size: tuple[int, int]) -> Array:
    """The one image of this file, [H, W, 3]."""
    return to_pixels([path], size)[0].permute(1, 2, 0).numpy()


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        to_pixels([path], (8, 8))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_png_of_the_right_size_comes_back_unchanged(tmp_path: Path) -> None:
    image = noise(32, 40, 3)
    path = saved(tmp_path / os.fsdecode(b"caf\xe9.png"), image)
    np.testing.assert_array_equal(pixels_of(path, (32, 40)), image)
    pixels = to_pixels([str(path), path], (32, 40))
    np.testing.assert_array_equal(pixels.numpy(), np.stack([image, image]).transpose(0, 3, 1, 2))


def test_scaled_and_cropped_around_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200
    path = saved(tmp_path / "wide.png", wide)
    np.testing.assert_array_equal(pixels_of(path, (10, 10)), np.full((10, 10, 3), 200))
    assert pixels_of(path, (20, 12)).shape == (20, 12, 3)


def test_exif_rotation_is_applied_to_files_and_pictures(tmp_path: Path) -> None:
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    image[:8] = 250  # bright above; the camera was turned, so it must be bright on the right
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path / "turned.jpg", image, exif=exif, quality=95)
    upright = pixels_of(path, (16, 16)).astype(int)
    assert upright[:, 9:].min() > 200
    assert upright[:, :7].max() < 50
    opened = Image.open(path)
    assert torch.equal(to_pixels([opened], (16, 16)), to_pixels([path], (16, 16)))
    assert opened.getexif()[0x0112] == 6, "the user's own image stays as it is"


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    picture = Image.fromarray(np.full((8, 8, 3), 255, dtype=np.uint8)).convert(mode)
    picture.save(path := tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"))
    np.testing.assert_array_equal(pixels_of(path, (8, 8)), np.full((8, 8, 3), 255))
    assert to_pixels([picture], (8, 8)).float().mean() == 255


@pytest.mark.parametrize("most", [65535, 1023])
def test_sixteen_bit_grey_is_scaled_and_not_cut_off(tmp_path: Path, most: int) -> None:
    """Pillow opens grey maps as 32 bits, with 65535 for the most that the file says."""
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((8, 8), 128 * 256, dtype=np.uint16)).save(path)
    np.testing.assert_array_equal(pixels_of(path, (8, 8)), np.full((8, 8, 3), 128))
    (tmp_path / "deep.pgm").write_bytes(b"P5 8 8 %d\n" % most + np.full((8, 8), most // 2, dtype=">u2").tobytes())
    assert (pixels_of(tmp_path / "deep.pgm", (8, 8)) == 127).all()
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "float.tiff")
    assert "32 bits" in refusal(tmp_path / "float.tiff")


@pytest.mark.parametrize("progressive", [False, True])
def test_a_large_jpeg_keeps_its_picture(tmp_path: Path, progressive: bool) -> None:
    image = np.zeros((800, 1200, 3), dtype=np.uint8)
    image[:, :600] = (200, 100, 50)
    path = saved(tmp_path / "large.jpg", image, quality=95, progressive=progressive)
    small = pixels_of(path, (32, 48)).astype(int)
    assert np.abs(small[:, :22] - (200, 100, 50)).max() < 8
    assert small[:, 26:].max() < 8


@pytest.mark.parametrize("ending", ["bmp", "gif", "jpg", "pgm", "png", "ppm", "tif", "webp"])
def test_every_format_is_known_by_its_contents(ending: str, tmp_path: Path) -> None:
    Image.new("L", (8, 8), 200).save(tmp_path / f"image.{ending}")
    (tmp_path / f"image.{ending}").rename(tmp_path / "image.dat")
    assert to_pixels([tmp_path / "image.dat"], (8, 8)).float().mean() == pytest.approx(200, abs=2)


# Bad files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "tiff", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.9])
def test_a_truncated_file_is_named(tmp_path: Path, kind: str, share: float) -> None:
    path = saved(tmp_path / f"cut.{kind}", noise(64, 64, 3))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert f"image {path} cannot be decoded (" in refusal(path)


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("this is no image\nat all")
    assert "it is no JPEG, PNG" in refusal(tmp_path / "notes.png")
    (tmp_path / "photo.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    assert "is HEIC, which cannot be decoded; convert it to JPEG" in refusal(tmp_path / "photo.HEIC")


def test_what_the_system_does_not_give_is_not_called_a_bad_image(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to("nowhere.png")
    for path in (tmp_path / "no.png", tmp_path / "link.png", tmp_path):
        with pytest.raises(BadImages) as caught:
            Decoder((8, 8)).decode_all([path])
        assert isinstance(caught.value.faults[str(path)], UnreadFile)
        assert f"image {path} cannot be read (" in refusal(path)


def test_all_files_that_cannot_be_read_are_named_whether_a_size_is_chosen_or_not(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{number}.png", noise(40, 40, 3)) for number in range(300)]
    torn = [*paths[:2], *paths[100:121]]
    for number, path in enumerate(torn):
        path.write_bytes(b"no picture" if number % 2 else path.read_bytes()[:300])
    for size in ((8, 8), None):
        with pytest.raises(BadImages) as caught:
            Decoder(size).decode_all(paths)
        assert list(caught.value.faults) == list(map(str, torn))
    start, end = str(caught.value).split(" and 3 more; ")
    assert start == f"23 images cannot be read: {', '.join(map(str, torn[:20]))}"
    assert end.startswith(f"the first: image {paths[0]} cannot be decoded (")


@pytest.mark.parametrize(
    "error", [SyntaxError("x"), struct.error("x"), ValueError(""), EOFError("two\nlines"), KeyError(1)]
)
def test_whatever_the_decoder_raises_becomes_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = saved(tmp_path / "a.png", noise(8, 8, 3))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    assert f"{path} cannot be decoded" in refusal(path)


def test_an_image_with_too_many_pixels_is_one_line_and_warnings_stay_inside(tmp_path: Path) -> None:
    """A bomb: a few kilobytes that would take hundreds of megabytes when decoded."""
    path, (width, height) = tmp_path / "wide.png", (2_000_000, 90)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes((1 + width) * height), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "wide.png cannot be decoded (Image size (180000000 pixels) exceeds limit" in refusal(path)


def test_a_file_of_any_name_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would decode EPS with Ghostscript."""
    started, program = tmp_path / "started", tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {started}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "cat.png").write_bytes(words)
    assert "cat.png cannot be decoded (it is no JPEG, PNG, GIF" in refusal(tmp_path / "cat.png")
    assert not started.exists()


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_the_largest_size_that_fits_below_the_median_of_the_shorter_sides(tmp_path: Path) -> None:
    found = {side: suitable_size(side) for side in (8, 32, 63, 64, 95, 100, 130, 223, 224, 500)}
    assert list(found.values()) == [32, 32, 32, 64, 64, 96, 128, 128, 224, 224]
    paths = [tmp_path / f"{side}.png" for side in (20, 100, 400)]
    for path, side in zip(paths, (20, 100, 400), strict=True):
        Image.new("RGB", (side, side + 300)).save(path)
    assert median_side(len(paths), paths.__getitem__) == 100
    assert to_pixels(paths).shape == (3, 3, 96, 96)
    with pytest.raises(UserError, match="no image files"):
        median_side(0, [].__getitem__)


def test_images_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.data.decode.free_memory", lambda: 1000)
    with pytest.raises(UserError, match="use a smaller image_size"):
        to_pixels([saved(tmp_path / "a.png", noise(40, 40, 3))] * 2)


def test_few_results_wait_to_be_taken() -> None:
    begun: list[int] = []

    def work(piece: int) -> int:
        begun.append(piece)
        return piece

    with ThreadPoolExecutor(4) as pool:
        for taken, result in enumerate(map_ahead(pool, work, range(40), 8)):
            assert result == taken
            time.sleep(0.001)
            assert max(begun) <= taken + 8
    assert sorted(begun) == list(range(40))
