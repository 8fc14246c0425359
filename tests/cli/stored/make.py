"""Make the stored files that later versions of poise must read: learners and runs, as this version writes them.

    python tests/cli/stored/make.py FOLDER

Once made they are never made again: they stand for the files that users have. A new format gets a folder of its own.
`FOLDER` then holds:

    learner.safetensors.xz       what `poise learn` made of two folders, with a network of poise's own
    known.json                   what it predicts
    interrupted.safetensors      another learner, and beside it a phase of it that was interrupted (`.pending`)
    finished/, unfinished/       a run that ended, and one that was stopped in the middle of a phase

The weights of the first one are rounded, so that the compressed file is small. What belongs to the machine that made
the files is replaced in them.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from contextlib import chdir
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from poise import Learner, store
from poise.runs import Lesson, ModelFile, Run, RunFolder, load_recipe, make_plan

HERE = Path(__file__).parent
FIRST, SECOND, THIRD = "cat dog", "eel fox", "gnu hen"  # the classes of each phase
SIDE = 8  # pixels of a picture
SETTINGS: dict[str, int | str] = {"epochs": 20, "batch": 8, "memory": 4, "image_size": SIDE, "policy": "random"}
RUN = ("groups=[2,1,1]", "epochs=2", "batch=64", "memory=3", "policy=online", "net=stored_net:grey", "device=cpu")
ROUNDED = ~0xFFFFF  # of the 23 bits after the point of a weight, three are left
UNTIL = 138  # events of the run that is stopped: in the middle of the training of a phase


def draw_pictures(folder: Path, names: str, count: int = 6) -> Path:
    """A folder of class folders with small pictures, the same ones wherever and whenever they are drawn."""
    y, x = np.mgrid[:SIDE, :SIDE]
    for name in names.split():
        kind = sum(name.encode())
        (folder / name).mkdir(parents=True)
        for number in range(count):
            stripes = (kind * x + kind // 3 * y + 7 * number) % 97
            shown = np.stack([stripes + kind * step % 131 for step in (1, 2, 3)], axis=-1)
            Image.fromarray(shown.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


class Killed(Exception):
    """In the place of a process that was killed."""


def _make_learner(folder: Path) -> None:
    path = folder / "learner.safetensors"
    ModelFile(path).teach(Lesson(Path("first"), {**SETTINGS, "net": "small"}, device="cpu"))
    ModelFile(path).teach(Lesson(Path("second"), device="cpu"))
    learner = Learner.load(path, device="cpu")
    assert learner.model is not None
    for tensor in learner.model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_((tensor.contiguous().view(torch.int32) & ROUNDED).view(torch.float32))
    learner.calibrate_reject(0.2)
    learner.save(path)
    paths = sorted(Path().glob("*/*/*.png"))
    chances = learner.predict_proba(paths).tolist()
    known = {
        "classes": list(learner.classes_),
        "images": list(map(str, paths)),
        "labels": learner.predict(paths).tolist(),
        "probabilities": [[round(chance, 4) for chance in row] for row in chances],
    }
    (folder / "known.json").write_text(json.dumps(known) + "\n")
    (folder / "learner.safetensors.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    path.unlink()


def _make_interrupted(folder: Path) -> None:
    def kill() -> None:
        raise Killed

    model = ModelFile(folder / "interrupted.safetensors")
    model.teach(Lesson(Path("first"), {**SETTINGS, "net": "stored_net:colour"}, device="cpu"))
    try:
        model.teach(Lesson(Path("second"), device="cpu", checkpoint_seconds=0.0), done=kill)
    except Killed:
        return
    raise AssertionError("it was not interrupted")


def _make_run(folder: Path, until: int | None) -> None:
    plan = make_plan("digits/lucir", load_recipe("digits/lucir", RUN))
    for _ in islice(Run(plan, RunFolder(folder), (), 0.0).starting(), until):
        pass
    (folder / "lock").unlink(missing_ok=True)
    machine = store.read_json(folder / "machine.json")
    machine |= {"command": ["poise", "run"], "folder": f"/stored/{folder.name}", "libraries": []}
    machine["hardware"]["processor"] = "the one that it was stored on"
    store.write_json(folder / "machine.json", machine)


def main(folder: Path) -> None:
    """Make all of them in a folder that is not there yet."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    folder = folder.absolute()
    folder.mkdir()
    with tempfile.TemporaryDirectory() as place, chdir(place):
        draw_pictures(Path("first"), FIRST)
        draw_pictures(Path("second"), SECOND)
        _make_learner(folder)
        _make_interrupted(folder)
    _make_run(folder / "finished", None)
    _make_run(folder / "unfinished", UNTIL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
