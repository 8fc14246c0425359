"""A grid of runs: every cell an ordinary run, finished ones left alone, a bad one stops no other."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from poise.errors import RunFailed, UserError
from poise.progress import SweepDisplay, Tally
from poise.runs import (
    Cell,
    Run,
    RunFolder,
    describe_sweep,
    load_recipe,
    make_plan,
    read_sweep,
    refuse_failed,
    reopen,
    sweep_cells,
)
from poise.runs.sweep import CellBench
from poise.training.device import make_backend
from poise.training.lanes import Lanes
from poise.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]

SWEEP = """
recipe = ["digits/lucir", "digits/lwf"]
[set]
epochs = 1
groups = [2, 1]
images_per_class = 32
[grid]
seed = [0, 1]
"""
FILES = ("journal.jsonl", "model.safetensors", "phase-0.safetensors")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def cells_of(place: Path, text: str = SWEEP) -> list[Cell]:
    return read_sweep(written(place / "sweep.toml", text))


def run_sweep(cells: list[Cell], out: Path, lanes: int | None, **options: Any) -> list[Path]:
    """All cells, none of which may fail; their folders."""
    refuse_failed(sweep_cells(cells, out, lanes, **options), cells)
    return [out / cell.name for cell in cells]


def result_bytes(folder: Path) -> bytes:
    """result.json but for its seconds, and the digest, which is about them too."""
    return re.sub(rb'"seconds": \{[^}]*\}|"digest": "[0-9a-f]*"', b"", (folder / "result.json").read_bytes())


def assert_equal(one: Path, other: Path) -> None:
    assert result_bytes(one) == result_bytes(other)
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folders of the sweep that nobody disturbed."""
    place = tmp_path_factory.mktemp("sweep")
    run_sweep(cells_of(place), place / "runs", 1)
    return place / "runs"


