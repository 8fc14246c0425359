"""A grid of runs: every cell an ordinary run, finished ones left alone, a bad one stops no other."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from poise import cli
from poise.errors import RunFailed, UserError
from poise.experiment import Cell, Lines, Run, RunFolder, read_sweep, refuse_failed, sweep_cells
from poise.training import Trainer

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


def run_sweep(cells: list[Cell], out: Path, lanes: int | None, lines: Lines, **options: float) -> list[Path]:
    """All cells, none of which may fail; their folders."""
    refuse_failed(sweep_cells(cells, out, lanes, lines, **options), cells)
    return [out / cell.name for cell in cells]


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


# Out of memory ------------------------------------------------------------------------------------------------------


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make trainings run out of memory in the epochs of these numbers, counted over all of them."""
    original = Trainer._epoch

    def starve(*epochs: int) -> None:
        begun = 0

        def epoch(self: Trainer, *args: Any) -> Any:
            nonlocal begun
            begun += 1
            if begun in epochs:
                raise torch.cuda.OutOfMemoryError("injected")
            yield from original(self, *args)

        monkeypatch.setattr(Trainer, "_epoch", epoch)

    return starve


@pytest.mark.parametrize("epochs", [(2,), (5, 6)], ids=["at first", "twice"])
def test_a_cell_that_finds_no_memory_beside_others_goes_on_later(
    epochs: tuple[int, ...], starved: Callable[..., None], tmp_path: Path
) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    expected = [result(folder) for folder in run_sweep(cells, tmp_path / "calm", 1, Lines(None, io.StringIO()))]
    starved(*epochs)
    out = io.StringIO()
    folders = run_sweep(cells, tmp_path / "runs", 3, Lines(None, out), checkpoint_seconds=0)
    assert [result(folder) for folder in folders] == expected
    said = [line for line in out.getvalue().splitlines() if "out of GPU memory beside others" in line]
    assert [line[-8:] for line in said] == [f"lanes: {2 - number}" for number in range(len(epochs))]


def test_a_cell_that_finds_no_memory_alone_fails_in_one_line(
    starved: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "sweep.toml", SWEEP)
    starved(2)
    monkeypatch.setattr(sys, "argv", ["poise", "sweep", str(file), "--out", str(tmp_path / "runs"), "--lanes", "1"])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert leaving.value.code == 1
    (line,) = [line for line in said if "out of GPU memory" in line]
    assert line.endswith("or start again with a smaller batch or image_size")
    assert said[-1].startswith("poise: 1 of 4 cells failed: ")
    starved()
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    assert not leaving.value.code


def test_a_run_that_finds_no_memory_goes_on_where_it_was(starved: Callable[..., None], tmp_path: Path) -> None:
    cell = read_sweep(written(tmp_path / "sweep.toml", SWEEP))[0]
    Run(cell.plan, RunFolder(tmp_path / "calm")).start()
    starved(2)
    with pytest.raises(RunFailed, match=r"^out of GPU memory; free some and 'poise resume [^\n]*$"):
        Run(cell.plan, RunFolder(tmp_path / "run")).start()
    Run(cell.plan, RunFolder(tmp_path / "run")).resume()
    assert result(tmp_path / "run") == result(tmp_path / "calm")


@pytest.mark.gpu
def test_on_a_gpu_the_pace_of_the_cells_changes_no_number(tmp_path: Path) -> None:
    text = SWEEP.replace("[set]", "[set]\ndevice = 'cuda'\ndeterministic = true")
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    alone, paced = (run_sweep(cells, tmp_path / str(lanes), lanes, Lines(None, io.StringIO())) for lanes in (1, None))
    assert [result(folder) for folder in alone] == [result(folder) for folder in paced]
    for one, other in zip(alone, paced, strict=True):
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


# Bad input ----------------------------------------------------------------------------------------------------------


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
