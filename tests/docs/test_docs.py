"""The documentation is true: its Python runs, its commands work, its tables list what there is."""

from __future__ import annotations

import json
import logging
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from poise import Learner, cli
from poise.actions import AXES
from poise.data import class_order, make_stream
from poise.data.sources.published import PREPROCESSING, DigitsSource
from poise.learner import Settings, defaults
from poise.methods import METHODS, make_method
from poise.policies import DEFAULT_POLICY
from poise.runs import load_recipe
from poise.runs.journal import read_journal
from poise.settings import KEYS, TrialSettings
from poise.tuning.search import tuner_kind, tuner_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "paper").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")  # what these show is compared with what is printed
LEAVES = {  # of the README, each with its month
    **dict.fromkeys(("potato-early-blight", "potato-healthy", "tomato-healthy", "tomato-late-blight"), "january"),
    **dict.fromkeys(("tomato-leaf-mold", "tomato-target-spot"), "february"),
}
SHORT = {"epochs": 1, "images_per_class": 20}  # added to every run that a page shows, so that it ends in a second
RUNS = ("run", "crossval", "audit")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a console block that a user types."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no section '{heading}'"
    return rest.partition("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """The rows of the first Markdown table of a text, without its header."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def draw_photos(place: Path, number: int, side: int = 34, ending: str = "{}.png") -> None:
    """Four images of a class, which is known by its colour."""
    place.mkdir(parents=True)
    generator = np.random.default_rng(number)
    for index in range(4):
        pixels = generator.integers(0, 80, (side, side + 2, 3)) + 40 * (number // np.array([1, 3, 9]) % 3)
        Image.fromarray(pixels.astype(np.uint8)).save(place / ending.format(index))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what a reader would bring: folders of photos; nothing registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("POISE_DATA", raising=False)
    monkeypatch.setattr(defaults, "suitable_epochs", lambda *args, **more: 4)
    animals = ("cat", "dog", "bear", "elephant")
    months = ("january/cat", "january/dog", "february/bear")
    for name in (*months, *(f"held-out/{animal}" for animal in animals)):
        draw_photos(tmp_path / "photos" / name, animals.index(name.partition("/")[2]))
    return tmp_path


def readers_arrays() -> dict[str, Any]:
    """The arrays a reader would bring: classes 0 to 3 first, 4 and 5 later, and images of all of them to test."""
    digits = load_digits()
    pixels, truth = np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target
    first, later = np.flatnonzero(truth < 4), np.flatnonzero((truth == 4) | (truth == 5))
    learned, examined = np.concatenate([first[:120], later[:60]]), np.concatenate([first[-60:], later[-30:]])
    old, new = learned[:120], learned[120:]
    return {
        "images": pixels[old],
        "labels": truth[old],
        "more_images": pixels[new],
        "more_labels": truth[new],
        "test_images": pixels[examined],
        "test_labels": truth[examined],
    }


def exit_code(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def follow(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a page tells the reader to do; what needs the network or hours is checked instead."""
    program, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
    elif program == "pip":
        assert words in (["install", "."], ["install", "torch", "--index-url", "https://download.pytorch.org/whl/cpu"])
    elif program == "torchrun":
        assert words[1:3] == ["-m", "poise"], command
        follow_poise(words[3:], monkeypatch)  # the same command for one process
    elif program == "python":
        script = Path(words[0])
        assert words[1] in ("run", "resume")
        monkeypatch.setattr(sys, "argv", shortened(words) if words[1] == "run" else words)
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(script), run_name="__main__")
        assert not left.value.code, command
    else:
        assert program == "poise", command
        follow_poise(words, monkeypatch)


def follow_poise(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "FOLDER" in words:  # the reader's own; without it the command must end with one line
        assert exit_code(words, monkeypatch) == 2
        return
    if words[0] == "run" and words[1].startswith("cifar100/"):
        keys = [word for word in words[2:] if "=" in word]
        recipe = load_recipe(words[1], keys)
        make_stream(recipe.setting, order=class_order(recipe.order, 100), phases=recipe.phases, groups=recipe.groups)
        return
    if words[0] in RUNS:
        words = shortened(words)
    assert exit_code(words, monkeypatch) == 0, words


def shortened(words: list[str]) -> list[str]:
    """A command that runs for a second; where it names its own images, it keeps them."""
    short = {
        key: value for key, value in SHORT.items() if key == "epochs" or not any("data=" in word for word in words)
    }
    others = [word for word in words if word.partition("=")[0] not in short]
    return [*others, *(f"{key}={value}" for key, value in short.items())]


def follow_page(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str] | None = None
) -> dict[str, Any]:
    """Run the Python blocks of a page in order, in one namespace, with its commands between them.

    With `capsys` they must print what the page shows, in the same console block or in a text block.
    """
    namespace = readers_arrays()
    for block in blocks(page):
        if block.language == "python":
            first = block.text.splitlines()[0]
            if named := re.fullmatch(r"# (\w+\.py)", first):
                Path(named[1]).write_text(block.text, encoding="utf-8")
            namespace["__name__"] = "docs"
            exec(compile(block.text, f"{page.name}", "exec"), namespace)
        elif block.language == "text" and capsys:
            assert masked(block.text) == masked(capsys.readouterr().out)
        elif block.language == "console":
            for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
                if capsys and shown:
                    capsys.readouterr()
                follow(command, monkeypatch)
                if capsys and shown:
                    printed = capsys.readouterr()
                    wanted = r"(\n.*)*".join(map(re.escape, masked(f"\n{shown}").split("\n …")))
                    assert re.fullmatch(wanted, masked(f"\n{printed.err}{printed.out}")), command
    return namespace


def masked(text: str) -> str:
    """A text without its figures and the widths of its columns."""
    return re.sub(r"[ ─]+", " ", re.sub(r"\d[\d.]*", "0", text)).replace(" \n", "\n").rstrip()


@pytest.fixture
def methods_as_before() -> Iterator[None]:
    registries: tuple[dict[str, Any], ...] = (METHODS, AXES)
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.usefixtures("folder", "methods_as_before")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in PRINTED and page.name not in ("own-method.md", "recipes.md")],
    ids=lambda page: page.name,
)
def test_what_a_page_shows_works(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_page(page, monkeypatch)


@pytest.mark.usefixtures("folder", "methods_as_before")
@pytest.mark.parametrize("page", PRINTED, ids=lambda page: page.name)
def test_what_a_page_shows_is_printed(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On photos that are drawn here, so figures are others."""
    monkeypatch.setattr(defaults, "surely_better", lambda *args: False)  # four epochs judge no augmentation
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own, in whose place the command sets its own
    for number, (leaf, month) in enumerate(LEAVES.items(), 1):
        for place in (month, "test"):
            draw_photos(Path("leaves", place, leaf), number, 128, "{:03}.jpg")
    follow_page(page, monkeypatch, capsys)


@pytest.mark.usefixtures("folder", "methods_as_before")
def test_a_method_of_ones_own_is_short_and_equals_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "own-method.md"
    code = [line for line in blocks(page)[0].text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) < 40
    namespace = follow_page(page, monkeypatch)
    mine: Learner = namespace["learner"]
    assert mine.phases_ == 2
    shipped = Learner("lwf", epochs=5)
    shipped.partial_fit(namespace["images"], namespace["labels"])
    shipped.partial_fit(namespace["more_images"], namespace["more_labels"])
    np.testing.assert_array_equal(
        mine.predict_proba(namespace["test_images"]), shipped.predict_proba(namespace["test_images"])
    )


def test_recipes_and_the_run_folder_are_as_described(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_page(ROOT / "docs" / "recipes.md", monkeypatch)
    run = folder / "runs" / "digits-lucir-tfs-5-fixed-s0"
    result = json.loads((run / "result.json").read_text())
    first = " ".join(row[0] for row in table(section("recipes.md", "result.json")))
    documented = {*re.findall(r"`([^`]+)`", first)}
    assert documented == {*flat_keys(result)} - {"images_per_class"}  # which made the run short
    files = {row[0].strip("`").rstrip("/") for row in table(section("recipes.md", "The run folder"))}
    assert files == {entry.name for entry in run.iterdir()}
    events = {event["event"] for event in read_journal(run / "journal.jsonl")}
    described = next(row[1] for row in table(section("recipes.md", "The run folder")) if "journal" in row[0])
    with_policies = {"trial", "tuning"}
    assert events | with_policies == set(re.findall(r"`(\w+)`", described))


def flat_keys(result: dict[str, Any]) -> Iterator[str]:
    for name, value in result.items():
        if name == "seconds":
            yield from (f"seconds.{part}" for part in value)
        elif name == "curve":
            yield from (f"curve[].{part}" for part in value[0])
        else:
            yield name


def test_the_table_of_keys_is_current() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    tool = runpy.run_path(str(ROOT / "tools" / "keys_table.py"))
    assert page == tool["with_table"](page), "a key was changed: run 'make api'"
    assert [row[0].strip("`") for row in table(section("recipes.md", "Keys"))] == [key.name for key in KEYS]


def test_default_actions_and_options_are_documented() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for name in METHODS:
        assert f"| `{name}` | `{make_method(name).default_action}` |" in text, name
        assert all(f"`{option}`" in text for option in METHODS[name].options)


def test_options_of_policies_are_documented_with_their_defaults() -> None:
    text = section("policies.md", "The policies")
    shown = {row[0].strip("`"): row[1] for row in table(text.partition("Their options")[2])}
    expected = {name: tuner_kind(name).resolve({}) for name in tuner_names()}
    assert set(shown) == {name for name, options in expected.items() if options}
    for name, options in expected.items():
        found = dict(part.split("=", 1) for part in re.findall(r"`(\w+=[^`]+)`", shown.get(name, "")))
        assert {key: tomllib.loads(f"x = {value}")["x"] for key, value in found.items()} == options, name


def test_what_online_brings_along_is_documented() -> None:
    """Its trials are in the table of recipe keys, the number of its actions in that of spaces."""
    rows = {row[0].strip("`"): row[2] for row in table(section("recipes.md", "Keys"))}
    own, others = (dict(tuner_kind(name).trial_settings(TrialSettings())) for name in (DEFAULT_POLICY, "exp3"))
    for key, value in own.items():
        words = json.dumps(value).strip('"')
        if value != others[key]:
            assert rows[f"trials.{key}"].endswith(f"for {DEFAULT_POLICY} {words}"), key
        elif value is None:
            assert "if not set " in rows[f"trials.{key}"], key  # what that means is a sentence
        else:
            assert rows[f"trials.{key}"].endswith(f"if not set {words}"), key
    actions = Settings.resolve(method="lucir", policy=DEFAULT_POLICY).action_space
    assert dict(table(section("policies.md", "Which action"))[:3])["`online`"].endswith(f": {len(actions)}")


def test_constants_of_the_data_are_documented() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table(section("data.md", "Normalisation and augmentation"))}
    for name, preprocessing in {**PREPROCESSING, "digits": DigitsSource.preprocessing}.items():
        mean, std, shift, mirrored = rows[name]
        assert tuple(map(float, mean.split(", "))) == preprocessing.mean
        assert tuple(map(float, std.split(", "))) == preprocessing.std
        assert f"up to {preprocessing.augmentation.pad}" in shift
        assert (mirrored != "no") == preprocessing.augmentation.flip
    source = DigitsSource()
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"{len(source.train()):,} / {len(source.test()):,}" in text


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name} links to {target}"


def test_badges_are_true() -> None:
    """They are files of our own, which no server keeps up to date."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = {
        "python": settings["project"]["requires-python"].replace(">=", "python: ") + " or newer",
        "licence": f"licence: {settings['project']['license']}",
        "typed": "typed: mypy --strict" if settings["tool"]["mypy"]["strict"] else "",
    }
    for name, words in said.items():
        assert f"<title>{words}</title>" in (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_is_reachable_from_the_index_and_no_block_is_unknown() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name in ("README.md", "index.md") or f"]({page.name})" in index
        languages = {block.language for block in blocks(page)}
        assert languages <= {"python", "console", "toml", "text", "bibtex"}, page.name
