"""A grid of runs: every cell an ordinary run, finished ones left alone, a bad one stops no other."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from PIL import Image

from poise import cli
from poise.errors import Diverged, RunFailed, UserError
from poise.progress import SweepDisplay
from poise.runs import (
    Cell,
    Run,
    RunFolder,
    describe_sweep,
    load_recipe,
    make_plan,
    pick_cell,
    read_sweep,
    refuse_failed,
    reopen,
    sweep_cells,
)
from poise.runs.stopping import Stop
from poise.runs.sweep import CellBench
from poise.training import Bench, Lanes, LocalExecutor, Trainer, make_backend

A = TypeVar("A")
R = TypeVar("R")

SWEEP = """
recipe = ["digits/lucir", "digits/lwf"]
[set]
epochs = 1
groups = [2, 1]
images_per_class = 32
[grid]
seed = [0, 1]
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def run_sweep(cells: list[Cell], out: Path, lanes: int | None, **options: Any) -> list[Path]:
    """All cells, none of which may fail; their folders."""
    refuse_failed(sweep_cells(cells, out, lanes, **options), cells)
    return [out / cell.name for cell in cells]


def result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "result.json").read_text())
    del found["seconds"], found["digest"]
    return found


def test_cells_have_keys_and_folders_of_their_own(tmp_path: Path) -> None:
    text = """
recipe = "digits/lwf"
[set]
epochs = 1
[grid]
seed = [0, 1]
[[cell]]
recipe = "digits/lucir"
setting = "tfs"
epochs = 2
[[cell]]
recipe = "digits/foster"
folder = "digits-foster-strong"
augmentation = "autoaugment+cutout"
action.beta1 = 0.95
"""
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    assert [cell.name for cell in cells] == [
        "digits-lwf-tfh-5-fixed-s0",
        "digits-lwf-tfh-5-fixed-s1",
        "digits-lucir-tfs-5-fixed-s0",
        "digits-lucir-tfs-5-fixed-s1",
        "digits-foster-strong-seed=0",
        "digits-foster-strong-seed=1",
    ]
    assert [cell.plan.recipe.epochs for cell in cells] == [1, 1, 2, 2, 1, 1]
    assert cells[-1].plan.recipe.augmentation == "autoaugment+cutout"
    assert cells[-1].plan.recipe.action["beta1"] == 0.95
    assert cells[0].plan.recipe.augmentation == "data"


def test_a_folder_is_used_as_it_is_and_the_grid_is_appended(tmp_path: Path) -> None:
    text = "[[cell]]\nrecipe = 'digits/lucir'\nfolder = 'my strong run'\n[grid]\norder = ['sorted', 7]"
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    assert [cell.name for cell in cells] == ["my strong run-order=sorted", "my strong run-order=7"]


def test_any_text_of_a_sweep_reaches_the_recipe(tmp_path: Path) -> None:
    start = '/runs/\U0001f600 \u2028 \x85 \x7f \x01 " = #'
    escaped = "".join(f"\\U{ord(character):08x}" for character in start)
    text = f'[set]\nstart = "{escaped}"\n[[cell]]\nrecipe = "digits/lucir"'
    (cell,) = read_sweep(written(tmp_path / "sweep.toml", text))
    assert cell.plan.recipe.start == start


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2024.10", "2024.1"),
        ("2024-01-15", "2024-01-15"),
        ("1_000", "1000"),
        ("0x10", "16"),
        ("true", "True"),
        ("['a']", "['a']"),
    ],
)
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("recipe = 'digits/lucir'\n[set]\nKEY = VALUE", ", [set]"),
        ("recipe = 'digits/lucir'\n[grid]\nKEY = ['pets', VALUE]", ", [grid]"),
        ("[[cell]]\nrecipe = 'digits/lucir'\nKEY = VALUE", ", [[cell]] 0 (counted from 0)"),
    ],
)
@pytest.mark.parametrize("key", ["data", "start", "trials.environment"])
def test_a_number_for_a_key_that_takes_only_text_is_refused(
    key: str, text: str, place: str, value: str, shown: str, tmp_path: Path
) -> None:
    """TOML does not keep how it was written, so the folder 2024.1 would be used for 2024.10."""
    path = written(tmp_path / "sweep.toml", text.replace("KEY", key).replace("VALUE", value))
    with pytest.raises(UserError) as caught:
        read_sweep(path)
    assert str(caught.value) == f"{path}{place}: key '{key}': must be text, in quotation marks, not {shown}"


def test_tables_in_a_grid_are_what_they_were(tmp_path: Path) -> None:
    text = "recipe = 'digits/lucir'\n[grid]\naction = [{lr = 0.1}, {lr = 0.02}]"
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    assert [cell.plan.recipe.action for cell in cells] == [{"lr": 0.1}, {"lr": 0.02}]


