"""The commands as a user types them: exit codes, one line for every mistake, and nothing lost."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import typer

from poise import Learner, __version__, files
from poise.cli.app import app
from poise.learner import Settings
from poise.runfolder import JOURNAL
from poise.settings import KEYS

from .samples import TINY, Command, Done, pictures

FULL = Path("/dev/full")
SCRIPT = Path(sys.executable).with_name("poise")


# Typing mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["rnu"], "'rnu'"),
        (["run", "--ot", "x"], "--ot"),
        (["run", "--seed", "one"], "'--seed'"),
        (["run", "--seed", "-3"], "key 'seed'"),
        (["run", "digits/lucri"], "did you mean 'digits/lucir'?"),
        (["run", "nowhere.toml"], "cannot be read"),
        (["run", "epoch=3"], "did you mean 'epochs'?"),
        (["run", "trials.lenght=3"], "did you mean 'trials.length'?"),
        (["run", "setting=tsf"], "did you mean 'tfs'?"),
        (["run", "digits/lucir", "method=icral"], "did you mean 'icarl'?"),
        (["run", "digits/lucir", "fast"], "'fast' is not key=value"),
        (["run", "net=smal"], "did you mean 'small'?"),
        (["run", "order=podnet-4"], "did you mean 'podnet-"),
        (["run", "order=podnet-1"], "for 100 classes"),
        (["run", "order=[1,2,3]"], "order must list each class"),
        (["run", "data=digit"], "did you mean 'digits'?"),
        (["run", "device=cuda:99"], "use cpu or auto"),
        (["run", "setting=tfs", "phases=3"], "phases=3 does not divide; use one of 1, 2, 5, 10"),
        (["run", "phases=4"], "use one of 1, 5"),
        (["run", "groups=[5,6]"], "add up to 11 classes, there are 10"),
        (["run", "groups=[[0,1],[1]]"], "class 1 is in the stream more than once"),
        (["run", "groups=[[0,10]]"], "class 10, which is not there"),
        (["run", "groups=[2,2]", "memory.total=3"], "use at least 4"),
        (["run", "image_size=16"], "fixed size"),
        (["run", "start=nowhere"], "finished phase 0"),
        (["run", "cifar100/lucir"], "cifar100 was not found"),
        (["run", "--out"], "--out"),
        (["run", "--track", "mlfow"], "did you mean 'mlflow'?"),
        (["recipes", "digits/lucri"], "did you mean 'digits/lucir'?"),
        (["resume"], "Missing argument"),
        (["resume", "nowhere"], "is not a run folder"),
        (["report"], "Missing argument"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["data", "add", "cifar100"], "--from"),
        (["data", "add", "cifar100", "--from", "nowhere"], "nowhere is not a folder"),
        (["data", "add", "a/b", "--from", "."], "cannot name a data set"),
        (["data", "ad"], "ad"),
        (["predict", "nowhere", "x.png"], "nowhere does not exist"),
        (["learn", "model", "nowhere"], "nowhere is not a folder"),
        (["learn", "model", ".", "--epochs", "0"], "--epochs"),
        (["learn", "missing/model", "."], "missing is not a folder that can be written to"),
        (["sweep", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["run", "policy=crossval"], "'poise crossval RECIPE …'"),
        (["crossval", "digits/lucri"], "did you mean 'digits/lucir'?"),
        (["audit"], "so nothing can leak"),
        (["audit", "policy=rcae"], "did you mean 'race'?"),
        (["run", "setting=tfs", "digits/lucir"], "digits/lucir is a recipe, which comes first: poise … digits/lucir "),
        (["run", "digits/lucir", "digits/lwf"], "digits/lucir and digits/lwf are two recipes; give one, or make a"),
        (["run", "folder", "/"], "/ is not key=value; for the images in this folder write data=/"),
        (["run", "--epochs", "3"], "No such option: --epochs; keys of a recipe are given without dashes: epochs=VALUE"),
        (["run", "--memory.total=40"], "keys of a recipe are given without dashes: memory.total=VALUE"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: list[str], line: str, refusal: Callable[..., str]) -> None:
    assert line in refusal(*words)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["scroe"], "'poise --help'"),
        (["learn", "model"], "; see 'poise learn --help'"),
        (["run", "--ot", "x"], "ee 'poise run --help'"),
        (["data", "add"], "see 'poise data add --help'"),
        (["data", "ad"], "'poise data --help'"),
    ],
)
def test_a_mistake_in_the_command_line_names_the_help_to_read(
    words: list[str], end: str, refusal: Callable[..., str]
) -> None:
    line = refusal(*words)
    assert line.strip().endswith(end)
    assert "?;" not in line


def test_without_a_command_there_is_help(poise: Command) -> None:
    assert "resume" in poise("--help").out
    assert poise("--version") == Done(0, f"poise {__version__}\n", "")
    bare = poise()
    assert (bare.code, bare.err) == (2, "")
    assert "resume" in bare.out


# Running ------------------------------------------------------------------------------------------------------------


def test_the_first_word_may_be_an_override_and_the_seed_an_option(poise: Command) -> None:
    done = poise("run", "setting=tfs", "phases=2", "epochs=1", "--seed", "3", "--out", "here")
    assert done.code == 0
    assert "average accuracy" in done.out
    assert "run folder here" in done.out
    assert "phase 1 of 0–1: 5 new classes (10 in all)" in done.err
    result = json.loads(Path("here/result.json").read_bytes())
    assert (result["recipe"], result["setting"], result["phases"], result["seed"]) == ("digits/lucir", "tfs", 2, 3)


def test_a_run_folder_is_made_once(poise: Command) -> None:
    words = ("run", "digits/icarl", *TINY)
    assert poise(*words).code == 0
    folder = "runs/digits-icarl-groups-2-fixed-s0"
    before = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    again = poise(*words)
    assert again.code == 0
    assert f"{folder} holds this run, finished: average accuracy" in again.out
    other = poise(*words, "seed=4", "--out", folder)
    assert other.code == 2
    assert "holds another run (seed=0); choose another --out" in other.err
    Path(folder, "result.json").unlink()
    unfinished = poise(*words)
    assert unfinished.code == 2
    assert f"continue with 'poise resume {folder}'" in unfinished.err
    assert poise("resume", folder).code == 0
    after = {path: path.read_bytes() for path in before}
    changed = {path.relative_to(folder) for path in before if before[path] != after[path]}
    assert {path for path in changed if path.parts[0] != "report"} <= {Path("result.json"), Path("machine.json")}


def test_reports_compare_runs(poise: Command, refusal: Callable[..., str]) -> None:
    for method in ("lucir", "lwf"):
        assert poise("run", f"digits/{method}", *TINY, "--out", method).code == 0
    table = poise("report", "lucir", "lwf").out.splitlines()
    assert [line.split()[0] for line in table[2:]] == ["lucir", "lwf"]
    Path("lwf/result.json").unlink()
    Path("empty").mkdir()
    done = poise("report", "lucir", "lwf", "empty", "nowhere")
    assert done.code == 0
    assert "lwf: 2 of 2 phases so far" in done.out
    assert done.err.splitlines() == ["not read: empty is empty", "not read: nowhere does not exist"]


def test_a_sweep_ends_with_a_page_of_its_cells_alone(poise: Command) -> None:
    assert poise("run", "digits/lucir", *TINY, "seed=7", "--out", "runs/other").code == 0
    Path("sweep.toml").write_text('recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n[grid]\nseed = [0, 1]\n')
    done = poise("sweep", "sweep.toml", "--out", "runs")
    assert done.out.endswith("run folders in runs\nreport runs/report/index.html\n")
    page = Path("runs/report/index.html").read_text()
    assert "lwf" in page
    assert "runs/other" not in page
    table = poise("report", "runs").out  # where the page is no run
    assert table.count("lwf") == 2
    assert table.count("lucir") == 1


def test_the_table_of_a_sweep_says_in_what_its_rows_differ(poise: Command) -> None:
    keys = 'recipe = "digits/aanets"\n[set]\nepochs = 1\ngroups = [2, 1]\nimages_per_class = 20\n'
    Path("sweep.toml").write_text(f'{keys}[grid]\n"options.eta" = ["kept", "restarted"]\nseed = [0, 1]\n')
    text = poise("sweep", "sweep.toml", "--out", "runs").out
    for word in ("kept", "restarted"):
        assert text.count(f"  fixed, options.eta={word}  ") == 2
    again = poise("report", *map(str, sorted(Path("runs").glob("digits-*")))).out
    assert again.count("  fixed, options.eta=kept  ") == 2
    alone = poise("report", *map(str, sorted(Path("runs").glob("*=kept")))).out
    assert alone.count("  fixed  ") == 2
    Path("other.toml").write_text(keys.replace("groups = [2, 1]", "groups = [1, 2]"))
    text = poise("sweep", "other.toml", "--out", "more").out
    assert "  groups 2  fixed  " in text
    both = poise("report", *map(str, [*Path("more").glob("digits-*"), *Path("runs").glob("*=kept")])).out
    assert "  groups [1,2]  fixed, options.eta=restarted  " in both
    assert both.count("  groups [2,1]  fixed, options.eta=kept ") == 2


def test_a_sweep_shows_what_is_finished_where_a_cell_failed(poise: Command) -> None:
    grid = "[grid]\naction = [{lr = 0.1}, {lr = 1e30}]\n"
    Path("sweep.toml").write_text(f'recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n{grid}')
    done = poise("sweep", "sweep.toml", "--out", "runs")
    assert done.code == 1
    assert "1 of 2 cells failed" in done.err
    assert done.out.count("lwf") == 1
    assert done.out.endswith("report runs/report/index.html\n")


def test_a_sweep_writes_no_page_over_a_run(poise: Command) -> None:
    assert poise("run", "digits/lwf", *TINY, "--out", "runs/report").code == 0
    Path("sweep.toml").write_text('recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n')
    assert poise("sweep", "sweep.toml", "--out", "runs").out.endswith("no report: runs/report is a run folder\n")
    assert not Path("runs/report/index.html").exists()


def test_a_report_is_a_page_with_tables_and_figures_beside_it(poise: Command) -> None:
    for policy in ("fixed", "grid"):
        words = ("run", *TINY, f"policy={policy}", "--out", f"runs/{policy}", "space={lr=[0.1,0.02]}")
        assert f"report runs/{policy}/report/index.html" in poise(*words).out
        assert Path(f"runs/{policy}/report/index.html").exists()
    done = poise("report", "runs", "--out", "page", "--watch")  # which ends at once, as both are finished
    assert (done.code, done.err.count("finished")) == (0, 2)
    assert done.out.endswith("report page/index.html\n")
    names = {path.suffix for path in Path("page/figures").iterdir()}
    assert names == {".svg", ".pdf", ".png", ".csv"}
    assert {path.name for path in Path("page/tables").iterdir()} >= {"runs.csv", "runs.md", "accuracy-digits.csv"}
    assert "say where with --out" in poise("report", "runs", "--watch").err


def test_oracles_and_leaks_are_named_in_every_table(poise: Command) -> None:
    space = "space={lr=[0.1,0.02]}"
    best = poise("crossval", *TINY, space)
    assert best.code == 0, best.err
    assert "oracle: chosen with the exam" in best.out
    assert "4 candidates in all" in best.out
    assert poise("crossval", *TINY, space).err.endswith("holds this crossval, finished\n")
    leaking = poise("audit", *TINY, space, "policy=grid")
    assert leaking.code == 0, leaking.err
    assert "leak: the policy was told the exam accuracy" in leaking.out
    folders = [Path("runs/digits-lucir-groups-2-crossval-s0"), Path("runs/digits-lucir-groups-2-grid-s0-leak")]
    assert poise("run", *TINY, space, "policy=grid", "--out", "honest").code == 0
    table = poise("report", *folders, "honest").out
    assert "crossval (oracle)" in table
    assert "grid (leak)" in table
    mixed = poise("run", *TINY, space, "policy=grid", "--out", folders[1])
    assert mixed.code == 2
    assert "holds another run (a leak audit)" in mixed.err
    (folders[1] / "result.json").unlink()
    resumed = poise("resume", folders[1])
    assert resumed.code == 0
    assert "leak: the policy was told" in resumed.out
    (folders[0] / "result.json").unlink()
    for words in (("resume", folders[0]), ("report", folders[0])):
        done = poise(*words)
        assert done.code == 2
        assert "the same 'poise crossval' command again" in done.err


def test_a_report_measures_the_assumptions_of_runs_that_tuned_something(poise: Command) -> None:
    words = ("groups=[3,1,1]", "epochs=1", "batch=64", "space={lr=[0.1,0.05,0.02]}")
    assert poise("run", *words, "policy=grid", "--out", "tuned").code == 0
    assert poise("run", *words, "--out", "fixed").code == 0
    plain = poise("report", "fixed").out
    assert "hyperparameters" not in plain
    text = poise("report", "fixed", "tuned").out
    assert "Do the hyperparameters change slowly? lucir, grid, digits, GROUPS 3, seed 0" in text
    assert text.count("Do the hyperparameters change slowly?") == 1


def test_a_dry_run_prints_the_plan_and_writes_nothing(poise: Command) -> None:
    done = poise("run", "groups=[3,2]", "epochs=2", "memory.total=12", "--dry-run")
    assert done.code == 0
    assert "lucir on digits, groups, 2 phases" in done.out
    rows = [line.split() for line in done.out.splitlines() if line[:5].strip().isdigit()]
    assert [(row[:3], row[4:]) for row in rows] == [(["0", "3", "3"], ["0", "0"]), (["1", "2", "5"], ["12", "0"])]
    for word in ("action", "feature_kd=1", "memory  ", "disk    about"):
        assert word in done.out
    assert not list(Path.cwd().iterdir())


def test_keys_beside_the_size_of_the_memory_may_be_given_in_any_order(poise: Command) -> None:
    words = ("run", "digits/lucir", "groups=[3,2]", "--dry-run")
    texts = [poise(*words, *keys).out for keys in (("memory=6", "memory.reserve=2"), ("memory.reserve=2", "memory=6"))]
    assert "memory  " in texts[0]
    first, second = ([line for line in text.splitlines() if "about" not in line] for text in texts)
    assert first == second
    assert any(line.split()[:1] == ["1"] and line.split()[4] == "18" for line in first), "6 of each of 3 classes"


def test_a_dry_run_says_what_its_folder_holds(poise: Command) -> None:
    words = ("run", "groups=[2,1]", "epochs=1", "images_per_class=10", "--out", "here")

    def folder_line() -> str:
        return poise(*words, "--dry-run").out.splitlines()[-1]

    assert folder_line() == "folder  here, new"
    assert not Path("here").exists()
    assert poise(*words).code == 0
    assert folder_line() == "folder  here holds this run, finished"
    Path("here/result.json").unlink()
    assert folder_line() == "folder  here holds this run, unfinished; continue with 'poise resume here'"
    done = poise(*words, "--seed=1", "--dry-run")
    assert (done.code, done.out, done.err) == (2, "", "poise: here holds another run (seed=0); choose another --out\n")
    Path("file").write_text("")
    done = poise(*words[:-1], "file/run", "--dry-run")
    assert (done.code, done.err) == (2, "poise: file is a file; give a folder as --out\n")


def test_a_dry_run_refuses_too_few_classes_as_the_run_does(poise: Command) -> None:
    words = ("run", "groups=[3,2]", "epochs=1", "memory=4", "policy=offline-rl", "--out", "run")
    dry, real = poise(*words, "--dry-run"), poise(*words)
    assert dry.code == real.code == 2
    assert dry.err == real.err
    assert "needs at least 4 classes" in dry.err


def test_a_dry_run_reads_the_start_and_leaves_phase_0_out(poise: Command) -> None:
    words = ("run", "groups=[3,2]", "epochs=1", "images_per_class=20")
    missing = poise(*words, "start=nowhere", "--dry-run")
    assert (missing.code, missing.out) == (2, "")
    assert "has no phase-0.safetensors" in missing.err
    assert poise(*words, "--out", "first").code == 0
    done = poise(*words, "start=first", "--dry-run")
    assert f"phase 0 is that of {Path.cwd() / 'first'}" in done.out
    other = poise(*words, "start=first", "net=resnet32", "--dry-run")
    assert other.code == 2
    assert "was trained with small" in other.err


def test_a_dry_run_of_a_sweep_says_how_far_its_cells_are_and_writes_nothing(poise: Command) -> None:
    keys = 'recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n'
    Path("sweep.toml").write_text(f"{keys}[grid]\nseed = [0, 1]\n")
    done = poise("sweep", "sweep.toml", "--out", "runs", "--dry-run")
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[1:3]] == [["0", "new"], ["1", "new"]]
    assert "2 of 2 cells to run" in done.out
    assert not Path("runs").exists()
    assert poise("sweep", "sweep.toml", "--out", "runs", "--cell", "1").code == 0
    Path("sweep.toml").write_text(f'{keys}[grid]\nseed = [0, 1]\nstart = ["nowhere"]\n')
    Path("other.toml").write_text(f"{keys.replace('= 1', '= 2')}[grid]\nseed = [1, 2]\n")
    plain, *_ = Path("runs").iterdir()
    for file, reason in (("sweep.toml", "has no phase-0.safetensors"), ("other.toml", "holds another run")):
        refused = poise("sweep", file, "--out", "runs", "--dry-run")
        assert refused.code == 2
        assert "  refused  " in refused.out
        assert reason in refused.err
        assert refused.err.count("\n") == 1
    Path("sweep.toml").write_text(f"{keys}[grid]\nseed = [0, 1]\n")
    done = poise("sweep", "sweep.toml", "--out", "runs", "--dry-run")
    assert [line.split()[1] for line in done.out.splitlines()[1:3]] == ["new", "finished"]
    (plain / "result.json").unlink()
    assert "   1  begun     " in poise("sweep", "sweep.toml", "--out", "runs", "--dry-run", "--cell", "1").out
    assert "leave --on out" in poise("sweep", "sweep.toml", "--out", "runs", "--dry-run", "--on", "ray").err
    assert "leave --cpus-per-worker out" in poise("sweep", "sweep.toml", "--dry-run", "--cpus-per-worker", "2").err


def test_a_dry_run_of_a_frozen_network_counts_features_and_the_matrix_of_its_head(poise: Command) -> None:
    layers = "nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
    Path("own.py").write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
    words = ("run", "digits/ranpac", "net=own.py:make", "--dry-run")
    done = poise(*words, "options.projection=1000")
    assert done.code == 0, done.err
    outs = done.out, poise(*words, "options.projection=2000").out
    kept = [float(re.findall(r", (\d+) MB for model", out)[0]) for out in outs]
    assert kept[0] >= 8 * 4, "half of a thousand by a thousand numbers of eight bytes"
    assert 3.5 < kept[1] / kept[0] < 4.5


def test_a_recipe_of_ones_own(poise: Command) -> None:
    Path("mine.toml").write_text('method = "lwf"\nsetting = "groups"\ngroups = [2, 1]\nepochs = 1\nbatch = 64\n')
    assert poise("run", "mine.toml").code == 0
    result = json.loads(Path("runs/mine-groups-2-online-s0/result.json").read_text())
    assert result["resolved_policy"]["name"] == "online"  # unless the recipe says something else
    assert poise("run", "mine.toml", "policy=fixed").code == 0
    assert Path("runs/mine-groups-2-fixed-s0/result.json").exists()


def test_recipes_are_listed_and_printed(poise: Command) -> None:
    listed = poise("recipes").out.splitlines()
    assert {line.split()[0] for line in listed} >= {"digits/lucir", "digits/icarl", "digits/lwf", "cifar100/lucir"}
    assert 'method = "icarl"' in poise("recipes", "digits/icarl").out


def test_the_keys_of_recipes_are_listed_with_what_a_recipe_says(poise: Command, refusal: Callable[..., str]) -> None:
    header, *lines = poise("recipes", "--keys").out.splitlines()
    assert header.split() == ["key", "type", "default", "meaning"]
    assert [line.split()[0] for line in lines] == [key.name for key in KEYS]
    (epochs,) = [line for line in lines if line.startswith("epochs ")]
    assert re.split(r" {2,}", epochs) == ["epochs", "whole number", "160", "epochs of the main stage of every phase"]
    said = {re.split(r" {2,}", line)[0]: line for line in poise("recipes", "digits/rmm", "--keys").out.splitlines()}
    assert re.search(r" 160 +30 +epochs of the main stage", said["epochs"])
    assert re.search(r' "plain" +"rmm" +plain, rmm', said["memory.rule"])
    assert re.search(r" 0\.9 +0\.9 +momentum of SGD", said["momentum"])
    assert '{per_class = 5, rule = "rmm", allocation = [0.8' in said["memory"]
    said = {re.split(r" {2,}", line)[0]: line for line in poise("recipes", "digits/lucir", "--keys").out.splitlines()}
    assert re.search(r" 20 +5 +images kept of each class", said["memory.per_class"])  # of memory = 5
    assert "did you mean 'digits/rmm'?" in refusal("recipes", "digits/rrm", "--keys")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("epoch = 3", "unknown key 'epoch'; did you mean 'epochs'? (all keys: 'poise recipes --keys')"),
        ("[trials]\nlenght = 3", "unknown key 'trials.lenght'; did you mean 'trials.length'?"),
        ("epochs 3", "mine.toml is not TOML"),
        (f"epochs = {'9' * 5000}", "has a number that is too long"),
        (f"groups = {'[' * 50}{']' * 50}", "nested more than 16 levels deep"),
    ],
)
def test_the_keys_of_a_recipe_that_cannot_be_are_one_line(text: str, line: str, poise: Command) -> None:
    Path("mine.toml").write_text(text)
    done = poise("recipes", "mine.toml", "--keys")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert line in done.err


# Help ---------------------------------------------------------------------------------------------------------------

#: Options that mean something only where they are given.
OFF = {"track", "trials_on", "on", "cell", "images", "reject"}


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with what a user types for it."""
    top: Any = group or typer.main.get_command(app)
    for name, command in top.commands.items():
        yield " ".join((*words, name)), command
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))


