"""A grid of runs: every cell an ordinary run, finished ones left alone, a bad one stops no other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from poise.errors import RunFailed, UserError
from poise.experiment import Lines, Run, RunFolder, read_sweep, run_sweep

SWEEP = """
recipe = ["digits/lucir", "digits/lwf"]
[set]
epochs = 1
groups = [2, 1]
[grid]
seed = [0, 1]
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "result.json").read_text())
    found.pop("seconds")
    return found


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_cell_gives_what_it_gives_alone(lanes: int, tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    assert len({cell.name for cell in cells}) == 4
    out = io.StringIO()
    folders = run_sweep(cells, tmp_path / "runs", lanes, Lines(None, out))
    alone = RunFolder(tmp_path / "alone")
    Run(cells[-1].plan, alone).start()
    assert result(folders[-1]) == result(alone.path)
    assert (folders[-1] / "model.safetensors").read_bytes() == alone.model.read_bytes()

    before = {folder: (folder / "result.json").read_bytes() for folder in folders}
    run_sweep(cells, tmp_path / "runs", lanes, Lines(None, out))
    assert {folder: (folder / "result.json").read_bytes() for folder in folders} == before


def test_a_cell_that_fails_stops_no_other(tmp_path: Path) -> None:
    text = SWEEP.replace("seed = [0, 1]", "action = [{lr = 0.1}, {lr = 1e30}]")
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    with pytest.raises(RunFailed, match="2 of 4 cells failed"):
        run_sweep(cells, tmp_path / "runs", 2, Lines(None, io.StringIO()))
    assert sum(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells) == 2


def test_a_folder_of_another_run_stops_no_other(tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    Run(cells[0].plan, RunFolder(tmp_path / "runs" / cells[1].name)).start()
    with pytest.raises(RunFailed, match="1 of 4 cells failed"):
        run_sweep(cells, tmp_path / "runs", 2, Lines(None, io.StringIO()))
    assert all(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells)
    assert result(tmp_path / "runs" / cells[1].name)["seed"] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe = 3", "needs recipe"),
        ("recipe = 'digits/lucri'", "did you mean 'digits/lucir'?"),
        ("recipe = 'digits/lucir'\ngrid = 3", "[grid]"),
        ("recipe = 'digits/lucir'\nset = 3", "[set]"),
        ("recipe = 'digits/lucir'\n[gird]\nseed = [1]", "did you mean 'grid'?"),
        ("recipe = 'digits/lucir'\n[grid]\nseed = 1", "must be a list"),
        ("recipe = 'digits/lucir'\n[grid]\nseed = [1, 1]", "describes a cell twice"),
        ("recipe = 'digits/lucir'\n[grid]\nsede = [1]", "did you mean 'seed'?"),
        ("recipe = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        read_sweep(written(tmp_path / "sweep.toml", text))
    assert words in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_sweep(tmp_path / "none.toml")