@pytest.mark.parametrize(
    "text",
    [
        "[set]\nmemory.total = 30\nmemory.per_class = 3",
        "[grid]\nmemory.total = [30, 40]\nmemory.per_class = [3]",
        "[set]\nmemory.per_class = 3\n[grid]\nmemory.total = [30, 40]",
    ],
)
def test_two_sizes_of_the_memory_are_refused(tmp_path: Path, text: str) -> None:
    """One would undo the other: cells of different names would be the same run."""
    with pytest.raises(UserError, match=r"sweep\.toml, recipe .* are both given, and one would undo the other"):
        read_sweep(written(tmp_path / "sweep.toml", f"recipe = 'digits/lucir'\n{text}"))


def test_a_key_beside_the_size_of_the_memory_counts_in_either_order(tmp_path: Path) -> None:
    text = "recipe = 'digits/lucir'\n[set]\n'memory.reserve' = 2\nmemory = 12"
    (cell,) = read_sweep(written(tmp_path / "sweep.toml", text))
    assert (cell.plan.recipe.memory.per_class, cell.plan.recipe.memory.reserve) == (12, 2)


@pytest.mark.parametrize(
    "text",
    [
        "[set]\nmemory = 12\n[grid]\n'memory.reserve' = [1, 2]",
        "[set]\nmemory = 12\n[grid]\nmemory.reserve = [1, 2]",
        "[[cell]]\nrecipe = 'digits/lwf'\nfolder = 'x'\nmemory = 12\n[grid]\nmemory.reserve = [1, 2]",
        "[grid]\nmemory = [12]\n'memory.reserve' = [1, 2]",
    ],
)
def test_the_size_of_the_memory_may_be_in_another_table_than_keys_beside_it(tmp_path: Path, text: str) -> None:
    start = "" if "[[cell]]" in text else "recipe = 'digits/lucir'\n"
    cells = read_sweep(written(tmp_path / "sweep.toml", f"{start}{text}"))
    found = [(cell.plan.recipe.memory.per_class, cell.plan.recipe.memory.reserve) for cell in cells]
    assert found == [(12, 1), (12, 2)]


def test_sizes_of_the_memory_in_a_grid_keep_the_keys_beside_them(tmp_path: Path) -> None:
    text = "recipe = 'digits/lucir'\n[set]\nmemory.reserve = 2\n[grid]\nmemory = [12, 14]"
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    found = [(cell.plan.recipe.memory.per_class, cell.plan.recipe.memory.reserve) for cell in cells]
    assert found == [(12, 2), (14, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "[set]\nmemory = 12\n[grid]\nmemory.total = [30, 40]",
        "[set]\nmemory = 'all'\n[grid]\nmemory.reserve = [1]",
        "[set]\nmemory.reserve = 2\n[grid]\nmemory = [12, {total = 30}]",
        "[grid]\nmemory = [12, 'all']\n'memory.reserve' = [1]",
    ],
)
def test_a_memory_in_another_table_that_would_be_undone_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"in \[grid\] sets `memory.*, too; leave one of them out"):
        read_sweep(written(tmp_path / "sweep.toml", f"recipe = 'digits/lucir'\n{text}"))


def test_a_cell_may_change_the_size_of_the_memory_of_all(tmp_path: Path) -> None:
    text = "[set]\nmemory.total = 30\n[[cell]]\nrecipe = 'digits/lucir'\nmemory.per_class = 3"
    (cell,) = read_sweep(written(tmp_path / "sweep.toml", text))
    assert (cell.plan.recipe.memory.per_class, cell.plan.recipe.memory.total) == (3, None)


