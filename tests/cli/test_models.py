"""A practitioner's commands: learn, predict and score; locked, interrupted, continued, and refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from poise import Augmentation, Learner, store
from poise.modelfile import Lesson, ModelFile, prediction, read_paths
from poise.runs.stopping import CheckpointClock
from poise.training.events import Event

from .samples import TINY, Command, Done, pictures

SMALL = ("--epochs", "2", "--batch", "4", "--memory", "3", "--image-size", "8", "--policy", "fixed")
TUNED = (*SMALL[:-1], "random")

Driven = Callable[..., tuple[int, str]]
DEFAULTS = "poise.training.events:DefaultsChosen:__init__"
JUDGING = "poise.training.events:Progress:__init__"
EVENT = "poise.runs.stopping:CheckpointClock:is_due"  # of a phase that has begun: first what it is, then steps
TRIAL = "poise.training.events:TrialDone:__init__"
RENAMING = "os:replace"


def there() -> list[str]:
    """What lies in the folder, without locks and what a killed process left half-written."""
    return sorted(path.name for path in Path.cwd().iterdir() if not path.name.startswith("."))


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of classes, and what is learned of them if nobody interrupts: one and two phases, tuned or not."""
    place = tmp_path_factory.mktemp("lessons")
    pictures(place / "first", "cat dog")
    pictures(place / "second", "eel fox", first=50)
    for name, options in (("fixed", SMALL), ("tuned", TUNED)):
        model = ModelFile(place / name)
        given = dict(zip(options[::2], options[1::2], strict=True))
        settings = {
            option.strip("-").replace("-", "_"): int(value) if value.isdigit() else value
            for option, value in given.items()
        }
        model.teach(Lesson(place / "first", settings))
        (place / f"{name}-once").write_bytes((place / name).read_bytes())
        model.teach(Lesson(place / "second"))
    return place


def test_learn_then_predict_then_learn_more(poise: Command) -> None:
    first = pictures(Path("first"), "cat dog")
    words = ("--epochs", "2", "--memory", "3")
    done = poise("learn", "model", first, *words)
    assert (done.code, done.out) == (0, "model: 2 classes\n")
    assert "phase 0: 2 new classes (2 in all)" in done.err
    files = [str(first / "cat" / "0.png"), str(first / "dog" / "0.png")]
    lines = [line.split("\t") for line in poise("predict", "model", *files).out.splitlines()]
    assert [line[0] for line in lines] == files
    assert all(line[1] in ("cat", "dog") and 0.5 <= float(line[2]) <= 1 for line in lines)

    second = pictures(Path("second"), "cat eel", first=50)
    before = Path("model").read_bytes()
    refused = poise("learn", "model", second)
    assert refused.code == 2
    assert "class 'cat' is known already" in refused.err
    assert "--update" in refused.err
    assert Path("model").read_bytes() == before
    late = poise("learn", "model", second, "--epochs", "3")
    assert late == Done(2, "", "poise: model exists already; --epochs can only be chosen for a new learner\n")
    assert poise("learn", "model", second, "--update").out == ("model: 3 classes\n")


# Learned already ------------------------------------------------------------------------------------------------------

NOTHING = "model has learned these classes from these images already; nothing is done\n"


def _written(path: Path) -> tuple[int, int, bytes]:
    """Which file it is, when it was written, and what is in it."""
    return path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()


def test_a_lesson_that_was_learned_already_is_recognised(lessons: Path, poise: Command) -> None:
    first, second = lessons / "first", lessons / "second"
    shutil.copy(lessons / "fixed-once", "model")
    before = _written(Path("model"))
    for words in ((first, *SMALL), (first,), (first, "--seed", "0", "--restart")):
        assert poise("learn", "model", *words) == Done(0, "model: 2 classes\n", NOTHING)
    for other in (("--epochs", "3"), ("--memory", "all"), ("--seed", "1"), ("--method", "lwf"), ("--classifier", "fc")):
        line = f"model exists already; {other[0]} can only be chosen for a new learner"
        assert poise("learn", "model", first, *other) == Done(2, "", f"poise: {line}\n"), (
            "nothing is ignored in silence"
        )
    assert _written(Path("model")) == before
    shutil.copy(lessons / "fixed", "model")
    before = _written(Path("model"))
    for words in ((second,), (first, *SMALL), (second, *SMALL)):
        assert poise("learn", "model", *words) == Done(0, "model: 4 classes\n", NOTHING)
    assert _written(Path("model")) == before
    assert there() == ["model"]


def test_other_images_of_the_same_classes_are_refused(lessons: Path, poise: Command) -> None:
    shutil.copy(lessons / "fixed", "model")
    shutil.copytree(lessons / "first", "first")
    image = Path("first/cat/3.png")
    learned, other = image.read_bytes(), pictures(Path("other"), "cat", first=90) / "cat" / "90.png"
    for change in (lambda: other.rename(image), image.unlink, lambda: shutil.copy(lessons / "first/dog/0.png", image)):
        change()
        line = "class 'cat' is known already; --update trains on new images of known classes"
        assert poise("learn", "model", "first") == Done(2, "", f"poise: {line}\n")
        done = poise("learn", "model", "first", "--epochs", "2", "--memory", "3")
        line = "model exists already; --epochs, --memory can only be chosen for a new learner"
        assert done == Done(2, "", f"poise: {line}\n")
    image.write_bytes(learned)
    assert poise("learn", "model", "first").err == NOTHING
    Path("first/dog").rename("first/bee")
    Path("first/cat").rename("first/dog")
    Path("first/bee").rename("first/cat")
    assert "is known already" in poise("learn", "model", "first").err, "the labels are changed about"
    assert Path("model").read_bytes() == (lessons / "fixed").read_bytes()


