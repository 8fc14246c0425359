"""The page: its numbers are those of result.json, it is complete in itself, and what others wrote is only shown."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest

from poise import store
from poise.errors import UserError
from poise.report import gather, watch
from poise.report.tables import make_tables
from poise.runs.journal import Journal
from poise.words import printable

from .conftest import Write, dump

RUN = "window.hacked=1"
#: Texts that want to be more than texts: for a browser, a terminal, a program for tables, a path.
HOSTILE = [
    f"<script>{RUN}</script><img src=x onerror={RUN}>]]>--><script>{RUN}</script><!--",
    f"</title></text></svg></style></script><script>{RUN}</script>",
    f'" onmouseover="{RUN}" x="><svg onload={RUN}>',
    f"javascript:{RUN}{{{{ 7*7 }}}}{{% raw %}}${{7*7}}{{0.__class__}}%s%n",
    "=1+1\x1b[2J\x9b31m\u202egnp\udcff two\nlines\tand\ra tab",
    "../../out",
    "x" * 300,
]
TAGS = {
    *("html", "head", "meta", "title", "link", "style", "script", "body", "header", "nav", "main", "section", "footer"),
    *("div", "span", "p", "b", "a", "small", "h1", "h2", "h3", "h4", "ul", "li", "dl", "dt", "dd", "figure", "button"),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "label", "input", "output"),
    *("svg", "g", "text", "path", "defs", "use", "clippath", "rect", "image", "tspan"),
}


class Page(HTMLParser):
    """What a page is made of: elements, attributes, addresses, scripts, ids, tables and runs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tones: list[str] = []
        self.rows: dict[str, list[list[float | None]]] = {}
        self._inside = self._table = ""
        self.script = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._inside = tag
        self.tags.add(tag)
        self.attributes |= given.keys()
        self.addresses += [given[name] for name in ("href", "xlink:href", "src", "action", "srcdoc") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        self.tones += [given.get("class", "")] if tag == "small" else []
        if tag == "table":
            self._table = given.get("id", "")
        elif tag == "tr":
            self.rows.setdefault(self._table, []).append([])
        elif tag == "td":
            self.rows[self._table][-1].append(float(given["data-value"]) if "data-value" in given else None)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.script += data


def test_numbers_on_the_page_equal_those_of_the_results(pairs: Path, real: Path, tmp_path: Path) -> None:
    report = gather([pairs, real])
    page = Page(report.write(tmp_path / "out"))
    rows = page.rows["t-runs"][1:]
    assert len(rows) == len(report.runs) == 14
    for run, row in zip(report.runs, rows, strict=True):
        result = json.loads((run.path / "result.json").read_bytes())
        expected = [result[key] for key in ("average_accuracy", "last_accuracy", "average_forgetting")]
        assert row[8:13] == [*expected, run.backward_transfer, result["seconds"]["total"]]
    assert page.tones.count("gain") == 1 + 1  # TFS, and the average of both
    assert "loss" not in page.tones


def test_the_page_is_complete_in_itself(pairs: Path, tmp_path: Path) -> None:
    path = gather([pairs, tmp_path / "nowhere"]).write(tmp_path / "out")
    page, text = Page(path), path.read_text(encoding="utf-8")
    assert len(page.ids) == len(set(page.ids))
    for link in page.addresses:
        if link.startswith("#"):
            assert link[1:] in page.ids, link
        elif not link.startswith("data:"):
            assert (path.parent / link).exists(), link
    assert not re.search(r"(?<!xmlns=\")(?<!xmlns:xlink=\")https?://|//cdn|@import|url\((?!#)", text)
    assert "does not exist" in text
    assert 'http-equiv="refresh"' not in text
    names = {file.suffix for file in (path.parent / "figures").iterdir()}
    assert names == {".svg", ".csv"}


def poison(folder: Path, text: str) -> Path:
    """Put a text into every place of a run folder where a text can be; numbers and what is checked stay."""
    saved = store.read_json(folder / "recipe.json")
    keys = {**saved["recipe"], "data": text, "policy_options": {text: text}, "order": text, text: [text, {text: text}]}
    keys |= {"method": text, "exam": text, "net": text}
    told = {"name": text, "fingerprint": text, "class_names": [f"{text}{place}" for place in range(10)]}
    dump(folder / "recipe.json", {**saved, **told, "recipe": keys})
    dump(folder / "machine.json", {"hardware": {"processor": text, "gpu": text}, text: text, "versions": {text: text}})
    if (folder / "result.json").exists():
        result = store.read_json(folder / "result.json")
        words = dict.fromkeys(("recipe", "data", "method", "exam", "pretrained_on", "order"), text)
        dump(folder / "result.json", {**result, **words, "resolved_policy": {text: text}}, digest=True)
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    (folder / "journal.jsonl").unlink()
    journal = Journal(folder / "journal.jsonl")
    for event in [{key: value for key, value in event.items() if key != "format"} for event in events]:
        if "event" in event:
            journal.append({**event, text: text})
    journal.append({"event": text})
    journal.close()
    return folder


@pytest.mark.parametrize("text", HOSTILE, ids=[ascii(text)[:30] for text in HOSTILE])
def test_whatever_a_run_folder_says_is_only_shown(text: str, write: Write, tmp_path: Path) -> None:
    runs = [poison(write("runs/one", policy="online"), text), poison(write("runs/two", seed=1, finished=False), text)]
    name = text if not {"/", "\0"} & {*text} and len(text) < 200 else "plain"
    runs.append(write(f"runs/{name}", seed=2))
    before = {path for path in tmp_path.rglob("*") if "out" not in path.relative_to(tmp_path).parts}
    report = gather(runs)
    assert len(report.runs) == 3, report.unread
    path = report.write(tmp_path / "out")
    page = Page(path)
    assert page.tags <= TAGS
    assert not [name for name in page.attributes if name.startswith("on")]
    for address in page.addresses:
        assert address.startswith(("#", "./", "tables/", "figures/", "data:image/", "data:,")), address
        if not address.startswith(("#", "data:")):
            assert (path.parent / os.fsdecode(unquote_to_bytes(address))).exists(), address
    assert RUN not in page.script
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in path.read_text(encoding="utf-8")
    assert {each for each in tmp_path.rglob("*") if "out" not in each.relative_to(tmp_path).parts} == before
    assert printable(report.text()) == report.text().replace("\r", "")
    for file in path.parent.rglob("*.*"):
        shown = file.read_text(encoding="utf-8")
        assert printable(shown) == shown, file
        if file.suffix == ".svg":
            tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(shown).iter()}
            assert {tag.lower() for tag in tags} <= TAGS - {"script", "a"}
        elif file.suffix == ".csv":
            cells = [cell for row in csv.reader(shown.splitlines()) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "\t", "\r"))]