def test_a_key_with_dots_in_a_grid_may_be_written_as_elsewhere(tmp_path: Path) -> None:
    texts = ["[grid]\naction.lr = [0.1, 0.02]", "[grid.action]\nlr = [0.1, 0.02]", "[grid]\n'action.lr' = [0.1, 0.02]"]
    for text in texts:
        cells = read_sweep(written(tmp_path / "sweep.toml", f"recipe = 'digits/lucir'\n{text}"))
        assert [cell.plan.recipe.action for cell in cells] == [{"lr": 0.1}, {"lr": 0.02}]
        assert [cell.name.rpartition("-")[2] for cell in cells] == ["action.lr=0.1", "action.lr=0.02"]


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_cell_gives_what_it_gives_alone(lanes: int, tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    assert len({cell.name for cell in cells}) == 4
    folders = run_sweep(cells, tmp_path / "runs", lanes)
    alone = RunFolder(tmp_path / "alone")
    Run(cells[-1].plan, alone).start()
    assert result(folders[-1]) == result(alone.path)
    assert (folders[-1] / "model.safetensors").read_bytes() == alone.model.read_bytes()

    before = {folder: (folder / "result.json").read_bytes() for folder in folders}
    run_sweep(cells, tmp_path / "runs", lanes)
    assert {folder: (folder / "result.json").read_bytes() for folder in folders} == before


TRYING = """
[set]
epochs = 4
groups = [2, 1, 1]
images_per_class = 32
[[cell]]
recipe = "digits/lucir"
policy = "exp3"
policy_options.iterations = 4
[[cell]]
recipe = "digits/lucir"
policy = "offline-rl"
groups = [4, 1]
policy_options.episodes = 2
[[cell]]
recipe = "digits/lucir"
"""


def test_while_one_cell_tries_actions_the_others_go_on(tmp_path: Path) -> None:
    cells, turns = read_sweep(written(tmp_path / "sweep.toml", TRYING)), list[str]()
    before = {cell.name: RunFolder(tmp_path / "alone" / cell.name) for cell in cells}
    for cell in cells:
        Run(cell.plan, before[cell.name]).start()

    class View(SweepDisplay):
        def note(self, name: str, standing: tuple[int, int, int]) -> None:
            super().note(name, standing)
            turns.append(name)

    view = View([cell.name for cell in cells])
    executor = LocalExecutor(Lanes(make_backend("cpu", "fp32", deterministic=False), len(cells)))
    assert [each for known in executor.run(CellBench(tmp_path / "runs", view=view), cells) for each in known] == [
        None
    ] * 3
    together = turns[: min(len(turns) - turns[::-1].index(cell.name) for cell in cells)]  # until the first one ended
    assert len(together) > 60
    for name in before:
        waits = [len(wait) for wait in "".join(" x"[each == name] for each in together).split("x")]
        assert max(waits) <= 4, f"{name} waited while others had several turns"
    for name, alone in before.items():
        assert result(tmp_path / "runs" / name) == result(alone.path)


def test_a_cell_that_fails_stops_no_other(tmp_path: Path) -> None:
    text = SWEEP.replace("seed = [0, 1]", "action = [{lr = 0.1}, {lr = 1e30}]")
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    with pytest.raises(RunFailed, match="2 of 4 cells failed"):
        run_sweep(cells, tmp_path / "runs", 2)
    assert sum(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells) == 2


def test_a_folder_of_another_run_stops_no_other(tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    Run(cells[0].plan, RunFolder(tmp_path / "runs" / cells[1].name)).start()
    with pytest.raises(RunFailed, match="1 of 4 cells failed"):
        run_sweep(cells, tmp_path / "runs", 2)
    assert all(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells)
    assert result(tmp_path / "runs" / cells[1].name)["seed"] == 0


def test_an_error_that_nobody_foresaw_is_the_cells_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of torch, in the training of one cell; the others go on, and it goes on itself when that is mended."""
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    original = Trainer._epoch

    def epoch(self: Trainer, *args: Any) -> Any:
        if self.context.seed == 1 and self.context.method.name == "lwf" and self.context.phase == 1:
            torch.zeros(2, 3) @ torch.zeros(2, 3)
        yield from original(self, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "_epoch", epoch)
        failed = sweep_cells(cells, tmp_path / "runs", 2, checkpoint_seconds=0)
    (name,) = failed
    assert "lwf" in name
    assert name.endswith("s1")
    assert str(failed[name]).startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert str(failed[name]).endswith(f"('poise resume {tmp_path / 'runs' / name}' shows where)")
    assert capsys.readouterr().err.count("RuntimeError") == 1
    assert failed[name].__traceback__ is None
    assert sum(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells) == 3
    assert run_sweep(cells, tmp_path / "runs", 1)


def test_a_finished_cell_that_was_changed_is_named(tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))[:2]
    folders = run_sweep(cells, tmp_path / "runs", 1)
    text = (folders[0] / "result.json").read_text()
    (folders[0] / "result.json").write_text(text.replace('"seed": 0', '"seed": 7'))
    failed = sweep_cells(cells, tmp_path / "runs", 1)
    assert list(failed) == [cells[0].name]
    assert "do not match their digest" in str(failed[cells[0].name])


# Elsewhere ----------------------------------------------------------------------------------------------------------


class Elsewhere:
    """Runs cells as another machine would: what goes there and what comes back are bytes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def run(self, bench: Bench[A, R], attempts: Sequence[A]) -> Iterator[R]:
        for attempt in attempts:
            self.sent.append(pickle.dumps((bench, attempt)))
            there, received = pickle.loads(self.sent[-1])
            lanes = Lanes(make_backend("cpu", "fp32", deterministic=False), 1)
            (found,) = (each for known in LocalExecutor(lanes).run(there, [received]) for each in known)
            yield pickle.loads(pickle.dumps(found))


def result_bytes(folder: Path) -> bytes:
    """result.json but for its seconds, and the digest, which is about them too."""
    return re.sub(rb'"seconds": \{[^}]*\}|"digest": "[0-9a-f]*"', b"", (folder / "result.json").read_bytes())


def test_cells_that_ran_elsewhere_give_the_same_bytes(tmp_path: Path) -> None:
    text = SWEEP.replace("epochs = 1", "epochs = 3\npolicy = 'race'\nspace = {lr = [0.1, 0.02]}")
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    here = run_sweep(cells, tmp_path / "here", 2)
    elsewhere = Elsewhere()
    there = run_sweep(cells, tmp_path / "there", None, executor=elsewhere)
    assert len(elsewhere.sent) == len(cells)
    assert max(map(len, elsewhere.sent)) < 10_000, "plain values, without images"
    for one, other in zip(here, there, strict=True):
        assert result_bytes(one) == result_bytes(other)
        for name in ("journal.jsonl", "model.safetensors"):
            assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_cell_that_fails_elsewhere_is_named_here(tmp_path: Path) -> None:
    text = SWEEP.replace("seed = [0, 1]", "action = [{lr = 0.1}, {lr = 1e30}]")
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    failed = sweep_cells(cells, tmp_path / "runs", None, executor=Elsewhere())
    assert list(failed) == [cell.name for cell in cells if "1e+30" in cell.name]
    assert all(isinstance(error, Diverged) for error in failed.values())


def test_plans_and_cells_are_the_same_after_pickling(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    for label in ("cat", "dog", "eel"):
        (pictures / label).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (9, 9), (90 * number, 9, 9)).save(pictures / label / f"{number}.png")
    words = [
        *((), ("policy=race", "space={lr=[0.1,0.02]}", "seed=4"), ("policy=online", "tune=kd")),
        *(("order=sorted", "exam=dev"), ("memory.total=60", "memory.reserve=1", "start=runs/other")),
        (f"data={pictures}", "image_size=8", "groups=[[2],[0,1]]", "policy=fixed"),
    ]
    for each in words:
        cell = Cell("some cell", make_plan("digits/lucir", load_recipe("digits/lucir", ["groups=[2,1]", *each])))
        again = pickle.loads(pickle.dumps(cell))
        assert again.name == cell.name
        for name in ("name", "recipe", "stream", "settings"):
            assert getattr(again.plan, name) == getattr(cell.plan, name)
        assert again.plan.as_json() == cell.plan.as_json(), "the data by their fingerprint"
        assert again.plan.identity() == cell.plan.identity()


def test_a_bench_is_quiet_after_pickling(tmp_path: Path) -> None:
    bench = CellBench(tmp_path, 7.0, SweepDisplay(()), Stop())
    bench.stop.set()
    again = pickle.loads(pickle.dumps(bench))
    assert (again.out, again.checkpoint_seconds, again.view) == (tmp_path, 7.0, None)
    assert not again.stop.is_set()


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
    epochs: tuple[int, ...], starved: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
    expected = [result(folder) for folder in run_sweep(cells, tmp_path / "calm", 1)]
    starved(*epochs)
    folders = run_sweep(cells, tmp_path / "runs", 3, checkpoint_seconds=0)
    assert [result(folder) for folder in folders] == expected
    said = [line for line in caplog.messages if line.startswith("out of memory")]
    assert said == [f"out of memory on cpu: {2 - number} at a time from now on" for number in range(len(epochs))]


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
    alone, paced = (run_sweep(cells, tmp_path / str(lanes), lanes) for lanes in (1, None))
    assert [result(folder) for folder in alone] == [result(folder) for folder in paced]
    for one, other in zip(alone, paced, strict=True):
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


# Starting from another cell's phase 0 ---------------------------------------------------------------------------------

SHARING = """
[set]
epochs = 1
groups = [2, 1]
images_per_class = 32
[[cell]]
recipe = "digits/lucir"
folder = "child"
action.lr = 0.02
start = "{out}/parent"
[[cell]]
recipe = "digits/lucir"
folder = "grandchild"
start = "{out}/child"
[[cell]]
recipe = "digits/lucir"
folder = "parent"
"""


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_cell_may_start_from_the_phase_0_of_another(lanes: int, tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SHARING.format(out=tmp_path / "out")))
    outline = describe_sweep(cells, tmp_path / "out")
    assert not outline.refused
    assert outline.text.count("  new  ") == 3
    folders = run_sweep(cells, tmp_path / "out", lanes)
    child, grandchild, parent = (result(folder) for folder in folders)
    assert [len(journal_of(folder, "epoch")) for folder in folders] == [1, 1, 2], "phase 0 was trained once"
    assert child["curve"][0]["accuracy"] == parent["curve"][0]["accuracy"]  # type: ignore[index]
    for name in ("curve", "accuracy_matrix"):
        assert grandchild[name] == parent[name] != child[name]
    after = [folder.stat().st_mtime_ns for folder in folders]
    run_sweep(cells, tmp_path / "out", lanes)
    assert [folder.stat().st_mtime_ns for folder in folders] == after


def journal_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [event for event in events if event.get("event") == kind]


def test_where_it_fails_those_that_wait_for_its_phase_0_fail_too(tmp_path: Path) -> None:
    text = SHARING.format(out=tmp_path / "out") + "first_lr = 1e38\n"
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    failed = sweep_cells(cells, tmp_path / "out", 2)
    assert set(failed) == {"child", "grandchild", "parent"}
    assert "has no phase-0.safetensors" in str(failed["child"])


def test_cells_that_start_from_each_other_are_refused(tmp_path: Path) -> None:
    text = SHARING.format(out=tmp_path / "out") + f"start = '{tmp_path / 'out' / 'grandchild'}'\n"
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    with pytest.raises(UserError, match="each starts from one of them: child, grandchild, parent"):
        sweep_cells(cells, tmp_path / "out", 1)
    with pytest.raises(UserError, match="each starts from one of them"):
        describe_sweep(cells, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("seed = 1", "child: start=.*/out/parent has another seed"),
        ("memory.per_class = 1", "child: start=.*/out/parent keeps other images after phase 0"),
        ("net = 'resnet32'", "child: start=.*/out/parent was trained with small"),
        ("policy = 'offline-rl'", "child: policy=offline-rl learns before the first phase"),
        ("augmentation = 'cutout'", "child: start=.*/out/parent was trained with augmentation=data"),
    ],
)
def test_a_phase_0_that_will_not_fit_is_refused_before_anything_is_trained(
    key: str, words: str, tmp_path: Path
) -> None:
    text = SHARING.format(out=tmp_path / "out").replace("action.lr = 0.02", key)
    cells = read_sweep(written(tmp_path / "sweep.toml", text))
    with pytest.raises(UserError, match=words):
        sweep_cells(cells, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_a_start_that_no_file_system_has_stops_no_other_cell(tmp_path: Path) -> None:
    text = SWEEP.replace("[grid]", f'[[cell]]\nrecipe = "digits/lwf"\nfolder = "x"\nstart = "{"n" * 300}"\n[grid]')
    cells = [cell for cell in read_sweep(written(tmp_path / "sweep.toml", text)) if cell.name.endswith(("=0", "-s0"))]
    refused = describe_sweep(cells, tmp_path / "out").refused
    failed = sweep_cells(cells, tmp_path / "out", 1)
    assert list(refused) == list(failed) == ["x-seed=0"]
    for error in (refused["x-seed=0"], failed["x-seed=0"]):
        assert isinstance(error, UserError)
        assert "cannot be looked into (File name too long); give the folder of a run" in str(error)


@pytest.mark.parametrize("more", [(), ("deeper", "still")], ids=["", "below"])
def test_cells_cannot_be_put_into_a_file(more: tuple[str, ...], tmp_path: Path) -> None:
    file = written(tmp_path / "sweep.toml", SWEEP)
    cells, out = read_sweep(file), file.joinpath(*more)
    for begin in (lambda: describe_sweep(cells, out), lambda: sweep_cells(cells, out, 1)):
        with pytest.raises(UserError, match=r"sweep\.toml is a file; give a folder as --out"):
            begin()


def test_the_folder_of_a_sweep_cannot_be_resumed_but_its_runs_can(tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))[:1]
    (folder,) = run_sweep(cells, tmp_path / "out", 1)
    with pytest.raises(UserError, match=rf"give one, such as {folder}, or give the same 'poise sweep' command again"):
        reopen(tmp_path / "out")