# The file -------------------------------------------------------------------------------------------------------------


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
folder = "my strong run"
augmentation = "autoaugment+cutout"
action.beta1 = 0.95
"""
    cells = cells_of(tmp_path, text)
    assert [cell.name for cell in cells] == [
        "digits-lwf-tfh-5-fixed-s0",
        "digits-lwf-tfh-5-fixed-s1",
        "digits-lucir-tfs-5-fixed-s0",
        "digits-lucir-tfs-5-fixed-s1",
        "mystrongrun-seed=0",
        "mystrongrun-seed=1",
    ]
    assert [cell.plan.recipe.epochs for cell in cells] == [1, 1, 2, 2, 1, 1]
    assert cells[-1].plan.recipe.augmentation == "autoaugment+cutout"
    assert cells[-1].plan.recipe.action["beta1"] == 0.95
    assert cells[0].plan.recipe.augmentation == "data"


def test_tables_and_keys_with_dots_in_a_grid_may_be_written_as_elsewhere(tmp_path: Path) -> None:
    texts = ["[grid]\naction.lr = [0.1, 0.02]", "[grid.action]\nlr = [0.1, 0.02]", "[grid]\n'action.lr' = [0.1, 0.02]"]
    for text in texts:
        cells = cells_of(tmp_path, f"recipe = 'digits/lucir'\n{text}")
        assert [cell.plan.recipe.action for cell in cells] == [{"lr": 0.1}, {"lr": 0.02}]
        assert [cell.name.rpartition("-")[2] for cell in cells] == ["action.lr=0.1", "action.lr=0.02"]
    cells = cells_of(tmp_path, "recipe = 'digits/lucir'\n[grid]\naction = [{lr = 0.1}, {lr = 0.02}]")
    assert [cell.plan.recipe.action for cell in cells] == [{"lr": 0.1}, {"lr": 0.02}]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("[set]\n'memory.reserve' = 2\nmemory = 12", [(12, 2)]),
        ("[set]\nmemory = 12\n[grid]\nmemory.reserve = [1, 2]", [(12, 1), (12, 2)]),
        ("[grid]\nmemory = [12]\n'memory.reserve' = [1, 2]", [(12, 1), (12, 2)]),
        ("[set]\nmemory.reserve = 2\n[grid]\nmemory = [12, 14]", [(12, 2), (14, 2)]),
        ("[set]\nmemory.total = 30\n[[cell]]\nrecipe = 'digits/lwf'\nmemory.per_class = 3", [(None, 0), (3, 0)]),
    ],
)
def test_a_memory_may_be_in_several_tables(tmp_path: Path, text: str, sizes: list[tuple[int | None, int]]) -> None:
    cells = cells_of(tmp_path, f"recipe = 'digits/lucir'\n{text}")
    memories = [cell.plan.recipe.settings.memory for cell in cells]
    assert [(memory.per_class, memory.reserve) for memory in memories] == sizes


LUCIR = "recipe = 'digits/lucir'\n"
ONE_CELL = f"[[cell]]\n{LUCIR}"
UNDONE = "set the same; leave one of them out"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe = 3", 'needs recipe = "NAME"'),
        ("", "or a [[cell]] table for each run"),
        ("recipe = 'digits/lucri'", "did you mean 'digits/lucir'?"),
        (f"{LUCIR}grid = 3", "[grid] in "),
        (f"{LUCIR}[gird]\nseed = [1]", "did you mean 'grid'?"),
        (f"{LUCIR}[grid]\nseed = 1", "sweep.toml: grid.seed must be a list"),
        (f"{LUCIR}[grid]\naction.lr = 1", "sweep.toml: grid.action.lr must be a list"),
        (f"{LUCIR}[grid]\nseed = [1, 1]", "describes a cell twice"),
        (f"{LUCIR}[[cell]]\n{LUCIR}epochs = 1", 'folder = "NAME"'),
        (f"{LUCIR}[set]\nfolder = 'x'", "take `folder` out of [set]"),
        (f"{LUCIR}[grid]\nrecipe = ['digits/lwf']", "take `recipe` out of [grid]"),
        (f"{LUCIR}[grid]\nsede = [1]", "did you mean 'seed'?"),
        (f"{LUCIR}[set]\ndata = 2024.10", "data=2024.1 must be text"),  # TOML does not keep how it was written
        ("recipe = ", "sweep.toml is not TOML: Invalid value (at"),
        ("recipe = " + "1" * 5000, "sweep.toml has a number that is too long"),
        (f"[cell]\n{LUCIR}", "begin each cell with [[cell]]"),
        ("[[cell]]\nseed = 1", "needs recipe"),
        (f"{ONE_CELL}folder = '../elsewhere'", "without slashes"),
        (f"{ONE_CELL}[[cell]]\nrecipe = 'digits/lwf'\nsede = 1", "sweep.toml, [[cell]] 1 (counted from 0): unknown"),
        (f"{ONE_CELL}seed = 1\n[grid]\nseed = [1]", UNDONE),
        (f"{ONE_CELL}action.lr = 1\n[grid]\naction = [{{lr = 1}}]", UNDONE),
        (f"{LUCIR}[grid]\nmemory.total = [30, 40]\nmemory.per_class = [3]", UNDONE),
        (f"{LUCIR}[set]\nmemory = 12\n[grid]\nmemory.total = [30, 40]", UNDONE),
        (f"{LUCIR}epochs = 1", "sweep.toml: `epochs` at the top is for no cell; put it under [set]"),
        ("method = 'lucir'", "is a recipe, not a sweep file; run it with 'poise run "),
        ("recipe = ['digits/podnet', 'digits/lwf']\n[set]\naction.pod = 1", "sweep.toml, recipe 'digits/lwf': "),
        *(
            (f"{ONE_CELL}folder = {json.dumps(name)}", f"folder {name!r} must be a name")
            for name in ("", " strong", "..", "a/b", "a\\b", "a\nb", "a\u202eb", "report")
        ),
    ],
)
def test_a_wrong_file_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as caught:
        cells_of(tmp_path, text)
    assert words in str(caught.value)


def test_a_file_or_a_cell_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read.*\[\[cell\]\]"):
        read_sweep(tmp_path / "none.toml")
    cells = cells_of(tmp_path)
    with pytest.raises(UserError, match=r"is a sweep file, not a recipe; run it with 'poise sweep "):
        load_recipe(str(tmp_path / "sweep.toml"))
    for number in (-1, 4):
        with pytest.raises(UserError, match="describes 4 cells, counted from 0"):
            read_sweep(tmp_path / "sweep.toml", number)
    for begin in (
        lambda: describe_sweep(cells, tmp_path / "sweep.toml"),
        lambda: sweep_cells(cells, tmp_path / "sweep.toml", 1),
    ):
        with pytest.raises(UserError, match=r"sweep\.toml is a file; give a folder as --out"):
            begin()


# Running --------------------------------------------------------------------------------------------------------------


def test_every_cell_gives_what_it_gives_alone_and_beside_others(done: Path, tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    Run(cells[-1].plan, RunFolder(tmp_path / "alone")).start()
    assert_equal(done / cells[-1].name, tmp_path / "alone")
    folders = run_sweep(cells, tmp_path / "runs", 3)
    for folder in folders:
        assert_equal(folder, done / folder.name)
    before = {folder: (folder / "result.json").read_bytes() for folder in folders}
    run_sweep(cells, tmp_path / "runs", 3)
    assert {folder: (folder / "result.json").read_bytes() for folder in folders} == before
    with pytest.raises(UserError, match=r"give one, such as .*, or give the same 'poise sweep' command again"):
        reopen(tmp_path / "runs")


TRYING = """
[set]
epochs = 2
groups = [2, 1]
images_per_class = 32
[[cell]]
recipe = "digits/lucir"
policy = "exp3"
policy_options.iterations = 3
[[cell]]
recipe = "digits/lucir"
policy = "offline-rl"
groups = [4, 1]
policy_options.episodes = 1
[[cell]]
recipe = "digits/lucir"
epochs = 12
"""


def test_while_one_cell_tries_actions_the_others_go_on(tmp_path: Path) -> None:
    cells, turns = cells_of(tmp_path, TRYING), list[str]()

    class Display(SweepDisplay):
        def note(self, name: str, phase: int, tally: Tally) -> None:
            super().note(name, phase, tally)
            turns.append(name)

    display = Display([cell.name for cell in cells])
    executor = Lanes(make_backend("cpu", "fp32", deterministic=False), len(cells))
    found = [each for known in executor.run(CellBench(tmp_path / "runs", view=display), cells) for each in known]
    assert found == [None] * 3
    together = turns[: min(len(turns) - turns[::-1].index(cell.name) for cell in cells)]  # until the first one ended
    assert len(together) > 30
    for cell in cells:
        waits = [len(wait) for wait in "".join(" x"[each == cell.name] for each in together).split("x")]
        assert max(waits) <= 4, f"{cell.name} waited while others had several turns"
    Run(cells[0].plan, RunFolder(tmp_path / "alone")).start()
    assert_equal(tmp_path / "runs" / cells[0].name, tmp_path / "alone")


def test_a_folder_of_another_run_stops_no_other(done: Path, tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    shutil.copytree(done, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / cells[1].name)
    shutil.copytree(done / cells[0].name, tmp_path / "runs" / cells[1].name)
    text = (tmp_path / "runs" / cells[2].name / "result.json").read_text()
    (tmp_path / "runs" / cells[2].name / "result.json").write_text(text.replace('"seed": 0', '"seed": 7'))
    failed = sweep_cells(cells, tmp_path / "runs", 2)
    assert list(failed) == [cells[1].name, cells[2].name]
    assert "holds another run (seed=0)" in str(failed[cells[1].name])
    assert "do not match their digest" in str(failed[cells[2].name])
    with pytest.raises(RunFailed, match="2 of 4 cells failed"):
        refuse_failed(failed, cells)


def test_an_error_that_nobody_foresaw_is_the_cells_own(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of torch, in the training of one cell; the others go on, and it goes on itself when that is mended."""
    cells = cells_of(tmp_path)
    original = Trainer._make_epoch

    def epoch(self: Trainer, *args: Any, **more: Any) -> Any:
        if self.context.seed == 1 and self.context.method.name == "lwf" and self.context.phase == 1:
            torch.zeros(2, 3) @ torch.zeros(2, 3)
        return original(self, *args, **more)

    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "_make_epoch", epoch)
        failed = sweep_cells(cells, tmp_path / "runs", 2, checkpoint_seconds=0)
    (name,) = failed
    assert name == cells[-1].name
    assert str(failed[name]).startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert str(failed[name]).endswith(f"('poise resume {tmp_path / 'runs' / name}' shows where)")
    assert capsys.readouterr().err.count("RuntimeError") == 1
    assert failed[name].__traceback__ is None
    assert sum(RunFolder(tmp_path / "runs" / cell.name).finished for cell in cells) == 3
    run_sweep(cells, tmp_path / "runs", 1)
    assert_equal(tmp_path / "runs" / name, done / name)