def test_markdown_cells_stay_in_their_cells(write: Write) -> None:
    folder = poison(write("run"), "a | b\n| c | <script> [x](javascript:x) \\")
    for table in make_tables(gather([folder])):
        lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}) == 1, table.name
        assert "<script" not in table.markdown()
        assert "](javascript" not in table.markdown()


def test_a_report_is_written_beside_nothing_else(write: Write, tmp_path: Path) -> None:
    report = gather([write("run")])
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<html>my own page</html>")
    with pytest.raises(UserError, match="is not a report of poise"):
        report.write(tmp_path / "site")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError):
            report.write(path)
    page = report.write(tmp_path / "new" / "report")
    assert report.write(tmp_path / "new" / "report") == page


def test_a_running_job_is_watched_until_it_is_finished(write: Write, tmp_path: Path) -> None:
    done = write("done")
    going = write("going", seed=1, finished=False)
    journal = Journal(going / "journal.jsonl")
    said: list[str] = []
    refreshing: list[bool] = []

    def say(line: str) -> None:
        """What happens to the run while it is watched: one more event, then its result."""
        said.append(line)
        refreshing.append('http-equiv="refresh"' in (tmp_path / "out" / "index.html").read_text())
        if len(said) == 1:
            journal.append({"event": "epoch", "phase": 2})
        elif len(said) == 2:
            result = store.read_json(done / "result.json")
            store.write_json(going / "result.json", {**result, "seed": 1})
            journal.close()

    report = watch(partial(gather, [done, going]), tmp_path / "out", 0, say)
    assert report.finished
    assert refreshing == [True, True, False]
    assert "going: 3 of 3 phases" in said[0]
    assert "going: finished" in said[2]


def test_many_runs_make_a_light_page(write: Write, tmp_path: Path) -> None:
    hits = [[50 - place] * (place + 1) for place in range(8)]
    for seed in range(6):
        for method in ("lucir", "icarl", "lwf", "podnet", "aanets"):
            for policy in ("fixed", "online"):
                write(f"many/{method}-{policy}-{seed}", hits, method=method, policy=policy, seed=seed, phases=8)
    path = gather([tmp_path / "many"]).write(tmp_path / "out")
    assert path.stat().st_size < 1_500_000
    assert len(Page(path).rows["t-runs"]) == 61
