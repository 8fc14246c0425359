from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from poise.data.augment import Augmentation
from poise.data.decode import known_formats
from poise.data.sources import FolderSource, image_files, labelled_files
from poise.data.sources.layout import scan
from poise.errors import UserError


def fill(folder: Path, count: int, side: int = 40, start: int = 0) -> None:
    """Images of one colour each, all different, so that each can be recognised."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        Image.new("RGB", (side + 5, side), (number, 0, 0)).save(folder / f"{number:03d}.png")


@pytest.fixture
def one_level(tmp_path: Path) -> Path:
    fill(tmp_path / "pets" / "dog", 10, start=100)
    fill(tmp_path / "pets" / "cat", 4)
    return tmp_path / "pets"


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for part, start in (("train", 0), ("test", 10)):
        fill(root / part / "dog", 3, start=start + 100)
        fill(root / part / "cat", 2, start=start)
    return root


def reds(pixels: torch.Tensor) -> list[int]:
    return pixels[:, 0, 0, 0].tolist()


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        FolderSource(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_level_is_split_by_a_fixed_seed(one_level: Path) -> None:
    source = FolderSource(one_level)
    train, test = source.train(), source.test()
    assert source.class_names == ("cat", "dog")
    assert train.labels.tolist() == [0] * 3 + [1] * 8
    assert test.labels.tolist() == [0] + [1] * 2
    assert sorted(reds(train.pixels) + reds(test.pixels)) == [*range(4), *range(100, 110)]
    assert train.origins.tolist() == list(range(11))
    assert torch.equal(FolderSource(one_level).train().pixels, train.pixels)


def test_the_split_of_a_class_does_not_depend_on_other_classes_or_the_place(one_level: Path, tmp_path: Path) -> None:
    before = scan(one_level).train["dog"]
    moved = shutil.copytree(one_level, tmp_path / "elsewhere")
    fill(moved / "ant", 3)
    assert [file.name for file in scan(moved).train["dog"]] == [file.name for file in before]


def test_divided_folders_are_taken_as_they_are(divided: Path) -> None:
    source = FolderSource(divided)
    assert reds(source.train().pixels) == [0, 1, 100, 101, 102]
    assert reds(source.test().pixels) == [10, 11, 110, 111, 112]
    assert source.test().labels.tolist() == [0, 0, 1, 1, 1]
    assert source.name == "pets"


def test_a_test_part_may_lack_a_class(divided: Path) -> None:
    shutil.rmtree(divided / "test" / "cat")
    assert FolderSource(divided).test().labels.tolist() == [1, 1, 1]


def test_without_a_test_folder_only_the_test_part_is_refused(divided: Path) -> None:
    shutil.rmtree(divided / "test")
    source = FolderSource(divided)
    assert len(source.train()) == 5
    with pytest.raises(UserError, match=r"has no test folder; .*exam=dev"):
        source.test()


def test_a_validation_folder_examines_where_there_is_no_test_folder(divided: Path) -> None:
    shutil.copytree(divided / "test", divided / "val")
    shutil.rmtree(divided / "val" / "cat")
    assert len(FolderSource(divided).test()) == 5
    shutil.rmtree(divided / "test")
    assert reds(FolderSource(divided).test().pixels) == [110, 111, 112]


def test_a_test_folder_without_labels_gives_way_to_a_validation_folder(divided: Path) -> None:
    """As ImageNet comes: `test` holds images, and no class folders."""
    shutil.move(divided / "test", divided / "val")
    fill(divided / "test", 3)
    for part in ("train", "test"):
        (divided / part / ".thumbnails").mkdir()
    assert len(FolderSource(divided).test()) == 5


def test_a_whole_data_set_is_not_what_one_phase_brings(divided: Path) -> None:
    words = f"not class folders; give {divided / 'train'} to learn, or {divided / 'test'} to score"
    with pytest.raises(UserError, match=re.escape(words)):
        labelled_files(divided)
    assert labelled_files(divided / "train")[1] == ["cat"] * 2 + ["dog"] * 3


def test_a_class_named_train_is_a_class(tmp_path: Path) -> None:
    fill(tmp_path / "train", 2)
    fill(tmp_path / "bus", 2)
    assert labelled_files(tmp_path)[1] == ["bus"] * 2 + ["train"] * 2
    assert FolderSource(tmp_path).class_names == ("bus", "train")


def test_size_net_and_augmentation_are_chosen_and_said(tmp_path: Path) -> None:
    for name in "ab":
        fill(tmp_path / name, 2, side=70)
    source = FolderSource(tmp_path)
    assert source.train().shape == (3, 64, 64)
    assert source.augmentation == Augmentation(pad=8, flip=True)
    assert source.preprocessing is None
    assert source.notes == ("size 64×64 (median shorter side 70); net resnet32",)
    larger = FolderSource(tmp_path, size=96)
    assert larger.train().shape == (3, 96, 96)
    assert larger.notes == ("size 96×96 (as asked); net resnet18",)
    assert FolderSource(tmp_path, size=32).augmentation.pad == 4


def test_a_size_that_is_none_is_refused(one_level: Path) -> None:
    for size in (0, -3, 7):
        with pytest.raises(UserError, match=f"size={size} must be"):
            FolderSource(one_level, size=size)


def test_what_is_hidden_or_no_image_is_ignored(one_level: Path) -> None:
    expected = scan(one_level)
    (one_level / "README.txt").write_text("about")
    (one_level / "cat" / "notes.txt").write_text("about")
    (one_level / "cat" / ".hidden.png").write_text("no image")
    (one_level / ".cache").mkdir()
    (one_level / "cat" / "folder.png").mkdir()
    assert scan(one_level) == expected


@pytest.mark.parametrize("ending", ["avif", "jfif", "jp2", "webp"])
def test_images_of_every_kind_that_is_decoded_are_learned(ending: str, one_level: Path) -> None:
    kind = {"jfif": "JPEG", "jp2": "JPEG2000"}.get(ending, ending.upper())
    if kind not in known_formats():
        pytest.skip("this Pillow cannot decode it")
    for number in (0, 1):
        Image.new("RGB", (40, 40), (9, 9, number)).save(one_level / "cat" / f"{number}.{ending}", kind)
    assert [file.suffix for file in labelled_files(one_level)[0]].count(f".{ending}") == 2
    assert len(FolderSource(one_level, size=32).train()) > 0


def test_what_is_left_out_of_class_folders_is_said_once(one_level: Path, caplog: pytest.LogCaptureFixture) -> None:
    labelled_files(one_level)
    assert not caplog.messages
    for name in ("a.HEIC", "b.heic", "notes.txt", "README", ".DS_Store"):
        (one_level / "cat" / name).write_text("something")
    (one_level / "cat" / "v1.2").mkdir()
    expected = len(list(one_level.glob("*/*.png")))
    for _ in range(2):
        assert len(labelled_files(one_level)[0]) == expected
    (line,) = caplog.messages
    assert "left out" in line
    assert "(2 .heic, 1 no ending, 1 .txt, 1 folder); HEIC cannot be decoded" in line


@pytest.mark.parametrize("layout", ["one_level", "divided"])
def test_neither_training_nor_fingerprint_opens_a_test_file(layout: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(layout)
    expected = FolderSource(folder).fingerprint
    for files in (scan(folder).test or {}).values():
        for file in files:
            file.write_text("not an image any more")
    source = FolderSource(folder)
    source.train()
    assert source.fingerprint == expected
    with pytest.raises(UserError, match="cannot be decoded"):
        source.test()


def test_the_fingerprint_follows_contents_names_and_size_but_not_the_place(divided: Path, tmp_path: Path) -> None:
    same = FolderSource(divided).fingerprint
    moved = shutil.copytree(divided, tmp_path / "elsewhere")
    assert FolderSource(moved).fingerprint == same
    assert FolderSource(divided, size=64).fingerprint != same
    (moved / "train" / "cat" / "000.png").rename(moved / "train" / "cat" / "0000.png")
    renamed = FolderSource(moved).fingerprint
    assert renamed != same
    shutil.copy(moved / "train" / "dog" / "100.png", moved / "train" / "cat" / "0000.png")
    assert FolderSource(moved).fingerprint not in {same, renamed}


def test_folders_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "missing")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no class folder" in refusal(empty)
    fill(tmp_path / "single" / "cat", 3)
    assert "only one class folder, cat" in refusal(tmp_path / "single")
    (tmp_path / "single" / "dog").mkdir()
    assert f"class folder {tmp_path / 'single' / 'dog'} has no image" in refusal(tmp_path / "single")
    fill(tmp_path / "single" / "dog", 1)
    message = refusal(tmp_path / "single")
    assert "class 'dog'" in message
    assert "add images or use train/ and test/" in message


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_class_that_is_a_broken_link_is_not_missing_in_silence(divided: Path, part: str) -> None:
    link = divided / part / "elk"
    link.symlink_to("/a/disk/that/is/not/mounted")
    assert refusal(divided) == f"{link} is a broken link; mend or remove it"


def test_the_folder_above_that_of_the_classes_is_told_from_it(tmp_path: Path) -> None:
    (tmp_path / "photos" / "january" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "february" / "dog").mkdir(parents=True)
    inner = tmp_path / "photos" / "february"
    assert refusal(tmp_path / "photos").endswith(f"if its folders are the classes, give {inner}")


def test_classes_of_the_test_part_must_be_known(divided: Path) -> None:
    fill(divided / "test" / "elk", 1)
    assert "classes that" in refusal(divided)
    assert "elk" in refusal(divided)


# What somebody prepared -----------------------------------------------------------------------------------------------


def test_images_below_a_folder_are_those_that_are_learned_too(one_level: Path, tmp_path: Path) -> None:
    expected = sorted(one_level.rglob("*.png"))
    (one_level / "cat" / "._000.png").write_text("what macOS writes beside an image")
    (one_level / ".cache").mkdir()
    (one_level / ".cache" / "000.png").write_text("hidden")
    assert image_files(one_level) == expected
    (one_level / "dog").rename(tmp_path / "elsewhere")
    (one_level / "dog").symlink_to(tmp_path / "elsewhere")
    assert image_files(one_level) == expected
    (one_level / "cat" / "all").symlink_to(one_level)
    (one_level / "again").symlink_to("cat")
    assert image_files(one_level) == expected, "each folder once"
    (one_level / "bird").symlink_to("nowhere")
    assert image_files(one_level) == expected, "a broken link is no image"


def test_copies_in_both_parts_are_said(divided: Path, caplog: pytest.LogCaptureFixture) -> None:
    FolderSource(divided).test()
    assert not caplog.messages
    shutil.copy(divided / "train" / "cat" / "000.png", divided / "test" / "cat" / "zzz.png")
    shutil.copy(divided / "train" / "dog" / "100.png", divided / "test" / "cat" / "yyy.png")
    source = FolderSource(divided)
    source.train()
    assert not caplog.messages, "no test file was opened yet"
    source.test()
    (line,) = caplog.messages
    assert line.startswith("2 of the 7 test images are copies of training images (")
    assert f"{divided}/test/cat/yyy.png is {divided}/train/dog/100.png" in line
    assert "\n" not in line


def test_names_that_are_no_utf_8_are_classes_and_files(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    fill(tmp_path / name / name, 5)
    fill(tmp_path / name / "犬", 5, start=10)
    source = FolderSource(tmp_path / name)
    assert source.class_names == (name, "犬")
    assert len(source.train()) == len(source.train().labels) == 8
    assert len(source.test()) == 2
    (tmp_path / name / name / "000.png").rename(tmp_path / name / name / os.fsdecode(b"\xff.png"))
    assert FolderSource(tmp_path / name).fingerprint != source.fingerprint
