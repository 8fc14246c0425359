"""Saved files with a right checksum and wrong contents: one line, or a learner that works. Never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from poise import Learner, store
from poise.data import ImageSet
from poise.errors import Damaged, PoiseError
from poise.learner import LearnerState
from poise.report import gather
from poise.runs import Plan, Run, RunFolder, load_recipe, make_plan, reopen

from .mutations import mutate_value, mutated, places_in, write_mutated

#: How many mutations there are of each kind, or a multiple of that; by hand many more.
COUNT = int(os.environ.get("POISE_FUZZ", "40"))
Contents = tuple[dict[str, Tensor], dict[str, Any]]


def _plan(*words: str) -> Plan:
    return make_plan("digits/lucir", load_recipe("digits/lucir", ["groups=[2,1,1]", "epochs=2", "batch=64", *words]))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left in the training of its second phase, after a step; with one checkpoint."""
    folder = RunFolder(tmp_path_factory.mktemp("stopped") / "run")
    going = Run(_plan(), folder, checkpoint_seconds=0).starting()
    for _ in going:
        found = folder.newest_checkpoint()
        learner = found.meta["learner"] if found is not None else {}
        if learner.get("phases") == 1 and (learner["pending"] or {}).get("position", {}).get("step"):
            break
    going.close()
    for path in sorted(folder.checkpoints.iterdir())[:-1]:
        path.unlink()
    return folder.path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("finished") / "run")
    Run(_plan(), folder).start()
    return folder.path


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory, make_images: Callable[..., ImageSet]) -> Path:
    """A learner with its memory, after two phases."""
    made = Learner("lucir", net="small", epochs=1, batch=8, memory=2, policy="fixed", device="cpu")
    for labels in ([0, 1], [2]):
        images = make_images(labels * 4, seed=labels[0])
        made.partial_fit(images.pixels, images.labels)
    path = tmp_path_factory.mktemp("learner") / "learner"
    made.save(path)
    return path


def tracebacks(file: Path, kind: str, contents: Contents, go: Callable[[], None], count: int = COUNT) -> list[str]:
    """What was not one line, of so many mutations of these contents."""
    found, refused = [], 0
    for number in range(count):
        (tensors, meta), what = mutated(*contents, number)
        write_mutated(file, kind, tensors, meta)
        try:
            go()
        except PoiseError as error:
            refused += 1
            if "\n" in str(error) or (str(file.parent) not in str(error) and isinstance(error, Damaged)):
                found.append(f"{number} {what}: {error}")
        except Exception as error:
            found.append(f"{number} {what}: {type(error).__name__} {error}")
    assert refused > count / 3
    return found


def test_predict(finished: Path, tmp_path: Path) -> None:
    file, images = tmp_path / "learner", np.zeros((2, 8, 8), np.uint8)
    contents = store.read_tensors(finished / "model.safetensors", kind="learner")

    def go() -> None:
        Learner.load(file, device="cpu").predict(images)

    assert not tracebacks(file, "learner", contents, go, 3 * COUNT)