def test_a_plan_is_the_same_after_pickling() -> None:
    """As it goes to the other ranks."""
    for words in (
        *((), ("policy=race", "space={lr=[0.1,0.02]}", "seed=4"), ("policy=online", "tune=kd")),
        *(("order=sorted", "exam=dev"), ("memory.total=60", "memory.reserve=1", "start=runs/other")),
        ("groups=[[2],[0,1]]", "policy=fixed"),
    ):
        plan = make_plan("digits/lucir", load_recipe("digits/lucir", ["groups=[2,1]", *words]))
        again = pickle.loads(pickle.dumps(plan))
        for name in ("name", "recipe", "stream", "settings"):
            assert getattr(again, name) == getattr(plan, name)
        assert again.as_json() == plan.as_json(), "the data by their fingerprint"
        assert again.identity() == plan.identity()


# Out of memory --------------------------------------------------------------------------------------------------------


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make trainings run out of memory in the epochs of these numbers, counted over all of them."""
    original = Trainer._make_epoch

    def starve(*epochs: int) -> None:
        begun = itertools.count(1)

        def epoch(self: Trainer, *args: Any, **more: Any) -> Any:
            if next(begun) in epochs:
                raise torch.cuda.OutOfMemoryError("injected")
            return original(self, *args, **more)

        monkeypatch.setattr(Trainer, "_make_epoch", epoch)

    return starve


def test_a_cell_that_finds_no_memory_beside_others_goes_on_later(
    starved: Callable[..., None], done: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starved(5, 6)
    for folder in run_sweep(cells_of(tmp_path), tmp_path / "runs", 3, checkpoint_seconds=0):
        assert_equal(folder, done / folder.name)
    said = [line for line in caplog.messages if line.startswith("out of memory")]
    assert len(said) == 2


def test_a_cell_that_finds_no_memory_alone_fails_in_one_line_and_goes_on_where_it_was(
    starved: Callable[..., None], done: Path, tmp_path: Path, poise: Command
) -> None:
    cell = cells_of(tmp_path)[0]
    words = ("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "runs", "--lanes", "1", "--cell", "0")
    starved(2)
    code, _, err = poise(*words)
    assert code == 1
    assert err.splitlines()[-1].startswith("poise: out of GPU memory; free some and 'poise resume ")
    assert err.endswith("or start again with a smaller batch or image_size\n")
    starved()
    assert poise(*words)[0] == 0
    assert_equal(tmp_path / "runs" / cell.name, done / cell.name)


# Stopped --------------------------------------------------------------------------------------------------------------

SMALL = ("groups=[2,1]", "epochs=1", "images_per_class=32", "space={logit_kd=[0,1]}")
STEP = "poise.training.optimiser:Optimiser:step"


@pytest.mark.parametrize("first", ["sweep", "crossval"])
def test_ctrl_c_is_one_line_and_the_same_command_goes_on_to_the_same_bytes(
    first: str, driven: Callable[..., tuple[int, str]], poise: Command, tmp_path: Path
) -> None:
    file = written(tmp_path / "sweep.toml", SWEEP.replace('"digits/lucir", ', ""))
    words = [first, *(("digits/lwf", *SMALL) if first == "crossval" else (str(file),)), "--lanes", "1", "--out"]
    assert poise(*words, tmp_path / "whole")[0] == 0
    for step in (1, 4):
        code, printed = driven(STEP, step, signal.SIGINT, *words, str(tmp_path / "out"))
        assert code == 130, printed
        assert printed.splitlines()[-1].startswith("poise: interrupted; the same command continues")
        assert "Traceback" not in printed
    assert poise(*words, tmp_path / "out")[0] == 0
    folders = [path.parent for path in (tmp_path / "whole").glob("*/result.json")]
    assert len(folders) == 2
    for folder in folders:
        assert_equal(tmp_path / "out" / folder.name, folder)


@pytest.mark.gpu
def test_on_a_gpu_the_pace_of_the_cells_changes_no_number(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, SWEEP.replace("[set]", "[set]\ndevice = 'cuda'\ndeterministic = true"))
    alone, paced = (run_sweep(cells, tmp_path / str(lanes), lanes) for lanes in (1, None))
    for one, other in zip(alone, paced, strict=True):
        assert_equal(one, other)


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


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [event for event in events if event.get("event") == kind]


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_cell_may_start_from_the_phase_0_of_another(lanes: int, tmp_path: Path) -> None:
    cells = cells_of(tmp_path, SHARING.format(out=tmp_path / "out"))
    outline = describe_sweep(cells, tmp_path / "out")
    assert not outline.refused
    assert outline.text.count("  new  ") == 3
    folders = run_sweep(cells, tmp_path / "out", lanes)
    child, grandchild, parent = (json.loads((folder / "result.json").read_text()) for folder in folders)
    assert [len(events_of(folder, "epoch")) for folder in folders] == [1, 1, 2], "phase 0 was trained once"
    assert child["curve"][0]["accuracy"] == parent["curve"][0]["accuracy"]
    for name in ("curve", "accuracy_matrix"):
        assert grandchild[name] == parent[name] != child[name]
    after = [folder.stat().st_mtime_ns for folder in folders]
    run_sweep(cells, tmp_path / "out", lanes)
    assert [folder.stat().st_mtime_ns for folder in folders] == after
    (folders[0] / "result.json").unlink()
    shutil.rmtree(folders[2])
    outline = describe_sweep(cells[:1], tmp_path / "out", 7)
    assert not outline.refused, "a begun cell needs its start no more"
    assert "   7  begun     " in outline.text


def test_it_begins_as_soon_as_that_phase_0_is_there(tmp_path: Path) -> None:
    text = SHARING.format(out=tmp_path / "out").replace("groups = [2, 1]", "groups = [2, 1, 1, 1]")
    cells, turns = cells_of(tmp_path, text), list[tuple[str, int]]()

    class Display(SweepDisplay):
        def note(self, name: str, phase: int, tally: Tally) -> None:
            turns.append((name, phase))

    bench = CellBench(tmp_path / "out", view=Display([]), awaited={"child": cells[2], "grandchild": cells[0]})
    executor = Lanes(make_backend("cpu", "fp32", deterministic=False), 2, ready=bench.ready)
    assert list(itertools.chain.from_iterable(executor.run(bench, cells))) == [None] * 3
    assert turns.index(("child", 1)) < turns.index(("parent", 2)), "while the parent goes on"


def test_where_it_fails_those_that_wait_for_its_phase_0_fail_too(tmp_path: Path) -> None:
    failed = sweep_cells(
        cells_of(tmp_path, SHARING.format(out=tmp_path / "out") + "first_lr = 1e38\n"), tmp_path / "out", 2
    )
    assert set(failed) == {"child", "grandchild", "parent"}
    assert "has no phase-0.safetensors" in str(failed["child"])


def test_cells_that_start_from_each_other_are_refused(tmp_path: Path) -> None:
    text = SHARING.format(out=tmp_path / "out") + f"start = '{tmp_path / 'out' / 'grandchild'}'\n"
    cells = cells_of(tmp_path, text)
    for begin in (lambda: sweep_cells(cells, tmp_path / "out", 1), lambda: describe_sweep(cells, tmp_path / "out")):
        with pytest.raises(UserError, match="each starts from one of them: child, grandchild, parent"):
            begin()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("memory.per_class = 1", "child: start=.*/out/parent kept other images after phase 0"),
        ("policy = 'offline-rl'", "child: policy=offline-rl learns before the first phase"),
    ],
)
def test_a_phase_0_that_will_not_fit_is_refused_before_anything_is_trained(
    key: str, words: str, tmp_path: Path
) -> None:
    cells = cells_of(tmp_path, SHARING.format(out=tmp_path / "out").replace("action.lr = 0.02", key))
    with pytest.raises(UserError, match=words):
        sweep_cells(cells, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep whose cells share a phase 0, in the folder `before`."""
    place = tmp_path_factory.mktemp("sharing")
    run_sweep(cells_of(place, SHARING.format(out=place / "before")), place / "before", 1)
    return place / "before"


