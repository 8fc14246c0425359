"""One folder of hostile names and damaged files, each command once: a line that names the file, and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from poise import Learner
from poise.runs import Run, RunFolder, load_recipe, make_plan

from .samples import TINY, Command, Done, pictures

NAME = os.fsdecode(b"caf\xe9\x1b[31m")  # no UTF-8, and red from there on
CLASSES = [NAME, "two\nlines\there", "=cmd", "[red]bold", "<script>alert(1)</script>", "犬"]


def acting(text: str) -> list[str]:
    """The characters that a terminal would obey."""
    return [each for each in text if unicodedata.category(each) in ("Cc", "Cs", "Cf") and each not in "\n\t"]


def one_line(done: Done) -> str:
    """The line of a command that refused something."""
    assert done.code in (1, 2), done
    assert "Traceback" not in done.err
    assert not acting(done.out + done.err)
    return done.err.splitlines()[-1]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped in its second phase, and a learner's file beside it."""
    place = tmp_path_factory.mktemp("stopped")
    run = Run(make_plan("digits/lucir", load_recipe("digits/lucir", TINY)), RunFolder(place / "run"), (), 0.0)
    for _ in run.starting():
        if (place / "run" / "phase-0.safetensors").exists():
            break
    learner = Learner(epochs=1, net="small", policy="fixed", device="cpu")
    learner.partial_fit(str(pictures(place / "pets", "cat dog", 4))).save(place / "model")
    return place


@pytest.fixture
def copied(stopped: Path) -> Path:
    """A copy of the run in this folder."""
    return Path(shutil.copytree(stopped / "run", "run"))


def cut(path: Path) -> None:
    """Only half of it is left."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    """One bit of it is another one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    """It is there, and holds nothing."""
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, garble, empty])
def test_a_damaged_model_is_named_by_every_command_that_reads_one(
    damage: Callable[[Path], None], stopped: Path, poise: Command
) -> None:
    Path("model").write_bytes((stopped / "model").read_bytes())
    damage(Path("model"))
    images = stopped / "pets"
    for words in (("predict", "model", images), ("score", "model", images), ("learn", "model", images)):
        assert "model is damaged" in one_line(poise(*words))


@pytest.mark.parametrize("damage", [cut, empty])
@pytest.mark.parametrize("name", ["recipe.json", "machine.json", "journal.jsonl"])
def test_a_damaged_file_of_a_run_is_named(
    name: str, damage: Callable[[Path], None], copied: Path, poise: Command
) -> None:
    damage(copied / name)
    assert name in one_line(poise("resume", copied))


def test_a_damaged_start_result_or_registry_is_named(copied: Path, poise: Command, tmp_path: Path) -> None:
    cut(copied / "phase-0.safetensors")
    assert "phase-0.safetensors" in one_line(poise("run", *TINY, "start=run", "--out", "other"))
    Path("run/result.json").write_text("{")
    assert "result.json" in one_line(poise("report", "run"))
    place = tmp_path / "config" / "poise" / "data.json"
    place.parent.mkdir(parents=True)
    place.write_text("[")
    assert str(place) in one_line(poise("data"))


def test_hostile_names_go_through_every_command_and_are_printed_harmlessly(poise: Command) -> None:
    images = Path(NAME) / "images"
    for place, name in enumerate(CLASSES):
        pictures(images, "x", 5, first=place)
        (images / "x").rename(images / name.replace("/", "∕"))
    model = Path(NAME) / f"{NAME}.safetensors"
    learned = poise("learn", model, images, "--epochs", "1", "--net", "small", "--policy", "fixed", "--memory", "3")
    assert learned.code == 0, learned.err
    for words in (
        ("predict", model, images, "--top", "5"),
        ("predict", model, images, "--json"),
        ("score", model, images),
        ("score", model, images, "--json"),
        ("info", model),
        ("info", model, "--json"),
    ):
        done = poise(*words)
        assert done.code == 0, done.err
        assert not acting(done.out + done.err)
        if "--json" in words:
            assert all(isinstance(json.loads(line), dict) for line in done.out.splitlines())
    assert not acting(learned.out + learned.err)
    out = Path(NAME) / "run"
    run = poise("run", "folder", f"data={images.resolve()}", "net=small", "epochs=1", "groups=[3,3]", "--out", out)
    assert "data=" in one_line(run), "a recipe is text"
    images.rename("images")
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("run", "folder", "data=images", "net=small", "epochs=1", "groups=[3,3]", "--out", out),
        ("resume", out),
        ("report", out, "--out", "page"),
    )
    for command in commands:
        done = poise(*command)
        assert done.code == 0, done.err
        assert not acting(done.out + done.err)
    assert "<script>alert(1)" not in Path("page/index.html").read_text(encoding="utf-8")