def test_learn(learner: Path, make_images: Callable[..., ImageSet], tmp_path: Path) -> None:
    file, images = tmp_path / "learner", make_images([7] * 4, seed=7)

    def go() -> None:
        list(islice(Learner.load(file, device="cpu").fitting(images.pixels, images.labels), 4))

    assert not tracebacks(file, "learner", store.read_tensors(learner, kind="learner"), go, COUNT * 5 // 4)


def test_resume(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (kept,) = (stopped / "checkpoints").iterdir()

    def go() -> None:
        opened, plan = reopen(folder)
        going = Run(plan, opened, checkpoint_seconds=600).resuming()
        list(islice(going, 3))
        going.close()
        shutil.copy(stopped / "journal.jsonl", folder)

    shutil.copytree(stopped, folder)
    contents = store.read_tensors(kept, kind="checkpoint")
    assert contents[1]["learner"]["pending"]["position"]["step"] > 0
    assert not tracebacks(folder / "checkpoints" / kept.name, "checkpoint", contents, go, COUNT * 5 // 4)


def test_start(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    def go() -> None:
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        going = Run(_plan(f"start={tmp_path / 'other'}"), RunFolder(tmp_path / "new")).starting()
        list(islice(going, 2))
        going.close()

    contents = store.read_tensors(finished / "phase-0.safetensors", kind="phase 0")
    assert not tracebacks(tmp_path / "other" / "phase-0.safetensors", "phase 0", contents, go, COUNT // 2)


# Single ones, by what is said --------------------------------------------------------------------------------------


def _shape(contents: Contents) -> None:
    contents[1]["shape"] = [3, 10**6, 10**6]


def _short_side(contents: Contents) -> None:
    contents[1]["short_side"] = 7


def _huge_label(contents: Contents) -> None:
    contents[0]["memory.exemplars.labels"] += 9


def _nan(contents: Contents) -> None:
    contents[0]["predictor.backbone.stem.0.weight"][0] = float("nan")


def _negative_variance(contents: Contents) -> None:
    contents[0]["predictor.backbone.stem.1.running_var"] *= -1


def _whole_weights(contents: Contents) -> None:
    contents[0]["predictor.head.new"] = contents[0]["predictor.head.new"].long()


def _fewer_means(contents: Contents) -> None:
    contents[0]["means"] = contents[0]["means"][:-1]


def _growth(contents: Contents) -> None:
    contents[1]["models"]["predictor"]["grown"] = [[1, 1]] * 100_000


def _twice(contents: Contents) -> None:
    contents[1]["classes"][-1] = contents[1]["classes"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_shape, "shape must be at most 67108864 pixels"),
        (_short_side, "short_side must be at least 8 pixels"),
        (_huge_label, "memory.exemplars.labels must be at most 2 and not negative"),
        (_nan, "tensor predictor.backbone.stem.0.weight must be finite"),
        (_negative_variance, "running_var must be at least 0"),
        (_whole_weights, "tensor head.new must be float32"),
        (_fewer_means, "tensor means must be float32 [3, 64]"),
        (_growth, "models.predictor.grown must be no longer than 2 phases"),
        (_twice, "classes must be all different"),
    ],
)
def test_it_is_said_what_is_wrong(change: Callable[[Contents], None], said: str, learner: Path, tmp_path: Path) -> None:
    contents = store.read_tensors(learner, kind="learner")
    change(contents)
    write_mutated(tmp_path / "learner", "learner", *contents)
    with pytest.raises(Damaged, match=r"^[^\n]*; restore it from a copy$") as refused:
        Learner.load(tmp_path / "learner")
    assert str(refused.value).startswith(f"{tmp_path / 'learner'} is not as poise writes it: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(("method", "net"), [("podnet", "small"), ("ranpac", "small"), ("slca", "small")])
def test_every_head_comes_back_and_its_rows_are_checked(
    method: str, net: str, make_images: Callable[..., ImageSet], tmp_path: Path
) -> None:
    made = Learner(method, net=net, epochs=1, batch=8, memory=2, policy="fixed", device="cpu")
    images = make_images([0, 1] * 4)
    made.partial_fit(images.pixels, images.labels)
    made.save(tmp_path / "learner")
    assert (Learner.load(tmp_path / "learner").predict(images.pixels) == made.predict(images.pixels)).all()
    contents = store.read_tensors(tmp_path / "learner", kind="learner")
    for name in [name for name in contents[0] if ".head." in name and contents[0][name].ndim]:
        tensors = {**contents[0], name: torch.cat([contents[0][name]] * 2)}
        if tensors[name].numel():
            with pytest.raises(Damaged):
                LearnerState.from_tensors(tensors, contents[1])


def test_what_an_older_poise_left_out_has_its_default(learner: Path) -> None:
    tensors, meta = store.read_tensors(learner, kind="learner")
    for key in ("mean_images", "poise"):
        del meta[key]
    del meta["models"]["predictor"]["expands"]
    assert LearnerState.from_tensors(tensors, meta).knowledge.mean_images == ()


# Reports --------------------------------------------------------------------------------------------------------------


def test_no_mutation_of_a_run_folder_costs_the_page_of_the_others(finished: Path, tmp_path: Path) -> None:
    """Whatever stands in the files of a run, one thing after the other, is replaced by odd values."""
    words = ("policy=hedge", "space={lr=[0.1,0.02]}", "epochs=1")
    good, bad, kept = (tmp_path / name for name in ("good", "bad", "kept"))
    shutil.copytree(finished, good)
    Run(_plan(*words), RunFolder(bad)).start()
    shutil.copytree(bad, kept)
    shown = 0
    for number, (name, value) in enumerate(_mutations(kept, 4 * COUNT)):
        (bad / name).write_text(value)
        report = gather([good, bad])
        if number % 10 == 0:  # the page takes most of the time
            assert 'id="run-good"' in report.write(tmp_path / "page").read_text()
        assert "good" in [run.name for run in report.runs]
        shown += len(report.runs) == 2
        shutil.copy(kept / name, bad / name)
    assert COUNT < shown < 4 * COUNT - 10


def _mutations(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    generator = np.random.default_rng(0)
    for number in range(count):
        name = ("result.json", "recipe.json", "journal.jsonl", "machine.json")[number % 4]
        text = (folder / name).read_text()
        value = [json.loads(line) for line in (text.splitlines() if name.endswith("l") else [text])]
        value[0].pop("digest", None)
        places = list(places_in(value))[1:]
        mutate_value(*places[generator.integers(len(places))], generator)
        yield name, "".join(json.dumps(line) + "\n" for line in value)
