from __future__ import annotations

import errno
import os
import struct
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from poise.data.inputs import choose_size, decode_each, decode_store, map_ahead, median_side, to_pixels
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


def refusal(images: Any, size: tuple[int, int] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        to_pixels(images, size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestArrays:
    def test_numpy_is_channels_last(self) -> None:
        images = noise(2, 4, 5, 3)
        pixels = to_pixels(images)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        np.testing.assert_array_equal(pixels.numpy(), images.transpose(0, 3, 1, 2))

    def test_grey_numpy_gets_one_channel(self) -> None:
        images = noise(2, 4, 5)
        assert torch.equal(to_pixels(images)[:, 0], torch.from_numpy(images))
        assert torch.equal(to_pixels(images), to_pixels(images[..., None]))

    def test_torch_is_channels_first(self) -> None:
        images = torch.from_numpy(noise(2, 3, 4, 5))
        assert torch.equal(to_pixels(images), images)
        assert torch.equal(to_pixels(images[:, 0]), images[:, :1])

    def test_single_images_in_a_list_are_put_together(self) -> None:
        images = noise(3, 4, 5, 3)
        assert torch.equal(to_pixels(list(images)), to_pixels(images))
        tensors = torch.from_numpy(noise(3, 1, 4, 5))
        assert torch.equal(to_pixels(list(tensors)), tensors)

    def test_a_read_only_array_is_fine_and_never_shared(self) -> None:
        images = noise(2, 4, 5)
        images.setflags(write=False)
        pixels = to_pixels(images)
        pixels.zero_()
        assert images.any()

    @pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16"])
    def test_floats_from_0_to_1_are_the_bytes_that_they_were_made_of(self, kind: str) -> None:
        images = noise(2, 8, 8, 3)
        wanted = to_pixels(images)
        floats = wanted.to(getattr(torch, kind)) / 255
        if kind == "bfloat16":
            assert (to_pixels(floats).int() - wanted.int()).abs().max() <= 1, "it has 8 bits itself"
            return
        assert torch.equal(to_pixels(floats), wanted)
        assert torch.equal(to_pixels((images / 255).astype(kind)), wanted)
        assert torch.equal(to_pixels(list((images / 255).astype(kind))), wanted)

    def test_the_expected_size_is_checked(self) -> None:
        assert to_pixels(noise(2, 4, 5, 3), (4, 5)).shape == (2, 3, 4, 5)
        assert "are 4×5 pixels, expected 5×4; resize" in refusal(noise(2, 4, 5, 3), (5, 4))

    @pytest.mark.parametrize(
        ("images", "words"),
        [
            (noise(9, 9, 9, 3) / 1.0, "between 0 and 1, these go from 0 to 255; give uint8"),
            (torch.full((2, 3, 4, 5), -0.5), "these go from -0.5 to -0.5"),
            (torch.full((2, 3, 4, 5), torch.nan), "these go from nan to nan"),
            (noise(2, 4, 5, 3).astype(np.int64), "int64, expected uint8 from 0 to 255 (or floats from 0 to 1); use"),
            (noise(2, 4, 5, 3).astype(np.int64), "use images.astype('uint8')"),
            (torch.zeros(2, 3, 4, 5, dtype=torch.bool), "use images.to(torch.uint8) * 255"),
            (noise(2, 4, 5, 3) > 100, "use images.astype('uint8') * 255"),
            (noise(2, 4, 5, 3).astype(np.uint16), "use images.astype('uint8')"),
            (noise(2, 4, 5, 3).astype(np.uint16) * 257, "use images / 65535, or divide by"),
            (torch.full((2, 3, 4, 5), 9999, dtype=torch.uint16), "use images.float() / 65535, or divide by"),
            (noise(2, 4, 5, 3).astype(np.int32) - 300, "scale them, so that 0 is black and 1 is white"),
            (torch.full((2, 3, 4, 5), 256), "these go from 256 to 256: scale them"),
            (noise(2, 4, 5, 3).astype(np.complex64), "complex64, expected uint8 from 0 to 255"),
            (torch.zeros(0, 3, 4, 5, dtype=torch.int64), "int64, expected uint8"),
            (noise(2, 4, 5, 2), "[2, 4, 5, 2]"),
            (noise(2, 3, 8, 8), "images.transpose(0, 2, 3, 1)"),
            (torch.from_numpy(noise(2, 8, 8, 3)), "images.permute(0, 3, 1, 2)"),
            (torch.from_numpy(noise(2, 4, 8, 8)), "[2, 4, 8, 8]"),
            (noise(8, 8, 3), "images[None]"),
            (noise(8, 8), "[8, 8]"),
            (noise(0, 8, 8, 3), "no images"),
            (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "no images"),
            ([], "no images"),
            ((), "no images"),
            (
                [noise(4, 4, 3), noise(4, 4, 3), noise(4, 5, 3)],
                "images[0] (4, 4, 3) and images[2] (4, 5, 3); make them all one size",
            ),
            ([noise(4, 4, 3), "a.png"], "list of ndarray, str (images[1] is the first str)"),
            ([noise(4, 4, 3) / 255, noise(4, 4, 3) / 1.0], "images[1]: float images must lie between 0 and 1"),
            (list(torch.tensor([[[0.5]], [[torch.nan]]])), "images[1]: float images must lie between 0 and 1"),
            ([noise(4, 4, 3), noise(4, 4, 3) / 255], "images[0] is uint8 and images[1] float64"),
            ([noise(4, 4, 2), noise(4, 4, 2)], "images[0]: numpy images must be"),
            ("cat.png", "pass a list of paths"),
            (Path("cat.png"), "pass a list of paths"),
            (None, "came as NoneType"),
            ({"a": 1}, "came as dict"),
        ],
    )
    def test_anything_else_is_refused_with_the_way_out(self, images: Any, words: str) -> None:
        assert words in refusal(images)

    def test_tensors_that_do_not_simply_hold_values_are_refused_alone_and_in_a_list(self) -> None:
        floats = torch.from_numpy(noise(2, 3, 4, 5)) / 255
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that these kinds are young, or old
            quantised = torch.quantize_per_tensor(floats, 1 / 255, 0, torch.quint8)
            nested = torch.nested.nested_tensor(list(floats))
            rows = [each.to_sparse_csr() for each in floats[:, 0]]
        assert "use images.to_dense()" in refusal(floats.to_sparse())
        assert "use images[1].to_dense()" in refusal([floats[0], floats[1].to_sparse()])
        assert "layout sparse_csr; use images[0].to_dense()" in refusal(rows)
        assert "use images.dequantize()" in refusal(quantised)
        assert "use images[0].dequantize()" in refusal(list(quantised))
        assert "nested tensor; give a list of tensors" in refusal(nested)
        assert "device 'meta', which has no values" in refusal(floats.to("meta"))
        assert "device 'meta', which has no values" in refusal(list(floats.to("meta")))


class TestFiles:
    def test_a_png_of_the_right_size_comes_back_unchanged(self, tmp_path: Path) -> None:
        image = noise(32, 40, 3)
        path = saved(tmp_path / "a.png", image)
        np.testing.assert_array_equal(pixels_of(path, (32, 40)), image)
        pixels = to_pixels([str(path), path], (32, 40))
        np.testing.assert_array_equal(pixels.numpy(), np.stack([image, image]).transpose(0, 3, 1, 2))
        assert torch.equal(to_pixels(np.array([str(path)]), (32, 40)), pixels[:1])

    def test_scaled_and_cropped_around_the_centre(self, tmp_path: Path) -> None:
        wide = np.zeros((10, 30, 3), dtype=np.uint8)
        wide[:, 10:20] = 200
        path = saved(tmp_path / "wide.png", wide)
        np.testing.assert_array_equal(pixels_of(path, (10, 10)), np.full((10, 10, 3), 200))
        assert pixels_of(path, (20, 12)).shape == (20, 12, 3)

    def test_exif_rotation_is_applied(self, tmp_path: Path) -> None:
        image = np.zeros((16, 16, 3), dtype=np.uint8)
        image[:8] = 250  # bright above; the camera was turned, so it must be bright on the right
        exif = Image.Exif()
        exif[0x0112] = 6
        path = saved(tmp_path / "turned.jpg", image, exif=exif, quality=95)
        upright = pixels_of(path, (16, 16)).astype(int)
        assert upright[:, 9:].min() > 200
        assert upright[:, :7].max() < 50

    @pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
    def test_every_mode_becomes_rgb(self, tmp_path: Path, mode: str) -> None:
        path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
        Image.fromarray(np.full((8, 8, 3), 255, dtype=np.uint8)).convert(mode).save(path)
        np.testing.assert_array_equal(pixels_of(path, (8, 8)), np.full((8, 8, 3), 255))

    def test_sixteen_bit_grey_is_scaled_and_not_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "deep.png"
        Image.fromarray(np.full((8, 8), 128 * 256, dtype=np.uint16)).save(path)
        np.testing.assert_array_equal(pixels_of(path, (8, 8)), np.full((8, 8, 3), 128))

    @pytest.mark.parametrize("most", [65535, 1023])
    def test_grey_maps_of_16_bits_are_shifted_too(self, tmp_path: Path, most: int) -> None:
        """Pillow opens them as 32 bits, with 65535 for the most that the file says."""
        path = tmp_path / "deep.pgm"
        values = np.full((8, 8), most // 2, dtype=">u2")
        path.write_bytes(b"P5 8 8 %d\n" % most + values.tobytes())
        assert (pixels_of(path, (8, 8)) == 127).all()

    def test_a_large_jpeg_keeps_its_picture(self, tmp_path: Path) -> None:
        image = np.zeros((800, 1200, 3), dtype=np.uint8)
        image[:, :600] = (200, 100, 50)
        small = pixels_of(saved(tmp_path / "large.jpg", image, quality=95), (32, 48)).astype(int)
        assert np.abs(small[:, :22] - (200, 100, 50)).max() < 8
        assert small[:, 26:].max() < 8

    def test_warnings_of_other_threads_are_shown_while_images_are_decoded(self) -> None:
        decoding, go_on = threading.Event(), threading.Event()

        class Slow(Image.Image):
            def load(self) -> Any:
                decoding.set()
                go_on.wait(30)
                return super().load()

        slow = Slow()
        slow.__dict__.update(Image.fromarray(noise(8, 8, 3)).__dict__)
        with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor() as pool:
            warnings.simplefilter("always")
            pixels = pool.submit(to_pixels, [slow], (8, 8))
            assert decoding.wait(30)
            warnings.warn("mine", stacklevel=1)
            go_on.set()
            assert pixels.result(30).shape == (1, 3, 8, 8)
        assert [str(each.message) for each in seen] == ["mine"]

    def test_warnings_of_the_decoder_stay_inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        path = saved(tmp_path / "big.png", noise(40, 40, 3))  # above the limit, below twice the limit: only a warning
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            to_pixels([path], (8, 8))
            to_pixels([path])
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        assert "big.png cannot be decoded" in refusal([path], (8, 8))

    @pytest.mark.parametrize("kind", ["png", "jpg", "gif", "bmp", "tiff", "webp"])
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.9])
    def test_a_truncated_file_is_named(self, tmp_path: Path, kind: str, share: float) -> None:
        path = saved(tmp_path / f"cut.{kind}", noise(64, 64, 3))
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        message = refusal([path], (32, 32))
        assert f"{path} cannot be decoded" in message
        assert "replace or remove it" in message

    def test_a_text_file_with_an_image_ending_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.png"
        path.write_text("this is no image\nat all")
        assert f"{path} cannot be decoded" in refusal([path])
        assert f"{path} cannot be decoded" in refusal([path], (8, 8))

    def test_a_missing_file_and_a_folder_are_named(self, tmp_path: Path) -> None:
        assert f"{tmp_path / 'no.png'} does not exist" in refusal([tmp_path / "no.png"])
        assert f"{tmp_path} is a folder, not a file" in refusal([tmp_path], (8, 8))

    def test_a_file_that_may_not_be_read_and_one_that_nothing_decodes_say_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "photo.HEIC"
        path.write_bytes(b"\0\0\0\x18ftypheic")
        assert refusal([path], (8, 8)) == f"image {path} is HEIC, which cannot be decoded; convert it to JPEG"

        def refuse(*_: object) -> int:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(os, "open", refuse)
        line = f"image {path} may not be read by you (Permission denied); change its permissions"
        assert refusal([path], (8, 8)) == line

    @pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file that cannot be read is here: not tested")
    @pytest.mark.parametrize("told", [True, False])
    def test_what_the_disk_does_not_give_is_not_called_a_bad_image(
        self, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.png"
        path.symlink_to("/proc/self/mem")  # to read its first byte is an input/output error

        def fail(*_: object, **__: object) -> None:
            raise OSError("decoder error -2 when reading image file")  # as Pillow says it, without a number

        if not told:
            monkeypatch.setattr(Image, "open", fail)
        (found,) = decode_each([path], (8, 8))
        assert isinstance(found, UnreadFile)
        assert str(found) == (
            f"image {path} could not be read (Input/output error); check its path and the disk that it is on"
        )

    def test_what_is_not_there_is_unread_and_a_broken_link_is_a_bad_image(self, tmp_path: Path) -> None:
        saved(tmp_path / "a.png", noise(8, 8, 3))
        for name in ("no.png", "a.png/no.png"):
            (found,) = decode_each([tmp_path / name], (8, 8))
            assert isinstance(found, UnreadFile)
            assert str(found) == f"image {tmp_path / name} does not exist; check the path"
        for name, target in (("link.png", "nowhere"), ("itself.png", "itself.png")):
            (tmp_path / name).symlink_to(target)
            (found,) = decode_each([tmp_path / name], (8, 8))
            assert isinstance(found, UserError)
            assert not isinstance(found, UnreadFile)
            assert str(found) == f"image {tmp_path / name} is a broken link; mend or remove it"

    @pytest.mark.parametrize(
        "error", [SyntaxError("x"), struct.error("x"), ValueError(""), EOFError("two\nlines"), KeyError(1)]
    )
    def test_whatever_the_decoder_raises_becomes_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        path = saved(tmp_path / "a.png", noise(8, 8, 3))

        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Image, "open", fail)
        assert f"{path} cannot be decoded" in refusal([path], (8, 8))

    @pytest.mark.parametrize("size", [(8, 8), None])
    def test_all_files_that_cannot_be_read_are_named(self, size: tuple[int, int] | None, tmp_path: Path) -> None:
        paths = [saved(tmp_path / f"{number}.png", noise(40, 40, 3)) for number in range(300)]
        torn = [*paths[:2], *paths[100:121]]
        for number, path in enumerate(torn):
            path.write_bytes(b"no picture" if number % 2 else path.read_bytes()[:300])
        with pytest.raises(BadImages) as caught:
            decode_store(paths, size, 3, None)
        assert list(caught.value.faults) == list(map(str, torn))
        good = [path for path in paths if path not in torn]
        if size is None:
            assert caught.value.others is None, "without the bad ones another size may be chosen"
        else:
            assert torch.equal(caught.value.others.all(), decode_store(good, size, 3, None).all())
        start, end = str(caught.value).split(" and 3 more; ")
        assert start == f"23 images cannot be read: {', '.join(map(str, torn[:20]))}"
        assert end.startswith(f"the first: image {paths[0]} cannot be decoded (")

    def test_thirty_two_bit_images_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "float.tiff"
        Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(path)
        assert "32 bits" in refusal([path])


class TestSize:
    @pytest.mark.parametrize(
        ("side", "size"),
        [(8, 32), (32, 32), (63, 32), (64, 64), (95, 64), (100, 96), (130, 128), (223, 128), (224, 224), (500, 224)],
    )
    def test_the_largest_that_fits_below_the_median(self, tmp_path: Path, side: int, size: int) -> None:
        path = tmp_path / "a.png"
        Image.new("RGB", (side + 50, side)).save(path)
        assert choose_size([path]) == (size, size)

    def test_the_median_of_the_shorter_sides_decides(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{side}.png" for side in (20, 100, 400)]
        for path, side in zip(paths, (20, 100, 400), strict=True):
            Image.new("RGB", (side, side + 300)).save(path)
        assert median_side(paths) == 100
        assert to_pixels(paths).shape == (3, 3, 96, 96)

    def test_at_most_two_hundred_files_are_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        looked_at: list[int] = []

        def side(path: int, _place: int) -> int:
            looked_at.append(path)
            return 64

        monkeypatch.setattr("poise.data.inputs._shorter_side", side)
        choose_size(range(1000))  # type: ignore[arg-type]
        assert len(looked_at) == 200
        assert (looked_at[0], looked_at[-1]) == (0, 999)
        assert set(np.diff(looked_at)) <= {5, 6}

    def test_nothing_has_no_size(self) -> None:
        with pytest.raises(UserError, match="no image files"):
            choose_size([])


class TestPictures:
    """Images that Pillow has opened or made."""

    def test_they_are_scaled_like_the_files_they_came_from(self, tmp_path: Path) -> None:
        shapes = ((40, 50, 3), (36, 90, 3), (70, 33, 3))
        files = [saved(tmp_path / f"{place}.png", noise(*shape)) for place, shape in enumerate(shapes)]
        opened = [Image.open(file) for file in files]
        assert torch.equal(to_pixels(opened), to_pixels(files))
        assert to_pixels(opened).shape == (3, 3, 32, 32)
        assert torch.equal(to_pixels(opened, (20, 10), channels=1), to_pixels(files, (20, 10), channels=1))
        assert opened[0].size == (50, 40), "the user's own image stays as it is"

    def test_they_are_rotated_as_their_exif_data_says(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        path = saved(tmp_path / "turned.png", noise(32, 32, 3), exif=exif)
        assert torch.equal(to_pixels([Image.open(path)]), to_pixels([path]))
        assert torch.equal(to_pixels([Image.open(path)]), to_pixels(noise(32, 32, 3)[None]).flip(2, 3))

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
    def test_every_mode_becomes_rgb(self, mode: str) -> None:
        picture = Image.new(mode, (32, 32))
        assert to_pixels([picture]).shape == (1, 3, 32, 32)

    def test_what_has_no_bytes_is_refused(self) -> None:
        good = Image.new("RGB", (32, 32))
        assert "image of mode F at index 2 cannot be decoded (its values have 32 bits" in refusal(
            [good, good, Image.new("F", (32, 32))]
        )
        for size in ((0, 0), (5, 0)):
            words = f"image of mode RGB at index 1 cannot be decoded (it has {size[0]}×{size[1]} pixels); replace or"
            assert words in refusal([good, Image.new("RGB", size)], (32, 32))
        found = refusal([good, good.copy(), noise(32, 32, 3)])
        assert "a list of Image, ndarray (images[2] is the first ndarray); pass an array or tensor, or a list" in found


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