@pytest.mark.parametrize(("count", "words"), [(1, "describes 1 cell, number 0"), (2, "describes 2 cells, 0 to 1")])
def test_a_cell_that_is_not_there_is_refused(count: int, words: str, tmp_path: Path) -> None:
    cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))[:count]
    for number in (-1, count):
        with pytest.raises(UserError, match=words):
            pick_cell(cells, number, tmp_path / "sweep.toml")


def test_a_sweep_file_is_no_recipe(tmp_path: Path) -> None:
    file = written(tmp_path / "sweep.toml", SWEEP)
    with pytest.raises(UserError, match=rf"is a sweep file, not a recipe; run it with 'poise sweep {file}'"):
        load_recipe(str(file))


class TestMovedStart:
    """A cell that was begun, whose start lies at another path now."""

    @pytest.fixture
    def whole(self, tmp_path: Path) -> Path:
        """All results of a sweep. It was made in `before`, its child stopped in phase 1, and then moved to `after`."""
        out = tmp_path / "before"
        cells = read_sweep(written(tmp_path / "before.toml", SHARING.format(out=out)))
        run_sweep(cells, out, 1)
        shutil.copytree(out, tmp_path / "whole")
        shutil.rmtree(out / "child")
        going = Run(cells[0].plan, RunFolder(out / "child"), checkpoint_seconds=0).starting()
        next(going)
        going.close()
        out.rename(tmp_path / "after")
        return tmp_path / "whole"

    @staticmethod
    def outcome(cells: list[Cell], out: Path) -> dict[str, str]:
        """Why cells are refused: the same by an estimate, and when they are run."""
        estimated = {name: str(error) for name, error in describe_sweep(cells, out).refused.items()}
        failed = sweep_cells(cells, out, 1)
        assert estimated == {name: str(error) for name, error in failed.items()}
        return estimated

    @pytest.fixture
    def cells(self, whole: Path, tmp_path: Path) -> list[Cell]:
        return read_sweep(written(tmp_path / "after.toml", SHARING.format(out=tmp_path / "after")))

    def test_it_goes_on_and_gives_the_same_bytes(self, cells: list[Cell], whole: Path, tmp_path: Path) -> None:
        lines = describe_sweep(cells, tmp_path / "after").text.splitlines()
        assert [line.split()[1] for line in lines[1:4]] == ["begun", "finished", "finished"]
        assert self.outcome(cells, tmp_path / "after") == {}
        for name in ("child", "grandchild", "parent"):
            assert result_bytes(tmp_path / "after" / name) == result_bytes(whole / name)
            for file in ("journal.jsonl", "model.safetensors", "phase-0.safetensors"):
                assert (tmp_path / "after" / name / file).read_bytes() == (whole / name / file).read_bytes()

    def test_the_phase_0_of_another_run_is_refused(self, cells: list[Cell], tmp_path: Path) -> None:
        text = SHARING.format(out=tmp_path / "other").replace("epochs = 1", "epochs = 2")
        parent = read_sweep(written(tmp_path / "other.toml", text))[2]
        Run(parent.plan, RunFolder(tmp_path / "other" / "parent")).start()
        text = SHARING.format(out=tmp_path / "after").replace("after/parent", "other/parent")
        wrong = read_sweep(written(tmp_path / "wrong.toml", text))
        before = (tmp_path / "after" / "child" / "journal.jsonl").read_bytes()
        why = f"start='{tmp_path}/before/parent', another phase 0 than that of {tmp_path}/other/parent"
        assert self.outcome(wrong, tmp_path / "after") == {
            "child": f"{tmp_path}/after/child holds another run ({why}); choose another --out"
        }
        assert (tmp_path / "after" / "child" / "journal.jsonl").read_bytes() == before

    def test_where_it_is_gone_that_is_said(self, cells: list[Cell], tmp_path: Path) -> None:
        (tmp_path / "after" / "parent" / "phase-0.safetensors").unlink()
        (why,) = self.outcome(cells, tmp_path / "after").values()
        assert f"{tmp_path}/after/parent has no phase-0.safetensors to compare with, 'poise resume' needs none" in why

    def test_an_older_poise_wrote_no_fingerprint(self, cells: list[Cell], whole: Path, tmp_path: Path) -> None:
        child = RunFolder(tmp_path / "after" / "child")
        saved = json.loads(child.recipe.read_text())
        assert saved.pop("start_fingerprint") == RunFolder(whole / "parent").phase_0_fingerprint()
        child.recipe.write_text(json.dumps(saved))
        own = child.phase_0.read_bytes()
        child.phase_0.unlink()
        (why,) = self.outcome(cells[:1], tmp_path / "after").values()
        assert f"of which nothing is left to compare {tmp_path}/after/parent with" in why
        child.phase_0.write_bytes(own)
        assert not describe_sweep(cells, tmp_path / "after").refused


