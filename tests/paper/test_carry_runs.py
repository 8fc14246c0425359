"""Runs taken elsewhere: packed in parts, made again there, and resumed to the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import shutil
import tarfile
from pathlib import Path

import pytest

from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "paper" / "carry_runs.py"))
WORDS = ["groups=[2,1]", "epochs=1", "batch=64", "images_per_class=24", "policy=fixed"]


def make(method: str = "lucir") -> Plan:
    return make_plan(f"digits/{method}", load_recipe(f"digits/{method}", WORDS))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A finished run, and one that was left in its second phase."""
    Run(make("lwf"), RunFolder(tmp_path / "runs" / "finished")).start()
    going = Run(make(), RunFolder(tmp_path / "runs" / "left"), checkpoint_seconds=0).starting()
    while not (tmp_path / "runs" / "left" / "phase-0.safetensors").exists():
        next(going)
    next(going)
    going.close()
    return tmp_path / "runs"


def carry(*words: object) -> int:
    code: int = TOOL["main"]([str(word) for word in words])
    return code


def parts_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs.tar.*"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert carry(*words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def small_run(folder: Path) -> Path:
    """What looks like a finished run."""
    folder.mkdir(parents=True)
    for name in ("recipe.json", "journal.jsonl", "result.json"):
        (folder / name).write_text(f"{name} of {folder.name}")
    return folder


