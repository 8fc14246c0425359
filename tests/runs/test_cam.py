"""Activation maps of run folders: which images are shown, what is refused, and the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from poise import Learner
from poise.data import Stream
from poise.errors import UserError
from poise.report import activation_maps, gather, report_maps
from poise.report.activation_maps import MOST_IMAGES, pick_classes
from poise.runs import Plan, Run, RunFolder


def stream(*groups: tuple[int, ...]) -> Stream:
    return Stream("groups", groups)


@pytest.mark.parametrize(
    ("streams", "classes"),
    [
        ([stream((5, 3), (1,), (0,), (2,), (4,), (6,))], [5, 2, 6]),  # phases 0, 3 and 5, as in the paper
        ([stream((5, 3), (1, 2))], [5, 1]),
        ([stream((5, 3))], [5]),
        ([stream((5, 3), (1, 2)), stream((3, 2), (0,))], [3, 2]),  # only what both know
    ],
)
def test_classes_of_the_first_middle_and_last_phase(streams: list[Stream], classes: list[int]) -> None:
    assert pick_classes(streams) == classes


def test_runs_without_a_common_class_are_refused() -> None:
    with pytest.raises(UserError, match="no class in common"):
        pick_classes([stream((1, 2)), stream((3, 4))])


def test_exam_images_are_shown_as_the_examiner_has_them(
    reference: Path, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    figure = activation_maps([reference])
    made = plan()
    test = made.source.test()
    groups = list(made.stream)
    wanted = [(groups[0][0], 0), (groups[1][0], 1), (groups[2][0], 2)]
    expected = [
        (f"exam image {index}", made.source.class_names[label], phase)
        for label, phase in wanted
        for index in (test.labels == label).nonzero().flatten()[:2].tolist()
    ]
    assert [(row["image"], row["class"], row["phase"]) for row in figure.data] == expected
    learner = Learner.load(reference / "model.safetensors")
    pixels = [int(str(row["image"]).split()[-1]) for row in figure.data]
    predicted = learner.predict(test.pixels[pixels])
    assert [row["predicted"] for row in figure.data] == predicted.tolist()
    assert [row["right"] for row in figure.data] == [
        int(p == name) for p, (_, name, _) in zip(predicted, expected, strict=True)
    ]
    assert "test images" in figure.caption
    for name, each in (("first.svg", figure), ("again.svg", activation_maps([reference]))):
        each.save(tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two images in a folder of a class that is known, one in a folder that means nothing."""
    for place in ("shots/4/a.png", "shots/4/b.png", "shots/holiday/c.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(place)).integers(0, 256, (20, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / place)
    return tmp_path / "shots"


def test_images_of_ones_own(reference: Path, pictures: Path) -> None:
    files = sorted(pictures.rglob("*.png"))
    figure = activation_maps([reference, reference / "model.safetensors"], [pictures])
    runs = ["lucir, groups 3, fixed", "model"]
    assert [(row["image"], row["run"]) for row in figure.data] == [(file.name, run) for file in files for run in runs]
    assert [row["class"] for row in figure.data] == ["4", "4", "4", "4", None, None]
    predicted = Learner.load(reference / "model.safetensors").predict(files)
    assert [row["predicted"] for row in figure.data] == np.repeat(predicted, 2).tolist()
    assert [row["right"] is None for row in figure.data] == [False] * 4 + [True] * 2
    # As a shell hands over `--images shots/4/*.png`: what comes after the first one lies among the run folders.
    spread = activation_maps([reference, *files[1:]], files[:1])
    assert [row["image"] for row in spread.data] == [file.name for file in files]


def test_a_learners_file_may_have_any_name_and_needs_images(reference: Path, pictures: Path, tmp_path: Path) -> None:
    named = tmp_path / "learner"
    shutil.copy(reference / "model.safetensors", named)
    figure = activation_maps([named], [pictures])
    assert [row["run"] for row in figure.data] == ["learner"] * 3
    for learner in (named, reference / "model.safetensors"):
        with pytest.raises(UserError, match="has no exam images; give images of your own"):
            activation_maps([learner])
    with pytest.raises(UserError, match=r"a\.png is not a folder; give that of a finished run"):
        activation_maps([pictures / "4" / "a.png"])


def test_equal_runs_are_told_apart(reference: Path, pictures: Path, tmp_path: Path) -> None:
    def labels(*paths: Path) -> list[str]:
        return [str(row["run"]) for row in activation_maps(paths, [pictures / "4"]).data[: len(paths)]]

    label = "lucir, groups 3, fixed, seed 0"
    assert labels(reference, reference) == [f"{label}, {reference.name}, {number}" for number in (1, 2)]
    copy = shutil.copytree(reference, tmp_path / "copy")
    assert labels(reference, copy) == [f"{label}, {reference.name}", f"{label}, copy"]
    assert labels(*(path / "model.safetensors" for path in (reference, copy))) == [
        f"model, {reference.name}",
        "model, copy",
    ]


def test_a_report_shows_the_lowest_seed_of_each_kind_that_can_be_read(
    reference: Path, plan: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"later": "seed=3", "icarl": "method=icarl", "dev": "exam=dev"}
    for name, word in others.items():
        Run(plan(word), RunFolder(tmp_path / name)).start()
    found = report_maps(gather([*(tmp_path / name for name in others), reference]))
    assert [figure.name for figure in found] == ["activation-maps-digits-dev-1", "activation-maps-digits-2"]
    runs = [list(dict.fromkeys(row["run"] for row in figure.data)) for figure in found]
    assert runs == [["lucir, groups 3, fixed"], ["icarl, groups 3, fixed", "lucir, groups 3, fixed"]]
    lucir = [row for row in found[1].data if row["run"] == "lucir, groups 3, fixed"]
    assert lucir == [*activation_maps([reference]).data]
    assert not caplog.messages
    broken = shutil.copytree(reference, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    (figure,) = report_maps(gather([broken, tmp_path / "later"]))
    assert figure.data == activation_maps([tmp_path / "later"]).data
    assert [line.split(": ")[0] for line in caplog.messages] == [f"no activation maps of {broken}"]


def test_what_cannot_be_shown_is_refused(
    reference: Path, pictures: Path, plan: Callable[..., Plan], tmp_path: Path
) -> None:
    unfinished = RunFolder(tmp_path / "unfinished")
    Run(plan(), unfinished, until=1).start()
    with pytest.raises(UserError, match="is not finished; continue with 'poise resume"):
        activation_maps([unfinished.path])
    with pytest.raises(UserError, match="is not finished"):
        activation_maps([unfinished.path], [pictures])
    with pytest.raises(UserError, match="is not a run folder"):
        activation_maps([pictures])
    with pytest.raises(UserError, match="is not a run folder"):
        activation_maps([pictures], [pictures])
    with pytest.raises(UserError, match=r"none\.png cannot be read"):
        activation_maps([reference], [pictures / "4" / "none.png"])
    (pictures / "empty").mkdir()
    with pytest.raises(UserError, match="has no image"):
        activation_maps([reference], [pictures / "empty"])
    with pytest.raises(UserError, match="too many for one figure"):
        activation_maps([reference], [pictures / "4" / "a.png"] * (MOST_IMAGES + 1))
    dev = RunFolder(tmp_path / "dev")
    Run(plan("exam=dev"), dev).start()
    with pytest.raises(UserError, match="different data or exams"):
        activation_maps([reference, dev.path])
    assert "development exam" in activation_maps([dev.path]).caption
    bare = shutil.copytree(reference, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        activation_maps([bare])


def test_the_command(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poise: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, _ = poise("cam", reference)
    assert code == 0
    assert printed.endswith("\ncam.png\n")
    assert printed.count("exam image") == 6
    with Image.open(tmp_path / "cam.png") as picture:
        assert picture.size[0] > 200
    monkeypatch.setattr("poise.report.activation_maps", None)  # what comes now is refused before it is called
    (tmp_path / "folder.png").mkdir()
    for name, line in {
        "cam.gif": "--out cam.gif must end in .png, .svg or .pdf",
        "folder.png": "--out folder.png is a folder; give the name of a file in it",
    }.items():
        assert poise("cam", reference, "--out", name) == (2, "", f"poise: {line}\n")