def test_a_cell_whose_start_was_moved_goes_on_to_the_same_bytes(sharing: Path, tmp_path: Path) -> None:
    after = shutil.copytree(sharing, tmp_path / "after")
    shutil.rmtree(after / "child")
    first = cells_of(tmp_path, SHARING.format(out=sharing))[0]
    going = Run(first.plan, RunFolder(after / "child"), checkpoint_seconds=0).starting()
    next(going)
    going.close()
    cells = cells_of(tmp_path, SHARING.format(out=after))
    lines = describe_sweep(cells, after).text.splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["begun", "finished", "finished"]
    for folder in run_sweep(cells, after, 1):
        assert_equal(folder, sharing / folder.name)


def test_a_cell_whose_start_was_trained_anew_is_refused(sharing: Path, tmp_path: Path) -> None:
    out, other = shutil.copytree(sharing, tmp_path / "out"), RunFolder(tmp_path / "other" / "parent")
    text = SHARING.format(out=other.path.parent).replace("epochs = 1", "epochs = 2")
    Run(cells_of(tmp_path, text)[2].plan, other).start()
    cells = cells_of(tmp_path, SHARING.format(out=out))
    shutil.copyfile(other.phase_0, out / "parent" / "phase-0.safetensors")
    before = (out / "child" / "journal.jsonl").read_bytes()
    for failed in (describe_sweep(cells, out).refused, sweep_cells(cells, out, 1)):
        assert list(failed) == ["child"]
        assert "had another phase 0 than" in str(failed["child"])
    assert (out / "child" / "journal.jsonl").read_bytes() == before


