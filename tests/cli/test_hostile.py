"""Commands on files that somebody prepared: one line, nothing waits, and nothing is written elsewhere."""

from __future__ import annotations

import json
import os
import signal
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from poise import store
from poise.runs import Run, RunFolder, load_recipe, make_plan

from .samples import TINY, Command, Done, pictures

NAME = os.fsdecode(b"caf\xe9\x1b[31m")  # no UTF-8, and red from there on


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """A command that waits for a FIFO would wait for ever."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


TRAPS: dict[str, Callable[[Path], None]] = {
    "is a FIFO": os.mkfifo,
    "is a device": lambda path: path.symlink_to("/dev/zero"),
    "is larger than": endless,
}


def one_line(done: Done, code: int = 2) -> str:
    assert done.code == code, done.err
    assert done.err.startswith("poise: ")
    assert done.err.count("\n") == 1, done.err
    assert not acting(done.err)
    return done.err


def acting(text: str) -> set[str]:
    """Characters that a terminal would obey."""
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl") and char not in "\n\t"}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first phase, and a learner's file beside it."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run = Run(make_plan("digits/lucir", load_recipe("digits/lucir", TINY)), RunFolder(folder), (), 0.0)
    for _ in run.starting():
        if (folder / "phase-0.safetensors").exists():
            break
    return folder


@pytest.fixture
def copied(stopped: Path) -> Path:
    """The same in this folder."""
    for path in [*stopped.iterdir(), *(stopped / "checkpoints").iterdir()]:
        if path.is_file() and path.name != "lock":
            there = Path("run") / path.relative_to(stopped)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
    return Path("run")


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", TRAPS)
@pytest.mark.parametrize(
    "command",
    [
        ["run", "trap.toml"],
        ["recipes", "trap.toml"],
        ["sweep", "trap.toml"],
        ["predict", "trap.toml", "pets"],
        ["score", "trap.toml", "pets"],
        ["learn", "trap.toml", "pets"],
        ["report", "trap.toml"],
        ["run", "net=trap.py:make"],
        ["learn", "new", "bad"],
        ["run", "folder", "data=bad"],
        ["data", "add", "pets", "--from", "bad"],
        ["predict", "run/model.safetensors", "bad/cat/trap.png"],
        ["cam", "trap.toml", "--images", "pets"],
    ],
    ids=" ".join,
)
def test_a_trap_in_the_place_of_a_file_is_one_line(
    command: list[str], words: str, poise: Command, stopped: Path
) -> None:
    pictures(Path("pets"), "cat dog", 2)
    pictures(Path("bad"), "cat dog", 2)
    Path("run").mkdir()
    Path("run/model.safetensors").write_bytes(_model(stopped))
    for name in ("trap.toml", "trap.py", "bad/cat/trap.png"):
        TRAPS[words](Path(name))
    line = one_line(poise(*command))
    assert words in line or "is not a file" in line or "is not a run folder" in line, line
    assert "trap" in line or "/dev/zero" in line


def _model(stopped: Path) -> bytes:
    """A learner, from the run that was stopped."""
    found = stopped.parent / "learner"
    if not found.exists():
        from poise import Learner

        learner = Learner(epochs=1, net="small", policy="fixed", device="cpu")
        folder = pictures(stopped.parent / "pets", "cat dog", 4)
        learner.partial_fit(str(folder))
        learner.save(found)
    return found.read_bytes()


@pytest.mark.parametrize("words", TRAPS)
@pytest.mark.parametrize("name", ["recipe.json", "checkpoints", "machine.json"])
def test_a_trap_in_a_run_folder_is_one_line(name: str, words: str, poise: Command, copied: Path) -> None:
    path = copied / name
    if name == "checkpoints":
        path = max(path.iterdir())
    path.unlink()
    TRAPS[words](path)
    line = one_line(poise("resume", copied))
    assert words in line, line


@pytest.mark.parametrize("words", ["is a FIFO", "is a device"])
def test_a_journal_that_is_no_file_is_one_line(words: str, poise: Command, copied: Path) -> None:
    (copied / "journal.jsonl").unlink()
    TRAPS[words](copied / "journal.jsonl")
    done = poise("resume", copied)
    assert "journal.jsonl" in one_line(done, done.code)
    assert done.code in (1, 2)


@pytest.mark.parametrize("words", TRAPS)
def test_a_trap_among_what_poise_remembers_is_one_line(words: str, poise: Command, tmp_path: Path) -> None:
    place = tmp_path / "config" / "poise" / "data.json"
    place.parent.mkdir(parents=True)
    TRAPS[words](place)
    assert words in one_line(poise("data"))


def test_a_start_that_is_no_file_is_one_line(poise: Command, copied: Path) -> None:
    (copied / "phase-0.safetensors").unlink()
    os.mkfifo(copied / "phase-0.safetensors")
    assert "is a FIFO" in one_line(poise("run", *TINY, "start=run", "--out", "other"))


def test_bad_files_among_good_ones_are_named_and_the_others_predicted(poise: Command, stopped: Path) -> None:
    Path("model").write_bytes(_model(stopped))
    folder = pictures(Path("pets"), "cat", 3)
    os.mkfifo(folder / "cat" / "fifo.png")
    (folder / "cat" / "link.png").symlink_to("nowhere.png")
    done = poise("predict", "model", folder)
    assert done.code == 0
    assert done.out.count("\n") == 3
    assert "not read: image pets/cat/fifo.png is a FIFO" in done.err
    assert "not read: image pets/cat/link.png is a broken link" in done.err


# What is written ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal.jsonl", "lock", "checkpoints"])
def test_prepared_links_in_a_run_folder_are_not_followed(name: str, poise: Command) -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/victim").write_text("precious")
    Path("run").mkdir()
    for target in ("victim", "new"):
        link = Path("run", name)
        link.symlink_to(Path("../elsewhere") / (target if name != "checkpoints" else ""))
        line = one_line(poise("run", *TINY, "--out", "run"))
        assert f"run/{name} is a link" in line or "holds files of another run" in line
        link.unlink()
    assert {path.name: path.read_text() for path in Path("elsewhere").iterdir()} == {"victim": "precious"}


def test_prepared_links_beside_a_learner_are_not_followed(poise: Command) -> None:
    pictures(Path("pets"), "cat dog", 4)
    victim = Path("victim")
    victim.write_text("precious")
    words = ("learn", "model", "pets", "--epochs", "1", "--net", "small", "--policy", "fixed")
    Path(".model.lock").symlink_to(victim)
    assert ".model.lock is a link" in one_line(poise(*words))
    Path(".model.lock").unlink()
    for name in (".model.tmp", ".model.poise.tmp", "model.tmp"):
        Path(name).symlink_to(victim)
    assert poise(*words).code == 0
    assert victim.read_text() == "precious"
    assert not Path("model").is_symlink()


# What is printed ------------------------------------------------------------------------------------------------------


def test_names_of_any_bytes_work_and_are_printed_harmlessly(poise: Command) -> None:
    names = [NAME, "two\nlines\there", "=cmd", "[red]bold", "犬"]
    for name in names:
        pictures(Path(NAME) / "images", "x", 5, first=names.index(name))
        (Path(NAME) / "images" / "x").rename(Path(NAME) / "images" / name)
    model = Path(NAME) / f"{NAME}.safetensors"
    options = ("--epochs", "1", "--net", "small", "--policy", "fixed")
    done = poise("learn", model, Path(NAME) / "images", *options)
    assert done.code == 0, done.err
    assert not acting(done.out + done.err)
    again = poise("learn", model, Path(NAME) / "images")
    assert (again.code, again.err.count("\n")) == (0, 1)
    assert not acting(again.out + again.err)
    assert "can only be chosen" in one_line(poise("learn", model, Path(NAME) / "images", "--epochs", "2"))
    shown = poise("predict", model, Path(NAME) / "images", "--top", "5")
    assert not acting(shown.out + shown.err)
    lines = shown.out.splitlines()
    assert len(lines) == 25
    assert all(line.count("\t") == 10 for line in lines)
    exact = poise("predict", model, Path(NAME) / "images", "--json")
    assert not acting(exact.out + exact.err)
    found = [json.loads(line) for line in exact.out.splitlines()]
    assert {each["path"] for each in found} == {str(path) for path in (Path(NAME) / "images").rglob("*.png")}
    assert {each["label"] for each in found} <= set(names)
    for words in ((), ("--json",)):
        scored = poise("score", model, Path(NAME) / "images", *words)
        assert scored.code == 0
        assert not acting(scored.out + scored.err)
    (Path(NAME) / "images" / "new\x1b[0m").mkdir()
    assert not acting(poise("score", model, Path(NAME) / "images").err)


def test_a_run_on_names_of_any_bytes_goes_through(poise: Command) -> None:
    folder = Path(NAME)
    for place, name in enumerate((NAME, "b\x07")):
        pictures(Path("images"), "x", 5, first=place)
        Path("images/x").rename(Path("images") / name)
    bad = one_line(poise("run", "folder", os.fsdecode(b"data=caf\xe9")))
    assert "is not text" in bad, "a recipe is text"
    out = folder / "run"
    done = poise("run", "folder", "data=images", "net=small", "epochs=1", "groups=[1,1]", "--out", out)
    assert done.code == 0, done.err
    assert not acting(done.out + done.err)
    assert store.read_json(out / "recipe.json")["class_names"] == ["b\x07", NAME]
    assert poise("resume", out).code == 0
    reported = poise("report", out, "--out", folder / "report")
    assert reported.code == 0, reported.err
    assert not acting(reported.out + reported.err)
    assert "caf\\xe9\\x1b[31m" in (folder / "report" / "index.html").read_text(encoding="utf-8")


def test_escapes_in_mistakes_are_written_out(poise: Command) -> None:
    assert "\\x1b[31mred'" in one_line(poise("run", "data=\x1b[31mred"))
    assert "\\x1b[31m" in one_line(poise("predict", "\x1b[31m", "x.png"))
    assert "\\xff" in one_line(poise("report", os.fsdecode(b"\xff")))


def test_copies_of_training_images_in_the_exam_are_said(poise: Command, caplog: pytest.LogCaptureFixture) -> None:
    for part in ("train", "test"):
        pictures(Path("pets") / part, "cat dog", 3)
    done = poise("run", "folder", "data=pets", "net=small", "epochs=1", "groups=[1,1]", "--out", "run")
    assert done.code == 0, done.err
    assert "6 of the 6 test images are copies of training images (" in caplog.text
