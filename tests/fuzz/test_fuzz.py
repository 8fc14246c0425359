"""The fuzzer: recipes, command lines and files of all kinds, in this process, until something is not as promised.

A short one runs with all tests. `make fuzz` runs a long one: `POISE_FUZZ` is the number of cases, and a new seed is
drawn each time (hypothesis prints what failed, and how to repeat it).
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .commands import CommandLine, command_lines
from .documents import changed, damaged
from .driving import check, draw_photos, drive, empty_place
from .grammar import TINY, Case, recipes, toml

#: Cases of the long one; 0: the short one.
CASES = int(os.environ.get("POISE_FUZZ", "0"))
SHARES = {"recipes": 0.45, "commands": 0.3, "documents": 0.25}
SHORT = {"recipes": 50, "commands": 20, "documents": 40}

ended: Counter[tuple[str, str]] = Counter()  # how cases ended, for the summary


def cases(kind: str) -> settings:
    """How many cases of this kind there are."""
    return settings(
        max_examples=max(1, round(CASES * SHARES[kind])) if CASES else SHORT[kind],
        deadline=None,
        derandomize=not CASES,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", autouse=True)
def _summary() -> Iterator[None]:
    yield
    for kind in SHARES:
        found = {word: count for (one, word), count in sorted(ended.items()) if one == kind}
        print(f"\nfuzz: {sum(found.values())} {kind}: {found}", end="")  # noqa: T201 - what `make fuzz` is for


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What a first command imports is no part of a case."""
    with empty_place():
        assert drive(["run", "digits/lucir", *(f"{key}={toml(value)}" for key, value in TINY.items())]).code == 0


