"""A run from end to end: its folder, its result, and what two runs have in common."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from poise import Learner, store
from poise.data.packing import Packing
from poise.data.sources import DigitsSource, add_source
from poise.errors import UserError
from poise.runs import Plan, Run, RunFolder, Tracker, load_recipe, make_plan, reopen
from poise.runs.journal import read_journal
from poise.runs.plan import plan_of_words
from poise.training.events import DefaultsChosen

Plans = Callable[..., Plan]
Outcome = Callable[[Path], tuple[dict[str, Any], bytes, bytes]]

KEYS = [
    *("format", "recipe", "data", "method", "policy", "resolved_policy", "setting", "phases", "order", "memory"),
    *("epochs", "space", "exam", "seed", "average_accuracy", "average_accuracy_after_phase_0", "last_accuracy"),
    *("average_forgetting", "backward_transfer", "accuracy_matrix", "seconds", "curve", "digest"),
]


@pytest.fixture
def result(reference: Path) -> dict[str, Any]:
    return dict(json.loads((reference / "result.json").read_bytes()))


def test_the_result_has_the_promised_keys(result: dict[str, Any]) -> None:
    assert list(result) == KEYS
    assert set(result["seconds"]) == {"train", "policy", "evaluate", "total", "phase_0"}
    assert 0 < result["seconds"]["phase_0"] < result["seconds"]["total"]
    promised = {"phase", "classes", "accuracy", "accuracy_fc", "accuracy_ncm", "action"}
    assert all(promised <= set(point) for point in result["curve"])
    assert (result["recipe"], result["data"], result["method"]) == ("digits/lucir", "digits", "lucir")
    assert (result["setting"], result["phases"], result["epochs"], result["exam"]) == ("groups", 3, 1, "test")
    assert [point["classes"] for point in result["curve"]] == [2, 3, 4]
    assert [point["stored_images"] for point in result["curve"]] == [10, 15, 20]


def test_the_average_includes_phase_0(result: dict[str, Any]) -> None:
    accuracies = [point["accuracy"] for point in result["curve"]]
    assert result["average_accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-3)
    assert result["average_accuracy_after_phase_0"] == pytest.approx(np.mean(accuracies[1:]), abs=1e-3)
    assert result["last_accuracy"] == accuracies[-1]


def test_the_last_row_of_the_accuracy_matrix_is_the_last_exam(result: dict[str, Any]) -> None:
    matrix, sizes = result["accuracy_matrix"], (2, 1, 1)  # the digits' classes have about the same number of images
    assert [len(row) for row in matrix] == [1, 2, 3]
    assert matrix[0] == [result["curve"][0]["accuracy"]]
    assert np.average(matrix[-1], weights=sizes) == pytest.approx(result["last_accuracy"], abs=1)
    moved = [last - matrix[phase][phase] for phase, last in enumerate(matrix[-1][:-1])]
    assert result["backward_transfer"] == pytest.approx(np.mean(moved), abs=1e-3)


def test_the_model_in_the_folder_predicts_what_the_last_exam_counted(reference: Path, result: dict[str, Any]) -> None:
    learner = Learner.load(reference / "model.safetensors")
    seen = DigitsSource().test().of_labels([int(label) for label in learner.knowledge.classes])
    names = [str(label) for label in seen.labels.tolist()]
    assert 100 * learner.score(seen.pixels, names) == pytest.approx(result["last_accuracy"], abs=1e-3)
    with pytest.raises(UserError, match="without its memory"):
        learner.partial_fit(seen.pixels, seen.labels)


def test_the_journal_tells_every_phase_in_order(reference: Path) -> None:
    events = list(read_journal(reference / "journal.jsonl"))
    assert [event["event"] for event in events] == ["phase", "action", "epoch", "stage", "learned", "exam"] * 3
    assert [event["phase"] for event in events] == [0] * 6 + [1] * 6 + [2] * 6
    assert [event["memory_images"] for event in events if event["event"] == "phase"] == [0, 10, 15]
    assert not any(word in json.dumps(events) for word in ("second", "time", "date"))


def test_no_file_of_a_run_folder_contains_training_images(reference: Path) -> None:
    pixels = DigitsSource().train().pixels
    files = [path.read_bytes() for path in reference.rglob("*.safetensors")]
    assert len(files) == 4
    assert not any(image.numpy().tobytes() in content for image in pixels[:50] for content in files)


def test_the_same_run_twice_is_the_same_bytes(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    Run(plan(), RunFolder(tmp_path / "again")).start()
    assert outcome(tmp_path / "again") == outcome(reference)
    text = [(folder / "result.json").read_text() for folder in (reference, tmp_path / "again")]
    lines = [[line for line in one.splitlines() if not _is_seconds(line)] for one in text]
    assert lines[0] == lines[1]


def _is_seconds(line: str) -> bool:
    names = ("train", "policy", "evaluate", "total", "phase_0", "digest")
    return line.split(":", maxsplit=1)[0].strip().strip('"') in names


def test_what_comes_later_changes_nothing_before_it(reference: Path, plan: Plans, tmp_path: Path) -> None:
    Run(plan("groups=[2,1]"), RunFolder(tmp_path / "short")).start()
    short, long = ((folder / "journal.jsonl").read_bytes() for folder in (tmp_path / "short", reference))
    assert long.startswith(short)


def test_auto_is_recorded_as_what_it_became(plan: Plans, tmp_path: Path) -> None:
    words = ("action.classifier=auto", "memory=6", "memory.reserve=2")
    found = Run(plan(*words), RunFolder(tmp_path / "auto")).start()
    assert found["curve"][0]["action"]["classifier"] == "fc"
    assert all(point["action"]["classifier"] in ("fc", "ncm") for point in found["curve"])
    assert found["resolved_policy"]["action"]["classifier"] == "auto"
    for point in found["curve"]:
        assert point["accuracy"] == point[f"accuracy_{point['action']['classifier']}"]
    assert (found["memory"]["per_class"], found["memory"]["reserve"]) == (6, 2)


# Starting from another run ------------------------------------------------------------------------------------------


def test_start_shares_phase_0(reference: Path, plan: Plans, outcome: Outcome, tmp_path: Path) -> None:
    same = Run(plan(f"start={reference}"), RunFolder(tmp_path / "same")).start()
    assert same["curve"] == outcome(reference)[0]["curve"]
    assert outcome(tmp_path / "same")[2] == outcome(reference)[2]
    other = Run(plan(f"start={reference}", "action.feature_kd=0"), RunFolder(tmp_path / "other")).start()
    assert other["curve"][0] == same["curve"][0]
    assert other["curve"][1] != same["curve"][1]


def test_a_phase_0_of_an_older_format_is_refused(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = RunFolder(tmp_path / "older")
    older.path.mkdir()
    with monkeypatch.context() as before:
        before.setattr(store, "FORMAT", 1)
        store.write_tensors(older.phase_0, {}, {}, kind="phase 0")
    with pytest.raises(UserError, match=r"^[^\n]*phase-0.safetensors has format 1, this poise reads 3; [^\n]*$"):
        Run(plan(f"start={older.path}"), RunFolder(tmp_path / "run")).start()
    assert not (tmp_path / "run").exists()


def test_the_classifier_of_phase_0_is_that_of_the_run_that_starts(plan: Plans, tmp_path: Path) -> None:
    icarl = Run(plan(name="digits/icarl"), RunFolder(tmp_path / "icarl")).start()
    lwf = Run(plan(f"start={tmp_path / 'icarl'}", name="digits/lwf"), RunFolder(tmp_path / "lwf")).start()
    assert icarl["curve"][0]["action"]["classifier"] == "ncm"
    assert lwf["curve"][0]["action"]["classifier"] == "fc"
    assert lwf["curve"][0]["accuracy"] == icarl["curve"][0]["accuracy_fc"]


@pytest.mark.parametrize(
    ("words", "name", "line"),
    [
        (("seed=1",), "digits/lucir", "has other seed"),
        (("exam=dev",), "digits/lucir", "has other exam"),
        (("augmentation=cutout",), "digits/lucir", "has other augmentation"),
        (("order=sorted",), "digits/lucir", "has other classes"),
        ((), "digits/icarl", "they must agree"),
        (("net=resnet32",), "digits/lucir", "they must agree"),
        (("memory=6",), "digits/lucir", "than this run keeps .per_class=6.; start from a run with this memory"),
    ],
)
def test_start_refuses_what_does_not_fit(
    words: tuple[str, ...], name: str, line: str, reference: Path, plan: Plans, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=line) as error:
        Run(plan(f"start={reference}", *words, name=name), RunFolder(tmp_path / "run")).start()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


# The folder ---------------------------------------------------------------------------------------------------------


def test_files_of_the_user_are_not_overwritten(plan: Plans, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "model.safetensors").write_text("mine")
    with pytest.raises(UserError, match="holds files of another run"):
        Run(plan(), RunFolder(tmp_path)).start()
    assert (tmp_path / "lock").read_text() == (tmp_path / "model.safetensors").read_text() == "mine"


def test_a_folder_of_run_folders_does_not_become_one(plan: Plans, tmp_path: Path) -> None:
    cell = tmp_path / "sweep" / "seed=0"
    cell.mkdir(parents=True)
    (cell / "recipe.json").write_text("{}")
    job = Run(plan(), RunFolder(tmp_path / "sweep"))
    with pytest.raises(UserError, match="sweep holds run folders, such as seed=0; choose another --out"):
        job.state()
    with pytest.raises(UserError, match="holds run folders"):
        job.start()
    assert not (tmp_path / "sweep" / "recipe.json").exists()
    assert Run(plan(), RunFolder(tmp_path / "sweep" / "seed=1")).state() == "new"


def test_what_is_left_of_another_run_is_not_mixed_in(reference: Path, plan: Plans, tmp_path: Path) -> None:
    shutil.copytree(reference / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="choose another --out"):
        Run(plan(), RunFolder(tmp_path / "run")).start()


def test_the_default_folder_names_the_run(plan: Plans) -> None:
    tfs = make_plan("digits/lucir", load_recipe("digits/lucir", ["setting=tfs", "seed=7"]))
    assert tfs.default_folder() == Path("runs/digits-lucir-tfs-5-fixed-s7")
    other = make_plan("digits/lucir", load_recipe("digits/lucir", ["method=icarl"]))
    assert other.default_folder() == Path("runs/digits-icarl-tfh-5-fixed-s0")
    assert plan().default_folder() == Path("runs/digits-lucir-groups-3-fixed-s0")


def test_tensorboard_gets_the_scalars(plan: Plans, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path / "run")
    result = Run(plan("groups=[2,1]"), folder, [Tracker("tensorboard", folder)]).start()
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"accuracy/counted", "accuracy/fc", "accuracy/ncm"} <= set(events.Tags()["scalars"])
    counted = [point.value for point in events.Scalars("accuracy/counted")]
    assert counted == pytest.approx([point["accuracy"] for point in result["curve"]], abs=1e-3)
    assert len(events.Scalars("phase-0/main/loss")) == 1


# CIFAR-100 ----------------------------------------------------------------------------------------------------------


@pytest.mark.cifar100
def test_cifar100_works_end_to_end_on_a_cpu(tmp_path: Path) -> None:
    words = ["groups=[2,2]", "epochs=1", "images_per_class=60", "batch=8", "device=cpu"]
    plan = make_plan("cifar100/lucir", load_recipe("cifar100/lucir", words))
    result = Run(plan, RunFolder(tmp_path / "run")).start()
    assert plan.stream.classes == (68, 56, 78, 8)
    assert [point["classes"] for point in result["curve"]] == [2, 4]
    assert [point["stored_images"] for point in result["curve"]] == [40, 80]
    assert result["curve"][0]["accuracy"] > 50


def test_a_network_that_the_method_cannot_use_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "flat.py"
    layers = "nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()"
    file.write_text(f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n")
    words = [f"net={file}:make", "epochs=1", "policy=fixed"]
    refused = make_plan("digits/podnet", load_recipe("digits/podnet", words))
    with pytest.raises(UserError, match="podnet compares maps, but your net returns none"):
        Run(refused, RunFolder(tmp_path / "run")).start()
    assert not (tmp_path / "run").exists()
    learned = make_plan("digits/lucir", load_recipe("digits/lucir", [*words, "groups=[2,2]"]))
    assert Run(learned, RunFolder(tmp_path / "run")).start()["phases"] == 2


@pytest.mark.parametrize(("every", "tuned"), [(1, [0, 2, 2, 2, 2]), (2, [0, 2, 0, 2, 0]), (3, [0, 2, 0, 0, 2])])
def test_planned_work_counts_the_phases_that_are_tuned_and_no_others(every: int, tuned: list[int]) -> None:
    words = ["setting=tfs", "policy=grid", "space={lr=[0.1,0.05]}", f"policy_options.every={every}"]
    plan = make_plan("digits/lucir", load_recipe("digits/lucir", words))
    work = plan.work(plan.images()[0])
    assert [plan.settings.tuner.plan(phase).trials for phase in range(5)] == tuned
    assert {each.phase for each in work if each.what == "trials"} == {phase for phase in range(5) if tuned[phase]}


# Chosen for the images ------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four classes of small pictures, each of its own colour."""
    random = np.random.default_rng(0)
    for number in range(4):
        place = tmp_path / "photos" / f"class {number}"
        place.mkdir(parents=True)
        base = random.integers(0, 200, 3)
        for index in range(26):
            pixels = base + random.integers(0, 50, (9, 9, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index}.png")
    return tmp_path / "photos"


def folder_plan(photos: Path | str, *words: str) -> Plan:
    return make_plan("folder", load_recipe("folder", [f"data={photos}", "image_size=8", "device=cpu", *words]))


@pytest.mark.parametrize("words", [(), ("policy=online",), ("method=icarl", "batch=16", "action.classifier=fc")])
def test_a_recipe_that_chooses_has_the_settings_that_the_learner_would_choose(
    photos: Path, words: tuple[str, ...]
) -> None:
    plan = folder_plan(photos, *words)
    first = plan.images()[0].of_labels(plan.stream[0])
    given: dict[str, dict[str, Any]] = {
        "": {"policy": "fixed"},
        "policy=online": {"policy": "online"},
        "method=icarl": {"method": "icarl", "policy": "fixed", "batch": 16, "action": {"classifier": "fc"}},
    }
    learner = Learner(**given[words[0] if words else ""], device="cpu")
    phase = learner.fitting(first.pixels, first.labels)
    while not isinstance(next(phase), DefaultsChosen):
        pass
    mine, learned = (json.loads(json.dumps(each.as_json())) for each in (plan.settings, learner.settings))
    assert mine["trials"].pop("longest", None) in (learned["trials"].pop("longest", None), plan.recipe.epochs)
    assert {**mine, "automatic": []} == learned
    assert plan.settings.tuner.plan(1) == learner.settings.tuner.plan(1)
    assert plan.recipe.images == len(first)


def test_what_was_chosen_is_in_the_run_folder_and_resumed_anywhere(photos: Path, tmp_path: Path) -> None:
    words = ("epochs=2", "batch=8", "memory=3")
    whole = RunFolder(tmp_path / "whole")
    result = Run(folder_plan(photos, *words), whole).start()
    saved = json.loads(whole.recipe.read_bytes())["recipe"]
    assert (saved["epochs"], saved["batch"], saved["decay"], saved["net"]) == (2, 8, "cosine", "small")
    assert saved["augmentation"] == "judged"
    assert saved["choose"] is False
    assert [line["event"] for line in read_journal(whole.journal.path)][:2] == ["defaults", "phase"]
    for place in (3, 36):  # while it is judged, and in the second phase
        stopped = RunFolder(tmp_path / str(place))
        going = Run(folder_plan(photos, *words), stopped, checkpoint_seconds=0).starting()
        for _ in range(place):
            next(going)
        going.close()
        again = Run(reopen(stopped.path)[1], stopped).resume()
        assert {**again, "seconds": 0, "digest": 0} == {**result, "seconds": 0, "digest": 0}
        assert stopped.journal.path.read_bytes() == whole.journal.path.read_bytes()


@pytest.mark.parametrize("word", ["photos", "./photos", "packed.pack"])
def test_data_beside_us_are_written_by_their_full_path(
    word: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if word.endswith(".pack"):
        list(Packing(photos, tmp_path / word, size=8).run())
    saved = folder_plan(word).as_json()
    assert saved["recipe"]["data"] == str(tmp_path / word)
    monkeypatch.chdir("/")
    assert plan_of_words(saved).source.fingerprint == saved["fingerprint"]


def test_a_registered_name_is_written_as_it_is(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    add_source("photos", photos)
    assert folder_plan("photos").recipe.data == "photos"


@pytest.mark.parametrize(
    ("words", "sizes", "setting"),
    [((), [2, 2], "tfs"), (("phases=3",), [2, 1, 1], "groups"), (("groups=[1,3]",), [1, 3], "groups")],
)
def test_any_number_of_classes_can_be_split(
    photos: Path, words: tuple[str, ...], sizes: list[int], setting: str
) -> None:
    plan = folder_plan(photos, *words)
    assert [len(group) for group in plan.stream] == sizes
    assert plan.recipe.setting == setting
    again = plan_of_words(plan.as_json())
    assert (again.stream, again.recipe) == (plan.stream, plan.recipe)


@pytest.mark.parametrize("phases", [0, 5])
def test_but_not_into_more_phases_than_there_are_classes(photos: Path, phases: int) -> None:
    with pytest.raises(UserError, match="phases"):
        folder_plan(photos, f"phases={phases}")


def test_what_was_chosen_is_not_said_to_be_unused(photos: Path) -> None:
    unused = "policy=fixed tries nothing, so it does not use trials"
    assert unused not in folder_plan(photos).notes
    assert unused in folder_plan(photos, "trials.length=0.3").notes


@pytest.mark.parametrize(("name", "kind"), [("run/weights", UserError), ("weights", FileNotFoundError)])
def test_only_an_error_about_the_run_folder_is_said_of_it(name: str, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind, match="No such file"), RunFolder(tmp_path / "run").locked():
        (tmp_path / name).read_bytes()
