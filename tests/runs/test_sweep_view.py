"""All cells of a sweep in one view: what is done, the rate and the time left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from poise import cli
from poise.errors import UserError
from poise.runs import Lines, pick_cell, read_sweep, sweep_cells
from poise.runs.sweep_view import MOST_ROWS, Rows, Standing, SweepView

SWEEP = "recipe = 'digits/lucir'\n[set]\nepochs = 1\ngroups = [2, 1]\n[grid]\nseed = [0, 1, 2]"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_from_what_was_done_since_the_start() -> None:
    clock, out = Clock(), io.StringIO()
    view = SweepView(Lines(None, out), ["a", "b", "c", "d"], clock)
    with view:
        view.ended("a")  # finished before
        view.note("b", Standing(0, 0.5, 900.0))  # resumed
        assert view.left() is None
        clock.now = 30.0
        view.note("b", Standing(1, 0.75, 1000.0))
        view.note("c", Standing(0, 0.0, 500.0))
        view.note("c", Standing(0, 0.25, 500.0))
        assert view.share == pytest.approx(0.5)
        assert view.left() == pytest.approx(30 * 2.0 / 0.5)
        assert view.summary() == "1 of 4 cells done, 2 at work, 50 %, 1,500 images/s, about 2 min left"
        view.ended("b")
        view.lost("c")
        clock.now = 60.0
        view.note("c", Standing(0, 0.125, 400.0))
    assert view.summary().startswith("2 of 4 cells done, 1 at work, 53 %, 400 images/s, about ")
    assert out.getvalue().splitlines()[0] == "1 of 4 cells done, 1 at work, 44 %, 1,000 images/s, about 4 min left"


def test_in_a_terminal_the_sweep_and_each_cell_at_work_have_a_bar() -> None:
    console, clock = Console(file=io.StringIO(), force_terminal=True, width=100, height=50), Clock()
    rows = Rows(console)
    names = [f"cell-{number}" for number in range(MOST_ROWS + 5)]
    view = SweepView(rows, names, clock)
    with view:
        for name in names:
            clock.now += 1
            view.note(name, Standing(2, 0.5, 100.0))
        view.say("a line")
        view.ended("cell-0")
        clock.now += 1
        view.note("cell-1", Standing(3, 0.9, 100.0))
        assert len(rows._tasks) == MOST_ROWS
        descriptions = [task.description for task in rows._progress.tasks]
        assert "1 of 17 cells" in descriptions
        assert "cell-1, phase 3" in descriptions
        assert "cell-0, phase 2" not in descriptions
    assert "a line" in console.file.getvalue()  # type: ignore[attr-defined]


def test_one_cell_of_a_sweep_is_run_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = ["poise", "sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "runs"), "--cell", "1"]
    for _ in range(2):  # the same command again is no mistake
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        assert not leaving.value.code
        assert "run folder" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-s1")
    assert not (folder / "attempts").exists()
    assert not (tmp_path / "runs" / "report").exists(), "which others would write at the same time"
    cells = read_sweep(tmp_path / "sweep.toml")
    assert not sweep_cells(cells[1:2], tmp_path / "again", 1, Lines(None, io.StringIO()))
    name = cells[1].name
    assert (tmp_path / "again" / name / "journal.jsonl").read_bytes() == (folder / "journal.jsonl").read_bytes()


@pytest.mark.parametrize("number", [-1, 3])
def test_a_cell_that_is_not_there_is_one_line(number: int, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    with pytest.raises(UserError, match=rf"^--cell {number}: {tmp_path}/sweep.toml describes 3 cells, 0 to 2$"):
        pick_cell(read_sweep(tmp_path / "sweep.toml"), number, tmp_path / "sweep.toml")
