"""Reports over runs that somebody prepared: nothing runs, nothing is computed, and nothing is written elsewhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest

from poise import store
from poise.errors import UserError
from poise.report import gather
from poise.report.tables import make_tables
from poise.report.tables.table import csv_of_rows
from poise.words import printable

from .browser import CHROMIUM, opened
from .conftest import Write, dump
from .hostile import ACTING, ALL, FORMULAS, HTML, PATHS, RUN, poison

TAGS = {
    *("html", "head", "meta", "title", "link", "style", "script", "body", "header", "nav", "main", "section", "footer"),
    *("div", "span", "p", "b", "a", "small", "pre", "h1", "h2", "h3", "h4", "ul", "li", "dl", "dt", "dd"),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "button", "label", "input", "output"),
    *("figure", "figcaption", "svg", "g", "text", "line", "polyline", "circle", "polygon", "rect", "ellipse", "image"),
}
BARE = re.compile(r"[a-z][a-zA-Z0-9-]*")


class Structure(HTMLParser):
    """What a page is made of: elements, attributes, addresses, and the contents of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.metas: list[dict[str, str | None]] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcdoc")]
        self.metas += [dict(attrs)] if tag == "meta" else []
        self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data


def check_structure(page: Path) -> Structure:
    """Nothing is there that the template has not put there."""
    found = Structure(page.read_text(encoding="utf-8"))
    assert found.tags <= TAGS
    assert all(BARE.fullmatch(name) and not name.startswith("on") for name in found.attributes)
    for address in found.addresses:
        assert address.startswith(("#", "./", "tables/", "figures/", "data:image/", "data:,")), address
        if not address.startswith(("#", "data:")):
            assert (page.parent / os.fsdecode(unquote_to_bytes(address))).exists(), address
    (script,) = found.scripts
    assert RUN not in script
    (policy,) = [meta["content"] for meta in found.metas if meta.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert not [meta for meta in found.metas if meta.get("http-equiv") == "refresh"]
    return found


def written(folder: Path) -> set[str]:
    """All files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("text", ALL, ids=[ascii(text)[:40] for text in ALL])
def test_whatever_a_run_folder_says_is_only_shown(text: str, write: Write, tmp_path: Path) -> None:
    runs = [write("runs/one", policy="online", chances=True), write("runs/two", seed=1, finished=False)]
    for folder in runs:
        poison(folder, text)
    before = written(tmp_path)
    report = gather(runs)
    assert len(report.runs) == 2, report.unread
    page = report.write(tmp_path / "deep" / "er" / "out")
    check_structure(page)
    new = {name for name in written(tmp_path) - before if not name.startswith("deep/er/out/")}
    assert not new, "a file was written outside of --out"
    assert printable(report.text()) == report.text().replace("\r", "")
    for path in page.parent.rglob("*"):
        if path.suffix in (".csv", ".md", ".html"):
            shown = path.read_text(encoding="utf-8")
            assert printable(shown) == shown, path
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                cells = [cell for row in csv.reader(file) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "\t", "\r"))]
            assert not [cell for cell in cells if cell.startswith(("+", "-")) and not is_number(cell)]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


NAMES = [
    text
    for text in [*HTML["an element"], *HTML["an attribute"], *HTML["an address"], *ACTING, *PATHS]
    if "/" not in text
]
NAMES = [text for text in NAMES if "\0" not in text and len(text) < 200 and text != ".."]
NAMES += ["#top", "a?b", "50%25", "%2e%2e", "a&b=c", 'qu"ote', "sp ace", "犬", "index.html#x"]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(text)[:40] for text in NAMES])
def test_a_run_folder_of_any_name_is_a_link_to_that_folder(name: str, write: Write, tmp_path: Path) -> None:
    folder = write(f"out/{name}")
    page = gather([folder]).write(tmp_path / "out")  # the folder lies beside the page: its name is the whole address
    found = check_structure(page)
    (link,) = [address for address in found.addresses if address.startswith("./")]
    assert os.fsdecode(unquote_to_bytes(link)) == f"./{name}"
    assert ":" not in link


def test_a_folder_that_cannot_be_read_is_only_shown(write: Write, tmp_path: Path) -> None:
    for place, name in enumerate(NAMES):
        (tmp_path / str(place) / name).mkdir(parents=True)
    bad = [tmp_path / str(place) / name for place, name in enumerate(NAMES)]
    report = gather([write("good"), *bad])
    assert len(report.unread) == len(bad)
    check_structure(report.write(tmp_path / "out"))


def test_figures_for_print_can_be_read(write: Write, tmp_path: Path) -> None:
    hits = [[40 - place] * (place + 1) for place in range(10)]
    folder = poison(write("run", hits, policy="online", chances=True, phases=10), f"{ACTING[0]}{ACTING[6]}<b>")
    names = [*ACTING, HTML["an element"][0]]
    dump(folder / "recipe.json", {**store.read_json(folder / "recipe.json"), "class_names": names})
    page = gather([folder]).write(tmp_path / "out", printed=True)
    check_structure(page)
    drawings = list((tmp_path / "out" / "figures").glob("*.svg"))
    assert drawings
    for path in drawings:
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert "script" not in tags


@pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER TEST WAS RUN: there is no Chromium here")
def test_no_script_of_others_runs_in_a_browser(write: Write, tmp_path: Path) -> None:
    texts = [text for group in HTML.values() for text in group]
    for place, text in enumerate(texts):
        poison(write(f"runs/{place}", finished=place % 2 == 0, policy="online", chances=True), text)
    write(f"out/javascript:{RUN}")
    page = gather([tmp_path / "runs", tmp_path / "out" / f"javascript:{RUN}"]).write(tmp_path / "out")
    with opened() as browser:
        browser.open(page)
        browser.value("for (const each of document.querySelectorAll('details')) each.open = true")
        browser.value(
            "for (const each of document.querySelectorAll('*')) "
            "for (const name of ['mouseover', 'focus', 'error', 'load']) each.dispatchEvent(new Event(name))"
        )
        links = browser.value("Array.from(document.querySelectorAll('a'), (each) => each.protocol)")
        assert set(links) == {"file:"}
        assert browser.value("window.hacked === undefined")
        assert browser.value("document.querySelectorAll('script').length") == 1
        assert browser.complaints() == []
        assert len(browser.requests()) == 1


# Links and other traps in the report's own folder ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tables", "figures"])
def test_a_prepared_folder_link_is_refused(name: str, write: Write, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link"):
        gather([write("run")]).write(tmp_path / "out")
    assert not written(tmp_path / "elsewhere")


def test_prepared_links_to_files_are_replaced(write: Write, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('name="generator" content="poise ')
    (tmp_path / "out" / "tables").mkdir(parents=True)
    (tmp_path / "out" / "figures").mkdir()
    for name in (
        "index.html",
        "tables/runs.csv",
        "tables/runs.md",
        "figures/accuracy-toy.csv",
        "figures/accuracy-toy.svg",
    ):
        (tmp_path / "out" / name).symlink_to(victim)
    gather([write("run")]).write(tmp_path / "out", printed=True)
    assert victim.read_text() == 'name="generator" content="poise '
    assert (tmp_path / "out" / "tables" / "runs.csv").read_text().startswith("run,")


def test_a_page_that_is_no_file_is_refused_at_once(write: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "index.html")
    with pytest.raises(UserError, match="is a FIFO"):
        gather([write("run")]).write(tmp_path / "out")


@pytest.mark.parametrize("name", ["recipe.json", "result.json", "machine.json", "journal.jsonl"])
def test_a_run_folder_with_a_fifo_or_an_endless_file_is_listed_as_unread(
    name: str, write: Write, tmp_path: Path
) -> None:
    for kind in ("fifo", "zero", "endless"):
        (write(kind) / name).unlink()
    os.mkfifo(tmp_path / "fifo" / name)
    (tmp_path / "zero" / name).symlink_to("/dev/zero")
    (tmp_path / "endless" / name).touch()
    os.truncate(tmp_path / "endless" / name, 1 << 42)
    report = gather([write("good"), tmp_path / "fifo", tmp_path / "zero", tmp_path / "endless"])
    assert [run.name for run in report.runs][:1] == ["good"]
    if name == "machine.json":  # a report can do without it
        assert len(report.runs) == 4
    else:
        reasons = [each.reason for each in report.unread]
        assert [word in reason for word, reason in zip(("FIFO", "device", "larger"), reasons, strict=True)] == [
            True
        ] * 3


# Tables ---------------------------------------------------------------------------------------------------------------


def test_numbers_stay_numbers_and_formulas_become_texts() -> None:
    rows = [{"value": value} for value in (-0.5, 3, None, "-0.5", "+1e-3", "-3", "lucir", "−0.5", *FORMULAS)]
    found = [row["value"] for row in csv.DictReader(io.StringIO(csv_of_rows(rows), newline=""))]
    assert found[:8] == ["-0.5", "3", "", "-0.5", "+1e-3", "-3", "lucir", "−0.5"]
    assert len(found) == len(rows)
    assert all(cell.startswith(("'", "\\x")) for cell in found[8:])
    assert csv_of_rows([{"=1+1": 2}]) == "'=1+1\n2\n"


def test_markdown_cells_stay_in_their_cells(write: Write) -> None:
    text = "a | b\n| c | <script> [x](javascript:x) \\"
    (run,) = gather([poison(write("run"), text)]).runs
    for table in make_tables([run], {}):
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert len(bars) == 1, table.name
        assert "<script" not in table.markdown()
        assert "](javascript" not in table.markdown()
