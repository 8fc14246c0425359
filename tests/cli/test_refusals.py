"""One table of mistakes at the command: one line, its exit code, nothing trained and nothing written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from .samples import Command, pictures

DIGITS = "1" * 5000
BRACKETS = "[" * 5000 + "]" * 5000
GRID = ",".join(f"{number / 1e4:g}" for number in range(1, 209))
SPACE = f"space={{lr=[{GRID}],logit_kd=[{GRID}],feature_kd=[{GRID}]}}"
RUN = ["run", "digits/lucir"]
LEARN = ["learn", "model", "pets"]
FILES = {  # what lies in the folder, besides pictures of pets
    "wrong.toml": "epoch = 3",
    "nested.toml": "[trials]\nlenght = 3",
    "broken.toml": "epochs 3",
    "long.toml": f"epochs = {DIGITS}",
    "deep.toml": f"groups = {BRACKETS}",
    "many.toml": f'recipe = "digits/lucir"\n[grid]\nseed = {list(range(300))}\nbatch = {list(range(2, 302))}\n',
    "table.toml": "epochs = 3\n[setting]\nbatch = 4",
    "file": "",
    "notes.txt": "no picture",
}
MISTAKES = [
    # The command line
    (["rnu"], "see 'poise --help'"),
    (["scroe"], "did you mean 'score'?"),
    (["resume"], "missing argument"),
    (["learn", "model"], "see 'poise learn --help'"),
    (["data", "add"], "see 'poise data add --help'"),
    (["data", "add", "cifar100"], "--from"),
    (["run", "--ot", "x"], "see 'poise run --help'"),
    (["run", "--out"], "--out"),
    (["run", "--seed", "one"], "'--seed'"),
    (["run", "--epochs", "3"], "keys of a recipe are given without dashes: epochs=value"),
    (["run", "--memory.total=40"], "keys of a recipe are given without dashes: memory.total=value"),
    (["sweep", "many.toml", "--lanes", "1000000000"], "--lanes"),
    (["report", "pets", "--every", "9" * 30], "--every"),
    (["report", "pets", "--watch"], "say where with --out"),
    (["run", ""], "is empty"),
    (["run", "--out", ""], "the value of --out is empty"),
    (["run", "--cpus-per-worker", "2"], "use it with --trials-on ray"),
    (["run", "--trials-on", "slurm"], "--trials-on slurm"),
    # Recipes and their keys
    (["run", "digits/lucri"], "did you mean 'digits/lucir'?"),
    (["crossval", "digits/lucri"], "did you mean 'digits/lucir'?"),
    (["run", "nowhere.toml"], "nowhere.toml"),
    (["run", "wrong.toml"], "did you mean 'epochs'?"),
    (["recipes", "wrong.toml", "--keys"], "did you mean 'epochs'?"),
    (["recipes", "nested.toml", "--keys"], "did you mean 'trials.length'?"),
    (["run", "table.toml", "groups=[1,1]"], "unknown setting {'batch': 4}"),
    (["run", "broken.toml"], "broken.toml is not toml"),
    (["run", "long.toml"], "long.toml"),
    (["run", "deep.toml"], "deep.toml"),
    (["sweep", "nowhere.toml"], "nowhere.toml"),
    (["sweep", "many.toml"], "90000 cells"),
    (["sweep", "pets"], "pets is a folder"),
    (["run", "setting=tfs", "digits/lucir"], "digits/lucir is a recipe, which comes first"),
    (["run", "digits/lucir", "digits/lwf"], "are two recipes; give one"),
    (["run", "folder", "pets"], "for the images in this folder write data=pets"),
    (["run", "folder"], "say which images: data=folder"),
    (["run", "pets"], "data=pets"),
    ([*RUN, "fast"], "'fast' is not key=value"),
    ([*RUN, "epoch=3"], "did you mean 'epochs'?"),
    ([*RUN, "trials.lenght=3"], "did you mean 'trials.length'?"),
    ([*RUN, "setting=tsf"], "did you mean 'tfs'?"),
    ([*RUN, "method=icral"], "did you mean 'icarl'?"),
    ([*RUN, "policy=rcae"], "did you mean 'race'?"),
    ([*RUN, "net=smal"], "did you mean 'small'?"),
    ([*RUN, "order=podnet-4"], "did you mean 'podnet-"),
    ([*RUN, "--track", "mlfow"], "did you mean 'mlflow'?"),
    ([*RUN, "policy=crossval"], "'poise crossval recipe"),
    ([*RUN, "data=digit"], "did you mean 'digits'?"),
    ([*RUN, "device=cuda:99"], "use cpu or auto"),
    ([*RUN, "device=meta"], "device"),
    ([*RUN, "precision=tf32"], "tf32"),
    ([*RUN, "seed=1\nepochs=3"], "on one line"),
    ([*RUN, "a." * 3000 + "b=1"], "at most 4 parts"),
    # Values of keys
    (["run", "--seed", "-3"], "seed"),
    ([*RUN, "setting=tfs", "phases=3"], "use one of 1, 2, 5, 10"),
    ([*RUN, "phases=4"], "use one of 1, 5"),
    ([*RUN, "groups=[5,6]"], "add up to 11 classes, there are 10"),
    ([*RUN, "groups=[[0,1],[1]]"], "class 1 is in the stream more than once"),
    ([*RUN, "groups=[[0,10]]"], "class 10, which is not there"),
    ([*RUN, "groups=[2,2]", "memory.total=3"], "at least 4"),
    ([*RUN, "groups=[true,2]"], "groups"),
    ([*RUN, "order=[1,2,3]"], "order must list each class"),
    ([*RUN, "order=podnet-1"], "for 100 classes"),
    ([*RUN, "image_size=16"], "fixed size"),
    ([*RUN, "image_size=100000000"], "4096"),
    ([*RUN, "start=nowhere"], "finished phase 0"),
    ([*RUN, "data=''"], "data"),
    ([*RUN, "epochs='5'"], "epochs"),
    ([*RUN, "epochs=1000000000"], "1000000"),
    ([*RUN, f"seed={DIGITS}"], "too long"),
    ([*RUN, "deterministic=1"], "deterministic"),
    ([*RUN, "momentum='0.5'"], "momentum"),
    ([*RUN, "weight_decay=1e300"], "weight_decay"),
    ([*RUN, "memory=10000000000"], "1000000000"),
    ([*RUN, f"memory.total={DIGITS}"], "too long"),
    ([*RUN, "memory.allocation=0"], "goes with memory.rule=rmm"),
    ([*RUN, "action.logit_kd=1e39"], "at most 3e+38"),
    ([*RUN, "trials.length=true"], "trials.length"),
    ([*RUN, "trials.horizon=1000000", "policy=race"], "100"),
    ([*RUN, f"space={BRACKETS}"], "nested too deep"),
    ([*RUN, "policy=race", "space={lr=[0.1,true]}"], "space"),
    ([*RUN, "policy=grid", SPACE], "8998912 actions"),
    ([*RUN, "policy=race", "policy_options.rungs=1000000"], "10000"),
    ([*RUN, "policy=race", "policy_options.handicap=nan"], "handicap"),
    ([*RUN, "policy=fixed", "policy_options.rungs=2"], "leave rungs out"),
    ([*RUN, "policy=fixed", "policy_options.safe=1.0"], "leave safe out"),
    ([*RUN, "options.lambda_base=true"], "lambda_base"),
    ([*RUN, "images_per_class=true"], "images_per_class"),
    ([*RUN, "policy=race", "tune=[3]"], "tune"),
    ([*RUN, "net=nets.py"], "nets.py"),
    ([*RUN, "--checkpoint-every", "nan"], "--checkpoint-every"),
    ([*RUN, "policy=offline-rl", "groups=[3,2]"], "at least 4 classes"),
    (["audit", "digits/lucir"], "so nothing can leak"),
    # Two values for one key
    ([*RUN, "epochs=1", "epochs=2"], "epochs is given twice, as 1 and 2"),
    ([*RUN, "memory=3", "memory.total=20"], "memory and memory.total are both given"),
    ([*RUN, "memory.total=40", "memory.per_class=4"], "are both given"),
    ([*RUN, "action={lr=0.2}", "action.lr=0.1"], "action and action.lr are both given"),
    ([*RUN, "memory=all", "memory.reserve=2"], "memory and memory.reserve are both given"),
    ([*RUN, "seed=1", "--seed", "2"], "seed is given twice, as 1 and 2"),
    # Places
    (["run", "cifar100/lucir"], "cifar100 was not found"),
    (["run", "--out", "file/run"], "file is a file"),
    (["run", "--out", "~nosuchuser/run"], "no such user"),
    (["predict", "~nosuchuser/model", "x.png"], "no such user"),
    (["resume", "nowhere"], "is not a run folder"),
    (["resume", "pets"], "is not a run folder"),
    (["report", "nowhere"], "nowhere does not exist"),
    (["cam", "nowhere"], "nowhere"),
    (["data", "add", "cifar100", "--from", "nowhere"], "nowhere is not a folder"),
    (["data", "add", "a/b", "--from", "."], "cannot name a data set"),
    (["data", "remove", "birds"], "no data set 'birds' is registered"),
    (["data", "pack", "nowhere", "--out", "x.pack"], "nowhere"),
    (["data", "pack", "pets", "--out", "nowhere/x.pack"], "nowhere"),
    ([*RUN, "net=~nosuchuser/net.py:make"], "no such user"),
    (["predict", "nowhere", "x.png"], "nowhere does not exist"),
    (["predict", "pets", "x.png"], "pets is a folder, not a file"),
    (["predict", "notes.txt", "x.png"], "damaged or was not written by poise"),
    (["score", "nowhere", "pets"], "nowhere does not exist"),
    # Learning
    (["learn", "model", "nowhere"], "nowhere is not a folder"),
    (["learn", "missing/model", "pets"], "missing does not exist; make it first"),
    ([*LEARN, "--epochs", "0"], "--epochs"),
    ([*LEARN, "--batch", "1"], "--batch"),
    ([*LEARN, "--net", "smal"], "did you mean 'small'?"),
    ([*LEARN, "--method", "lucri"], "did you mean 'lucir'?"),
    ([*LEARN, "--policy", "onlin"], "did you mean 'online'?"),
    ([*LEARN, "--image-size", "4"], "image"),
    ([*LEARN, "--seed", DIGITS], "--seed"),
    ([*LEARN, "--memory", "abc"], "or 'all'"),
    ([*LEARN, "--memory", "²"], "or 'all'"),
    ([*LEARN, "--memory", "1000000001"], "--memory 1000000001 must be at most 1000000000"),
    ([*LEARN, "--device", "cuda:99"], "cuda:99"),
    # Names of any bytes are written out
    (["run", "data=\x1b[31mred"], "\\x1b[31mred"),
    (["predict", "\x1b[31m", "x.png"], "\\x1b[31m"),
    (["report", os.fsdecode(b"\xff")], "\\xff"),
]


@pytest.mark.parametrize(("words", "word"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_line_and_nothing_is_written(words: list[str], word: str, poise: Command) -> None:
    pictures(Path("pets"), "cat dog")
    for name, text in FILES.items():
        Path(name).write_text(text)
    before, began = sorted(Path.cwd().rglob("*")), time.monotonic()
    done = poise(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2 if word[:7] != "damaged" else 1, "", 1), done.err
    assert done.err.startswith("poise: ")
    assert word in done.err.lower().replace("\x1b", "?"), done.err
    assert sorted(Path.cwd().rglob("*")) == before
    assert time.monotonic() - began < 60, "it went on for long before it refused"


def test_a_broken_picture_stops_a_run_before_it_begins(poise: Command) -> None:
    broken = pictures(Path("pets"), "cat dog cow") / "cat" / "3.png"
    broken.write_bytes(b"no picture")
    done = poise("run", "folder", "data=pets", "groups=[2,1]", "epochs=1", "--out", "run")
    assert done.code == 2
    assert done.err.startswith(f"poise: image {broken} cannot be decoded")
    assert done.err.count("\n") == 1
    assert not Path("run").exists()