def test_help_names_the_default_of_every_option_that_has_one(poise: Command) -> None:
    for words, command in commands():
        text = " ".join(poise(*words.split(), "--help").out.split())
        for option in command.params:
            if option.param_type_name != "option" or option.is_flag or option.required or option.name in OFF:
                continue
            if (words, option.name) == ("report", "out"):  # no page is written without it
                continue
            found = re.search(rf"{option.opts[0]} .*?\[default: (\S)", text)
            assert found, (words, option.name)
            assert " --" not in found[0].removeprefix(option.opts[0]), (words, option.name)


def test_help_has_a_short_option(poise: Command) -> None:
    for words in ("", *(words for words, _ in commands())):
        done = poise(*words.split(), "-h")
        assert (done.code, done.err) == (0, "")
        assert done == poise(*words.split(), "--help")


def test_help_says_of_a_new_learner_what_holds_for_it(poise: Command) -> None:
    text = " ".join(poise("learn", "--help").out.split())
    own = Settings.resolve(automatic=True, policy=inspect.signature(Learner).parameters["policy"].default)
    assert f"lucir, icarl, ranpac, … [default: ({own.method})]" in text
    assert f"images kept per class, 0, or all. [default: ({own.memory.per_class}, or the method's own)]" in text
    assert f"online, fixed, … [default: ({own.policy})]" in text
    assert f"of every random draw. [default: ({own.seed})]" in text
    for name in ("epochs", "batch", "net"):
        assert name in own.automatic
        assert re.search(rf"--{name} [^\[]*\[default: \(chosen for the images\)", text)


