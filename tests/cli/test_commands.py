"""The commands as a user types them: exit codes, one line for every mistake, and nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from poise import __version__
from poise.cli.app import app
from poise.settings import KEYS

from .samples import TINY, Command, Done, pictures

# Help and running ---------------------------------------------------------------------------------------------------


def test_without_a_command_there_is_help(poise: Command) -> None:
    assert "resume" in poise("--help").out
    assert poise("--version") == Done(0, f"poise {__version__}\n", "")
    sections = [line for line in poise("--help").out.splitlines() if line.endswith(":") and line[0] != " "]
    assert sections[:3] == ["Options:", "Start here:", "Compare methods:"]
    bare = poise()
    assert (bare.code, bare.err) == (2, "")
    assert "What do I do first?" in bare.out
    assert len(bare.out.splitlines()) <= 10


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


def test_a_sweep_ends_with_a_page_of_its_finished_cells_alone(poise: Command) -> None:
    assert poise("run", "digits/lucir", *TINY, "seed=7", "--out", "runs/other").code == 0
    grid = "[grid]\naction = [{lr = 0.1}, {lr = 1e30}]\n"
    Path("sweep.toml").write_text(f'recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n{grid}')
    done = poise("sweep", "sweep.toml", "--out", "runs")
    assert (done.code, done.out.count("lwf")) == (1, 1)
    assert "1 of 2 cells failed" in done.err
    assert done.out.endswith("run folders in runs\nreport runs/report/index.html\n")
    page = Path("runs/report/index.html").read_text()
    assert "lwf" in page
    assert "runs/other" not in page
    assert poise("report", "runs").out.count("lucir") == 1  # where the page is no run


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
    assert names == {".svg", ".csv"}
    assert {path.name for path in Path("page/tables").iterdir()} >= {"runs.csv", "runs.md", "accuracy-digits.csv"}
    assert "say where with --out" in poise("report", "runs", "--watch").err


def test_oracles_and_leaks_are_named_in_every_table(poise: Command) -> None:
    space = "space={lr=[0.1,0.02]}"
    best = poise("crossval", *TINY, space)
    assert best.code == 0, best.err
    assert "oracle: chosen with the exam" in best.out
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


def test_a_dry_run_prints_the_plan_and_writes_nothing(poise: Command) -> None:
    done = poise("run", "groups=[3,2]", "epochs=2", "memory.total=12", "--dry-run")
    assert done.code == 0
    assert "lucir on digits, groups, 2 phases" in done.out
    rows = [line.split() for line in done.out.splitlines() if line[:5].strip().isdigit()]
    assert [(row[:3], row[4:]) for row in rows] == [(["0", "3", "3"], ["0", "0"]), (["1", "2", "5"], ["12", "0"])]
    for word in ("action", "feature_kd=1", "memory  "):
        assert word in done.out
    assert not list(Path.cwd().iterdir())


def test_a_dry_run_reads_the_start_and_refuses_what_the_run_would(poise: Command) -> None:
    words = ("run", "groups=[3,2]", "epochs=1", "images_per_class=20")
    assert poise(*words, "--out", "first").code == 0
    assert f"phase 0 is that of {Path.cwd() / 'first'}" in poise(*words, "start=first", "--dry-run").out
    for word, line in (("net=resnet32", "was trained with small"), ("seed=3", "has other seed")):
        dry, real = (poise(*words, "start=first", word, *more) for more in (["--dry-run"], ["--out", "other"]))
        assert (dry.code, dry.out, dry.err) == (2, "", real.err)
        assert line in dry.err
    assert [path.name for path in Path.cwd().iterdir()] == ["first"]


def test_a_policy_with_nothing_to_tune_says_so_and_goes_on(poise: Command) -> None:
    done = poise("run", "digits/lucir", *TINY, "policy=race", "tune=[]", "--out", "run")
    assert done.code == 0
    assert "policy=race has nothing to tune: there is one action; " in done.err


def test_a_dry_run_of_a_sweep_says_how_far_its_cells_are_and_writes_nothing(poise: Command) -> None:
    keys = 'recipe = "digits/lwf"\n[set]\nepochs = 1\ngroups = [2, 1]\n'
    Path("sweep.toml").write_text(f"{keys}[grid]\nseed = [0, 1]\n")
    done = poise("sweep", "sweep.toml", "--out", "runs", "--dry-run")
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[1:3]] == [["0", "new"], ["1", "new"]]
    assert "2 of 2 cells to run" in done.out
    assert not Path("runs").exists()
    assert poise("sweep", "sweep.toml", "--out", "runs", "--cell", "1").code == 0
    Path("other.toml").write_text(f"{keys.replace('= 1', '= 2')}[grid]\nseed = [1, 2]\n")
    refused = poise("sweep", "other.toml", "--out", "runs", "--dry-run")
    assert refused.code == 2
    assert "  refused  " in refused.out
    assert "holds another run" in refused.err
    assert refused.err.count("\n") == 1
    done = poise("sweep", "sweep.toml", "--out", "runs", "--dry-run", "--cell", "1")
    assert "   1  finished  " in done.out


def test_a_recipe_of_ones_own_tries_actions_unless_it_says_otherwise(poise: Command) -> None:
    Path("mine.toml").write_text('method = "lwf"\nsetting = "groups"\ngroups = [2, 1]\nepochs = 1\nbatch = 64\n')
    assert poise("run", "mine.toml").code == 0
    result = json.loads(Path("runs/mine-groups-2-online-s0/result.json").read_text())
    assert result["resolved_policy"]["name"] == "online"


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
    assert "did you mean 'digits/rmm'?" in refusal("recipes", "digits/rrm", "--keys")


# Help ---------------------------------------------------------------------------------------------------------------

#: Options that mean something only where they are given.
OFF = {"track", "trials_on", "on", "cell", "images", "reject", "against", "test"}


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


# Data ---------------------------------------------------------------------------------------------------------------


def test_data_are_listed_added_and_removed_and_stay_where_they_are(poise: Command) -> None:
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
    folder = Path("pets").resolve()
    unknown = poise("data", "remove", "animal")
    assert unknown == Done(2, "", "poise: no data set 'animal' is registered; did you mean 'animals'?\n")
    removed = poise("data", "remove", "animals")
    assert removed == Done(0, f"animals: no longer registered; {folder} is left as it is\n", "")
    assert "animals" not in poise("data").out
    assert len(list(folder.glob("*/*.png"))) > 0
