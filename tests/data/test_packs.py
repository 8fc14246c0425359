"""Packs: made of folders, read as data, refused where they are damaged."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import pickle
import shlex
import shutil
import signal
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from poise import Learner, store
from poise.data import Augmentation, Feed, ImageSet, Preprocessing, inputs, to_pixels
from poise.data.inputs import LONGEST
from poise.data.labelled import Wanted, read_labelled
from poise.data.packfile import Footer, read_footer
from poise.data.packing import Packed, Packing, read_classes
from poise.data.packs import TEST, TRAIN, Described, Pack, PackedStore, digest_of, write_index
from poise.data.processes import _takes_long, decode_in_order
from poise.data.sources import FolderSource, PackSource, add_source, listing, open_source
from poise.data.sources.layout import Layout, scan
from poise.errors import Damaged, UserError

Driven = Callable[..., tuple[int, str]]


def picture(seed: int, width: int = 24, height: int = 20) -> Image.Image:
    """A random smooth image."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes with a training and a test part, images of different sizes."""
    root, seed = tmp_path / "images", 0
    for part, count in (("train", 5), ("val", 2)):
        for name in ("ant", "bee", "cat"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                seed += 1
                picture(seed, 20 + seed % 7, 18 + seed % 5).save(root / part / name / f"{number}.png")
    return root


def make(folder: Path, out: Path, *, size: int = 12, jobs: int = 1, **options: object) -> Pack:
    list(Packing(folder, out, size=size, jobs=jobs, **options).run())  # type: ignore[arg-type]
    return Pack.open(out)


# Making one -----------------------------------------------------------------------------------------------------------


def test_a_pack_holds_every_image_with_its_short_side_at_the_size(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    assert pack.class_names == ("ant", "bee", "cat")
    assert (pack.counts(TRAIN), pack.counts(TEST)) == ([5, 5, 5], [2, 2, 2])
    for part, name in ((TRAIN, "train"), (TEST, "val")):
        store, files = pack.store(part), sorted((folder / name).glob("*/*"))
        assert pack.labels(part).tolist() == [("ant", "bee", "cat").index(file.parent.name) for file in files]
        for index, file in enumerate(files):
            image = Image.open(file)
            width, height = (max(12, int(12 * side / min(image.size))) for side in image.size)
            expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            found = store.loaded(torch.tensor([index]))
            stored = found.image(0)
            assert stored.shape == expected.shape
            np.testing.assert_array_equal(stored.numpy(), expected)
            assert pack.described(part).sources[index].tobytes() == digest_of(file.read_bytes())
    assert not list(tmp_path.glob("some.pack.*"))


def test_squares_have_one_size(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "square.pack", square=True)
    assert pack.store(TRAIN).is_even
    assert pack.store(TRAIN).all().shape == (15, 3, 12, 12)


def test_images_of_the_size_are_stored_as_they_are(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            picture(number, 16, 16).save(tmp_path / "images" / name / f"{number}.png")
    store = make(tmp_path / "images", tmp_path / "same.pack", size=16).store(TRAIN)
    files = FolderSource(tmp_path / "images", size=16)._layout.train["a"]
    expected = [np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files]
    np.testing.assert_array_equal(store.part(0, 4).numpy(), np.stack(expected))


def test_files_are_rotated_made_rgb_and_cut_where_they_are_very_long(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    picture(1, 40, 20).save(tmp_path / "images/train/a/turned.jpg", exif=turned)
    Image.new("L", (400, 20), 77).save(tmp_path / "images/train/b/long.png")
    pack = make(tmp_path / "images", tmp_path / "odd.pack", size=10)
    assert pack.images.sizes.tolist() == [[20, 10], [10, 10 * LONGEST]]
    assert set(pack.store(TRAIN).part(1, 2).flatten().tolist()) == {77}
    with pytest.raises(UserError, match="no test part"):
        PackSource(tmp_path / "odd.pack").test()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes decode from the first image on."""
    for name, value in (("LOOK_SECONDS", 0.0), ("WORTH_SECONDS", 0.0), ("_are_ready", lambda pipes: True)):
        monkeypatch.setattr(f"poise.data.processes.{name}", value)


def packers() -> list[SpawnProcess]:
    """The processes that decode; scikit-learn may have left some of its own in this one."""
    return [child for child in multiprocessing.active_children() if isinstance(child, SpawnProcess)]


@pytest.mark.usefixtures("at_once")
def test_several_processes_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "one.pack")
    steps = Packing(folder, tmp_path / "two.pack", size=12, jobs=2).run()
    next(steps)
    assert len(packers()) == 2
    list(steps)
    assert not packers()
    assert (tmp_path / "one.pack").read_bytes() == (tmp_path / "two.pack").read_bytes()


def test_where_all_is_done_soon_no_process_is_started(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.data.processes._workers", None)
    assert make(folder, tmp_path / "some.pack", jobs=2).counts() == [5, 5, 5]


def test_processes_are_worth_their_start_where_the_rest_takes_long() -> None:
    assert not _takes_long(0.5, 1, 10**6), "one image says little"
    assert not _takes_long(2.0, 100, 500)
    assert _takes_long(2.0, 100, 700)


@pytest.mark.usefixtures("at_once")
def test_this_process_decodes_until_the_others_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = itertools.count()
    monkeypatch.setattr("poise.data.processes._are_ready", lambda pipes: next(asked) == 3)
    decoded = list(decode_in_order(_where_decoded, range(12), 2))
    assert [piece for piece, _ in decoded] == list(range(12))
    assert [where == os.getpid() for _, where in decoded] == [True] * 3 + [False] * 9
    assert len({where for _, where in decoded}) == 3


def _where_decoded(piece: int) -> tuple[int, int]:
    return piece, os.getpid()


@pytest.mark.usefixtures("at_once")
def test_what_another_process_raises_is_raised_here() -> None:
    with pytest.raises(MemoryError, match="piece 3"):
        list(decode_in_order(_decoded_but_one, range(6), 2))
    assert not packers()


def _decoded_but_one(piece: int) -> int:
    if piece == 3:
        raise MemoryError(f"no room for piece {piece}")
    return piece


@pytest.mark.usefixtures("at_once")
def test_a_process_that_is_ended_from_outside_is_one_line(folder: Path, tmp_path: Path) -> None:
    steps = Packing(folder, tmp_path / "some.pack", size=12, jobs=2).run()
    next(steps)
    for child in packers():
        child.kill()
    with pytest.raises(UserError, match=r"was ended from outside.*the same command goes on; with fewer --jobs"):
        list(steps)
    assert not packers()
    assert not (tmp_path / "some.pack.lock").exists()
    assert make(folder, tmp_path / "some.pack").counts() == [5, 5, 5]


def test_only_some_classes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# two of them\ncat  the animal\nant\n")
    assert read_classes(str(tmp_path / "list"), folder) == ("cat", "ant")
    (tmp_path / "marked").write_text("\ufeffcat  the animal\nant\n", encoding="utf-8")  # a byte order mark
    assert read_classes(str(tmp_path / "marked"), folder) == ("cat", "ant")
    assert read_classes("bee, cat", folder) == ("bee", "cat")
    assert len(read_classes(",".join(f"n{number:08}" for number in range(100)), folder)) == 100
    (tmp_path / "empty").write_text("# none\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for words in (str(tmp_path / "empty"), " , "):
        with pytest.raises(UserError, match="names no class; name some"):
            read_classes(words, folder)
    with pytest.raises(UserError, match="is no text in UTF-8"):
        read_classes(str(tmp_path / "bytes"), folder)
    pack = make(folder, tmp_path / "some.pack", classes=("cat", "ant"))
    assert pack.class_names == ("ant", "cat")
    with pytest.raises(UserError, match="no class 'bees'; did you mean"):
        make(folder, tmp_path / "other.pack", classes=("ant", "bees"))


@pytest.mark.parametrize("parts", [True, False])
def test_a_line_of_a_list_is_a_name_with_spaces_or_begins_with_a_name(tmp_path: Path, parts: bool) -> None:
    root = tmp_path / "images" / ("train" if parts else "")
    for name in ("golden", "golden retriever", "n01440764"):
        (root / name).mkdir(parents=True)
    (tmp_path / "list").write_text(f"golden retriever \nn01440764 tench\ngolden fish\nred setter\n{'x' * 300}\n")
    names = read_classes(str(tmp_path / "list"), tmp_path / "images")
    assert names == ("golden retriever", "n01440764", "golden", "red setter", "x" * 300)


def test_a_file_that_is_no_image_is_named_and_left_out_only_when_asked(folder: Path, tmp_path: Path) -> None:
    bad = folder / "train" / "bee" / "2.png"
    bad.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"bee/2\.png cannot be decoded.*--skip-bad"):
        make(folder, tmp_path / "some.pack")
    steps = Packing(folder, tmp_path / "some.pack", size=12, skip_bad=True).run()
    while next(steps).name != "cat":
        pass
    steps.close()
    with pytest.raises(UserError, match="1 files that cannot be decoded were left out before; go on with --skip-bad"):
        make(folder, tmp_path / "some.pack")
    pack = make(folder, tmp_path / "some.pack", skip_bad=True)
    assert (pack.counts(), pack.skipped) == ([5, 4, 5], 1)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file that cannot be read is here: not tested")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_the_disk_does_not_give_is_never_left_out(folder: Path, tmp_path: Path, jobs: int) -> None:
    (folder / "train" / "bee" / "9.png").symlink_to("/proc/self/mem")  # to read its first byte is an error
    with pytest.raises(UserError, match=r"bee/9\.png could not be read \(Input/output error\); check its path"):
        make(folder, tmp_path / "some.pack", skip_bad=True, jobs=jobs)
    assert not (tmp_path / "some.pack").exists()


def test_a_part_of_a_class_without_an_image_that_can_be_decoded_is_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (folder / "val" / "bee").iterdir():
        file.write_bytes(b"no image")
    steps = Packing(folder, tmp_path / "some.pack", size=12, skip_bad=True).run()
    while next(steps).images < 20:
        pass
    steps.close()
    assert "no test image of class 'bee' can be decoded; exams do not ask for it" in caplog.text
    first = next(iter(Packing(folder, tmp_path / "some.pack", size=12, skip_bad=True).run()))
    assert first.resumed == 19, "with what was found out about that class"
    pack = make(folder, tmp_path / "some.pack", skip_bad=True)
    assert (pack.counts(TRAIN), pack.counts(TEST), pack.skipped) == ([5, 5, 5], [2, 0, 2], 2)
    assert pack.labels(TEST).tolist() == [0, 0, 2, 2]
    assert len(PackSource(tmp_path / "some.pack").test()) == 4
    for file in (folder / "train" / "cat").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"no training image of class 'cat' in .* can be decoded"):
        make(folder, tmp_path / "other.pack", skip_bad=True)


@pytest.mark.parametrize("bad", ["bee", "all"])
def test_a_pack_may_end_with_classes_that_have_no_test_image(folder: Path, tmp_path: Path, bad: str) -> None:
    for file in (folder / "val").glob("*/*" if bad == "all" else "[bc]*/*"):
        file.write_bytes(b"no image")
    pack = make(folder, tmp_path / "some.pack", skip_bad=True)
    assert pack.counts(TEST) == ([0, 0, 0] if bad == "all" else [2, 0, 0])
    assert pack.has_test == (bad != "all")
    assert len(pack.store(TRAIN).all()) == 15


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        (["bee"], "class 'bee' has no test images; exams do not ask for it"),
        (["bee", "ant"], "2 classes, such as 'ant', have no test images; exams do not ask for them"),
        (["ant", "bee", "cat"], ""),  # there is no test part at all
    ],
)
def test_classes_without_test_images_are_said(
    folder: Path, tmp_path: Path, missing: list[str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in missing:
        shutil.rmtree(folder / "val" / name)
    if not line:
        (folder / "val").rmdir()
    assert make(folder, tmp_path / "some.pack").counts(TEST) == [
        2 * (name not in missing) for name in ("ant", "bee", "cat")
    ]
    assert [record.getMessage() for record in caplog.records] == [line] * bool(line)


@pytest.mark.parametrize(
    ("name", "words"), [("there.pack", "is there already"), ("pack", "must end in .pack"), ("no/a.pack", "not exist")]
)
def test_a_bad_place_is_refused_before_anything_is_decoded(folder: Path, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "there.pack").write_bytes(b"mine")
    with pytest.raises(UserError, match=words):
        make(folder, tmp_path / name)
    assert (tmp_path / "there.pack").read_bytes() == b"mine"


# Interrupted ----------------------------------------------------------------------------------------------------------


def test_a_pack_that_another_process_finishes_meanwhile_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of ImageNet take minutes to list, in which another process may come to its end."""
    out = tmp_path / "some.pack"

    def list_slowly(place: Path) -> Layout:
        with monkeypatch.context() as back:
            back.setattr("poise.data.packing.scan", scan)
            made.append(make(folder, out, size=8).fingerprint)
        return scan(place)

    made = list[str]()
    monkeypatch.setattr("poise.data.packing.scan", list_slowly)
    with pytest.raises(UserError, match="is there already"):
        make(folder, out)
    assert [Pack.open(out).fingerprint] == made
    assert not list(tmp_path.glob("some.pack.*"))


def test_a_pack_that_was_killed_goes_on_with_its_class(folder: Path, tmp_path: Path, driven: Driven) -> None:
    make(folder, tmp_path / "whole.pack")
    words = "data", "pack", str(folder), "--out", str(tmp_path / "some.pack"), "--size", "12", "--jobs", "1"
    for number in (1, 3, 2):  # of what is written in each attempt
        code, _ = driven("poise.data.unfinished_pack:UnfinishedPack:end", number, signal.SIGKILL, *words)
        assert code == -signal.SIGKILL
    code, printed = driven("poise.data.unfinished_pack:UnfinishedPack:end", 99, signal.SIGKILL, *words)
    assert code == 0
    assert "images were packed before" in printed
    assert (tmp_path / "some.pack").read_bytes() == (tmp_path / "whole.pack").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*pack*")) == ["some.pack", "whole.pack"]


@pytest.mark.parametrize("change", ["file", "head", "journal", "data"])
def test_what_was_packed_otherwise_is_packed_again(folder: Path, tmp_path: Path, change: str) -> None:
    out, journal, partial = (tmp_path / f"some.pack{ending}" for ending in ("", ".journal", ".partial"))
    steps = Packing(folder, out, size=12).run()
    while next(steps).name != "cat":
        pass
    steps.close()
    if change == "file":
        picture(99).save(folder / "train" / "bee" / "1.png")
    if change == "journal":
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(lines[0] + lines[1].replace(b'"place": 65536', b'"place": 65537') + lines[2][:40])
    if change == "head":
        journal.write_bytes(b"{" + journal.read_bytes())
    if change == "data":
        with partial.open("r+b") as file:
            file.truncate(70000)
    first: Packed = next(iter(Packing(folder, out, size=12).run()))
    assert first.resumed == {"file": 5, "head": 0, "journal": 0, "data": 5}[change]
    make(folder, out)
    make(folder, tmp_path / "fresh.pack")
    assert out.read_bytes() == (tmp_path / "fresh.pack").read_bytes()


def begin(folder: Path, out: Path, last: str = "cat", **options: Any) -> dict[str, bytes]:
    """A pack that was interrupted at this class: what lies there then."""
    steps = Packing(folder, out, size=12, **options).run()
    while next(steps).name != last:
        pass
    steps.close()
    return left_at(out)


def left_at(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.parent.glob(f"{out.name}.*")}


@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ({}, {"size": 16}, r"with --size 12, not --size 16"),
        ({}, {"square": True}, r"with --size 12, not --size 12 --square"),
        ({}, {"classes": ("bee", "cat")}, "without --classes"),
        ({}, {"classes": ("ant", "cat")}, "without --classes"),
        ({"classes": ("ant", "bee", "cat")}, {"classes": ("ant", "bee")}, "with other --classes"),
        ({"classes": ("ant", "bee", "cat")}, {}, "with --classes"),
    ],
)
def test_what_was_begun_by_another_command_is_not_thrown_away(
    folder: Path, tmp_path: Path, first: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    out = tmp_path / "some.pack"
    before = begin(folder, out, **first)
    with pytest.raises(UserError, match=rf"was begun {words}; give the same, use another --out, or remove it and"):
        list(Packing(folder, out, **{"size": 12, **other}).run())
    assert left_at(out) == before
    make(folder, out, **first)
    make(folder, tmp_path / "fresh.pack")
    assert out.read_bytes() == (tmp_path / "fresh.pack").read_bytes()


def test_what_was_begun_of_another_folder_is_not_thrown_away(folder: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "some.pack", tmp_path / "others"
    before = begin(folder, out)
    shutil.copytree(folder, other)  # with the times of the files: as if it had been moved
    picture(99).save(other / "train" / "bee" / "1.png")
    with pytest.raises(UserError, match=rf"was begun of {folder}, not {other}; give the same, use another --out, or"):
        make(other, out)
    assert left_at(out) == before
    shutil.copy2(folder / "train" / "bee" / "1.png", other / "train" / "bee" / "1.png")
    assert next(iter(Packing(other, out, size=12).run())).resumed == 10, "a folder that was moved is the same"


def test_where_no_class_was_finished_another_command_begins_anew(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.pack"
    begin(folder, out, "ant")
    assert make(folder, out, classes=("bee", "cat"), square=True).class_names == ("bee", "cat")


def test_of_a_folder_that_has_grown_what_changed_is_packed_again(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "some.pack"
    begin(folder, out)
    picture(99).save(folder / "train" / "bee" / "new.png")
    assert make(folder, out).counts() == [5, 6, 5]
    assert "class 'bee' is not as it was packed before; it and those after it are packed again" in caplog.text


# Reading one ----------------------------------------------------------------------------------------------------------


def test_a_pack_is_a_data_set(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("POISE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    make(folder, tmp_path / "data" / "animals.pack")
    by_path, by_name = open_source(str(tmp_path / "data" / "animals.pack")), open_source("animals")
    assert by_path.fingerprint == by_name.fingerprint
    assert by_name.outline() == ([5, 5, 5], (3, 12, 12))
    assert open_source("animals", size=8).train().shape == (3, 8, 8)
    with pytest.raises(UserError, match="fewer than image_size=13"):
        open_source("animals", size=13).train()
    assert (len(by_name.train()), len(by_name.test())) == (15, 6)
    assert add_source("zoo", tmp_path / "data" / "animals.pack").class_names == ("ant", "bee", "cat")
    known = {entry.name: entry.kind for entry in listing()}
    assert (known["animals"], known["zoo"]) == ("pack", "pack")
    (tmp_path / "data" / "imagenet" / "train" / "n01440764").mkdir(parents=True)
    assert {entry.name: entry.kind for entry in listing()}["imagenet"] == "ImageNet"


def test_the_fingerprint_is_that_of_the_training_images(folder: Path, tmp_path: Path) -> None:
    first = make(folder, tmp_path / "first.pack").fingerprint
    picture(98).save(folder / "val" / "ant" / "0.png")
    assert make(folder, tmp_path / "second.pack").fingerprint == first
    picture(99).save(folder / "train" / "ant" / "0.png")
    assert make(folder, tmp_path / "third.pack").fingerprint != first
    assert make(folder, tmp_path / "fourth.pack", size=13).fingerprint != first


def test_test_images_that_are_training_images_are_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "val" / "ant" / "0.png").write_bytes((folder / "train" / "bee" / "1.png").read_bytes())
    make(folder, tmp_path / "some.pack")
    PackSource(tmp_path / "some.pack").test()
    assert "1 of the 6 test images are copies" in caplog.text


def test_opening_reads_no_pixel_and_the_first_look_at_a_damaged_one_says_so(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.pack"
    block = make(folder, path).blocks[1]
    data = bytearray(path.read_bytes())
    data[block.place + 3] ^= 1
    path.write_bytes(data)
    source = PackSource(path)
    images = source.train()
    assert len(source.fingerprint) == 32
    assert len(images.select(torch.tensor([0, 6])).pixels) == 2
    for look in (images.store.gather, images.store.loaded):
        with pytest.raises(Damaged, match=r"image 5 of its train part, of class 'bee'"):
            look(torch.tensor([4, 5]))


def test_a_pack_that_is_cut_off_while_it_is_used_is_one_line(folder: Path, tmp_path: Path) -> None:
    """Reading behind the end of a mapped file would end the process with a bus error."""
    pack = make(folder, tmp_path / "some.pack", size=256)
    images, everything = pack.store(TRAIN), torch.arange(15)
    before = images.gather(everything)
    whole = pack.path.read_bytes()
    os.truncate(pack.path, 1 << 17)
    for read in (images.gather, images.loaded):
        with pytest.raises(Damaged, match=r"some\.pack was cut off or written anew while it was used"):
            read(everything)
    pack.path.write_bytes(whole)
    assert torch.equal(images.gather(everything), before)


def test_a_disk_that_fails_when_an_image_is_first_read_is_an_error_that_names_the_pack(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a map of it would end the process with a bus error."""
    pack = make(folder, tmp_path / "some.pack")
    images, read = pack.store(TRAIN), os.preadv

    def fail_after_two(handle: int, buffers: list[memoryview], place: int) -> int:
        if place >= pack.blocks[0].place + pack.blocks[0].length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(handle, buffers, place)

    monkeypatch.setattr(os, "preadv", fail_after_two)
    labels = pack.labels(TRAIN)
    batches = Feed(ImageSet(images, labels, labels), torch.device("cpu")).batches(torch.arange(15), [(0, 5), (5, 9)])
    assert len(next(batches)[1]) == 5
    with pytest.raises(OSError, match="Input/output error") as caught:
        next(batches)
    assert caught.value.filename == str(pack.path)


def test_a_pack_that_is_cut_off_at_the_moment_of_reading_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, read = make(folder, tmp_path / "some.pack"), os.preadv
    images = pack.store(TRAIN)

    def cut_off(handle: int, buffers: list[memoryview], place: int) -> int:
        os.truncate(pack.path, pack.blocks[0].place + 10)
        return read(handle, buffers, place)

    monkeypatch.setattr(os, "preadv", cut_off)
    with pytest.raises(Damaged, match=r"some\.pack was cut off or written anew while it was used"):
        images.gather(torch.arange(3))


def test_an_image_that_comes_in_several_pieces_is_read_to_its_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, read, counts = make(folder, tmp_path / "some.pack").store(TRAIN), os.preadv, list[int]()

    def read_little(handle: int, buffers: list[memoryview], place: int) -> int:
        counts.append(read(handle, [buffers[0][:100]], place))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", read_little)
    images.gather(torch.tensor([2]))
    assert len(counts) > 4
    assert sum(counts) == int(images.sizes[2].prod()) * 3


def test_a_pack_that_is_written_over_while_it_is_used_is_looked_at_again(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    images, everything = pack.store(TRAIN), torch.arange(15)
    before = images.gather(everything)
    os.utime(pack.path)
    assert torch.equal(images.gather(everything), before)
    with pack.path.open("r+b") as file:
        file.seek(pack.blocks[1].place)
        file.write(bytes(50))
    os.utime(pack.path, ns=(1, 1))  # a clock that stands still would hide it
    assert torch.equal(images.gather(everything[:5]), before[:5])
    with pytest.raises(Damaged, match="of class 'bee', is not as it was packed"):
        images.gather(everything)


def test_only_the_part_that_is_asked_for_is_mapped(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    store = pack.store(TRAIN)
    assert store.flat.numel() == sum(block.length for block in pack.blocks if block.part == TRAIN)
    assert not any(isinstance(value, Pack) for value in vars(store).values())  # by which the other one is reached
    assert pack.blocks[3].part == TEST
    assert pack.blocks[3].place % (1 << 16) == 0


@pytest.mark.parametrize("kept", [20, 70_000, -1, -60])
def test_a_pack_that_is_cut_off_is_refused_at_the_start(folder: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "some.pack"
    make(folder, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Damaged, match="is cut off"):
        PackSource(path)


def test_a_damaged_index_is_refused_at_the_start(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.pack"
    make(folder, path)
    data = bytearray(path.read_bytes())
    data[read_footer(path).place + 40] ^= 4
    path.write_bytes(data)
    with pytest.raises(Damaged, match="damaged index"):
        PackSource(path)


@pytest.mark.parametrize(
    "change",
    [
        {"size": 400},
        {"size": "12"},
        {"blocks": []},
        {"channels": 2},
        {"format": "1"},
        lambda blocks: blocks[0].update(place=1 << 40),
        lambda blocks: blocks[0].update(images=6),
        lambda blocks: blocks[1].update({"class": "ant"}),
        lambda blocks: blocks[0].update(part="other"),
        lambda blocks: blocks.reverse(),
    ],
)
def test_an_index_that_somebody_else_wrote_is_one_line(folder: Path, tmp_path: Path, change: object) -> None:
    path = tmp_path / "some.pack"
    pack, footer = make(folder, path), read_footer(path)
    values = json.loads(json.dumps({"format": 1, "size": 12, "square": False, "channels": 3}))
    values["blocks"] = [block.as_json() for block in pack.blocks]
    change(values["blocks"]) if callable(change) else values.update(change)
    document = json.dumps(values).encode()
    index = len(document).to_bytes(8, "little") + document + pack.images.as_bytes()
    path.write_bytes(
        path.read_bytes()[: footer.place] + index + Footer(footer.place, len(index), digest_of(index)).as_bytes()
    )
    with pytest.raises(Damaged, match="is not as poise writes it"):
        PackSource(path)


def test_a_file_that_is_no_pack_and_a_missing_one_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "some.pack").write_bytes(b"something else")
    with pytest.raises(UserError, match="is no pack; make one with 'poise data pack"):
        open_source(str(tmp_path / "some.pack"))
    with pytest.raises(UserError, match="No such file"):
        open_source(str(tmp_path / "none.pack"))


def test_a_store_of_a_pack_is_sent_by_its_path(folder: Path, tmp_path: Path) -> None:
    store = make(folder, tmp_path / "some.pack").store(TRAIN)
    sent = pickle.dumps(store.select(torch.tensor([3, 1])))
    assert len(sent) < 2000
    assert torch.equal(pickle.loads(sent).all(), store.gather(torch.tensor([3, 1])))
    (tmp_path / "some.pack").unlink()
    make(folder, tmp_path / "some.pack", size=16)
    with pytest.raises(UserError, match="is another pack"):
        pickle.loads(sent)


def test_arrays_of_another_length_are_refused() -> None:
    described = Described(np.zeros((1, 2), np.int32), np.zeros((1, 16), np.uint8), np.zeros((1, 16), np.uint8))
    assert len(write_index({}, [], described)) > 40
    with pytest.raises(ValueError, match="another length"):
        Described.from_bytes(described.as_bytes(), 2)


# Learning from one ----------------------------------------------------------------------------------------------------


def test_a_folder_that_does_not_fit_into_memory_is_refused_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.data.suitable.free_memory", lambda: 1000)
    with pytest.raises(UserError, match=rf"pack them once: poise data pack {folder} --out images.pack --size 16"):
        FolderSource(folder, size=16).train()


def test_the_command_that_packs_a_folder_can_be_typed_as_it_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.data.suitable.free_memory", lambda: 1000)
    monkeypatch.chdir(tmp_path)
    folder.rename("my photos")
    with pytest.raises(UserError) as caught:
        FolderSource(Path("my photos"), size=16).train()
    said = str(caught.value)
    words = shlex.split(said[said.index("poise data pack") :].split(";", maxsplit=1)[0].replace(",", ""))
    assert words[3:6] == ["my photos", "--out", "my photos.pack"]
    assert words[-1] == "data=my photos.pack"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_learner_learns_the_same_from_a_pack_and_from_memory(device: str, folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    store = pack.store(TRAIN)
    assert isinstance(store, PackedStore)
    preprocessing = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=1))
    options = {"net": "small", "epochs": 2, "batch": 4, "policy": "fixed", "memory": 2}
    options |= {"device": device, "deterministic": True}
    learners = []
    for images in (store, store.all()):
        learner = Learner("lucir", preprocessing=preprocessing, **options)  # type: ignore[arg-type]
        for part in (slice(0, 10), slice(10, 15)):
            chosen = torch.arange(15)[part]
            some = images.select(chosen) if isinstance(images, PackedStore) else images[chosen]
            learner.partial_fit(some, pack.labels(TRAIN)[part])
        learners.append(learner)
    packed, plain = learners
    for name, value in plain.model.state_dict().items():  # type: ignore[union-attr]
        assert torch.equal(packed.model.state_dict()[name], value)  # type: ignore[union-attr]
    kept = [learner.memory.exemplars.pixels for learner in learners]  # type: ignore[union-attr]
    assert torch.equal(*kept)
    packed.save(tmp_path / "packed")
    assert torch.equal(Learner.load(tmp_path / "packed").memory.exemplars.pixels, kept[0])  # type: ignore[union-attr]


def test_a_saved_learner_goes_on_cropping_whole_images(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack", size=16)
    store, labels = pack.store(TRAIN, 12), pack.labels(TRAIN)
    preprocessing = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=0, resized=0.08))
    learner = Learner("lucir", preprocessing=preprocessing, net="small", epochs=2, batch=4, policy="fixed", memory=2)
    learner.partial_fit(store.select(torch.arange(10)), labels[:10])
    learner.save(tmp_path / "middle")
    again = Learner.load(tmp_path / "middle")
    kept, loaded = (each.memory.exemplars.store for each in (learner, again))  # type: ignore[union-attr]
    assert torch.equal(loaded.sizes, kept.sizes)
    assert torch.equal(loaded.all(), kept.all())
    for each in (learner, again):
        each.partial_fit(store.select(torch.arange(10, 15)), labels[10:])
    for name, value in learner.model.state_dict().items():  # type: ignore[union-attr]
        assert torch.equal(again.model.state_dict()[name], value), name  # type: ignore[union-attr]


def test_a_learner_takes_the_path_of_a_pack(folder: Path, tmp_path: Path) -> None:
    make(folder, tmp_path / "some.pack", size=32)
    learner = Learner(net="small", epochs=1, batch=8, policy="fixed", memory=1, device="cpu")
    learner.partial_fit(tmp_path / "some.pack")
    assert list(learner.classes_) == ["ant", "bee", "cat"]
    assert learner.shape_ == (3, 32, 32)
    with pytest.raises(UserError, match="leave labels out"):
        learner.partial_fit(tmp_path / "some.pack", [1] * 15)


def test_what_is_scored_and_predicted_of_a_pack_is_its_test_part(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack", size=32)
    learner = Learner("icarl", net="small", epochs=3, batch=8, policy="fixed", memory=5, device="cpu").partial_fit(pack)
    path = str(tmp_path / "some.pack")
    names = np.array([name for name in pack.class_names for _ in range(2)])
    found = learner.predict(path)
    assert (found == learner.predict(pack.store(TEST))).all()
    assert learner.score(path) == (found == names).mean() != learner.score(pack.store(TRAIN), names.repeat(5)[::2])
    assert sorted(learner.image_ids(path)) == sorted(each.id for each in learner.exemplars()), "those that are learned"
    shutil.rmtree(folder / "val")
    whole = make(folder, tmp_path / "whole.pack", size=32)
    assert len(learner.predict(whole)) == len(whole.labels(TRAIN)) == 15, "there is no other part"


@pytest.mark.parametrize("square", [False, True])
def test_a_pack_shows_what_its_folder_does(tmp_path: Path, square: bool) -> None:
    """Larger and smaller images, tall, wide, and longer than a pack keeps; a JPEG that is decoded at half its size."""
    for number, (width, height) in enumerate([(40, 31), (31, 40), (24, 24), (17, 9), (130, 20), (25, 24), (24, 133)]):
        for name in ("ant", "bee"):
            (tmp_path / "images" / "train" / name).mkdir(parents=True, exist_ok=True)
            image = picture(number, width, height)
            image.save(tmp_path / "images" / "train" / name / f"{number}.png")
    picture(8, 300, 211).save(tmp_path / "images" / "train" / "ant" / "8.jpg")
    packed = PackSource(make(tmp_path / "images", tmp_path / "some.pack", size=24, square=square).path).train()
    folder = FolderSource(tmp_path / "images", size=24).train()
    assert torch.equal(packed.labels, folder.labels)
    assert torch.equal(packed.pixels, folder.pixels)
    read = read_labelled(tmp_path / "images" / "train", wanted=Wanted((24, 24))).pixels
    assert torch.equal(read, packed.pixels), "and so does a learner that is given it"


@pytest.mark.parametrize("size", [12, 16, 40, 64])
def test_a_learner_sees_of_a_pack_what_it_sees_of_the_files(folder: Path, tmp_path: Path, size: int) -> None:
    pack, seen = make(folder, tmp_path / "some.pack", size=size), Wanted((16, 16), 3, 16)
    of_files = read_labelled(folder / "train", None, seen)
    of_pack = read_labelled(pack, None, seen)
    assert of_pack.labels == of_files.labels
    apart = (of_pack.pixels.int() - of_files.pixels.int()).abs()
    assert float(apart.float().mean()) <= (0 if size == 16 else 12 if size < 16 else 3), "but for what packing rounds"
    assert isinstance(of_pack.store, PackedStore) is (size == 16), "what is not scaled is mapped"
    grey = read_labelled(pack, None, Wanted((16, 16), 1, 16)).store
    assert grey.shape == (1, 16, 16), "as files are made grey"


def test_files_are_seen_as_the_centre_of_a_pack(tmp_path: Path) -> None:
    for number, (width, height) in enumerate([(40, 31), (31, 40), (17, 9), (130, 20), (24, 133), (25, 25)]):
        (tmp_path / "images" / "train" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        picture(number, width, height).save(tmp_path / "images" / "train" / "ab"[number % 2] / f"{number}.png")
    picture(8, 300, 211).save(tmp_path / "images" / "train" / "a" / "8.jpg")  # decoded at half of its size
    pack = make(tmp_path / "images", tmp_path / "some.pack", size=25)
    for side in (25, 20, 11):
        seen = read_labelled(tmp_path / "images" / "train", None, Wanted((side, side), 3, 25))
        assert torch.equal(seen.pixels, pack.store(TRAIN, side).all())
        assert torch.equal(read_labelled(pack, None, Wanted((side, side), 3, 25)).pixels, seen.pixels)
    files = sorted((tmp_path / "images" / "train").glob("*/*.png"))
    pictures = [(Image.open(file), 0) for file in files]
    dataset = Subset(pictures, range(len(pictures)))  # type: ignore[arg-type,var-annotated]  # a list will do
    for given in (pictures, DataLoader(dataset, batch_size=None), dataset):
        assert torch.equal(
            read_labelled(given, None, Wanted((20, 20), 3, 25)).pixels, to_pixels(files, (20, 20), 3, 25)
        )


def test_scaled_images_of_a_pack_may_lie_in_a_temporary_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = make(folder, tmp_path / "some.pack", size=40)
    plain = read_labelled(pack)
    monkeypatch.setattr(inputs, "SPILL_SHARE", 0.0)
    spilled = read_labelled(pack)
    assert (plain.store.in_memory, spilled.store.in_memory) == (True, False)
    assert plain.store.shape == (3, 32, 32), "a size is chosen for it"
    assert torch.equal(spilled.pixels, plain.pixels)


def test_a_damaged_image_of_a_pack_is_not_scaled(folder: Path, tmp_path: Path) -> None:
    path = make(folder, tmp_path / "some.pack", size=40).path
    data = bytearray(path.read_bytes())
    data[Pack.open(path).blocks[1].place] ^= 255
    path.write_bytes(data)
    with pytest.raises(Damaged, match="image 5 of its train part, of class 'bee', is not as it was packed"):
        read_labelled(path)


def test_a_learner_remembers_how_it_saw_images(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack", size=16)
    files = sorted((folder / "val").glob("*/*.png"))
    options: dict[str, Any] = {"net": "small", "epochs": 1, "batch": 8, "policy": "fixed", "memory": 1, "device": "cpu"}
    learner = Learner("icarl", **options).partial_fit(pack.store(TRAIN, 12), pack.labels(TRAIN))
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model")
    centres = learner.predict_proba(pack.store(TEST, 12))
    for each in (learner, again):
        assert np.array_equal(each.predict_proba(files), centres)
        assert np.array_equal(each.predict_proba(pack), centres)
    whole = Learner("icarl", image_size=12, **options).partial_fit(pack)
    assert np.array_equal(whole.predict_proba(files), whole.predict_proba(to_pixels(files, (12, 12))))
    assert (learner.knowledge.short_side, whole.knowledge.short_side) == (16, 12)


def test_a_learner_of_an_older_poise_sees_images_as_before(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack", size=16)
    learner = Learner("icarl", net="small", epochs=1, batch=8, policy="fixed", memory=1, device="cpu")
    learner.partial_fit(pack.store(TRAIN, 12).select(torch.arange(10)), pack.labels(TRAIN)[:10])
    learner.save(tmp_path / "new")
    tensors, meta = store.read_tensors(tmp_path / "new", kind="learner")
    del meta["short_side"]
    store.write_tensors(tmp_path / "old", tensors, meta, kind="learner")
    old, files = Learner.load(tmp_path / "old", device="cpu"), sorted((folder / "val").glob("*/*.png"))
    assert np.array_equal(old.predict_proba(files), old.predict_proba(to_pixels(files, (12, 12))))
    assert np.array_equal(old.predict_proba(pack), old.predict_proba(pack.store(TEST, 12)))
    small = make(folder, tmp_path / "small.pack", size=8)
    assert np.isfinite(old.predict_proba(small)).all(), "which was refused"
    old.partial_fit(pack.store(TRAIN, 12).select(torch.arange(10, 15)), pack.labels(TRAIN)[10:])
    assert old.knowledge.short_side == 16, "by what it learns then"


def test_a_pack_of_a_newer_format_is_one_line_that_says_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.data.packing.FORMAT", 2)
    list(Packing(folder, tmp_path / "some.pack", size=12, jobs=1).run())
    with pytest.raises(UserError, match=r"some\.pack has format 2, this poise reads 1; install a newer poise$"):
        Pack.open(tmp_path / "some.pack")
