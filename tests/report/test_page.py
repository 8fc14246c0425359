"""The page: its numbers are those of result.json, it is complete in itself, and what others wrote is only shown."""

from __future__ import annotations

import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

from poise import store
from poise.actions import Action
from poise.errors import UserError
from poise.journal import Journal, read_journal
from poise.report import describe_figures, gather, watch, writing
from poise.report.figures.numbers import chances
from poise.report.page.page import Contents, make_page
from poise.report.reading import UnreadPath, read_run
from poise.runs import Run, RunFolder, load_recipe, make_plan

from .conftest import Write


class Page(HTMLParser):
    """Tables as lists of (text, value) cells, definitions by run, ids, and everything that points somewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, float | None]]]] = {}
        self.results: dict[str, dict[str, str]] = {}
        self.phases: dict[str, list[list[float | None]]] = {}
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tones: list[str] = []
        self._table = self._run = self._key = ""
        self._cell: list[str] | None = None
        self._value: float | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        if tag == "details":
            self._run = given.get("id", "")
            self.results[self._run], self.phases[self._run] = {}, []
        elif tag == "table":
            self._table = given.get("id", "") or given.get("class", "")
            self.tables.setdefault(self._table, [])
        elif tag == "tr":
            self.tables[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = []
            self._value = float(given["data-value"]) if "data-value" in given else None
        elif tag == "dd":
            self._key = given.get("data-key", "")
        elif tag == "small":
            self.tones.append(given.get("class", ""))

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        if self._key:
            self.results[self._run][self._key] = data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            row = self.tables[self._table][-1]
            row.append(("".join(self._cell).strip(), self._value))
            self._cell = None
        elif tag == "tr" and self._table == "phases":
            self.phases[self._run].append([value for _, value in self.tables["phases"][-1]])
        elif tag == "dd":
            self._key = ""


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_numbers_on_the_page_equal_those_of_the_results(pairs: Path, real: Path, tmp_path: Path) -> None:
    report = gather([pairs, real])
    page = read(report.write(tmp_path / "out"))
    rows = {row[0][0]: row for row in page.tables["t-runs"][1:]}
    assert len(rows) == len(report.runs) == 14
    for run in report.runs:
        result = json.loads((run.path / "result.json").read_bytes())
        shown = [value for _, value in rows[run.name][8:13]]
        expected = [result[key] for key in ("average_accuracy", "last_accuracy", "average_forgetting")]
        assert shown == [*expected, run.backward_transfer, result["seconds"]["total"]]
        section = page.results[f"run-{run.name}"]
        assert section["average_accuracy"] == str(result["average_accuracy"])
        assert float(section["backward_transfer"]) == pytest.approx(run.backward_transfer, abs=1e-3)
        assert section["seconds.total"] == str(result["seconds"]["total"])
        curve = page.phases[f"run-{run.name}"][1:]
        assert [row[2] for row in curve] == [point["accuracy"] for point in result["curve"]]
        assert [row[5] for row in curve] == [point["stored_images"] for point in result["curve"]]
        assert [row[6] for row in curve] == [point["held_images"] for point in result["curve"]]
    table = page.tables["t-accuracy-toy"]
    lines = {(row[0][0], row[1][0]): row for row in table[2:]}
    for setting, place in (("tfh", 2), ("tfs", 3)):
        found = [run.average for run in report.runs if run.name.startswith(f"fixed-{setting}")]
        assert lines["lucir", "fixed"][place][1] == pytest.approx(sum(filter(None, found)) / 3)
    assert page.tones.count("gain") == 1 + 1  # TFS, and the average of both
    assert "loss" not in page.tones


def test_arms_of_a_space_of_several_grids_go_by_their_own_names(tmp_path: Path) -> None:
    """A tiny run of `online` for LUCIR: eight stable actions, three plastic ones, and LUCIR's own, off both grids."""
    folder = tmp_path / "run"
    words = ("groups=[2,2,1]", "epochs=1", "batch=64", "policy=online")
    result = Run(make_plan("digits/lucir", load_recipe("digits/lucir", words)), RunFolder(folder)).start()
    run = read_run(folder)
    assert len(run.arms) == len(set(run.arms)) == result["space"]["actions"] == 12
    axes = {"adjustment", "feature_kd", "logit_kd", "lr", "margin", "old_rows"}
    assert set(run.axes) == axes
    assert run.arms[0] == "adjustment=0 feature_kd=0.5 logit_kd=1 lr=0.05 margin=1 old_rows=frozen"
    assert run.arms[8] == "adjustment=1 feature_kd=0 logit_kd=1 lr=0.1 margin=0 old_rows=trained"
    assert run.arms[11] == "adjustment=0 feature_kd=1 logit_kd=0 lr=0.1 margin=1 old_rows=frozen"

    trials = [event for event in read_journal(folder / "journal.jsonl") if event["event"] == "trial"]
    assert [trial["trial"]["arm"] for trial in trials if trial["phase"] == 1] == list(range(12))
    rows = {(row["phase"], row["place"]): row for row in chances(run)}
    for trial in trials:
        arm = trial["trial"]["arm"]
        row = rows.pop((trial["phase"], arm))
        assert (row["action"], row["reward"]) == (run.arms[arm], trial["reward"])
        assert row["action"] == str(Action(**{axis: trial["action"][axis] for axis in axes}))
    assert len(rows) == 6  # half of them in the second tuned phase
    assert {(row["phase"], row["reward"]) for row in rows.values()} == {(2, None)}
    for phase in (1, 2):
        (decided,) = [row for row in chances(run) if row["phase"] == phase and row["decided"]]
        action = result["curve"][phase]["action"]
        assert decided["action"] == str(Action(**{axis: action[axis] for axis in axes}))
        assert decided["reward"] is not None

    text = gather([folder]).write(tmp_path / "out").read_text(encoding="utf-8")
    for name in (
        "β 1  γ 0.5  λ 0.05  adjustment 0  margin 1  old_rows frozen",
        "β 1  γ 0  λ 0.1  adjustment 1  margin 0  old_rows trained",
        "β 0  γ 1  λ 0.1  adjustment 0  margin 1  old_rows frozen",
    ):
        assert name in text
    assert "off the grid" not in text