def test_a_lesson_without_its_bad_images_is_recognised_too(lessons: Path, poise: Command) -> None:
    shutil.copytree(lessons / "first", "first")
    Path("first/cat/99.png").write_bytes(b"no picture")
    shutil.copy(lessons / "fixed", "model")
    assert poise("learn", "model", "first").code == 2
    done = poise("learn", "model", "first", "--skip-bad")
    assert (done.code, done.err.splitlines()[-1]) == (0, NOTHING.strip())


@pytest.mark.parametrize(("packed", "options"), [(False, ("--image-size", "24")), (True, ())])
def test_images_of_other_sizes_and_packs_are_recognised_too(
    packed: bool, options: tuple[str, ...], poise: Command
) -> None:
    random = np.random.default_rng(0)
    for place in range(12):
        path = Path("images", "train", "cat" if place % 2 else "dog", f"{place}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (70 + place, 90, 3), dtype=np.uint8)).save(path)
    source = "images/train"
    if packed:
        source = "some.pack"
        assert poise("data", "pack", "images", "--out", source, "--size", "40").code == 0
    words = (source, "--epochs", "1", "--policy", "fixed", "--memory", "2", *options)
    assert poise("learn", "model", *words).code == 0
    assert poise("learn", "model", *words) == Done(0, "model: 2 classes\n", NOTHING)
    assert poise("learn", "model", source, "--update").code == 0, "asked for, it is trained on again"


def test_a_learner_that_keeps_no_image_learns_more(poise: Command) -> None:
    done = poise("learn", "model", pictures(Path("first"), "cat dog"), "--epochs", "1", "--memory", "0")
    assert (done.code, done.out) == (0, "model: 2 classes\n")
    assert "training images" not in done.err, "none are in the file"
    second = pictures(Path("second"), "eel fox", first=50)
    assert poise("learn", "model", second).out == "model: 4 classes\n"
    learner = Learner.load("model")
    assert learner.memory_ is not None
    assert len(learner.memory_) == 0


def test_a_run_predicts_too(poise: Command) -> None:
    assert poise("run", *TINY, "--out", "run").code == 0
    image = pictures(Path("pets"), "cat") / "cat" / "0.png"
    assert poise("predict", "run/model.safetensors", image).out.startswith(f"{image}\t")
    done = poise("predict", "run/phase-0.safetensors", image)
    assert done.code == 2
    assert "not a learner file" in done.err
    refused = poise("learn", "run/model.safetensors", "pets")
    assert refused.err == "poise: this learner was saved without its memory: it can predict but not learn further\n"
    missing = poise("predict", "run/model.safetensors", "nowhere.png")
    assert missing == Done(
        2, "", "poise: image nowhere.png cannot be read (No such file or directory); check its path and permissions\n"
    )


# Options -------------------------------------------------------------------------------------------------------------


def test_a_run_folder_in_the_place_of_a_model_is_named_with_its_model(poise: Command) -> None:
    pets = pictures(Path("pets"), "cat dog")
    Path("run").mkdir()
    Path("run/model.safetensors").touch()
    line = "run is a folder, not a file; give run/model.safetensors"
    for command in ("predict", "score", "learn"):
        assert poise(command, "run", pets) == Done(2, "", f"poise: {line}\n")


def test_the_options_of_a_new_learner_reach_it(poise: Command) -> None:
    words = ("--method", "lwf", "--net", "small/ordinary", "--seed", "5", "--device", "cpu")
    assert poise("learn", "model", pictures(Path("pets"), "cat dog"), *SMALL, *words).code == 0
    learner = Learner.load("model")
    settings = learner.settings
    assert (settings.method, settings.net, settings.seed, settings.policy) == ("lwf", "small/ordinary", 5, "fixed")
    assert (settings.schedule.batch, settings.schedule.epochs, settings.memory.per_class) == (4, 2, 3)
    assert learner.shape_ == (3, 8, 8)


# Damaged images ------------------------------------------------------------------------------------------------------


def _damage(folder: Path, count: int) -> list[Path]:
    """Some images of each class that no longer are: some have no header, some end in the middle."""
    found = [path for name in ("cat", "dog") for path in sorted((folder / name).glob("*.png"))[:count]]
    for number, path in enumerate(found):
        path.write_bytes(b"no picture" if number % 2 else path.read_bytes()[:300])
    return found


def test_all_images_that_cannot_be_read_are_named_before_anything_is_learned(poise: Command) -> None:
    folder = pictures(Path("pets"), "cat dog", count=30)
    bad = _damage(folder, 1)
    Path(bad[1]).write_bytes((folder / "dog" / "7.png").read_bytes())
    done = poise("learn", "model", folder, *SMALL)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"poise: image {bad[0]} cannot be decoded (")
    assert done.err.endswith("replace or remove it, or leave it out with --skip-bad\n")
    bad = _damage(folder, 2)
    done = poise("learn", "model", folder, *SMALL)
    assert (done.code, done.out) == (2, "")
    *each, last = done.err.splitlines()
    assert [line.split(" cannot be decoded")[0] for line in each] == [f"not read: image {path}" for path in bad]
    assert last == ("poise: 4 of 60 images cannot be read; replace or remove them, or leave them out with --skip-bad")
    assert not Path("model").exists()
    bad = _damage(folder, 12)
    *each, last = poise("learn", "model", folder).err.splitlines()  # without a size, which is chosen from the files
    assert len(each) == 20
    assert "24 of 60 images cannot be read (4 more than are named);" in last