def test_a_cell_whose_start_was_trained_anew_is_refused(tmp_path: Path) -> None:
    out, other = tmp_path / "out", RunFolder(tmp_path / "other" / "parent")
    cells = read_sweep(written(tmp_path / "sweep.toml", SHARING.format(out=out)))
    run_sweep(cells, out, 1)
    text = SHARING.format(out=other.path.parent).replace("epochs = 1", "epochs = 2")
    Run(read_sweep(written(tmp_path / "other.toml", text))[2].plan, other).start()
    shutil.copyfile(other.phase_0, out / "parent" / "phase-0.safetensors")
    (failed,) = sweep_cells(cells, out, 1).values()
    assert f"child holds another run (start='{out}/parent', where another phase 0 lies now)" in str(failed)
    for change in (lambda file: file.write_bytes(b"damaged"), Path.unlink):
        change(out / "parent" / "phase-0.safetensors")
        assert not sweep_cells(cells, out, 1), "it is not needed any more"


def test_data_that_were_moved_with_a_sweep_are_the_same_data(tmp_path: Path) -> None:
    for label in ("cat", "dog", "eel"):
        (tmp_path / "before" / "pictures" / label).mkdir(parents=True)
        for number in range(8):
            picture = Image.new("RGB", (9, 9), (30 * number, 9, 9))
            picture.save(tmp_path / "before" / "pictures" / label / f"{number}.png")
    text = "[[cell]]\nrecipe = 'folder'\nfolder = 'x'\nepochs = 1\nimage_size = 8\nexam = 'dev'\ngroups = [2, 1]\n"
    for place in ("before", "after"):
        file = written(tmp_path / f"{place}.toml", f"{text}data = '{tmp_path / place / 'pictures'}'\n")
        if place == "after":
            (tmp_path / "before").rename(tmp_path / "after")
        cells = read_sweep(file)
        run_sweep(cells, tmp_path / place, 1)
    assert len(journal_of(tmp_path / "after" / "x", "exam")) == 2
    Image.new("RGB", (9, 9)).save(tmp_path / "after" / "pictures" / "cat" / "0.png")
    failed = sweep_cells(read_sweep(file), tmp_path / "after", 1)
    assert "holds another run (of other data)" in str(failed["x"])


