"""The page: one HTML file with everything in it, made from runs, tables and figures."""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

import numpy as np

from poise import __version__
from poise.actions import Action
from poise.report import series
from poise.report.comparison import comparisons, state
from poise.report.costs import machine_name
from poise.report.exhibits import Exhibit, Panel, class_chart, exhibits, forest, reward_chart
from poise.report.rows import Stream
from poise.report.runs import LABELS, Broken, Phase, Run
from poise.report.sheet import Column, Sheet, signed
from poise.report.statistics import ENOUGH

GENERATOR: Final = f"poise {__version__}"
#: With more runs than this their sections have no charts of their own, so that the page stays light.
CHARTED: Final = 60


#: How their authors write them.
NAMES: Final = {
    **{name: name.upper() for name in ("lucir", "rmm", "der", "foster")},
    **{"icarl": "iCaRL", "lwf": "LwF", "podnet": "PODNet", "aanets": "AANets"},
}


@dataclass(frozen=True)
class Drawn:
    """A figure that was drawn for print.

    `svg` is its data address, empty where it would make the page heavy; `only` says that the page has none like it.
    """

    name: str
    title: str
    caption: str
    svg: str = ""
    only: bool = False


@dataclass(frozen=True)
class Contents:
    """What a page shows."""

    runs: Sequence[Run]
    broken: Sequence[Broken] = ()
    tables: Sequence[Sheet] = ()  # the first of them is that of all runs
    texts: Sequence[tuple[str, str]] = ()
    figures: Sequence[Drawn] = ()
    links: Mapping[str, str] = field(default_factory=dict)  # from a run's name to its folder, as the page sees it
    title: str = ""