def test_bad_images_are_left_out_on_demand_and_each_is_named(poise: Command) -> None:
    options = ("--epochs", "2", "--policy", "fixed", "--memory", "3")  # the size is chosen by the good ones
    folder = pictures(Path("pets"), "cat dog", count=6)
    bad = _damage(folder, 2)
    done = poise("learn", "model", folder, *options, "--skip-bad")
    assert (done.code, done.out) == (0, "model: 2 classes\n")
    told = [line for line in done.err.splitlines() if line.endswith("; it is left out")]
    assert [line.split()[1] for line in told] == list(map(str, bad))
    for path in bad:
        path.unlink()
    assert poise("learn", "without", folder, *options).code == 0
    assert Path("without").read_bytes() == Path("model").read_bytes(), "as if they had not been there"


UNREADABLE = Path("/proc/self/mem")  # to read its first byte is an input/output error


@pytest.mark.skipif(not UNREADABLE.exists(), reason="no file that cannot be read is here: not tested")
def test_what_the_disk_does_not_give_is_never_left_out(poise: Command) -> None:
    folder = pictures(Path("pets"), "cat dog")
    Path("pets/dog/0.png").write_bytes(b"no picture")
    Path("pets/cat/98.png").symlink_to(UNREADABLE)
    for options in (SMALL, ("--epochs", "1")):  # with a size and without one
        done = poise("learn", "model", folder, *options, "--skip-bad")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "image pets/cat/98.png cannot be read (Input/output error)" in done.err
        assert "--skip-bad does not leave out what the system did not let poise read" in done.err
    assert there() == ["pets"]
    Path("pets/cat/98.png").unlink()
    assert poise("learn", "model", folder, *SMALL, "--skip-bad").code == 0


def test_a_class_of_nothing_but_bad_images_is_refused(poise: Command) -> None:
    folder = pictures(Path("pets"), "cat dog")
    for path in Path("pets/dog").iterdir():
        path.write_bytes(b"no picture")
    done = poise("learn", "model", folder, "--skip-bad")
    line = "poise: class 'dog' has no image that can be read; replace its images, or remove its folder"
    assert (done.code, done.err.splitlines()[-1]) == (2, line)
    assert not Path("model").exists()


# Interrupted and continued -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signum", "place", "number"), [(signal.SIGTERM, EVENT, 3), (signal.SIGINT, DEFAULTS, 1)])
def test_an_interrupted_first_phase_is_continued_to_the_same_bytes(
    signum: int, place: str, number: int, lessons: Path, driven: Driven, poise: Command
) -> None:
    model = Path.cwd() / "model"
    words = ("learn", str(model), str(lessons / "first"), *SMALL)
    code, printed = driven(place, number, signum, *words)
    assert code == 128 + signum
    assert printed.splitlines()[-1] == "poise: interrupted; the same command continues, with --restart it begins again"
    assert there() == ["model.pending"]
    missing = poise("predict", "model", lessons / "first" / "cat" / "0.png")
    assert missing.code == 2
    assert "its first phase was interrupted; continue it with 'poise learn'" in missing.err
    done = poise(*words)
    assert done.code == 0, done.err
    assert "continuing the phase that was interrupted" in done.err
    assert there() == ["model"]
    assert model.read_bytes() == (lessons / "fixed-once").read_bytes()


def test_interrupted_while_the_augmentation_is_judged_nothing_is_left_and_it_begins_again(
    driven: Driven, poise: Command
) -> None:
    pets = pictures(Path.cwd() / "pets", "cat dog", count=25)
    words = ("learn", str(Path.cwd() / "model"), str(pets), *SMALL)
    assert poise(*words).code == 0
    once = Path("model").read_bytes()
    Path("model").unlink()
    code, printed = driven(JUDGING, 5, signal.SIGTERM, *words)
    assert code == 128 + signal.SIGTERM
    assert printed.splitlines()[-1] == ("poise: interrupted before anything was learned; the same command begins again")
    assert there() == ["pets"]
    assert poise(*words).code == 0
    assert Path("model").read_bytes() == once