# Data -----------------------------------------------------------------------------------------------------------------


def pictures(folder: Path, shade: int = 9) -> None:
    for label, number in itertools.product(("cat", "dog", "eel"), range(8)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (30 * number, 9, shade)).save(folder / label / f"{number}.png")


OWN = "[[cell]]\nrecipe = 'folder'\nfolder = 'x'\nepochs = 1\nimage_size = 8\ngroups = [2, 1]\n"


def test_data_that_were_moved_with_a_sweep_are_the_same_data(tmp_path: Path) -> None:
    pictures(tmp_path / "before" / "pictures")
    for place in ("before", "after"):
        if place == "after":
            (tmp_path / "before").rename(tmp_path / "after")
        cells = cells_of(tmp_path, f"{OWN}exam = 'dev'\ndata = '{tmp_path / place / 'pictures'}'\n")
        run_sweep(cells, tmp_path / place, 1)
    assert len(events_of(tmp_path / "after" / "x", "exam")) == 2
    Image.new("RGB", (9, 9)).save(tmp_path / "after" / "pictures" / "cat" / "0.png")
    failed = sweep_cells(read_sweep(tmp_path / "sweep.toml"), tmp_path / "after", 1)
    assert "holds another run (of other data)" in str(failed["x"])


def test_the_same_data_with_other_exam_images_are_other_data(tmp_path: Path) -> None:
    for place, part in itertools.product(("one", "other"), ("train", "test")):
        pictures(tmp_path / place / part, shade=90 if (place, part) == ("other", "test") else 0)
    one, other = (cells_of(tmp_path, f"{OWN}data = '{tmp_path / place}'\n") for place in ("one", "other"))
    run_sweep(one, tmp_path / "out", 1)
    failed = sweep_cells(other, tmp_path / "out", 1)
    for error in (failed["x"], describe_sweep(other, tmp_path / "out").refused["x"]):
        assert f"the exam images are not those {tmp_path / 'out' / 'x'} was started with" in str(error)


# The outline ----------------------------------------------------------------------------------------------------------


def test_a_damaged_folder_is_one_refused_cell(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    (tmp_path / "out" / cells[1].name).mkdir(parents=True)
    (tmp_path / "out" / cells[1].name / "recipe.json").write_text("{")
    outline = describe_sweep(cells, tmp_path / "out")
    assert list(outline.refused) == [cells[1].name]
    assert outline.text.count("  new  ") == 3


def test_images_of_imagenet_need_not_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_DATA", str(tmp_path))
    file = written(tmp_path / "sweep.toml", 'recipe = "imagenet-subset/icarl"\n[grid]\nseed = [0, 1]\n')
    outline = describe_sweep(read_sweep(file, outlined=True), tmp_path / "out")
    assert not outline.refused
    assert outline.text.count("  new       ") == 2