def make_page(contents: Contents, shown: Sequence[Exhibit] | None = None, refresh: int | None = None) -> str:
    """The page's text. With `refresh` the browser reads it again after so many seconds."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    runs = contents.runs
    files = resources.files("poise.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["groupby_runs"] = _groups
    text = environment.from_string((files / "page.html").read_text(encoding="utf-8"))
    return text.render(
        title=contents.title or _title(runs),
        generator=GENERATOR,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        refresh=refresh,
        style=Markup((files / "page.css").read_text(encoding="utf-8")),
        script=Markup((files / "page.js").read_text(encoding="utf-8")),
        summary=_summary(runs, contents.broken),
        forest=Markup(forest(runs)),
        enough=ENOUGH,
        listing=contents.tables[0] if contents.tables else None,
        tables=contents.tables[1:],
        texts=contents.texts,
        exhibits=exhibits(runs) if shown is None else shown,
        figures=contents.figures,
        runs=[_section(run, contents.links.get(run.name, ""), len(runs) <= CHARTED) for run in runs],
        broken=contents.broken,
        anchors=anchors(runs),
        seeds={run.name: run.seed for run in runs},
    ).lstrip()


def anchors(runs: Sequence[Run]) -> dict[str, str]:
    """An address on the page for every run."""
    found: dict[str, str] = {}
    for run in runs:
        plain = f"run-{re.sub(r'[^A-Za-z0-9_.-]+', '-', run.name)}"
        free = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        found[run.name] = next(name for name in free if name not in found.values())
    return found


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    return [(group, len(list(inside))) for group, inside in itertools.groupby(columns, lambda column: column.group)]


# The first screen -----------------------------------------------------------------------------------------------------


def _title(runs: Sequence[Run]) -> str:
    if not runs:
        return "Nothing to report"
    methods = sorted(
        {" + ".join(NAMES.get(part, part) for part in run.method.split("+")) for run in runs}, key=str.lower
    )
    return f"{_list(methods)} on {_list(sorted({run.data for run in runs}))}"


def _summary(runs: Sequence[Run], broken: Sequence[Broken]) -> dict[str, Any]:
    done = sum(run.finished for run in runs)
    going = len(runs) - done
    what = f"{_count(len(runs), 'run')}: {done} finished" + (f", {going} not finished yet" if going else "")
    what += f"; {_count(len(broken), 'folder')} could not be read" if broken else ""
    marks = {mark for run in runs for mark in run.labels}
    return {
        "what": f"{what}.",
        "facts": list(_facts(runs)),
        "verdict": _verdict(runs),
        "warnings": [line for word, line in LABELS.values() if word in marks],
    }


def _facts(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    if runs:
        yield "methods", _list(sorted({run.method for run in runs}))
        yield "data, exam", _list(sorted({f"{run.data} ({run.exam})" for run in runs}))
        yield "settings", _list([str(stream) for stream in sorted({Stream.of(run) for run in runs})])
        yield "policies", _list(sorted({run.policy_label for run in runs}))
        yield "seeds", _list([str(seed) for seed in sorted({run.seed for run in runs})])
        machines = sorted({machine_name(run) for run in runs if run.machine})
        yield "machine", _list(machines) or "not recorded"
        yield "computed in all", _duration(sum(run.seconds.get("total", 0.0) for run in runs))


def _verdict(runs: Sequence[Run]) -> str:
    """How certain the headline is, in a sentence or two."""
    found = comparisons(runs)
    if not found:
        return (
            "No finished run with a policy has a counterpart without one (same method, data, setting and seed), "
            "so nothing is compared here."
        )
    counts = {
        word: sum(each.difference.verdict() == word for each in found) for word in ("gain", "loss", "open", "few")
    }
    parts = [
        (counts["gain"], "a gain whose 95 % interval excludes zero"),
        (counts["loss"], "a loss whose interval excludes zero"),
        (counts["open"], "no certain difference: the interval includes zero"),
        (counts["few"], f"fewer than {ENOUGH} paired seeds, too few to tell"),
    ]
    words = "; ".join(f"{count} with {text}" for count, text in parts if count)
    best = max(found, key=lambda each: each.difference.mean)
    return (
        f"{_count(len(found), 'comparison')} of a policy with the method's own hyperparameters: {words}. "
        f"The largest difference is {signed(best.difference.mean)} points ({best.row.label}, {best.stream}, "
        f"{_count(best.difference.count, 'paired seed')})."
    )


# A run's own section --------------------------------------------------------------------------------------------------


def _section(run: Run, folder: str, charted: bool) -> dict[str, Any]:
    return {
        "run": run,
        "name": run.name,
        "words": f"{run.method}, {run.policy_label}, {run.data}, {Stream.of(run)}, seed {run.seed}",
        "state": state(run),
        "marks": [line for word, line in LABELS.values() if word in run.labels],
        "result": list(_result(run)),
        "machine": list(_machine(run)),
        "journal": list(_journal(run, folder)),
        "recipe": list(_flat(run.recipe)),
        "phases": [_phase(phase) for phase in run.phases],
        "charts": list(_charts(run)) if charted else [],
    }


def _result(run: Run) -> Iterator[tuple[str, object]]:
    if run.result is None:
        last = run.last_event
        yield "state", f"{state(run)}, last event: {last.get('event', 'none')} in phase {last.get('phase', '–')}"
        return
    for key in ("average_accuracy", "average_accuracy_after_phase_0", "last_accuracy", "average_forgetting"):
        yield key, run.result.get(key, "–")
    for part, spent in run.seconds.items():
        yield f"seconds.{part}", spent
    yield from _flat(run.result.get("resolved_policy") or {}, "policy.")


def _machine(run: Run) -> Iterator[tuple[str, object]]:
    for key, value in _flat(run.machine):
        if key != "folder":
            yield key, value
    if not run.machine:
        yield "machine.json", "not there"


def _journal(run: Run, folder: str) -> Iterator[tuple[str, object]]:
    from markupsafe import Markup, escape

    yield "folder", Markup(f'<a href="{escape(folder)}">{escape(run.path)}</a>') if folder else str(run.path)
    yield "events", ", ".join(f"{count} {kind}" for kind, count in run.events.items()) or "no journal"
    if run.space is not None:
        axes = " × ".join(f"{axis} {{{', '.join(map(_plain, values))}}}" for axis, values in run.axes.items())
        yield "space", f"{run.space.get('name')}: {axes or 'nothing tuned'}, {run.space.get('actions')} actions"
    if run.trials:
        yield "trials", f"{len(run.trials)}, {sum(trial.epochs for trial in run.trials)} epochs in all"


def _phase(phase: Phase) -> dict[str, Any]:
    figures = [
        (phase.phase, str(phase.phase)),
        (phase.classes, str(phase.classes)),
        *((value, f"{value:.2f}") for value in (phase.accuracy, phase.accuracy_fc, phase.accuracy_ncm)),
        *((count, "–" if count is None else str(count)) for count in (phase.stored, phase.held, phase.budget)),
        (phase.reward, "–" if phase.reward is None else f"{phase.reward:.3f}"),
    ]
    return {"figures": figures, "action": str(Action(**phase.action)) if phase.action else "–"}


def _charts(run: Run) -> Iterator[Panel]:
    if run.trials:
        yield Panel("Reward of every trial", reward_chart(run))
    if bars := class_chart(run):
        yield Panel("Accuracy on each class in the last exam", bars)
    if image := _confusion(run):
        yield Panel("Confusion in the last exam: true classes down, predictions across, in the order they came", image)


def _confusion(run: Run) -> str:
    """The matrix as a small image, rows as shares of their class."""
    found = series.confusion(run)
    if not found:
        return ""
    from PIL import Image

    size = len(run.phases[-1].labels)
    matrix = np.zeros((size, size))
    for row in found:
        matrix[int(row["true"] or 0), int(row["predicted"] or 0)] = row["images"]
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    grey = np.round(255 * (1 - np.sqrt(shares))).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(grey).save(out, "PNG", optimize=True)
    return f'<img class="confusion" alt="confusion matrix" src="{data_address(out.getvalue(), "image/png")}">'


def data_address(content: bytes, kind: str) -> str:
    """Bytes as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


# ----------------------------------------------------------------------------------------------------------------------


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value not in (None, {}, []):
            yield f"{prefix}{key}", _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_plain, value))
    return str(value)


def _list(words: Sequence[str], most: int = 8) -> str:
    shown = list(words[:most]) + ([f"{len(words) - most} more"] if len(words) > most else [])
    return ", ".join(shown)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