def packed_by_hand(folder: Path, *names: str) -> Path:
    """Parts with files of these names, and an index that fits them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    TOOL["write_parts"](stream.getvalue(), folder, 2**20)
    return folder


def test_a_run_that_was_carried_goes_on_to_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    assert carry(runs, "--out", tmp_path / "parts", "--part", 0.05) == 0
    parts = parts_in(tmp_path / "parts")
    assert len(parts) > 1
    content = b"".join(part.read_bytes() for part in parts)
    index = {"parts": len(parts), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert json.loads((tmp_path / "parts" / "runs.index.json").read_text()) == index
    assert all(part.stat().st_size <= 0.05 * 2**20 for part in parts)
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 0
    there = tmp_path / "there"
    assert (there / "finished" / "result.json").read_bytes() == (runs / "finished" / "result.json").read_bytes()
    Run(make(), RunFolder(there / "left")).resume()
    alone = RunFolder(tmp_path / "alone")
    Run(make(), alone).start()
    assert (there / "left" / "model.safetensors").read_bytes() == alone.model.read_bytes()
    assert (there / "left" / "phase-0.safetensors").exists()


def test_what_does_not_fit_is_named_and_the_rest_is_there(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [path.stat().st_size for path in runs.glob("*/phase-0.safetensors")]
    whole = sum(path.stat().st_size for path in runs.rglob("*.json*")) + sum(sizes) // len(sizes) * 2
    assert carry(runs, "--out", tmp_path / "parts", "--most", whole / 2**20) == 0
    assert "left out: " in capsys.readouterr().out
    assert sum(part.stat().st_size for part in parts_in(tmp_path / "parts")) <= whole
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 0
    assert (tmp_path / "there" / "finished" / "result.json").exists()


def test_a_run_that_is_there_is_not_written_over(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry(runs, "--out", tmp_path / "parts")
    (runs / "left" / "journal.jsonl").write_text("further")
    assert carry("--unpack", tmp_path / "parts", "--out", runs) == 0
    assert "nothing" in capsys.readouterr().out
    assert (runs / "left" / "journal.jsonl").read_text() == "further"


def test_parts_that_are_missing_or_damaged_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path / "runs" / "one")
    parts, there = tmp_path / "parts", tmp_path / "there"
    carry(tmp_path / "runs", "--out", parts, "--part", 2048 / 2**20)
    assert len(parts_in(parts)) == 5
    saved = contents(parts)
    for name in ("runs.tar.001", "runs.tar.004"):
        (parts / name).unlink()
        number = int(name[-3:]) + 1
        assert f"{parts} lacks part {number} of 5" in refused(capsys, "--unpack", parts, "--out", there)
        (parts / name).write_bytes(saved[name])
    for name, content in (
        ("runs.tar.000", b"x" + saved["runs.tar.000"][1:]),
        ("runs.tar.004", saved["runs.tar.004"][:-1]),
        ("runs.tar.005", b""),
        ("runs.index.json", b"{}"),
    ):
        (parts / name).write_bytes(content)
        assert f"{parts} is damaged: pack it again" in refused(capsys, "--unpack", parts, "--out", there)
        (parts / name).write_bytes(saved.get(name, b""))
        (parts / "runs.tar.005").unlink(missing_ok=True)
    (parts / "runs.tar.old").write_text("no part")
    assert not there.exists()
    assert carry("--unpack", parts, "--out", there) == 0
    (parts / "runs.index.json").unlink()
    assert "lacks runs.index.json" in refused(capsys, "--unpack", parts, "--out", there)
    assert "does not exist" in refused(capsys, "--unpack", tmp_path / "none", "--out", there)


def test_packing_again_removes_only_surplus_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path / "runs" / "one")
    parts = tmp_path / "parts"
    assert carry(tmp_path / "runs", "--out", parts, "--part", 2048 / 2**20) == 0
    assert capsys.readouterr().out.startswith("1 run, 0.0 MiB in 5 parts")
    others = ("runs.tar.gz", "runs.tar.0001", "runs.tar.1", "notes")
    for name in others:
        (parts / name).write_text("mine")
    assert carry(tmp_path / "runs", "--out", parts) == 0
    assert set(contents(parts)) == {"runs.tar.000", "runs.index.json", *others}


def test_what_cannot_be_packed_deletes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, parts = small_run(tmp_path / "runs" / "one"), tmp_path / "parts"
    carry(tmp_path / "runs", "--out", parts)
    before = contents(parts)
    (tmp_path / "empty").mkdir()
    assert "does not exist" in refused(capsys, tmp_path / "none", "--out", parts)
    assert "holds no run folder" in refused(capsys, tmp_path / "empty", "--out", parts)
    assert "give the folder above it" in refused(capsys, run, "--out", parts)
    assert "--most is too small" in refused(capsys, tmp_path / "runs", "--out", parts, "--most", 0.001)
    assert "--most is too small" in refused(capsys, tmp_path / "runs", "--out", tmp_path / "runs.x", "--most", 1e-9)
    assert contents(parts) == before
    assert str(run / "result.json") in refused(capsys, tmp_path / "runs", "--out", run / "result.json")


def test_a_full_disk_leaves_the_parts_that_were_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "runs" / "one")
    carry(tmp_path / "runs", "--out", tmp_path / "parts")
    before, write = contents(tmp_path / "parts"), Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if ".002" in path.name:
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    words = (tmp_path / "runs", "--out", tmp_path / "parts", "--part", 2048 / 2**20)
    assert "No space left on device" in refused(capsys, *words)
    assert contents(tmp_path / "parts") == before


@pytest.mark.parametrize("option", ["--part", "--most"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "much"])
def test_sizes_that_are_none_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        carry("runs", "--out", "parts", f"{option}={value}")
    assert leaving.value.code == 2
    assert "must be a number of MiB above 0" in capsys.readouterr().err


def test_runs_at_any_depth_keep_their_paths_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, there = tmp_path / "runs", tmp_path / "there"
    long = "/".join(["long" * 20] * 3)
    for name in ("one", "table/two", "cv/first", long, "report/old"):
        small_run(runs / name)
    (runs / "cv" / "crossval.json").write_text("{}")
    os.utime(runs / "one" / "journal.jsonl", (1e9, 1e9))
    assert carry(runs, "--out", tmp_path / "parts") == 0
    assert capsys.readouterr().out.startswith("4 runs, ")
    assert carry("--unpack", tmp_path / "parts", "--out", there) == 0
    shutil.rmtree(runs / "report")
    files = {str(path.relative_to(runs)): path.read_bytes() for path in runs.rglob("*.json*")}
    assert files == {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*") if path.is_file()}
    assert (there / "one" / "journal.jsonl").stat().st_mtime == 1e9
    assert not list(there.rglob(".*"))


def test_a_run_folder_is_made_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "runs" / "one")
    carry(tmp_path / "runs", "--out", tmp_path / "parts")
    words = ("--unpack", tmp_path / "parts", "--out", tmp_path / "there")
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "journal.jsonl":
            raise OSError(28, "No space left on device", str(path))
        return write(path, content)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", full)
        assert "No space left on device" in refused(capsys, *words)
    assert not any((tmp_path / "there").iterdir())
    assert carry(*words) == 0
    assert contents(tmp_path / "there" / "one") == contents(tmp_path / "runs" / "one")


@pytest.mark.parametrize("name", ["/tmp/one/recipe.json", "one/../../recipe.json", "recipe.json"])
def test_files_outside_of_runs_are_refused_before_anything(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = packed_by_hand(tmp_path / "parts", "good/recipe.json", name)
    assert "nothing was unpacked" in refused(capsys, "--unpack", parts, "--out", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_what_ends_a_run_is_read_before_its_journal(tmp_path: Path) -> None:
    finished, going = small_run(tmp_path / "runs" / "finished"), small_run(tmp_path / "runs" / "going")
    (going / "result.json").unlink()
    (going / "checkpoints").mkdir()
    (going / "checkpoints" / "000001.safetensors").write_text("state")
    read = [[path.name for path in together] for together in TOOL["_in_order"]([finished, going])]
    assert read == [
        ["result.json", "recipe.json", "journal.jsonl"],
        ["000001.safetensors", "recipe.json", "journal.jsonl"],
    ]


def test_a_run_is_carried_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = small_run(tmp_path / "runs" / "a-small"), small_run(tmp_path / "runs" / "b-large")
    (large / "result.json").write_text(" " * 2**20)
    assert carry(tmp_path / "runs", "--out", tmp_path / "parts", "--most", 0.5) == 0
    assert capsys.readouterr().out.count("left out: b-large/") == 3
    assert carry("--unpack", tmp_path / "parts", "--out", tmp_path / "there") == 0
    assert [path.name for path in (tmp_path / "there").iterdir()] == [small.name]