def test_the_page_is_complete_in_itself(pairs: Path, tmp_path: Path) -> None:
    path = gather([pairs, tmp_path / "nowhere"]).write(tmp_path / "out")
    page, text = read(path), path.read_text(encoding="utf-8")
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids, link
        elif not link.startswith("data:"):
            assert (path.parent / link).exists(), link
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    assert "nowhere" in text
    assert "does not exist" in text
    assert 'http-equiv="refresh"' not in text


def test_what_others_wrote_is_shown_and_never_run(write: Write, tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    folder = write("run", method=bad, policy='"onload="alert(1)', data=bad)
    text = make_page(Contents([read_run(folder)], [UnreadPath(Path(bad), bad)]))
    assert bad not in text
    assert 'onload="alert' not in text
    assert "&lt;script&gt;" in text


def test_oracles_and_leaks_are_marked_everywhere(write: Write) -> None:
    folders = [
        write("fixed"),
        write("best", policy="crossval", more={"oracle": True}),
        write("leaky", policy="race", more={"leak": True}),
    ]
    text = make_page(Contents([read_run(folder) for folder in folders]))
    assert text.count('<span class="badge">oracle</span>') == text.count('<span class="badge">leak</span>') == 1
    assert "no learner could have known it" in text
    assert "shown to measure the leak only" in text


def test_a_report_is_written_beside_nothing_else(write: Write, tmp_path: Path) -> None:
    report = gather([write("run")])
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<html>my own page</html>")
    with pytest.raises(UserError, match="is not a report of poise"):
        report.write(tmp_path / "site")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose a folder"):
        report.write(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be made"):
        report.write(tmp_path / "file" / "below")
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


def test_figures_drawn_side_by_side_are_the_same(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = gather([pairs])
    files = []
    for name, threshold in (("alone", 10**9), ("beside", 0)):
        monkeypatch.setattr(writing, "WORTH_FORKING", threshold)
        page = report.write(tmp_path / name, printed=True)
        assert 'href="figures/accuracy-toy.pdf"' in page.read_text(encoding="utf-8")
        files.append({path.name: path.read_bytes() for path in (tmp_path / name / "figures").iterdir()})
    assert files[0] == files[1]
    assert {f"accuracy-toy{ending}" for ending in (".svg", ".pdf", ".png", ".csv")} <= files[0].keys()


def test_names_of_any_script_are_shown(write: Write, tmp_path: Path) -> None:
    folder = write("größe 中", [[40], [40, 41], [40, 41, 42], [40, 41, 42, 43]])
    saved = store.read_json(folder / "recipe.json")
    names = ["Größe", "犬", "</text><script>", "a & b", *(f"class {place}" for place in range(6))]
    store.write_json(folder / "recipe.json", {**saved, "class_names": names[::-1]})
    report = gather([folder])
    page = report.write(tmp_path / "out", printed=True)
    text = page.read_text(encoding="utf-8")
    assert "Größe (phase 0): 40 of 50, 80.0 %" in text
    assert "<script>" not in re.sub(r"<script>\n.*?</script>", "", text, flags=re.DOTALL)


def test_two_hundred_runs_make_a_light_page(write: Write, tmp_path: Path) -> None:
    hits = [[50 - place] * (place + 1) for place in range(8)]
    for seed in range(20):
        for method in ("lucir", "icarl", "lwf", "podnet", "aanets"):
            for policy in ("fixed", "online"):
                write(f"many/{method}-{policy}-{seed}", hits, method=method, policy=policy, seed=seed, phases=8)
    report = gather([tmp_path / "many"])
    assert len(report.runs) == 200
    path = report.write(tmp_path / "out")
    assert path.stat().st_size < 10_000_000
    assert len(read(path).tables["t-runs"]) == 201
    drawn = {figure.name.split("-")[0]: figure.data for figure in describe_figures(report.runs)}
    assert len({row["row"] for row in drawn["accuracy"]}) == 10
    assert all(
        len({row["run"] for row in drawn[name]}) <= 12
        for name in ("chances", "rewards", "classes", "matrix", "confusion")
    )