@pytest.mark.parametrize(("name", "place", "number"), [("fixed", EVENT, 3), ("tuned", TRIAL, 2)])
def test_a_later_phase_too_and_the_model_stays_as_it_was_until_then(
    name: str, place: str, number: int, lessons: Path, driven: Driven, poise: Command
) -> None:
    model, before = Path.cwd() / "model", (lessons / f"{name}-once").read_bytes()
    model.write_bytes(before)
    words = ("learn", str(model), str(lessons / "second"))
    assert driven(place, number, signal.SIGINT, *words)[0] == 130
    assert model.read_bytes() == before
    names, _ = store.read_tensors(Path("model.pending"), kind="unfinished phase")
    assert not [tensor for tensor in names if "memory" in tensor], "training images are in the model and nowhere else"
    assert poise("predict", "model", lessons / "first").code == 0
    done = poise(*words)
    assert done.code == 0, done.err
    assert model.read_bytes() == (lessons / name).read_bytes()
    assert there() == ["model"]


def test_killed_at_any_moment_it_continues_from_the_last_checkpoint(
    lessons: Path, driven: Driven, poise: Command
) -> None:
    model = Path.cwd() / "model"
    model.write_bytes((lessons / "fixed-once").read_bytes())
    words = ("learn", str(model), str(lessons / "second"))
    assert driven(RENAMING, 4, signal.SIGKILL, *words, "--checkpoint-every", "0")[0] == -signal.SIGKILL
    assert model.read_bytes() == (lessons / "fixed-once").read_bytes()
    assert (Path.cwd() / ".model.lock").exists(), "the lock of a dead process is in nobody's way"
    assert driven(EVENT, 2, signal.SIGKILL, *words, "--checkpoint-every", "0")[0] == -signal.SIGKILL
    assert poise(*words).code == 0
    assert model.read_bytes() == (lessons / "fixed").read_bytes()
    assert there() == ["model"]


@pytest.mark.parametrize(("phase", "more"), [(0, ()), (1, ("--restart",))])
def test_killed_after_the_model_was_saved_the_phase_is_finished(
    phase: int, more: tuple[str, ...], lessons: Path, driven: Driven, poise: Command
) -> None:
    model = Path.cwd() / "model"
    if phase:
        model.write_bytes((lessons / "fixed-once").read_bytes())
    words = ("learn", str(model), str(lessons / ("second" if phase else "first")), *(() if phase else SMALL))
    assert driven("pathlib:Path:unlink", 1, signal.SIGKILL, *words, "--checkpoint-every", "0")[0] == -signal.SIGKILL
    kept, learned = Path("model.pending").read_bytes(), (lessons / ("fixed" if phase else "fixed-once")).read_bytes()
    assert model.read_bytes() == learned
    done = poise(*words, *more)
    assert (done.code, done.out) == (0, f"{model}: {4 if phase else 2} classes\n")
    assert done.err == NOTHING.replace("model", str(model), 1)
    assert model.read_bytes() == learned
    assert not Path("model.pending").exists()

    Path("model.pending").write_bytes(kept)
    pictures(Path("third"), "gnu hen")
    assert "was changed since its phase was interrupted" in poise("learn", model, "third").err
    assert poise("learn", model, "third", "--restart").out == f"{model}: {6 if phase else 4} classes\n"


@pytest.mark.parametrize(
    ("signum", "place", "number"),
    [(signal.SIGTERM, "pathlib:Path:unlink", 1), (signal.SIGINT, "poise.cli.app:_end", 1)],
)
def test_a_signal_after_the_model_was_saved_does_not_make_a_failure_of_it(
    signum: int, place: str, number: int, lessons: Path, driven: Driven
) -> None:
    model = Path.cwd() / "model"
    model.write_bytes((lessons / "fixed-once").read_bytes())
    words = ("learn", str(model), str(lessons / "second"), "--checkpoint-every", "1000000")
    code, printed = driven(place, number, signum, *words)
    assert (code, printed.splitlines()[-1]) == (0, f"{model}: 4 classes")
    assert model.read_bytes() == (lessons / "fixed").read_bytes()
    assert there() == ["model"]


@pytest.fixture(scope="module")
def halfway(lessons: Path, driven: Driven) -> Path:
    """Where a model was interrupted in the middle of its second phase."""
    shutil.copy(lessons / "fixed-once", lessons / "model")
    assert driven(EVENT, 3, signal.SIGTERM, "learn", str(lessons / "model"), str(lessons / "second"))[0] == 143
    return lessons


@pytest.fixture
def interrupted(halfway: Path) -> Path:
    """A model in the middle of its second phase, and a copy of what it learns there."""
    for name in ("model", "model.pending"):
        shutil.copy(halfway / name, name)
    shutil.copytree(halfway / "second", "second")
    return Path.cwd() / "model"


def test_other_images_are_refused_with_what_to_do(interrupted: Path, lessons: Path, poise: Command) -> None:
    kept = Path("model.pending").read_bytes()
    pictures(Path("third"), "gnu hen")
    Path("second/eel/50.png").unlink()
    for folder in ("third", "second"):
        refused = poise("learn", interrupted, folder)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert f"was interrupted while it learned {lessons / 'second'}, and these are other images" in refused.err
        assert "or use --restart" in refused.err
    assert poise("remove", interrupted, "cat").err == (
        f"poise: a phase of {interrupted} was interrupted; finish it first with 'poise learn', "
        f"or delete {interrupted}.pending\n"
    )
    assert Path("model.pending").read_bytes() == kept
    shutil.copy(lessons / "second" / "eel" / "50.png", "second/eel")
    shutil.copytree("second", "moved")
    assert poise("learn", interrupted, "moved").code == 0
    assert interrupted.read_bytes() == (lessons / "fixed").read_bytes()


