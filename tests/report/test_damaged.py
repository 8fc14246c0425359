"""One damaged run beside a good one: the page is written, with the good one on it and the reason for the other."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from poise.studies import gather_with_studies

from poise import store
from poise.errors import Damaged, UserError
from poise.report import Report, add_digests, gather, load_result, read_run

Write = Callable[..., Path]


def _replace(path: Path, change: Callable[[Any], Any], *, digest: bool = False) -> None:
    """Change a document; its digest is then right, as if it had been written so."""
    value = json.loads(path.read_bytes())
    value.pop("digest", None)
    value = change(value)
    own = {"digest": store.digest_of(value)} if digest and isinstance(value, dict) else {}
    path.write_text(json.dumps({**value, **own} if isinstance(value, dict) else value))


def _journal(folder: Path, change: Callable[[list[Any]], Any]) -> None:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    change(lines)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _in_result(**keys: Any) -> Callable[[Path], None]:
    return lambda folder: _replace(folder / "result.json", lambda value: {**value, **keys}, digest=True)


def _in_recipe(**keys: Any) -> Callable[[Path], None]:
    def change(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "recipe": {**value["recipe"], **keys}}

    return lambda folder: _replace(folder / "recipe.json", change)


def _in_event(kind: str, **keys: Any) -> Callable[[Path], None]:
    def change(lines: list[Any]) -> None:
        for line in lines:
            if line.get("event") == kind:
                line.update(keys)

    return lambda folder: _journal(folder, change)


def _flip(folder: Path) -> None:
    content = bytearray((folder / "result.json").read_bytes())
    place = content.index(b'"average_accuracy": ') + 21
    content[place] ^= 1
    (folder / "result.json").write_bytes(content)


def _no_file(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a flipped bit in the result": _flip,
    "a result that is a list": lambda folder: (folder / "result.json").write_text("[]"),
    "half a result": lambda folder: (folder / "result.json").write_text("{"),
    "a result without its curve": _in_result(curve=None),
    "an action that is no mapping": _in_result(curve=[{"phase": 0, "action": 3}]),
    "a classifier that is a list": _in_result(seed=[1]),
    "a space of nothing": _in_result(space={"axes": 3}),
    "arms without end": _in_result(space={"axes": {"lr": 7}, "actions": "x"}),
    "a policy that is a list": _in_result(policy=[1], resolved_policy=[2]),
    "a recipe of numbers": lambda folder: _replace(folder / "recipe.json", lambda value: {**value, "recipe": 3}),
    "a method that is a list": _in_recipe(method=["x"]),
    "groups that are words": _in_recipe(setting="groups", groups="abc"),
    "a seed that is a word": _in_recipe(seed="x"),
    "an action axis that is a mapping": _in_recipe(action={"lr": {}}),
    "memory that is a list": _in_recipe(memory=[1]),
    "class names that are a number": lambda folder: _replace(
        folder / "recipe.json", lambda value: {**value, "class_names": 7}
    ),
    "an exam with other classes": _in_event("exam", classes=[1]),
    "an exam with words for hits": _in_event("exam", hits_fc=["x"] * 3),
    "a confusion of pairs": _in_event("exam", confusion=[[1, 2]]),
    "chances that are words": _in_event("action", distribution=["x", "y"]),
    "too many chances": _in_event("action", distribution=[0.01] * 100),
    "trials of nothing": _in_event("trial", trial={}),
    "rewards that are words": _in_event("trial", reward="x"),
    "no images in a trial": _in_event("trial", record={"images": [0], "hits": {"4": {"fc": [1], "ncm": [0]}}}),
    "a line that is no event": lambda folder: _journal(folder, lambda lines: lines.append([1])),
    "bytes that are no text": lambda folder: (folder / "journal.jsonl").write_bytes(b"\xff\xfe\n" * 3),
    "a machine that is a list": lambda folder: _replace(
        folder / "machine.json", lambda value: {**value, "hardware": [1]}
    ),
    "a folder in place of the result": _no_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_rest_is_shown_and_the_reason_listed(damage: str, write: Write, tmp_path: Path) -> None:
    good = write("good", seed=1)
    bad = write("bad", policy="online", chances=True)
    DAMAGE[damage](bad)
    report = gather_with_studies([good, bad])
    page = report.write(tmp_path / "page").read_text()
    assert "Nothing to report" not in page
    assert 'id="run-good"' in page
    if 'id="run-bad"' not in page:
        reason = page[page.index('id="unread"') :]
        assert "bad" in reason
        assert "Traceback" not in reason
    assert report.text().splitlines()[2].startswith("lucir")


# Digests --------------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_the_fault_of_no_run(write: Write) -> None:
    report = gather([write("bad"), write("good")])

    def fail(shown: Report) -> None:
        raise ValueError("this run cannot be shown")

    def fill(shown: Report) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for make, alone in [(fill, None), (fail, fill)]:
        with pytest.raises(OSError, match="No space left"):
            report.without_failing(make, alone)


def test_a_result_without_a_digest_is_shown_as_unverified(write: Write, tmp_path: Path) -> None:
    write("signed", seed=1)
    folder = write("plain")
    text = json.loads((folder / "result.json").read_text())
    del text["digest"]
    (folder / "result.json").write_text(json.dumps(text))
    assert read_run(folder).state == "finished, unverified"
    report = gather_with_studies([tmp_path / "signed", folder])
    page = report.write(tmp_path / "page").read_text()
    assert "finished, unverified" in page
    assert "unverified: the result has no digest by which a change could be seen" in page
    assert "unverified: the result has no digest" in report.text()
    assert report.text().endswith("(plain)")
    configurations = {run.configuration() for run in report.runs}
    assert len(configurations) == 1, "it is compared like the others"

    assert list(add_digests([folder])) == [(folder / "result.json", True)]
    assert list(add_digests([folder])) == [(folder / "result.json", False)]
    assert read_run(folder).state == "finished"
    assert "unverified" not in gather_with_studies([tmp_path / "signed", folder]).text()


def test_a_kept_result_has_its_digest_and_one_that_was_changed_is_named(write: Write, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    shutil.copy(write("run") / "result.json", kept)
    assert read_run(kept).verified
    _flip_kept = kept.read_text().replace('"seed": 0', '"seed": 3')
    kept.write_text(_flip_kept)
    with pytest.raises(Damaged, match=r"kept\.json was changed since it was written"):
        read_run(kept)
    with pytest.raises(Damaged, match=r"kept\.json was changed since it was written"):
        list(add_digests([kept]))
    assert kept.read_text() == _flip_kept


def test_changed_results_do_not_keep_the_others_from_their_digest(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, written = tmp_path / "kept", write("run") / "result.json"
    kept.mkdir()
    paths = [Path(shutil.copy(written, kept / f"{name}.json")) for name in "abc"]
    for path in paths[:2]:
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 3'))
    looked_at = list[tuple[Path, bool]]()
    with pytest.raises(Damaged, match=r"b\.json was changed since it was written"):
        looked_at.extend(add_digests([kept]))
    assert looked_at == [(paths[2], False)]
    assert "a.json was changed since it was written" in caplog.text
    caplog.clear()
    looked_at.clear()
    (tmp_path / "other.json").write_text('{"format": 1}')
    with pytest.raises(Damaged, match=r"b\.json was changed since it was written"):
        looked_at.extend(add_digests([kept, tmp_path / "missing", tmp_path / "other.json", paths[2]]))
    assert looked_at == [(paths[2], False)] * 2
    assert [line.split()[1] for line in sorted(caplog.messages)] == ["was", "does", "holds"], "a.json, missing, other"


@pytest.mark.parametrize("content", ['{"format": 1}', '{"format": 1, "curve": []}', "[1]", "{"])
def test_only_results_get_a_digest(content: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises((UserError, Damaged), match=r"^[^\n]*other\.json[^\n]*$"):
        list(add_digests([tmp_path / "other.json"]))
    assert (tmp_path / "other.json").read_text() == content


def test_a_result_without_figures_is_one_line(write: Write) -> None:
    folder = write("run")
    _replace(folder / "result.json", lambda value: {**value, "average_accuracy": None})
    with pytest.raises(UserError, match="average_accuracy is None"):
        load_result(folder)


@pytest.mark.parametrize(
    "keys", [{"curve": [1]}, {"curve": [None, {}]}, {"average_accuracy": 10**400}, {"seconds": {"total": -(10**400)}}]
)
def test_a_result_of_other_values_is_one_line(keys: dict[str, Any], write: Write) -> None:
    """For `poise resume`, `poise run` and `poise digest`, which read a result without a report around it."""
    folder = write("run")
    _replace(folder / "result.json", lambda value: {**value, **keys})
    for read in (load_result, lambda path: list(add_digests([path]))):
        with pytest.raises(UserError, match=r"^[^\n]*result\.json holds [^\n]*$"):
            read(folder)