def test_the_same_data_with_other_exam_images_are_other_data(tmp_path: Path) -> None:
    for place, part in itertools.product(("one", "other"), ("train", "test")):
        shade = 90 if (place, part) == ("other", "test") else 0
        for label, number in itertools.product(("cat", "dog", "eel"), range(8)):
            (tmp_path / place / part / label).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 9), (30 * number, 9, shade)).save(tmp_path / place / part / label / f"{number}.png")
    text = "[[cell]]\nrecipe = 'folder'\nfolder = 'x'\nepochs = 1\nimage_size = 8\ngroups = [2, 1]\n"
    one, other = (
        read_sweep(written(tmp_path / f"{place}.toml", f"{text}data = '{tmp_path / place}'\n"))
        for place in ("one", "other")
    )
    run_sweep(one, tmp_path / "out", 1)
    failed = sweep_cells(other, tmp_path / "out", 1)
    for error in (failed["x"], describe_sweep(other, tmp_path / "out").refused["x"]):
        assert f"the exam images are not those {tmp_path / 'out' / 'x'} was started with" in str(error)


class TestOutline:
    def test_a_damaged_folder_is_one_refused_cell(self, tmp_path: Path) -> None:
        cells = read_sweep(written(tmp_path / "sweep.toml", SWEEP))
        (tmp_path / "out" / cells[1].name).mkdir(parents=True)
        (tmp_path / "out" / cells[1].name / "recipe.json").write_text("{")
        outline = describe_sweep(cells, tmp_path / "out")
        assert list(outline.refused) == [cells[1].name]
        assert outline.text.count("  new  ") == 3

    def test_a_begun_cell_needs_its_start_no_more(self, tmp_path: Path) -> None:
        cells = read_sweep(written(tmp_path / "sweep.toml", SHARING.format(out=tmp_path / "out")))
        child, _, parent = run_sweep(cells, tmp_path / "out", 1)
        (child / "result.json").unlink()
        shutil.rmtree(parent)
        outline = describe_sweep(cells[:1], tmp_path / "out", 7)
        assert not outline.refused
        assert "   7  begun     " in outline.text

    def test_images_of_imagenet_need_not_be_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POISE_DATA", str(tmp_path))
        file = written(tmp_path / "sweep.toml", 'recipe = "imagenet-subset/icarl"\n[grid]\nseed = [0, 1]\n')
        outline = describe_sweep(read_sweep(file, outlined=True), tmp_path / "out")
        assert not outline.refused
        assert outline.text.count("  new       ") == 2


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
        ("recipe = 'digits/lucir'\n[grid]\nseed = [1, 1]", "[grid] lists a value twice"),
        ("recipe = ['digits/lucir']\n[[cell]]\nrecipe = 'digits/lucir'\nepochs = 1", 'folder = "NAME"'),
        ("recipe = 'digits/lucir'\n[set]\nfolder = 'x'", "`folder` in [set]"),
        ("recipe = 'digits/lucir'\n[grid]\nfolder = ['x']", "`folder` in [grid]"),
        ("recipe = 'digits/lucir'\n[set]\n'a=b' = 1", "no key is called 'a=b'"),
        ("recipe = 'digits/lucir'\n[set]\n'a#b' = 1", "without =, # and blanks"),
        ("recipe = 'digits/lucir'\n[grid]\naction = [{'l r' = 1}]", "no key is called 'l r'"),
        ("", "recipe"),
        ("", "[[cell]]"),
        ("cell = []", "[[cell]]"),
        ("recipe = []\ncell = []", 'recipe = "NAME"'),
        ("recipe = 'digits/lucir'\n[grid]\nsede = [1]", "did you mean 'seed'?"),
        ("recipe = ", "is not TOML"),
        ("recipe = []", "needs recipe"),
        ("[cell]\nrecipe = 'digits/lucir'", "[[cell]]"),
        ("cell = [3]", "[[cell]]"),
        ("[[cell]]\nseed = 1", "needs recipe"),
        ("[[cell]]\nrecipe = 'digits/lucir'\nsede = 1", "did you mean 'seed'?"),
        ("[[cell]]\nrecipe = 'digits/lucir'\n[[cell]]\nrecipe = 'digits/lucir'", "describes a cell twice"),
        ("[[cell]]\nrecipe = 'digits/lucir'\nfolder = '../elsewhere'", "without slashes"),
        ("[[cell]]\nrecipe = 'digits/lucir'\nfolder = 3", "must be text"),
        (
            "[[cell]]\nrecipe = 'digits/lucir'\n[[cell]]\nrecipe = 'digits/lwf'\nsede = 1",
            "sweep.toml, [[cell]] 1 (counted from 0): unknown",
        ),
        ("[[cell]]\nrecipe = 'digits/lucir'\n[[cell]]\nseed = 1", "sweep.toml, [[cell]] 1 (counted from 0): each"),
        (
            "[[cell]]\nrecipe = 'digits/lucir'\n[cell.grid]\nseed = [1]",
            "[[cell]] 0 (counted from 0): [grid] holds for all cells",
        ),
        ("[[cell]]\nrecipe = 'digits/lucir'\nset = 3", "[[cell]] 0 (counted from 0): [set] holds for all cells"),
        ("[[cell]]\nrecipe = 'digits/lucir'\nseed = 1\n[grid]\nseed = [1]", "`seed` is in [grid] and in a [[cell]]"),
        ("[[cell]]\nrecipe = 'digits/lucir'\naction.lr = 1\n[grid]\n'action.lr' = [1]", "`action.lr` is in [grid]"),
        ("[[cell]]\nrecipe = 'digits/lucir'\naction.lr = 1\n[grid]\naction = [{lr = 1}]", "`action` in [grid] sets"),
        ("recipe = 'digits/lucir'\n[set]\nseed = 1\n[grid]\nseed = [1]", "`seed` is in [grid] and in [set]"),
        ("recipe = 'digits/lucir'\n[set.action]\nlr = 1\n[grid]\naction = [{lr = 1}]", "sets `action.lr` of [set]"),
        ("recipe = 'digits/lucir'\n[grid]\naction = [{lr = 1}]\n'action.lr' = [1]", "in [grid] sets `action.lr`"),
        (
            "[[cell]]\nrecipe = 'digits/lucir'\noptions = {}",
            "[[cell]] 0 (counted from 0): `options` is a table without keys",
        ),
        ("recipe = 'digits/lucir'\n[set.memory.x]", "`memory.x` is a table without keys"),
        ("recipe = 'digits/lucir'\n[grid.action]", "`action` is a table without keys"),
        ("recipe = 'digits/lucir'\n[grid]\naction.lr = 1", "sweep.toml: grid.action.lr must be a list"),
        ("recipe = 'digits/lucir'\n[grid]\n'action.lr' = [1]\naction.lr = [2]", "`action.lr` is there with quotation"),
        ("recipe = 'digits/lucir'\n[set]\n'action.lr' = 1\naction.lr = 2", "`action.lr` is there with quotation"),
        (
            "[[cell]]\nrecipe = 'digits/lucir'\n'action.lr' = 1\naction.lr = 2",
            "[[cell]] 0 (counted from 0): `action.lr` is there with",
        ),
        ("recipe = 'digits/lucir'\nepochs = 1", "sweep.toml: `epochs` at the top is for no cell; put it under [set]"),
        ("method = 'lucir'", "is a recipe, not a sweep file; run it with 'poise run "),
        ("recipe = 'digits/lucir'\n[set]\nrecipe = 'digits/lwf'", "take `recipe` out of [set]"),
        ("recipe = 'digits/lucir'\n[grid]\nrecipe = ['digits/lwf']", "take `recipe` out of [grid]"),
        (
            "[[cell]]\nrecipe = 'digits/lucir'\nfoldr = 'x'",
            "[[cell]] 0 (counted from 0): unknown key 'foldr'; did you mean 'folder'?",
        ),
        ("recipe = ['digits/podnet', 'digits/lwf']\n[set]\naction.pod = 1", "sweep.toml, recipe 'digits/lwf': "),
        (f"recipe = 'digits/lucir'\n[grid]\nstart = ['{'n' * 240}']", "a folder's name of 2"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        read_sweep(written(tmp_path / "sweep.toml", text))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "rule"),
    [
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        (" strong", "begin or end with a blank"),
        ("strong ", "begin or end with a blank"),
        (".", "a name of its own"),
        ("..", "a name of its own"),
        ("a/b", "without slashes"),
        ("a\\b", "without slashes"),
        ("a\nb", "control characters"),
        ("a\u202eb", "direction of writing"),
        ("ö" * 101, "has 202 bytes"),
        ("a" * 195, "has 202 bytes"),
        ("report", "the sweep's page"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_by_its_rule(folder: str, rule: str, tmp_path: Path) -> None:
    text = f"[[cell]]\nrecipe = 'digits/lucir'\nfolder = {json.dumps(folder)}\n[grid]\nseed = [1]"
    with pytest.raises(
        UserError, match=r"^[^\n]*sweep\.toml, \[\[cell\]\] 0 \(counted from 0\): folder [^\n]*$"
    ) as caught:
        read_sweep(written(tmp_path / "sweep.toml", text))
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [("recipe = ", "is not TOML: Invalid value (at"), ("recipe = " + "1" * 5000, "has a number")]
)
def test_a_file_that_is_not_toml_is_called_what_it_is(text: str, words: str, tmp_path: Path) -> None:
    file = written(tmp_path / "sweep.toml", text)
    with pytest.raises(UserError) as caught:
        read_sweep(file)
    assert str(caught.value).startswith(f"sweep file {file} {words}")
    recipe = written(tmp_path / "mine.toml", text)
    with pytest.raises(UserError) as caught:
        read_sweep(written(file, f"[[cell]]\nrecipe = '{recipe}'"))
    assert str(caught.value).startswith(f"{file}, [[cell]] 0 (counted from 0): recipe {recipe} {words}")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read.*\[\[cell\]\]"):
        read_sweep(tmp_path / "none.toml")