def test_a_restart_discards_what_was_interrupted(interrupted: Path, lessons: Path, poise: Command) -> None:
    pictures(Path("third"), "gnu hen")
    assert poise("learn", interrupted, "nowhere", "--restart").code == 2
    assert Path("model.pending").exists(), "a mistake discards nothing"
    Path("model.pending").write_bytes(b"nonsense")
    damaged = poise("learn", interrupted, "third")
    assert damaged.code == 1
    assert "model.pending is damaged or was not written by poise; --restart begins the phase again" in damaged.err
    assert poise("learn", interrupted, "third", "--restart").out == f"{interrupted}: 4 classes\n"
    assert not Path("model.pending").exists()


def test_it_is_not_continued_with_other_options_or_another_model(
    interrupted: Path, lessons: Path, driven: Driven, poise: Command
) -> None:
    other = poise("learn", interrupted, "second", "--update")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "that was begun with no options; give the same options" in other.err
    interrupted.write_bytes((lessons / "tuned-once").read_bytes())
    changed = poise("learn", interrupted, "second")
    assert (changed.code, changed.err.count("\n")) == (2, 1)
    assert "was changed since its phase was interrupted; restore it" in changed.err

    words = ("learn", str(Path.cwd() / "new"), str(lessons / "first"), *SMALL)
    assert driven(EVENT, 4, signal.SIGINT, *words)[0] == 130
    refused = poise("learn", "new", lessons / "first", "--epochs", "3")
    assert "--epochs 2 --batch 4 --memory 3 --policy fixed --image-size 8; give the same options" in refused.err


# Another process ----------------------------------------------------------------------------------------------------


def test_meanwhile_a_second_lesson_is_refused_and_what_is_saved_into_the_file_is_kept(
    lessons: Path, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(lessons / "fixed-once", "pets.st")
    told, is_due = list[Done](), CheckpointClock.is_due

    def meanwhile(clock: CheckpointClock, event: Event) -> bool:
        if not told:
            before = there()
            told.append(poise("learn", "pets.st", lessons / "first"))
            assert there() == before
            Learner.load("pets.st").remove("cat").save("pets.st")
        return is_due(clock, event)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointClock, "is_due", meanwhile)
        late = poise("learn", "pets.st", lessons / "second")
    line = "another process is learning into pets.st; wait for it or choose another MODEL"
    assert (told[0].code, told[0].err.splitlines()[-1]) == (2, f"poise: {line}")
    assert (late.code, late.out) == (1, "")
    assert late.err.splitlines()[-1] == (
        "poise: pets.st was changed by another process meanwhile and is left so; what was learned, without that "
        "change, is in pets-learned-1.st"
    )
    assert Learner.load("pets-learned-1.st").knowledge.classes == ("cat", "dog", "eel", "fox")
    assert poise("learn", "pets.st", lessons / "second").out == "pets.st: 3 classes\n"
    assert Learner.load("pets.st").knowledge.classes == ("dog", "eel", "fox")


# Predicting and scoring ----------------------------------------------------------------------------------------------


@pytest.fixture
def model(lessons: Path) -> Path:
    """A learner of four classes."""
    shutil.copy(lessons / "fixed", "model")
    return Path("model")


def test_folders_are_predicted_with_all_that_is_below_them(model: Path, lessons: Path, poise: Command) -> None:
    single = lessons / "second" / "fox" / "50.png"
    lines = [line.split("\t") for line in poise("predict", model, single, lessons / "first").out.splitlines()]
    assert [line[0] for line in lines] == [str(single), *map(str, sorted((lessons / "first").rglob("*.png")))]
    assert {len(line) for line in lines} == {3}


def test_the_most_probable_classes_for_people_and_for_programs(model: Path, lessons: Path, poise: Command) -> None:
    image = lessons / "first" / "cat" / "0.png"
    row = Learner.load(model).predict_proba([image])[0]
    _, *cells = poise("predict", model, image, "--top", "3").out.strip().split("\t")
    assert [float(cell) for cell in cells[1::2]] == sorted((round(float(p), 3) for p in row), reverse=True)[:3]
    found = json.loads(poise("predict", model, image, "--top", "9", "--json").out)
    assert found["path"] == str(image)
    assert found["ranked"][0] == {"label": found["label"], "probability": found["probability"]}
    assert {each["label"] for each in found["ranked"]} == {"cat", "dog", "eel", "fox"}
    assert sum(each["probability"] for each in found["ranked"]) == pytest.approx(1, abs=1e-5)
    assert "ranked" not in json.loads(poise("predict", model, image, "--json").out)


