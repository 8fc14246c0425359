"""Packs: made of folders, read as data, refused where they are damaged."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from poise import Learner
from poise.data import Augmentation, Decoder, Preprocessing, open_images
from poise.data.decode import LONGEST, content_of
from poise.data.packing import Packing, read_classes
from poise.data.packs import TEST, TRAIN, Pack, PackedStore
from poise.data.sources import FolderSource, PackSource, add_source, listing, open_source
from poise.data.sources.layout import INDEX
from poise.errors import Damaged, UserError
from poise.store import locked


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


def make(folder: Path, out: Path, *, size: int = 12, jobs: int = 1, **options: Any) -> Pack:
    list(Packing(folder, out, size=size, jobs=jobs, **options).run())
    return Pack.open(out)


def contents(pack: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in pack.iterdir()}


def begin(folder: Path, out: Path, last: str = "cat", **options: Any) -> Path:
    """A pack that was interrupted at this class: the folder that is left."""
    steps = Packing(folder, out, **{"size": 12, **options}).run()
    while next(steps).name != last:
        pass
    steps.close()
    return out.with_name(f"{out.name}.partial")


# Making one -----------------------------------------------------------------------------------------------------------


def test_a_pack_holds_every_image_with_its_short_side_at_the_size(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    assert pack.class_names == ("ant", "bee", "cat")
    assert (pack.counts(TRAIN), pack.counts(TEST)) == ([5, 5, 5], [2, 2, 2])
    for part, name in ((TRAIN, "train"), (TEST, "val")):
        store, files = pack.store(part), sorted((folder / name).glob("*/*"))
        assert pack.names(part) == [file.parent.name for file in files]
        for index, (file, packed) in enumerate(zip(files, pack.describe(part), strict=True)):
            image = Image.open(file)
            width, height = (max(12, int(12 * side / min(image.size))) for side in image.size)
            expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            np.testing.assert_array_equal(store.picture(index), expected)
            assert packed.source == content_of(file.read_bytes())[1].hex()
            assert (packed.name, f"{packed.number}.png") == (file.parent.name, file.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "some.pack"]
    square = make(folder, tmp_path / "square.pack", square=True)
    assert square.store(TRAIN).is_even
    assert square.store(TRAIN).all().shape == (15, 3, 12, 12)


def test_files_are_rotated_made_rgb_and_cut_where_they_are_very_long(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    picture(1, 40, 20).save(tmp_path / "images/train/a/turned.jpg", exif=turned)
    Image.new("L", (400, 20), 77).save(tmp_path / "images/train/b/long.png")
    pack = make(tmp_path / "images", tmp_path / "odd.pack", size=10)
    assert pack.store(TRAIN).sizes.tolist() == [[20, 10], [10, 10 * LONGEST]]
    assert set(pack.store(TRAIN).part(1, 2).flatten().tolist()) == {77}
    with pytest.raises(UserError, match="no test part"):
        PackSource(tmp_path / "odd.pack").test()


def test_several_processes_make_the_same_bytes_and_one_that_is_ended_from_outside_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(folder, tmp_path / "whole.pack")
    monkeypatch.setattr("poise.data.packing.FEW", 0)
    monkeypatch.setattr("poise.data.packing.CHUNK", 1)  # so that work is left when the first class is done
    steps = Packing(folder, tmp_path / "some.pack", size=12, jobs=2).run()
    while next(steps).name != "bee":
        pass
    for child in multiprocessing.active_children():
        child.kill()
    with pytest.raises(UserError, match=r"was ended from outside.*the same command goes on; with fewer --jobs"):
        list(steps)
    assert next(iter(Packing(folder, tmp_path / "some.pack", size=12).run())).resumed >= 5, "a whole class, or two"
    make(folder, tmp_path / "some.pack")
    assert contents(tmp_path / "some.pack") == contents(tmp_path / "whole.pack")


def test_only_some_classes(folder: Path, tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "list").write_text("# two of them\ncat  the animal\nant\n", encoding=encoding)
        assert read_classes(str(tmp_path / "list"), folder) == ("cat", "ant")
    assert read_classes("bee, cat", folder) == ("bee", "cat")
    assert len(read_classes(",".join(f"n{number:08}" for number in range(100)), folder)) == 100
    (folder / "train" / "golden fish").mkdir()
    (tmp_path / "list").write_text(f"golden fish \nred setter\n{'x' * 300}\n")
    assert read_classes(str(tmp_path / "list"), folder) == ("golden fish", "red setter", "x" * 300)
    (folder / "train" / "golden fish").rmdir()
    (tmp_path / "list").write_bytes(b"\xff\xfe\x00")
    for words, line in ((" , ", "names no class; name some"), (str(tmp_path / "list"), "is no text in UTF-8")):
        with pytest.raises(UserError, match=line):
            read_classes(words, folder)
    assert make(folder, tmp_path / "some.pack", classes=("cat", "ant")).class_names == ("ant", "cat")
    with pytest.raises(UserError, match="no class 'bees'; did you mean"):
        make(folder, tmp_path / "other.pack", classes=("ant", "bees"))


def test_a_file_that_is_no_image_is_named_and_left_out_only_when_asked(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "bee" / "2.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"bee/2\.png cannot be decoded.*--skip-bad"):
        make(folder, tmp_path / "some.pack")
    begin(folder, tmp_path / "some.pack", skip_bad=True)
    with pytest.raises(UserError, match=r"bee/2\.png cannot be decoded.*--skip-bad"):
        make(folder, tmp_path / "some.pack")
    pack = make(folder, tmp_path / "some.pack", skip_bad=True)
    assert (pack.counts(), pack.skipped) == ([5, 4, 5], 1)


def test_a_file_that_the_system_does_not_give_is_never_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "bee" / "9.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"bee/9\.png cannot be read \(No such file"):
        make(folder, tmp_path / "some.pack", skip_bad=True)


def test_a_part_of_a_class_without_an_image_that_can_be_decoded_is_named(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (folder / "val" / "bee").iterdir():
        file.write_bytes(b"no image")
    pack = make(folder, tmp_path / "some.pack", skip_bad=True)
    assert "no test image of class 'bee' can be decoded; exams do not ask for it" in caplog.text
    assert (pack.counts(TRAIN), pack.counts(TEST), pack.skipped) == ([5, 5, 5], [2, 0, 2], 2)
    assert pack.labels(TEST).tolist() == [0, 0, 2, 2]
    shutil.rmtree(folder / "val" / "ant")
    make(folder, tmp_path / "third.pack", skip_bad=True)
    assert "class 'ant' has no test images; exams do not ask for it" in caplog.text
    for file in (folder / "train" / "cat").iterdir():
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"no training image of class 'cat' can be decoded"):
        make(folder, tmp_path / "other.pack", skip_bad=True)


@pytest.mark.parametrize(
    ("name", "words"), [("there.pack", "is there already"), ("pack", "must end in .pack"), ("no/a.pack", "not exist")]
)
def test_a_bad_place_is_refused_before_anything_is_decoded(folder: Path, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "there.pack").write_bytes(b"mine")
    with pytest.raises(UserError, match=words):
        make(folder, tmp_path / name)
    assert (tmp_path / "there.pack").read_bytes() == b"mine"


def test_a_pack_that_is_finished_is_left_as_it_is_and_another_one_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.pack"
    make(folder, out)
    before = contents(out)
    for size, square in ((12, True), (16, False)):
        with pytest.raises(UserError, match="is there already; give another name"):
            list(Packing(folder, out, size=size, square=square).run())
    assert list(Packing(folder, out, size=12).run()) == []
    picture(99).save(folder / "train" / "ant" / "1.png")
    with pytest.raises(UserError, match="is there already; give another name"):
        list(Packing(folder, out, size=12).run())
    assert contents(out) == before


def test_a_second_process_that_packs_is_refused(folder: Path, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "some.pack.lock", ""),
        pytest.raises(UserError, match=r"^another process is packing [^\n]*some\.pack; wait for it$"),
    ):
        make(folder, tmp_path / "some.pack")
    assert not (tmp_path / "some.pack.partial").exists()
    make(folder, tmp_path / "some.pack")


# Interrupted ----------------------------------------------------------------------------------------------------------


def test_a_pack_that_was_killed_goes_on_with_its_class(
    folder: Path, tmp_path: Path, driven: Callable[..., tuple[int, str]]
) -> None:
    """Killed in the middle of the second class that each command packs: a class is written, then its line."""
    make(folder, tmp_path / "whole.pack")
    words = ("data", "pack", str(folder), "--out", str(tmp_path / "some.pack"), "--size", "12", "--jobs", "1")
    for count in (2, 3, 4):
        assert driven("os:fsync", 3, signal.SIGKILL, *words)[0] == -signal.SIGKILL
        assert len(list((tmp_path / "some.pack.partial").glob("*.bin"))) == count
    first = next(iter(Packing(folder, tmp_path / "some.pack", size=12).run()))
    assert first.resumed == 15, "three whole classes"
    make(folder, tmp_path / "some.pack")
    assert contents(tmp_path / "some.pack") == contents(tmp_path / "whole.pack")


@pytest.mark.parametrize("change", ["file", "line", "data"])
def test_what_was_packed_otherwise_is_packed_again(folder: Path, tmp_path: Path, change: str) -> None:
    partial = begin(folder, tmp_path / "some.pack")
    if change == "file":
        picture(99).save(folder / "train" / "ant" / "1.png")
    if change == "line":
        index = (partial / INDEX).read_bytes()
        (partial / INDEX).write_bytes(index[:-40])
    if change == "data":
        min(partial.glob("*.bin")).unlink()
    assert next(iter(Packing(folder, tmp_path / "some.pack", size=12).run())).resumed == 5
    make(folder, tmp_path / "some.pack")
    make(folder, tmp_path / "fresh.pack")
    assert contents(tmp_path / "some.pack") == contents(tmp_path / "fresh.pack")


@pytest.mark.parametrize("other", [{"size": 16}, {"square": True}, {"classes": ("bee", "cat")}, {"folder": True}])
def test_what_was_begun_by_another_command_is_not_thrown_away(
    folder: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    before = contents(begin(folder, tmp_path / "some.pack"))
    copied = Path(shutil.copytree(folder, tmp_path / "others"))
    options = {"size": 12, **other}
    with pytest.raises(UserError, match=rf"begun by another command \(other {next(iter(other))}\); give the same, use"):
        list(Packing(copied if options.pop("folder", None) else folder, tmp_path / "some.pack", **options).run())
    assert contents(tmp_path / "some.pack.partial") == before


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


def test_the_fingerprint_is_that_of_the_training_images(folder: Path, tmp_path: Path) -> None:
    first = make(folder, tmp_path / "first.pack").identity(TRAIN)
    picture(98).save(folder / "val" / "ant" / "0.png")
    assert make(folder, tmp_path / "second.pack").identity(TRAIN) == first
    picture(99).save(folder / "train" / "ant" / "0.png")
    assert make(folder, tmp_path / "third.pack").identity(TRAIN) != first
    assert make(folder, tmp_path / "fourth.pack", size=13).identity(TRAIN) != first


def test_test_images_that_are_training_images_are_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "val" / "ant" / "0.png").write_bytes((folder / "train" / "bee" / "1.png").read_bytes())
    make(folder, tmp_path / "some.pack")
    PackSource(tmp_path / "some.pack").test()
    assert "1 of the 6 test images are copies" in caplog.text


def test_opening_reads_no_pixel_and_the_first_use_of_a_damaged_class_says_so(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    file = pack.path / pack.blocks[1].file
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    source = PackSource(pack.path)
    images = source.train()
    assert len(images.select(torch.tensor([0, 4])).pixels) == 2
    for look in (images.store.gather, images.store.loaded):
        with pytest.raises(Damaged, match=r"class 'bee', is not as it was packed"):
            look(torch.tensor([4, 5]))


@pytest.mark.parametrize("change", ["cut class", "no class", "cut index", "changed index", "unfinished", "format"])
def test_a_damaged_pack_is_refused_at_the_start(folder: Path, tmp_path: Path, change: str) -> None:
    pack = make(folder, tmp_path / "some.pack")
    index, file = pack.path / INDEX, pack.path / pack.blocks[4].file
    lines = index.read_bytes().splitlines(keepends=True)
    if "index" in change or change in ("unfinished", "format"):
        changed = {
            "cut index": b"".join(lines)[:-30],
            "changed index": b"".join([lines[0], lines[1].replace(b"ant", b"ape"), *lines[2:]]),
            "unfinished": b"".join(lines[:-1]),
            "format": b"".join([lines[0].replace(b'"format": 2', b'"format": 1'), *lines[1:]]),
        }
        index.write_bytes(changed[change])
    elif change == "cut class":
        os.truncate(file, 10)
    else:
        file.unlink()
    with pytest.raises((Damaged, UserError), match="pack the folder again"):
        PackSource(pack.path)


def test_what_is_no_pack_and_a_missing_one_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "some.pack").mkdir()
    for name in ("some.pack", "none.pack"):
        with pytest.raises(UserError, match="is no pack; make one with 'poise data pack"):
            open_source(str(tmp_path / name))


def test_a_store_of_a_pack_is_sent_by_its_path_and_knows_one_part(folder: Path, tmp_path: Path) -> None:
    store = make(folder, tmp_path / "some.pack").store(TRAIN)
    assert not any(isinstance(value, Pack) for value in vars(store).values())  # by which the other one is reached
    sent = pickle.dumps(store.select(torch.tensor([3, 1])))
    assert len(sent) < 2000
    assert torch.equal(pickle.loads(sent).all(), store.gather(torch.tensor([3, 1])))
    shutil.rmtree(tmp_path / "some.pack")
    make(folder, tmp_path / "some.pack", size=16)
    with pytest.raises(UserError, match="is another pack"):
        pickle.loads(sent)


# Learning from one ----------------------------------------------------------------------------------------------------


def test_a_folder_that_does_not_fit_into_memory_is_refused_with_a_command_that_can_be_typed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise.data.decode.free_memory", lambda: 1000)
    monkeypatch.chdir(tmp_path)
    folder.rename("my photos")
    with pytest.raises(UserError) as caught:
        FolderSource(Path("my photos"), size=16).train()
    said = str(caught.value)
    words = shlex.split(said[said.index("poise data pack") :].split(";", maxsplit=1)[0].replace(",", ""))
    assert words[3:8] == ["my photos", "--out", "my photos.pack", "--size", "16"]
    assert words[-1] == "data=my photos.pack"


def assert_same_model(one: Learner, other: Learner) -> None:
    assert one.model is not None
    assert other.model is not None
    state = other.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in one.model.state_dict().items())


def kept_pixels(learner: Learner) -> torch.Tensor:
    assert learner.knowledge.memory is not None
    return learner.knowledge.memory.exemplars.pixels


OPTIONS: dict[str, Any] = {"net": "small", "epochs": 2, "batch": 4, "policy": "fixed", "memory": 2, "device": "cpu"}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_learner_learns_the_same_from_a_pack_and_from_memory(device: str, folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack")
    store = pack.store(TRAIN)
    preprocessing = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=1))
    learners = []
    for images in (store, store.all()):
        learner = Learner("lucir", preprocessing=preprocessing, **{**OPTIONS, "device": device, "deterministic": True})
        for part in (slice(0, 10), slice(10, 15)):
            chosen = torch.arange(15)[part]
            some = images.select(chosen) if isinstance(images, PackedStore) else images[chosen]
            learner.partial_fit(some, pack.labels(TRAIN)[part])
        learners.append(learner)
    packed, plain = learners
    assert_same_model(packed, plain)
    assert torch.equal(kept_pixels(packed), kept_pixels(plain))
    packed.save(tmp_path / "packed")
    assert torch.equal(kept_pixels(Learner.load(tmp_path / "packed")), kept_pixels(plain))


def test_a_saved_learner_goes_on_cropping_whole_images(folder: Path, tmp_path: Path) -> None:
    pack = make(folder, tmp_path / "some.pack", size=16)
    store, labels = pack.store(TRAIN, 12), pack.labels(TRAIN)
    preprocessing = Preprocessing((0.5,) * 3, (0.25,) * 3, Augmentation(pad=0, resized=0.08))
    learner = Learner("lucir", preprocessing=preprocessing, **OPTIONS)
    learner.partial_fit(store.select(torch.arange(10)), labels[:10])
    learner.save(tmp_path / "middle")
    again = Learner.load(tmp_path / "middle")
    for each in (learner, again):
        each.partial_fit(store.select(torch.arange(10, 15)), labels[10:])
    assert_same_model(learner, again)


@pytest.mark.parametrize("square", [False, True])
def test_a_pack_shows_what_its_folder_does(tmp_path: Path, square: bool) -> None:
    """Larger and smaller images, tall, wide, and longer than a pack keeps; a JPEG that is decoded at half its size."""
    for number, (width, height) in enumerate([(40, 31), (31, 40), (24, 24), (17, 9), (130, 20), (25, 24), (24, 133)]):
        for name in ("ant", "bee"):
            (tmp_path / "images" / "train" / name).mkdir(parents=True, exist_ok=True)
            picture(number, width, height).save(tmp_path / "images" / "train" / name / f"{number}.png")
    picture(8, 300, 211).save(tmp_path / "images" / "train" / "ant" / "8.jpg")
    pack = make(tmp_path / "images", tmp_path / "some.pack", size=24, square=square)
    packed, folder = PackSource(pack.path).train(), FolderSource(tmp_path / "images", size=24).train()
    assert torch.equal(packed.labels, folder.labels)
    assert torch.equal(packed.pixels, folder.pixels)
    for side in () if square else (24, 20, 11):
        decoder = Decoder((side, side), 3, 24)
        seen = open_images(tmp_path / "images" / "train", decoder=decoder).store.all()
        assert torch.equal(seen, pack.store(TRAIN, side).all())
        assert torch.equal(open_images(pack, decoder=decoder).store.all(), seen)


@pytest.mark.parametrize("size", [12, 16, 40, 64])
def test_a_learner_sees_of_a_pack_what_it_sees_of_the_files(folder: Path, tmp_path: Path, size: int) -> None:
    pack, decoder = make(folder, tmp_path / "some.pack", size=size), Decoder((16, 16), 3, 16)
    of_files, names = open_images(folder / "train", decoder=decoder)
    of_pack, labels = open_images(pack, decoder=decoder)
    assert labels == names
    apart = (of_pack.all().int() - of_files.all().int()).abs()
    assert float(apart.float().mean()) <= (0 if size == 16 else 12 if size < 16 else 3), "but for what packing rounds"
    assert isinstance(of_pack, PackedStore) is (size == 16), "what is not scaled is mapped"
    assert open_images(pack, decoder=Decoder((16, 16), 1, 16)).store.shape == (1, 16, 16), "as files are made grey"
