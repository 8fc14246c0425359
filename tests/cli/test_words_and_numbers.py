"""Words and numbers that mean nothing: refused in one line before anything is trained, or said."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from .samples import TINY, Command, pictures

DIGITS = "1" * 5000
BRACKETS = "[" * 5000 + "]" * 5000
GRID = ",".join(f"{number / 1e4:g}" for number in range(1, 209))
SPACE = f"space={{lr=[{GRID}],logit_kd=[{GRID}],feature_kd=[{GRID}]}}"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["action.logit_kd=1e39"], "logit_kd=1e+39 is too large"),
        (["action.lr=1e-60"], "lr=1e-60 is too small"),
        (["weight_decay=1e300"], "weight_decay=1e+300 is too large"),
        (["memory=1000000000000000000000000000000"], "memory=1000000000000000000000000000000 is too large"),
        (["memory=10000000000"], "at most 1000000000"),
        (["policy=exp3", "policy_options.xi=1e308"], "xi=1e+308 is too large"),
        (["policy=race", "policy_options.handicap=nan"], "'policy_options.handicap': must be a finite number"),
        (["image_size=100000000"], "less than or equal to 4096"),
        ([f"seed={DIGITS}"], "too long"),
        ([f"memory.total={DIGITS}"], "too long"),
        (["seed=0x" + "f" * 5000], "a number of about 6021 digits"),
        ([f"space={BRACKETS}"], "nested too deep"),
        ([f"order={'[' * 100}{']' * 100}"], "nested more than 16 levels"),
        (["a." * 3000 + "b=1"], "a key has at most 4 parts"),
        (["data=~nosuchuser"], "there is no such user"),
        (["start=~nosuchuser/run"], "there is no such user"),
        (["net=~nosuchuser/net.py:make"], "there is no such user"),
        (["data=''"], "key 'data'"),
        (["start=''"], "key 'start'"),
        (["images_per_class=true"], "key 'images_per_class'"),
        (["epochs='5'"], "key 'epochs'"),
        (["epochs=5.0"], "key 'epochs'"),
        (["seed=true"], "key 'seed'"),
        (["momentum='0.5'"], "key 'momentum'"),
        (["groups=[true,2]"], "key 'groups'"),
        (["order=true"], "key 'order'"),
        (["memory.per_class='5'"], "key 'memory.per_class'"),
        (["trials.length=true"], "key 'trials.length'"),
        (["action.lr=true"], "key 'action.lr'"),
        (["options.lambda_base=true"], "key 'options.lambda_base'"),
        (["policy=race", "space={lr=[0.1,true]}"], "key 'space': True in {'lr'"),
        (["policy=race", "policy_options.rungs=true"], "rungs=True must be like 3"),
        (["deterministic=1"], "key 'deterministic'"),
        (["policy=fixed", "policy_options.safe=1.0"], "chooses nothing; leave safe out"),
        (["policy=fixed", "policy_options.rungs=2"], "policy fixed has no option 'rungs'"),
        (["seed=1\nepochs=3"], "must be one key=value, on one line"),
        (["--out", ""], "the value of --out is empty"),
        (["--out="], "the value of --out is empty"),
        (["--out", " "], "the value of --out is empty (' ', perhaps"),
        (["--out= "], "the value of --out is empty"),
        (["--out", "~nosuchuser/run"], "there is no such user"),
        ([""], "is empty"),
        (["policy=race", "policy_options.rungs=1000000"], "rungs=1000000 must be a whole number, at most 10000"),
        (["policy=grid", SPACE], "the space has 8998912 actions"),
        (["epochs=1000000000"], "at most 1000000"),
        (["trials.horizon=1000000", "policy=race"], "at most 100"),
        (["--checkpoint-every", "nan"], "--checkpoint-every"),
        (["epochs=1", "epochs=2"], "epochs is given twice, as 1 and 2; give it once"),
        (["memory.total=30", "memory.total=40"], "memory.total is given twice, as 30 and 40"),
        (["memory.total=40", "memory.per_class=4"], "memory.total and memory.per_class are both given"),
        (["memory=3", "memory.total=20"], "memory and memory.total are both given"),
        (["memory.total=20", "memory=3"], "memory.total and memory are both given"),
        (["memory.reserve=2", "memory=all"], "memory.reserve and memory are both given"),
        (["memory=all", "memory.reserve=2"], "memory and memory.reserve are both given"),
        (["action.lr=0.1", "action={lr=0.2}"], "action.lr and action are both given"),
        (["action={lr=0.2}", "action.lr=0.1"], "action and action.lr are both given"),
        (["seed=1", "--seed", "2"], "seed is given twice, as 1 and 2"),
        (['tune=["lr","kd","lr"]'], "names a word twice; leave one out"),
    ],
)
def test_a_run_is_refused_before_anything_is_trained(words: list[str], line: str, refusal: Callable[..., str]) -> None:
    given = {word.partition("=")[0] for word in words}
    usual = [word for word in TINY if word.partition("=")[0] not in given]
    began = time.monotonic()
    assert line in refusal("run", "digits/lucir", *usual, *words)
    assert time.monotonic() - began < 120, "it went on for long before it refused"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["sweep", "/dev/zero"], "/dev/zero is a device, not a file"),
        (["sweep", "x.toml", "--lanes", "1000000000"], "--lanes"),
        (["report", "x", "--every", "9" * 30], "--every"),
        (["learn", "", "folder"], "is empty"),
        (["learn", "model", "folder", "--memory", DIGITS], "must be a whole number"),
        (["learn", "model", "folder", "--memory", "²"], "must be a whole number"),
        (["learn", "model", "folder", "--image-size", "100000000"], "at most 4096"),
        (["learn", "model", "folder", "--seed", DIGITS], "--seed"),
        (["data", "add", "x", "--from", "~nosuchuser"], "there is no such user"),
        (["run", "~nosuchuser/recipe.toml"], "there is no such user"),
        (["resume", "~nosuchuser/run"], "there is no such user"),
        (["predict", "~nosuchuser/model", "x.png"], "there is no such user"),
        (["predict", "model", "~nosuchuser/x.png"], "there is no such user"),
        (["cam", "model", "--images", "~nosuchuser/x.png"], "there is no such user"),
    ],
)
def test_so_is_every_other_command(words: list[str], line: str, refusal: Callable[..., str]) -> None:
    assert line in refusal(*words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["policy=fixed", "space=joint", "trials.length=0.5"],
            "policy=fixed tries nothing, so it does not use space",
        ),
        (["policy=race", "tune=[]"], "policy=race has nothing to tune: there is one action"),
        (["policy=race", "space={lr=[0.1]}"], "policy=race has nothing to tune but the classifier"),
    ],
)
def test_what_changes_nothing_is_said(words: list[str], line: str, poise: Command) -> None:
    done = poise("run", "digits/lucir", *TINY, *words)
    assert done.code == 0
    assert line in done.err
    assert "tune" not in poise("run", "digits/lucir", *TINY, "--out", "plain").err


def test_a_recipe_that_never_ends_is_not_read_to_its_end(poise: Command) -> None:
    os.mkfifo("pipe.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    with Path("large.toml").open("wb") as file:
        file.truncate(2**40)  # a hole, as large as a disk
    for name, what in (
        ("pipe.toml", "is a FIFO"),
        ("zero.toml", "is a device"),
        ("large.toml", "is larger than the 1 MiB"),
    ):
        assert what in poise("run", name).err
        assert what in poise("sweep", name).err


def test_files_that_are_nested_too_deep_are_one_line(poise: Command) -> None:
    Path("deep.toml").write_text(f"space = {BRACKETS}")
    Path("long.toml").write_text(f"seed = {DIGITS}")
    for words in (["run", "deep.toml"], ["run", "long.toml"], ["sweep", "deep.toml"], ["sweep", "long.toml"]):
        done = poise(*words)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_a_sweep_of_millions_of_cells_is_refused(poise: Command) -> None:
    many = json.dumps(list(range(300)))
    Path("sweep.toml").write_text(f'recipe = "digits/lucir"\n[grid]\nseed = {many}\norder = {many}\nbatch = {many}\n')
    assert "describes 27000000 cells" in poise("sweep", "sweep.toml").err


def test_images_that_fit_neither_into_memory_nor_into_a_temporary_file_are_refused(
    poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(Path("photos"), "ant bee", 3)
    monkeypatch.setattr("poise.data.inputs.free_memory", lambda: 1000)
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_bavail=1000, f_frsize=4096))
    done = poise("learn", "model", "photos", "--image-size", "2048")
    assert done.code == 2
    assert "6 images of 2048×2048 pixels take 0.0755 GB" in done.err
    assert not Path("model").exists()


def test_whole_numbers_of_a_method_can_be_set_in_a_recipe(poise: Command) -> None:
    done = poise("run", "digits/slca", *TINY, "options.align_epochs=1", "options.draws=8", "--out", "run")
    assert done.code == 0, done.err
    assert json.loads(Path("run/recipe.json").read_bytes())["recipe"]["options"] == {"align_epochs": 1, "draws": 8}


def test_a_run_that_was_begun_with_options_of_fixed_can_be_resumed(poise: Command) -> None:
    assert poise("run", "digits/lucir", *TINY, "--out", "run").code == 0
    saved = json.loads(Path("run/recipe.json").read_bytes())
    saved["recipe"]["policy_options"] = {"safe": 1.0}
    Path("run/recipe.json").write_text(json.dumps(saved))
    assert poise("resume", "run").code == 0