def test_what_cannot_be_read_is_named_and_the_rest_predicted(model: Path, lessons: Path, poise: Command) -> None:
    shutil.copytree(lessons / "first", "mixed")
    broken = Path("mixed/cat/3.png")
    broken.write_bytes(b"no picture")
    done = poise("predict", model, "mixed")
    assert (done.code, len(done.out.splitlines())) == (0, 9)
    assert done.err.startswith(f"not read: image {broken} cannot be decoded")
    lines = [json.loads(line) for line in poise("predict", model, "mixed", "--json").out.splitlines()]
    assert [line["path"] for line in lines if "error" in line] == [str(broken)]
    named = poise("predict", model, broken, "mixed/dog/0.png")  # asked for by its name, it is a mistake
    assert (named.code, len(named.out.splitlines())) == (2, 1)
    assert f"image {broken} cannot be decoded" in named.err
    Path("only").mkdir()
    Path("only/0.png").write_bytes(b"no picture")
    assert poise("predict", model, "only").code == 2
    Path("empty").mkdir()
    assert "empty has no image" in poise("predict", model, "empty").err


def _type_in(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next command finds on standard input."""
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(text)))


def test_paths_on_standard_input_are_predicted_like_named_ones(
    model: Path, lessons: Path, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, options = [*sorted((lessons / "first").rglob("*.png")), lessons / "second"], ("--json", "--reject", "0.5")
    Path("a\nb.png").write_bytes((lessons / "first/cat/0.png").read_bytes())
    named = poise("predict", model, *paths, *options)
    for separator, end, more in ((b"\n", b"\n", ()), (b"\r\n", b"", ()), (b"\n \n", b"", ()), (b"\0", b"\0", ("-0",))):
        _type_in(separator.join(map(os.fsencode, paths)) + end, monkeypatch)
        assert poise("predict", model, "-", *more, *options).out == named.out
    _type_in(b"a\nb.png\0", monkeypatch)
    assert poise("predict", model, "-", "--null").out.startswith("a\\x0ab.png\t")


def test_what_fails_on_standard_input_is_named_and_the_rest_predicted(
    model: Path, lessons: Path, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty").mkdir()
    shutil.copytree(lessons / "first", "mixed")
    Path("mixed/cat/3.png").write_bytes(b"no picture")
    lines = ("nowhere.png", "empty", "~nobody-there/a.png", "some.pack", "mixed", f"{lessons}/second/fox/50.png")
    Path("some.pack").write_bytes(b"no pack")
    _type_in("\n".join(lines).encode(), monkeypatch)
    done = poise("predict", model, "mixed/dog/0.png", "-", "absent.png")
    assert (done.code, len(done.out.splitlines())) == (2, 11)
    assert done.out.startswith("mixed/dog/0.png\t"), "what is named comes first"
    *each, named, last = done.err.splitlines()
    assert [line.removeprefix("not read: ").removeprefix("image ").split()[0] for line in each] == [
        "mixed/cat/3.png",
        *lines[:4],
    ]
    assert named == "poise: image absent.png cannot be read (No such file or directory); check its path and permissions"
    assert last == "poise: 4 of 6 paths on standard input could not be read"
    _type_in(b"mixed\n", monkeypatch)
    assert poise("predict", model, "-").code == 0, "as of a folder that is named"


def test_standard_input_without_paths_or_with_something_else(
    model: Path, lessons: Path, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (b"", b"\n\n"):
        _type_in(text, monkeypatch)
        assert poise("predict", model, "-") == Done(0, "", "")
    for text, what in ((b"a\0b\0", "a NUL"), (b"x" * 20_000, "a path of more than 16384 bytes")):
        _type_in(text, monkeypatch)
        done = poise("predict", model, "-")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith(f"poise: standard input has {what}")
    done = poise("predict", model, lessons / "first", "-0")
    line = "-0 is for paths on standard input; add - in the place of a path, or leave -0 out"
    assert done == Done(2, "", f"poise: {line}\n")


def test_paths_are_read_as_they_come() -> None:
    theirs, ours = os.pipe()
    with os.fdopen(theirs, "rb") as file:
        paths = read_paths(file)
        for written, read in ((b"a.png\n", ["a.png"]), (b"b.png\nc.png\nd", ["b.png", "c.png"])):
            os.write(ours, written)
            assert next(paths) == list(map(Path, read)), "before more are written"
        os.close(ours)
        assert next(paths) == [Path("d")]


def test_what_a_model_holds_for_people_and_for_programs(model: Path, poise: Command) -> None:
    done = poise("info", model)
    assert (done.code, done.err) == (0, "")
    told = dict(line.split(":", 1) for line in done.out.splitlines())
    assert told["classes"].strip() == "4: cat, dog, eel, fox"
    assert told["images"].strip() == "8×8 pixels, 3 channels"
    assert told["kept images"].strip() == "12: cat 3, dog 3, eel 3, fox 3"
    assert told["phase under way"].strip() == "none"
    found = json.loads(poise("info", model, "--json").out)
    learner = Learner.load(model)
    assert found["classes"] == list(learner.knowledge.classes)
    assert (found["phases"], found["image_size"], found["channels"]) == (2, [8, 8], 3)
    assert (found["kept_images"], found["network"]) == ([3, 3, 3, 3], learner.architecture)
    assert (found["method"], found["policy"], found["pending"], found["format"]) == ("lucir", "fixed", False, 3)


def test_an_interrupted_phase_of_a_model_is_told(interrupted: Path, poise: Command) -> None:
    assert json.loads(poise("info", interrupted, "--json").out)["pending"] is True
    assert "one was interrupted" in poise("info", interrupted).out
    interrupted.unlink()
    assert "its first phase was interrupted; continue it with 'poise learn'" in poise("info", interrupted).err


def test_a_score_in_total_and_for_each_class(model: Path, lessons: Path, poise: Command) -> None:
    shutil.copytree(lessons / "first", "exam")
    shutil.rmtree("exam/dog")
    shutil.copytree(lessons / "second" / "fox", "exam/fox")
    pictures(Path("exam"), "yak zebra", count=2)
    Path("exam/fox/54.png").write_bytes(b"no picture")
    done = poise("score", model, "exam")
    assert done.code == 0, done.err
    assert done.err.startswith("not read: image exam/fox/54.png cannot be decoded")
    rows = {cells[0]: cells[1:] for cells in (line.split() for line in done.out.splitlines()[2:5])}
    learner = Learner.load(model)
    hits = {
        name: [learner.predict([file])[0] == name for file in Path("exam", name).glob("*.png") if file.name != "54.png"]
        for name in ("cat", "fox")
    }
    for name, found in hits.items():
        assert rows[name] == [str(len(found)), str(sum(found)), f"{100 * sum(found) / len(found):.2f}"]
    right = sum(map(sum, hits.values()))
    assert rows["all"] == ["9", str(right), f"{100 * right / 9:.2f}"]
    assert done.out.splitlines()[5:] == [
        f"class '{name}' is unknown to this learner; its 2 images are not counted" for name in ("yak", "zebra")
    ]
    found = json.loads(poise("score", model, "exam", "--json").out)
    assert (found["images"], found["right"], found["unknown"]) == (9, right, {"yak": 2, "zebra": 2})
    assert found["accuracy"] == pytest.approx(100 * right / 9, abs=1e-3)


def test_a_folder_without_a_known_class_has_no_score(model: Path, poise: Command) -> None:
    done = poise("score", model, pictures(Path("exam"), "yak"))
    assert (done.code, done.out) == (2, "")
    assert "exam has no class that this learner knows; it knows cat, dog, eel, fox" in done.err


def test_of_a_pack_the_training_part_is_learned_and_the_test_part_scored(poise: Command) -> None:
    pictures(Path("images/train"), "cat dog", count=6)
    pictures(Path("images/val"), "cat dog", count=3, first=20)
    pictures(Path("others/train"), "cat yak", count=2)
    for name in ("images", "others"):
        assert poise("data", "pack", name, "--out", f"{name}.pack", "--size", "32").code == 0
    assert poise("learn", "model", "images.pack", *SMALL[:-4], *SMALL[-2:]).code == 0
    done = poise("score", "model", "images.pack")
    assert done.code == 0, done.err
    rows = {cells[0]: cells[1:] for cells in (line.split() for line in done.out.splitlines()[2:])}
    hits = [
        found == name for name in ("cat", "dog") for found in Learner.load("model").predict(_files("images/val", name))
    ]
    assert (rows["cat"][0], rows["dog"][0], rows["all"][:2]) == ("3", "3", ["6", str(sum(hits))])
    assert json.loads(poise("score", "model", "images.pack", "--json").out)["part"] == "test"
    done = poise("score", "model", "others.pack")
    assert "others.pack has no test part: these are the images that are trained on" in done.err
    assert "class 'yak' is unknown to this learner; its 2 images are not counted" in done.out


@pytest.fixture
def packed(model: Path, poise: Command) -> Path:
    """A pack of what the model was trained for, of images of another size than it sees."""
    pictures(Path("images/train"), "cat dog", count=6)
    pictures(Path("images/val"), "cat dog", count=5, first=20)
    assert poise("data", "pack", "images", "--out", "some.pack", "--size", "12").code == 0
    return Path("some.pack")


def test_the_test_part_of_a_pack_is_predicted_with_names_that_lead_to_the_files(
    model: Path, packed: Path, poise: Command
) -> None:
    photo, files = Path("images/train/cat/0.png"), [*_files("images/val", "cat"), *_files("images/val", "dog")]
    names = [f"some.pack:test/{file.parent.name}/{number % 5}" for number, file in enumerate(files)]
    lines = [line.split("\t") for line in poise("predict", model, photo, packed, photo).out.splitlines()]
    assert [line[0] for line in lines] == [str(photo), *names, str(photo)], "in the order of the command"
    chances = Learner.load(model).predict_proba(packed)
    assert [line[2] for line in lines[1:-1]] == [f"{chance:.3f}" for chance in chances.max(axis=1)]
    found = [json.loads(line) for line in poise("predict", model, packed, "--json").out.splitlines()]
    assert [f"{each['path']}:{each['image']}" for each in found] == names
    digests = [hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files]
    assert [each["source"] for each in found] == digests
    before = poise("predict", model, packed).out
    packed.rename("renamed")  # recognised by what is in it
    assert poise("predict", model, "renamed").out == before.replace("some.pack", "renamed")


def test_files_and_packs_are_predicted_a_few_images_at_a_time(
    model: Path, lessons: Path, packed: Path, poise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, lengths, predict = (lessons / "first", packed), list[int](), Learner.predict_proba
    at_once = poise("predict", model, *given).out

    def note_length(learner: Learner, images: Tensor) -> object:
        lengths.append(len(images))
        return predict(learner, images)

    monkeypatch.setattr(prediction, "CHUNK", 4)
    monkeypatch.setattr(Learner, "predict_proba", note_length)
    assert poise("predict", model, *given).out == at_once
    assert lengths == [4, 4, 2] * 2


@pytest.mark.usefixtures("packed")
def test_a_pack_where_it_makes_no_sense_is_one_line(poise: Command) -> None:
    for words, line in {
        "predict some.pack images": "some.pack is a pack of images, not the file of a learner",
        "score some.pack images/val": "some.pack is a pack of images, not the file of a learner",
        "learn some.pack images/train": "some.pack is a pack of images, not the file of a learner",
        "cam model --images some.pack": "some.pack is a pack, and maps are drawn of at most 24 images",
        "data pack some.pack --out other.pack": "some.pack is a pack already",
    }.items():
        done = poise(*words.split())
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert line in done.err


def _files(folder: str, name: str) -> list[Path]:
    return sorted(Path(folder, name).glob("*.png"))


def test_numbers_are_classes_too(poise: Command) -> None:
    images = np.stack([np.full((8, 8), value, np.uint8) for value in (0, 250) * 6])
    learner = Learner(epochs=10, memory=2, policy="fixed", batch=4, augmentation=Augmentation(pad=0, flip=False))
    learner.partial_fit(images, [3, 7] * 6).save("model")
    for name, value in (("3", 0), ("7", 250)):
        Path("exam", name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), value, np.uint8)).save(f"exam/{name}/0.png")
    assert json.loads(poise("score", "model", "exam", "--json").out)["accuracy"] == 100


def test_images_of_no_known_class_are_rejected_when_asked(model: Path, lessons: Path, poise: Command) -> None:
    folder = lessons / "first"
    lines = [line.split("\t") for line in poise("predict", model, folder, "--reject", "0.4").out.splitlines()]
    assert {len(line) for line in lines} == {2, 3}, "some are rejected at such a rate, and not all"
    assert {line[1] for line in lines if len(line) == 2} == {"-"}
    rows = [json.loads(line) for line in poise("predict", model, folder, "--reject", "0.4", "--json").out.splitlines()]
    assert [row["label"] is None for row in rows] == [len(line) == 2 for line in lines]
    for word, why in {
        "1.5": "must be a number above 0 and below 1",
        "nan": "must be a number above 0 and below 1",
        "0.0001": "12 images are too few",
        "often": "this is no number",
        "saved": "saved without a reject threshold",
    }.items():
        refused = poise("predict", model, folder, "--reject", word)
        assert (refused.code, refused.out) == (2, "")
        assert why in refused.err.splitlines()[-1]
        assert "a share, such as " in refused.err


def test_a_saved_threshold_rejects_without_kept_images(model: Path, lessons: Path, poise: Command) -> None:
    learner, folder = Learner.load(model, device="cpu"), lessons / "first"
    plain = [json.loads(line) for line in poise("predict", model, folder, "--json", "--top", "2").out.splitlines()]
    learner.calibrate_reject(0.4).save("thresholded", memory=False)
    wanted = [label is None for label in learner.predict([row["path"] for row in plain], reject=True)]
    done = poise("predict", "thresholded", folder, "--reject", "saved", "--json", "--top", "2")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["label"] is None for row in rows] == wanted
    assert 0 < sum(wanted) < len(wanted)
    assert [row["ranked"] for row in rows] == [row["ranked"] for row in plain]
    assert "keeps no images" in poise("predict", "thresholded", folder, "--reject", "0.1").err


def test_a_file_is_tested_as_it_learns_asked_by_either_classifier_exported_and_rid_of_classes(poise: Command) -> None:
    first = pictures(Path("first"), "cat dog eel")
    refused = poise("learn", "model", first, *SMALL, "--test", "nowhere")
    assert (refused.code, there()) == (2, ["first"])
    done = poise("learn", "model", first, *SMALL, "--classifier", "ncm", "--test", first)
    table = done.out.removeprefix("model: 3 classes\n")
    assert (done.code, Learner.load("model").classifier_) == (0, "ncm")
    assert table == poise("score", "model", first).out == poise("score", "model", first, "--classifier", "ncm").out
    shown = {name: poise("predict", "model", first, "--classifier", name).out for name in ("fc", "ncm")}
    assert shown["fc"] != shown["ncm"] == poise("predict", "model", first).out
    for words in (("predict", "model", first, "--classifier", "nmc"), ("export", "model", "model.txt")):
        assert poise(*words).code == 2
    assert poise("export", "model", "model.pt2").out == "model.pt2\n"
    assert poise("remove", "model", "dog").out == "model: 2 classes\n"
    assert Learner.load("model").classes_.tolist() == ["cat", "eel"]
    assert poise("remove", "model", "dog").code == 2
    assert poise("remove", "model", "cat").out == "model: 1 class\n"
