"""Files that an earlier poise wrote: they are read, learned on, resumed and reported (docs/production.md).

`stored/make.py` made them. They are never made again; where one of these tests fails, users' files are no longer read.
"""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest

from poise import Learner, store

from .samples import Command
from .stored.make import FIRST, SECOND, THIRD, draw_pictures

STORED = Path(__file__).parent / "stored"


@pytest.fixture(params=sorted(path.name for path in STORED.glob("format-*")))
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files of a format, in this folder, with the images that they were made of."""
    monkeypatch.syspath_prepend(STORED)
    shutil.copytree(STORED / request.param, Path.cwd(), dirs_exist_ok=True)
    Path("learner").write_bytes(lzma.decompress(Path("learner.safetensors.xz").read_bytes()))
    for folder, names in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        draw_pictures(Path(folder), names)
    return Path.cwd()


def test_there_are_files_of_the_present_format() -> None:
    assert (STORED / f"format-{store.FORMAT}").is_dir(), "make some with stored/make.py, and keep the older ones"


def test_a_stored_learner_predicts_as_it_did(place: Path, poise: Command) -> None:
    known, learner = json.loads(Path("known.json").read_text()), Learner.load("learner", device="cpu")
    assert list(learner.classes_) == known["classes"]
    np.testing.assert_allclose(learner.predict_proba(known["images"]), known["probabilities"], atol=0.01)
    assert learner.predict(known["images"]).tolist() == known["labels"]
    done = poise("predict", "learner", "first", "second", "--reject", "saved", "--json")
    assert (done.code, done.err) == (0, "")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["path"] for row in rows] == known["images"]
    assert [row["ranked"][0]["label"] if row["label"] is None else row["label"] for row in rows] == known["labels"]
    assert poise("score", "learner", "second").code == 0


def test_what_a_stored_learner_holds_is_told(place: Path, poise: Command) -> None:
    told = dict(line.split(":", 1) for line in poise("info", "learner").out.splitlines())
    assert {name: value.strip() for name, value in told.items() if name != "file"} == {
        "classes": "4: cat, dog, eel, fox",
        "phases": "2",
        "images": "8×8 pixels, 3 channels",
        "network": "small/lucir+cosine, 77,649 parameters",
        "kept images": "16: cat 4, dog 4, eel 4, fox 4",
        "classifier": "ncm",
        "method": "lucir",
        "policy": "random",
        "phase under way": "none",
    }
    assert told["file"].strip().endswith("written by poise 0.1.0")


def test_a_stored_learner_learns_another_phase(place: Path, poise: Command) -> None:
    done = poise("learn", "learner", "third", "--device", "cpu")
    assert (done.code, done.out) == (0, "learner: 6 classes\n")
    assert poise("score", "learner", "third").code == 0


def test_of_a_stored_learner_it_may_be_unknown_from_which_images_it_learned(place: Path, poise: Command) -> None:
    done = poise("learn", "learner", "first")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "whether it learned them from these images cannot be known" in done.err


def test_a_stored_phase_that_was_interrupted_is_continued(place: Path, poise: Command) -> None:
    done = poise("learn", "interrupted.safetensors", "second", "--device", "cpu")
    assert (done.code, done.out) == (0, "interrupted.safetensors: 4 classes\n")
    assert "continuing the phase that was interrupted" in done.err
    assert not Path("interrupted.safetensors.pending").exists()


def test_a_phase_that_another_version_began_is_continued_and_says_so(place: Path, poise: Command) -> None:
    pending = Path("interrupted.safetensors.pending")
    tensors, meta = store.read_tensors(pending, kind="unfinished phase")
    meta["learner"]["poise"] = "0.0.9"
    store.write_tensors(pending, tensors, meta, kind="unfinished phase")
    done = poise("learn", "interrupted.safetensors", "second", "--device", "cpu")
    assert done.code == 0
    assert f"from {pending}, which poise 0.0.9 began: the result may differ" in done.err


def test_a_stored_run_is_resumed_and_says_that_the_version_differs(
    place: Path, poise: Command, caplog: pytest.LogCaptureFixture
) -> None:
    done = poise("resume", "unfinished")
    assert done.code == 0, done.err
    assert any(line.startswith("resumed under other conditions (poise ") for line in caplog.messages)
    (resume,) = json.loads(Path("unfinished/machine.json").read_text())["resumes"]
    assert resume["exact"] is False
    curves = [json.loads(Path(run, "result.json").read_text())["curve"] for run in ("finished", "unfinished")]
    assert [len(curve) for curve in curves] == [3, 3]
    assert curves[0][:2] == curves[1][:2], "the phases that were learned before"


def test_a_stored_run_predicts_is_reported_and_begins_others(place: Path, poise: Command) -> None:
    assert poise("info", "finished/model.safetensors").code == 0
    grey = poise("predict", "finished/model.safetensors", "first/cat/0.png")
    assert (grey.code, grey.out.count("\t")) == (0, 2)
    assert poise("report", "finished", "--out", "page").code == 0
    assert Path("page/index.html").is_file()
    again = poise("resume", "finished")
    assert again.code == 0, again.err
    recipe = ("digits/lucir", "groups=[2,1,1]", "epochs=2", "batch=64", "memory=3", "net=stored_net:grey")
    begun = poise("run", *recipe, "policy=fixed", "device=cpu", "start=finished", "--out", "begun")
    assert begun.code == 0, begun.err