@pytest.fixture(scope="module")
def furniture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that a command can be given."""
    folder = tmp_path_factory.mktemp("furniture")
    tiny = [f"{key}={toml(value)}" for key, value in TINY.items()]
    with empty_place():
        assert drive(["run", "digits/lucir", *tiny, "--out", str(folder / "done")]).code == 0
        small = ["space={lr=[0.1,0.05]}", "--phase", "1", "--lengths", "1,2", "--out", "probe.json"]
        assert drive(["probe", "digits/lucir", *tiny, *small]).code == 0
        shutil.copy("probe.json", folder)
        photos = draw_photos(folder / "photos")
        taught = drive(["learn", str(folder / "learner"), str(photos), "--epochs", "1", "--policy", "fixed"])
        assert taught.code == 0, taught.err
    keys = "".join(f"{key} = {toml(value)}\n" for key, value in TINY.items())
    (folder / "recipe.toml").write_text(keys)
    (folder / "sweep.toml").write_text('recipe = "recipe.toml"\n[set]\nbatch = 32\n[grid]\nseed = [0, 1]\n')
    (folder / "empty").touch()
    (folder / "junk.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "junk.toml").write_bytes(b"\xff\xfe" + bytes(range(256)))
    (folder / "deep.json").write_text("[" * 5000 + "]" * 5000)
    (folder / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    (folder / "loop").symlink_to("loop")
    return folder


def tally(kind: str, code: int, refused: bool = False) -> None:
    """Count how a case ended."""
    ended[kind, "refused, as promised" if refused else {0: "done", 1: "failed in one line", 2: "refused"}[code]] += 1


@cases("recipes")
@given(case=recipes(), as_file=st.booleans())
def test_recipes(case: Case, as_file: bool) -> None:
    with empty_place() as place:
        if as_file:
            (place / "case.toml").write_text(case.file(), encoding="utf-8", errors="surrogatepass")
        found = drive(["run", "case.toml"] if as_file else ["run", "digits/lucir", *case.overrides()])
        check(found)
        if case.refused:
            assert found.code == 2, found
        if case.said:
            assert case.said in found.err
        tally("recipes", found.code, case.refused)


@cases("commands")
@given(line=command_lines())
def test_commands(line: CommandLine, furniture: Path) -> None:
    with empty_place() as place:
        shutil.copytree(furniture, place, symlinks=True, dirs_exist_ok=True)
        found = drive(line.words)
        check(found)
        if line.refused:
            assert found.code == 2, found
        tally("commands", found.code, line.refused)


@cases("documents")
@given(data=st.data())
def test_documents(data: st.DataObject, furniture: Path) -> None:
    """Files that a user writes or hands over, changed in one to three places or damaged."""
    kind = data.draw(st.sampled_from(["probe", "sweep", "recipe", "registered", "image", "bytes"]))
    with empty_place() as place:
        words = DOCUMENTS[kind](data, furniture, place)
        found = drive(words)
        check(found)
        tally("documents", found.code)


def _probe(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    table = json.loads((furniture / "probe.json").read_bytes())
    (place / "probe.json").write_text(json.dumps(data.draw(changed(table))))
    return data.draw(
        st.sampled_from([["report", "probe.json"], ["simulate", "probe.json", "--policy", "race", "--runs", "2"]])
    )


def _sweep(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    grid = {"seed": [0, 1], "action": [{"lr": 0.1}, {"lr": 0.05}], "memory": [5]}
    shutil.copy(furniture / "recipe.toml", place)  # short, whatever is changed
    sweep = data.draw(changed({"recipe": ["recipe.toml"], "set": {"batch": 64, "action": {}}, "grid": grid}))
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in sweep.items() if value is not None)
    (place / "sweep.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    return ["sweep", "sweep.toml"]


def _recipe(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    recipe = {
        **TINY,
        "memory": {"per_class": 5, "reserve": 1},
        "policy": "race",
        "policy_options": {"rungs": 1, "safe": 1.0},
        "space": {"lr": [0.1, 0.05]},
        "trials": {"length": 1.0, "validation": 2},
        "action": {"lr": 0.1},
        "order": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        "options": {"lambda_base": 5.0},
    }
    changes = data.draw(changed(recipe))
    for key, usual in (("epochs", 1), ("batch", 64), ("space", {"lr": [0.1, 0.05]})):  # others are slow, not wrong
        if changes.get(key) is None or (key != "space" and type(changes[key]) is int and changes[key] > 1):
            changes[key] = usual
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in changes.items() if value is not None)
    (place / "case.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    return ["run", "case.toml"]


def _registered(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    registry = place.parent / "config" / "poise" / "data.json"
    registry.parent.mkdir(parents=True)
    document = {"format": 1, "folders": {"photos": str(furniture / "photos"), "gone": "/nowhere"}}
    registry.write_text(json.dumps(data.draw(changed(document))))
    return data.draw(st.sampled_from([["data"], ["run", "data=photos"], ["run", "data=gone"]]))[:2]


def _image(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    shutil.copytree(furniture / "photos", place / "photos")
    image = next((place / "photos" / "ant").iterdir())
    image.write_bytes(data.draw(damaged(image.read_bytes())))
    command = data.draw(st.sampled_from(["learn", "predict", "score"]))
    model = "new" if command == "learn" else str(furniture / "learner")
    return [command, model, "photos", *(["--epochs", "1", "--policy", "fixed"] if command == "learn" else [])]


def _bytes(data: st.DataObject, furniture: Path, place: Path) -> list[str]:
    name, *words = data.draw(
        st.sampled_from(
            [
                ("learner", "predict", "learner", str(furniture / "photos")),
                ("learner", "learn", "learner", str(furniture / "photos"), "--update"),
                ("probe.json", "simulate", "probe.json", "--policy", "race", "--runs", "2"),
                ("sweep.toml", "sweep", "sweep.toml"),
                ("recipe.toml", "run", "recipe.toml", "epochs=1", "policy=fixed"),
            ]
        )
    )
    shutil.copy(furniture / "recipe.toml", place)  # what the sweep runs
    (place / name).write_bytes(data.draw(damaged((furniture / name).read_bytes())))
    return list(words)


DOCUMENTS = {
    "probe": _probe,
    "sweep": _sweep,
    "recipe": _recipe,
    "registered": _registered,
    "image": _image,
    "bytes": _bytes,
}