@pytest.mark.parametrize("command", ["run", "crossval", "audit"])
def test_help_says_where_the_keys_are_listed(command: str, poise: Command) -> None:
    assert "'poise recipes --keys' lists the keys" in " ".join(poise(command, "--help").out.split())


# When the run fails -------------------------------------------------------------------------------------------------


def failure(done: Done) -> str:
    """The one line of a run that failed."""
    assert done.code == 1
    assert "Traceback" not in done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("poise: ")]
    assert done.err.endswith(f"{line}\n")
    return line


def test_a_diverged_loss_keeps_the_last_good_checkpoint(poise: Command) -> None:
    line = failure(poise("run", "groups=[2,1]", "epochs=3", "batch=64", "action.lr=1e9", "--out", "run"))
    assert "diverged in phase 1" in line
    assert "lower the learning rate" in line
    assert list(Path("run/checkpoints").iterdir())
    assert Path("run/phase-0.safetensors").exists()
    assert not Path("run/result.json").exists()
    assert "diverged in phase 1" in failure(poise("resume", "run"))
    assert poise("run", *TINY, "start=run", "--out", "again").code == 0


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["machine.json", "recipe.json"])
def test_a_disk_that_was_full_from_the_beginning_wants_the_same_command(
    name: str, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = files._open_new

    def make_none(path: Path, mode: int) -> tuple[Path, BinaryIO]:
        temporary, file = make(path, mode)
        if path.name != name:
            return temporary, file
        file.close()
        return temporary, FULL.open("wb")

    with monkeypatch.context() as full:
        full.setattr(files, "_open_new", make_none)
        line = failure(poise("run", *TINY, "--out", "run"))
    assert line == "poise: no space left for run; free some, then give the same command again"
    assert poise("run", *TINY, "--out", "run").code == 0


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_fails_in_one_line_and_loses_nothing(poise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    append, make = files.open_to_append, files._open_new

    def make_checkpoint(path: Path, mode: int) -> tuple[Path, BinaryIO]:
        temporary, file = make(path, mode)
        if path.name != "000002.safetensors":
            return temporary, file
        file.close()
        return temporary, FULL.open("wb")

    with monkeypatch.context() as full:
        full.setattr(files, "open_to_append", lambda path: FULL.open("ab") if path.name == JOURNAL else append(path))
        line = failure(poise("run", *TINY, "--out", "run"))
    assert "no space left for run; free some, then 'poise resume run'" in line
    with monkeypatch.context() as full:
        full.setattr(files, "_open_new", make_checkpoint)
        assert "no space left" in failure(poise("resume", "run"))
    assert len(list(Path("run/checkpoints").iterdir())) == 2
    machine = Path("run/machine.json").rename("machine.json")
    missing = poise("resume", "run")
    assert missing.code == 2
    assert missing.err == (
        "poise: run cannot be used: No such file or directory (machine.json); restore it from a copy, "
        "or start the run again in another folder\n"
    )
    machine.rename("run/machine.json")
    assert poise("resume", "run").code == 0
    assert poise("run", *TINY, "--out", "undisturbed").code == 0
    for name in ("journal.jsonl", "model.safetensors"):
        assert Path("run", name).read_bytes() == Path("undisturbed", name).read_bytes()


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_elsewhere_is_named_with_what_to_do(poise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    make = files._open_new

    def make_full(path: Path, mode: int = 0o666) -> tuple[Path, BinaryIO]:
        temporary, file = make(path, mode)
        file.close()
        return temporary, FULL.open("wb")

    pets = pictures(Path("pets"), "cat dog")
    words = ("learn", "model", pets, "--epochs", "1", "--image-size", "8", "--policy", "fixed")
    advice = "free some, then give the same command again (nothing that was saved is lost)"
    with monkeypatch.context() as full:
        full.setattr(files, "_open_new", make_full)
        assert failure(poise(*words)) == f"poise: no space left for model.pending; {advice}"
    assert [path.name for path in Path.cwd().iterdir()] == ["pets"]
    assert poise(*words).code == 0


def test_a_folder_that_cannot_be_written_is_refused(poise: Command) -> None:
    Path("file").write_text("")
    for words in ((), ("--tensorboard",)):
        done = poise("run", *TINY, "--out", "file/run", *words)
        assert done.code == 2
        assert "poise: file is a file; give a folder as --out\n" in done.err
        assert "Traceback" not in done.err


# Data ---------------------------------------------------------------------------------------------------------------


def test_data_are_listed_and_added(poise: Command) -> None:
    listed = poise("data")
    assert listed.code == 0
    shipped = "digits cifar10 cifar100 tinyimagenet imagenet imagenet-subset-lucir imagenet-subset-podnet"
    assert {line.split()[0] for line in listed.out.splitlines()} == set(shipped.split())
    pictures(Path("pets"), "cat dog eel")
    added = poise("data", "add", "animals", "--from", "pets")
    assert added.code == 0
    assert "animals: 3 classes, checked and remembered" in added.out
    assert "animals" in poise("data").out
    done = poise("run", "data=animals", "image_size=8", *TINY, "--out", "run")
    assert done.code == 0, done.err
    assert "size 8×8 (as asked); net small" in done.err


def test_data_are_removed_by_name_and_stay_where_they_are(poise: Command) -> None:
    folder = pictures(Path("pets"), "cat dog eel").resolve()
    assert poise("data", "add", "animals", "--from", "pets").code == 0
    unknown = poise("data", "remove", "animal")
    assert unknown == Done(2, "", "poise: no data set 'animal' is registered; did you mean 'animals'?\n")
    unknown = poise("data", "remove", "birds")
    assert unknown == Done(2, "", "poise: no data set 'birds' is registered; known: animals\n")
    removed = poise("data", "remove", "animals")
    assert removed == Done(0, f"animals: no longer registered; {folder} is left as it is\n", "")
    assert "animals" not in poise("data").out
    assert len(list(folder.glob("*/*.png"))) == len(list(Path("pets").glob("*/*.png"))) > 0
    assert poise("data", "remove", "animals").err == "poise: no data set 'animals' is registered; none is known\n"


def test_the_recipe_for_a_folder_asks_for_one(poise: Command) -> None:
    asked = poise("run", "folder")
    assert asked == Done(
        2, "", "poise: say which images: data=FOLDER, a folder with one folder of images for each class\n"
    )
    pictures(Path("pets"), "cat dog eel")
    done = poise("run", "folder", "data=pets", "phases=3", "epochs=1", "image_size=8", "--out", "run")
    assert done.code == 0, done.err
    assert "phase 2 of 0–2: 1 new class (3 in all)" in done.err


def test_a_broken_picture_is_named_before_training(poise: Command) -> None:
    folder = pictures(Path("pets"), "cat dog")
    broken = folder / "dog" / "3.png"
    broken.write_bytes(broken.read_bytes()[:300])
    done = poise("run", "data=pets", "groups=[1,1]", "epochs=1")
    assert done.code == 2
    assert f"image {broken} cannot be decoded" in done.err
    assert done.err.splitlines()[-1].startswith("poise: ")
    assert "phase 0" not in done.err
    assert not Path("runs").exists()


def test_a_folder_with_one_class_is_refused(poise: Command) -> None:
    pictures(Path("pets"), "cat")
    done = poise("run", "data=pets", "groups=[1]", "epochs=1")
    assert done.code == 2
    assert "only one class folder, cat" in done.err


def test_an_exam_without_images_of_a_phase_is_refused_before_training(poise: Command) -> None:
    pictures(Path("pets/train"), "cat dog")
    pictures(Path("pets/test"), "dog")
    done = poise("run", "data=pets", "groups=[[0],[1]]", "epochs=1")
    assert done.code == 2
    assert "the exam has no image of phase 0, class 0" in done.err
    assert not Path("runs").exists()


# The real script ----------------------------------------------------------------------------------------------------


def script(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [SCRIPT, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_script_says_one_line_for_a_mistake() -> None:
    out, err = (mistake := script("run", "setting=tsf")).communicate()
    assert mistake.returncode == 2
    assert (out, err) == ("", "poise: unknown setting 'tsf'; did you mean 'tfs'?\n")


def test_ctrl_c_stops_the_script_after_a_checkpoint(poise: Command) -> None:
    running = script("run", "groups=[2,1]", "epochs=400", "--out", "run")
    while not Path("run/journal.jsonl").exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert running.returncode == 130
    assert err.splitlines()[-1] == "poise: interrupted; continue with 'poise resume run'"
    assert len(list(Path("run/checkpoints").iterdir())) == 1
    assert poise("run", "groups=[2,1]", "epochs=400", "--out", "run").code == 2
