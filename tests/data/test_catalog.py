from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from poise.data.sources import DigitsSource, FolderSource, add_source, listing, open_source
from poise.data.sources.registry import COLLECTIONS, RELEASES, forget
from poise.errors import UserError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has registered nothing, in an empty working directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("POISE_DATA", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


def class_folders(folder: Path, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / name / f"{number}.png")
    return folder


def cifar_files(parent: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny CIFAR-100 folder that is taken for the published one."""
    release = RELEASES["cifar100"]
    folder = parent / release.folder
    folder.mkdir(parents=True)
    images: dict[str, Any] = {"data": np.zeros((2, 3072), dtype=np.uint8), "fine_labels": [0, 1]}
    contents = {"train": images, "test": images, "meta": {"fine_label_names": ["apple", "bear"]}}
    sums = {}
    for file, content in contents.items():
        data = pickle.dumps(content)
        (folder / file).write_bytes(data)
        sums[file] = {file: hashlib.md5(data).hexdigest()}
    made = dataclasses.replace(release, train=sums["train"], test=sums["test"], meta=sums["meta"])
    monkeypatch.setitem(RELEASES, "cifar100", made)
    return folder


def refusal(data: str, size: int | None = None) -> str:
    with pytest.raises(UserError) as caught:
        open_source(data, size=size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def config(home: Path) -> Path:
    return home / "config" / "poise" / "data.json"


def test_digits_is_always_there_and_not_shadowed_by_a_folder() -> None:
    class_folders(Path("digits"))
    assert isinstance(open_source("digits"), DigitsSource)
    assert isinstance(open_source("./digits"), FolderSource)
    assert open_source("./digits").name == "digits (folder)"


def test_a_folder_path_is_a_data_set(home: Path) -> None:
    class_folders(Path("pets"))
    assert open_source("pets").class_names == ("cat", "dog")
    absolute = open_source(str(class_folders(home / "far away" / "birds")), size=64)
    assert absolute.name == "birds"
    assert absolute.train().shape == (3, 64, 64)


def test_size_is_for_class_folders() -> None:
    assert "digits has images of one fixed size" in refusal("digits", size=32)
    assert "leave out image_size=32" in refusal("cifar100", size=32)
    assert "leave out image_size=128" in refusal("imagenet", size=128)


def test_an_unknown_name_gets_the_nearest_one_and_the_way_to_add_it() -> None:
    message = refusal("cifar-100")
    assert "did you mean 'cifar100'?" in message
    assert "poise data add NAME --from FOLDER" in message
    assert "known: cifar10, cifar100, digits" in refusal("/no/such/folder")


def test_cifar_that_is_nowhere_says_how_to_get_it() -> None:
    message = refusal("cifar10")
    assert "the python version from the CIFAR page" in message
    assert "poise data add cifar10 --from FOLDER" in message
    assert "POISE_DATA" in message


@pytest.mark.parametrize("named", [".", "cifar-100-python"])
def test_the_folder_of_cifar_in_the_place_of_class_folders_is_recognised(
    home: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    cifar_files(home / "data", monkeypatch)
    place = home / "data" / named
    line = f"{place} has CIFAR-100's own files; run 'poise data add cifar100 --from {place}', then give data=cifar100"
    assert refusal(str(place)) == line


@pytest.mark.parametrize("named", [".", "cifar-100-python"])
def test_poise_data_leads_to_cifar_as_parent_or_itself(home: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    cifar_files(home / "data", monkeypatch)
    monkeypatch.setenv("POISE_DATA", str(home / "data" / named))
    source = open_source("cifar100")
    assert source.class_names == ("apple", "bear")
    assert len(source.train()) == 2


def test_poise_data_is_searched_before_what_is_registered(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = class_folders(home / "registered", ("ant", "bee"))
    add_source("pets", registered)
    found = class_folders(home / "data" / "pets")
    assert open_source("pets").class_names == ("ant", "bee")
    monkeypatch.setenv("POISE_DATA", str(home / "data"))
    assert open_source("pets").class_names == ("cat", "dog")
    assert open_source("pets").name == "pets"
    (entry,) = [entry for entry in listing() if entry.name == "pets"]
    assert entry.where == str(found)


def test_what_is_in_poise_data_is_opened_although_what_is_registered_cannot_be_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(home / "data" / "pets")
    config(home).parent.mkdir(parents=True)
    config(home).write_text("{broken")
    assert "is damaged" in refusal("animals")
    monkeypatch.setenv("POISE_DATA", str(home / "data"))
    assert open_source("pets").class_names == ("cat", "dog")


def test_a_folder_that_is_only_called_so_does_not_come_before_what_is_registered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "data" / "pets").mkdir(parents=True)
    monkeypatch.setenv("POISE_DATA", str(home / "data"))
    assert "unknown data" in refusal("pets")
    registered = class_folders(home / "registered")
    add_source("pets", registered)
    assert open_source("pets").class_names == ("cat", "dog")
    assert [entry.where for entry in listing() if entry.name == "pets"] == [str(registered)]


def test_a_registered_data_set_is_forgotten_and_its_files_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = class_folders(home / "pets")
    add_source("pets", folder)
    add_source("animals", folder)
    assert forget("pets") == folder
    assert json.loads(config(home).read_text())["folders"] == {"animals": str(folder)}
    assert "unknown data 'pets'" in refusal("pets")
    assert open_source("animals").class_names == ("cat", "dog")
    folder.rename(home / "moved")
    assert "or poise data remove animals" in refusal("animals")
    forget("animals")  # although it is gone
    before = config(home).read_bytes()
    monkeypatch.setenv("POISE_DATA", str(home))
    for name, words in [
        ("animals", "no data set 'animals' is registered; none is known"),
        ("digits", "(digits is embedded)"),
    ]:
        with pytest.raises(UserError, match=re.escape(words)):
            forget(name)
    assert config(home).read_bytes() == before
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    with pytest.raises(UserError, match="no data set 'pets' is registered"):
        forget("pets")
    assert not (home / "elsewhere").exists()


def test_a_registered_folder_is_remembered_by_its_absolute_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(Path("pictures"))
    source = add_source("pets", Path("pictures"))
    assert (source.name, source.class_names) == ("pets", ("cat", "dog"))
    monkeypatch.chdir(home)
    assert open_source("pets").fingerprint == source.fingerprint
    assert json.loads(config(home).read_text()) == {"format": 1, "folders": {"pets": str(home / "work" / "pictures")}}


def test_registering_again_replaces_and_keeps_the_others(home: Path) -> None:
    first, second = class_folders(home / "first"), class_folders(home / "second", ("x", "y"))
    add_source("one", first)
    add_source("two", first)
    add_source("one", second)
    assert open_source("one").class_names == ("x", "y")
    assert open_source("two").class_names == ("cat", "dog")


def test_cifar_is_registered_from_its_folder_or_the_one_above(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar_files(home / "data", monkeypatch)
    for given in (folder, folder.parent):
        add_source("cifar100", given)
        assert json.loads(config(home).read_text())["folders"] == {"cifar100": str(folder)}
    assert len(open_source("cifar100").test()) == 2


def test_registering_cifar_checks_the_test_file_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar_files(home / "data", monkeypatch)
    with (folder / "test").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="test is not the file of CIFAR-100: md5"):
        add_source("cifar100", folder)
    assert not config(home).exists()


def test_what_cannot_be_registered(home: Path) -> None:
    good = class_folders(home / "good")
    for name, folder, words in [
        ("digits", good, "embedded"),
        ("my pets", good, "letters, digits"),
        ("../x", good, "letters, digits"),
        ("", good, "letters, digits"),
        ("pets", home / "missing", "is not a folder"),
        ("pets", home / "work", "has no class folder"),
        ("cifar10", good, "batches.meta"),
    ]:
        with pytest.raises(UserError, match=words):
            add_source(name, folder)
    assert not config(home).exists()


def test_a_registered_folder_that_is_gone_says_so(home: Path) -> None:
    folder = class_folders(home / "pets")
    add_source("pets", folder)
    folder.rename(home / "moved")
    message = refusal("pets")
    assert f"pets is registered at {folder}, which is gone" in message
    assert message.endswith("poise data add pets --from FOLDER, or poise data remove pets")
    (entry,) = (entry for entry in listing() if entry.name == "pets")
    assert entry.where is None
    assert "gone" in entry.hint


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"format": 1}', '{"format": 1, "folders": []}', '{"format": 1, "folders": {"a": 3}}', "\udcff"],
)
def test_a_damaged_config_is_one_clear_line(home: Path, text: str) -> None:
    config(home).parent.mkdir(parents=True)
    config(home).write_bytes(text.encode(errors="surrogateescape"))
    message = refusal("pets")
    assert f"{config(home)} is damaged; delete it" in message
    assert isinstance(open_source("digits"), DigitsSource)
    with pytest.raises(UserError, match="is damaged"):
        add_source("pets", class_folders(home / "pets"))
    with pytest.raises(UserError, match="is damaged"):
        listing()


def test_a_config_of_a_newer_poise_is_not_overwritten(home: Path) -> None:
    config(home).parent.mkdir(parents=True)
    config(home).write_text('{"format": 99, "folders": {}}')
    with pytest.raises(UserError, match="newer poise"):
        add_source("pets", class_folders(home / "pets"))


def test_without_xdg_the_config_is_in_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        add_source("pets", class_folders(home / f"pets{len(value)}"))
        (home / ".config" / "poise" / "data.json").unlink()


def test_the_listing_says_what_is_known_and_where(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cifar_files(home / "data", monkeypatch)
    class_folders(home / "data" / "birds")
    (home / "data" / "empty").mkdir()
    (home / "data" / "a file").write_text("x")
    pets = class_folders(home / "pets")
    add_source("pets", pets)
    add_source("birds", pets)
    monkeypatch.setenv("POISE_DATA", str(home / "data"))
    entries = {entry.name: entry for entry in listing()}
    assert list(entries) == ["digits", "cifar10", "cifar100", *COLLECTIONS, "birds", "pets"]
    assert all(entries.pop(name).where is None for name in COLLECTIONS)
    assert {name: entry.where for name, entry in entries.items() if name != "digits"} == {
        "cifar10": None,
        "cifar100": str(folder),
        "birds": str(home / "data" / "birds"),
        "pets": str(pets),
    }
    assert "CIFAR page" in entries["cifar10"].hint
    assert entries["digits"].where
    assert entries["pets"].hint == ""
    assert [entry.kind for entry in entries.values()] == ["embedded", *["CIFAR files"] * 2, *["class folders"] * 2]


def test_poise_data_that_leads_nowhere_is_no_obstacle_and_blamed_for_what_is_not_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, blamed in ((home / "nowhere", True), ("~nosuchuser", True), (home, False)):
        monkeypatch.setenv("POISE_DATA", str(folder))
        assert isinstance(open_source("digits"), DigitsSource)
        for data in ("cifar100", "tinyimagenet", "imagenet", "pets"):
            assert ("(POISE_DATA is" in refusal(data)) is blamed
